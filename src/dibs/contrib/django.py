"""A Django management command with one owner: one runs at a time, on all machines.

class Command(OneOwnerCommand):
    job_name = "import {feed}"             # of the command's options; without it, the command's name

    def handle(self, *args, **options):
        for page in pages(start=self.previous_checkpoint):
            self.claim.check()             # LeaseLost: the job is somebody else's, stop
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dibs.base.errors import DibsError, JobDone, JobHeld, LeaseLost
from dibs.contrib.one_owner import OneOwner, entered, filled
from dibs.core.durations import Duration
from dibs.wire.codes import LOST, row_of_error


class OneOwnerCommand(OneOwner, BaseCommand):
    """A command whose job cannot be claimed ends with the exit code that `dibs run` has for the reason: 1 held, 4 done,
    20 lost while it ran, 69 no store."""

    job_name: str | None = None  # a template of the options; None: the command's name
    wait: Duration | None = None  # how long to wait in line
    skip = False  # end with 0 if the job is held or done

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            with ExitStack() as stack:
                try:
                    template = self.job_name or f"manage.py {self.__module__.rpartition('.')[2]}"
                    claim = stack.enter_context(entered(self._claim_on(filled(template, options), wait=self.wait)))
                except DibsError as refusal:
                    if self.skip and isinstance(refusal, JobHeld | JobDone):
                        return None
                    raise CommandError(refusal.details, returncode=row_of_error(refusal).exit) from None
                output: str | None = super().execute(*args, **options)
                self._succeeded(claim)
                return output
        except LeaseLost as lost:
            raise CommandError(lost.details, returncode=LOST) from lost
