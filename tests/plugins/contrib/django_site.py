"""A Django project of one module, with one command: `python -m tests.plugins.contrib.django_site import_feed NAME`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from dibs.contrib.django import OneOwnerCommand
from tests.programs import pause


class ImportFeed(OneOwnerCommand):
    job_name: str | None = "import {feed}"
    ttl = 3  # longer than a machine stands still
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("feed")
        parser.add_argument("--hang")
        parser.add_argument("--error", action="store_true")

    def handle(self, *args: Any, **options: Any) -> str:
        begun = f"begins at {self.previous_checkpoint}, attempt {self.claim.attempt}"
        self.claim.checkpoint("page 7")
        if options["error"]:
            raise ValueError("a secret")
        if options["hang"]:
            Path(options["hang"]).write_text(begun)
            while not self.claim.lost.wait(0.02):
                pause(0.02)
        return begun


class DoneOnce(ImportFeed):
    done = "1h"


class Skipping(ImportFeed):
    skip = True


class Waiting(ImportFeed):
    wait = 20


class Named(ImportFeed):
    job_name = None
    __module__ = "site.management.commands.rebuild_index"  # where Django looks for commands


COMMANDS = {
    "import_feed": ImportFeed,
    "done_once": DoneOnce,
    "skipping": Skipping,
    "waiting": Waiting,
    "named": Named,
}


def main() -> None:
    settings.configure()
    django.setup()
    name, *words = sys.argv[1:]
    command = COMMANDS[name](stdout=None)
    command.run_from_argv(["manage.py", name, *words])


if __name__ == "__main__":
    main()
