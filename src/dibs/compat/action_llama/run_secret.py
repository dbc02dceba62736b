"""run-secret create, list, end: secrets that identify the runs of agents to `rlock` and the gateway."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.cli.text.words import job_command, plain, table
from dibs.client.embedded import EmbeddedDoor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.client.http import HttpDoor
    from dibs.compat.action_llama.embedded_runs import EmbeddedRuns

    Document = dict[str, Any]


def create(call: Call) -> Answer:
    holder = call.values["holder"]
    document = {"holder": holder}
    secret = call.env.get("SHUTDOWN_SECRET")
    if call.values.get("given"):
        if not secret:
            raise UsageError("--given needs the secret in SHUTDOWN_SECRET, which is not set.", call.command)
        document["secret"] = secret
    reply = _runs(call).open_run(document)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    end = job_command(["run-secret", "end"], [holder])
    text = (
        f"{call.paint.good('Begun')}: the run of {plain(holder)}. Its secret, shown this once:\n"
        f"{plain(body['secret'])}\n"
        f"Give it to the run as SHUTDOWN_SECRET. When the run is over:  {end}"
    )
    return yes(body, text, quiet=plain(body["secret"]))


def list_(call: Call) -> Answer:
    reply = _runs(call).runs()
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    runs = sorted(body["runs"], key=lambda run: (run["holder"], run["since"]))
    rows = [("HOLDER", "SINCE", "LOCKS")]
    rows += [(plain(run["holder"]), run["since"], plain(" ".join(run["locks"])) or "-") for run in runs]
    text = "\n".join(table(rows)) if runs else "There are no active runs."
    return yes(body, text, quiet="\n".join(plain(run["holder"]) for run in runs))


def end(call: Call) -> Answer:
    reply = _runs(call).end_runs(call.values["holder"])
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    freed = ", ".join(plain(name) for name in body["released"]) or "it held nothing"
    return yes(
        body,
        f"{call.paint.good('Ended.')} Freed: {freed}.",
        quiet="\n".join(plain(name) for name in body["released"]),
    )


def _runs(call: Call) -> EmbeddedRuns | HttpDoor:
    door = call.door()
    if isinstance(door, EmbeddedDoor):
        from dibs.compat.action_llama.embedded_runs import EmbeddedRuns

        return EmbeddedRuns(door)
    from dibs.client.http import HttpDoor

    if not isinstance(door, HttpDoor):
        raise InvalidInput("Only a store, or a server that serves the gateway, keeps runs.")
    return door


_ADMIN = (77, "over HTTP only: the token is not an admin's")
_NO_GATEWAY = (2, "the server does not serve the gateway: dibs serve --gateway")
COMMANDS = {
    "run-secret create": Command(
        "run-secret create",
        create,
        about=(
            "A run is one execution of one agent. Its secret identifies it to `rlock` (SHUTDOWN_SECRET) and to "
            "the gateway of `dibs serve --gateway`. The secret is shown this once; dibs keeps a digest. A run "
            "ends with `dibs run-secret end`, or after two days without a request."
        ),
        options=(
            Option(
                "--holder",
                "name of the run, as shown to others, such as dev-1a2b3c4d",
                value="NAME",
                required="holder",
            ),
            Option("--given", "use the secret in SHUTDOWN_SECRET instead of a new one"),
        ),
        examples=(
            (
                "before the agent starts",
                "export SHUTDOWN_SECRET=$(dibs run-secret create -q --holder dev-1a2b3c4d)",
            ),
            ("a secret that a scheduler made", "dibs run-secret create --holder dev-1a2b3c4d --given"),
        ),
        exits=((0, "begun"), _NO_GATEWAY, (64, "invalid holder or secret"), _ADMIN),
    ),
    "run-secret list": Command(
        "run-secret list",
        list_,
        about="Shows the holder, the start and the locks of each run, and no secrets. --quiet prints the holders only.",
        examples=(("which runs are active", "dibs run-secret list"),),
        exits=((0, "the list, which may be empty"), _NO_GATEWAY, _ADMIN),
    ),
    "run-secret end": Command(
        "run-secret end",
        end,
        about="Its secret is invalid from then on. If several runs have the same holder, all of them end.",
        arguments=(Argument("HOLDER", "the holder given to run-secret create"),),
        examples=(("when the agent has ended", "dibs run-secret end dev-1a2b3c4d"),),
        exits=((0, "ended"), (2, "there is no such run, or the server does not serve the gateway"), _ADMIN),
    ),
}
