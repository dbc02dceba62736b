"""next: numbers that nobody else gets."""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import REQUEST_KEY, count, put
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.cli.text.words import plain
from dibs.core.limits import NUMBER_MAX


def take(call: Call) -> Answer:
    name: str = call.values["series"]
    given_back = count(call, "give_back", NUMBER_MAX)
    at_least, number = count(call, "at_least", NUMBER_MAX), count(call, "number", NUMBER_MAX)
    if sum(each is not None for each in (given_back, at_least, number)) > 1:
        raise UsageError("Of --at-least, --number and --give-back, name one.", call.command)
    request_key: str = call.values.get("request_key") or new_id()
    if given_back is not None:
        body = call.body("give-back", name, {"number": given_back, "request_key": request_key})
        said = "Given back:" if body["returned"] else "Nobody had it:"
        return yes(body, f"{call.paint.good(said)} {given_back} of {plain(name)}.", quiet="")
    document: Document = {"owner": _owner(call), "request_key": request_key}
    put(document, "at_least", at_least)
    put(document, "number", number)
    body = call.body("next", name, document)
    return yes(body, str(body["number"]), quiet=str(body["number"]))


def _owner(call: Call) -> str:
    """Return who is shown as the number's owner: in the shell of a coding agent, the agent."""
    from dibs.cli.framework.actor_session import agent_here

    if call.settings.stated_owner is None and (agent := agent_here(call.env, claims=False)) is not None:
        from dibs.cli.framework.actor_session import ActorSession

        return ActorSession.of_agent(call, agent).owner()
    return call.settings.owner


COMMANDS = {
    "next": Command(
        take,
        Argument("SERIES", "the name of the series, such as migrations"),
        Option("--at-least N", "this number or a higher one"),
        Option("--number N", "just this number; refused if somebody has it"),
        Option("--give-back N", "free a number that is not needed after all"),
        Option("--owner NAME", field="acquire.owner", env="DIBS_OWNER", filled=True),
        REQUEST_KEY,
        about=(
            "Prints a number that nobody else gets, whichever work tree or machine asks at the same store: "
            "one after the other, without gaps. The number stays taken when its owner is gone, until it is "
            "given back. `dibs history SERIES` shows who got which. A repeat with the same --request-key "
            "prints the same number; of a --give-back, it frees nothing more."
        ),
        examples=(
            ("dibs next migrations --at-least 436", "the number of a new migration"),
            ("dibs next migrations --give-back 436", "it is not needed"),
        ),
        exits=(
            (0, "the number is on standard output"),
            (1, "with --number: somebody has it; the answer says who, and the next one"),
            (75, "the series is closed"),
            (77, "its access list does not let you, or the number is of somebody else"),
        ),
    ),
}
