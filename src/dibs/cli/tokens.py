"""token new: a fresh bearer token, as a line for the server's tokens file."""

from __future__ import annotations

import os

from dibs.cli.answer import yes
from dibs.cli.parse import UsageError
from dibs.cli.spec import Argument, Command, Option
from dibs.core.names import check_namespace, check_principal
from dibs.errors import InvalidInput
from dibs.ids import new_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.answer import Answer
    from dibs.cli.call import Call

ROLES = ("agent", "operator", "admin")


def new(call: Call) -> Answer:
    try:
        name = check_principal(call.values["name"])
    except InvalidInput as error:
        raise UsageError(f"NAME: {error.details} This is {call.values['name']!a}.", "token new") from None
    role = call.values.get("role", ROLES[0])
    # Only the flag: a namespace that happens to be in the environment must not narrow a token unasked.
    namespace = call.values.get("namespace")
    token = new_secret()
    line = f"{name}:{token}:{role}"
    if namespace is not None:
        line += f":{check_namespace(namespace)}"
    path = call.values.get("append")
    document = {
        "name": name,
        "role": role,
        "namespace": namespace,
        "token": token,
        "line": line,
        "file": path,
    }
    if path is None:
        return yes(document, line, quiet=line)
    _append(path, line)
    text = (
        f"Added {name} ({role}{f', namespace {namespace}' if namespace else ''}) to {path}. "
        f"A running server reads it on SIGHUP.\nIts token, shown this once:\n{token}"
    )
    return yes(document, text, quiet=token)


def _append(path: str, line: str) -> None:
    """Add a line to a file that only its owner can read; make it if it is not there."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(handle, "r+b", buffering=0) as file:
            if os.fstat(handle).st_mode & 0o077:
                raise InvalidInput(
                    f"{path} can be read by others; a server would refuse it. Run: chmod 600 {path}"
                )
            size = os.fstat(handle).st_size
            joint = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
            file.write(joint + line.encode() + b"\n")
            os.fsync(handle)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from None


COMMANDS = {
    "token new": Command(
        "token new",
        "make a bearer token for a tokens file",
        new,
        about=(
            "Prints a line for the file that `dibs serve --tokens` reads. The token is shown this once: the server "
            "keeps only its hash. Agents claim, heartbeat and release; operators may also break; admins may do all."
        ),
        arguments=(Argument("NAME", "whose token it is, as the server's history shows it"),),
        options=(
            Option("--role", "what it may do (default agent)", value="ROLE", choices=ROLES),
            Option(
                "--append",
                "add the line to this file, made for your eyes only",
                value="FILE",
                completes="file",
            ),
        ),
        examples=(
            ("a first token", "dibs token new ci --append tokens"),
            ("one that only sees one project", "dibs token new acme-ci --namespace acme --append tokens"),
        ),
        exits=((0, "made"), (64, "the name cannot be, or the file cannot be written")),
    ),
}
