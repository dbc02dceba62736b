"""name: show the one name of a job, and why."""

from __future__ import annotations

from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import Argument, Command
from dibs.cli.git.job_names import names_here
from dibs.cli.text.words import plain
from dibs.core.names import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer


def name(call: Call) -> Answer:
    found = names_here(call).explained(call.values["job"])
    one = check_name(found.name)
    document = {"name": one, "given": found.given, "why": found.why}
    return yes(document, f"{plain(one)}\n  {plain(found.why)}", quiet=plain(one))


COMMANDS = {
    "name": Command(
        "name",
        name,
        about=(
            "An issue or a file can be written in several ways: as an address, as acme/app#42, as #42 inside the "
            "clone, as a relative path. All commands take it by one name, which this command prints. A name in "
            "no known form stays as it is. With --exact every command takes names as they are written. Asks no "
            "store and no network."
        ),
        arguments=(Argument("JOB", "the job, as you would write it in a claim", completes="job"),),
        examples=(
            ("an issue by its address", "dibs name https://github.com/Acme/App/issues/42"),
            ("an issue of this clone", "dibs name '#42'"),
            ("a file", "dibs name ./auth.rs"),
        ),
        exits=((0, "the name is printed"),),
    ),
}
