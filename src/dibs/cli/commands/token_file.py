"""token new and show, and list and revoke of a tokens file. The file has hashes; a token is shown once."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, InvalidName
from dibs.base.files import replace_file, to_disk, token_path
from dibs.base.ids import new_secret
from dibs.base.terminal import plain
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Argument, Command, Option
from dibs.cli.text.listing import sheet
from dibs.client.settings import read_token
from dibs.core.durations import parse_duration
from dibs.core.identity import AGENT, ROLES
from dibs.core.limits import TOKENS_FILE_BYTES_MAX
from dibs.core.names import check_namespace, check_principal
from dibs.wire.codes import NO
from dibs.wire.credentials import TokenLine, digest_of, is_entry, parse_line
from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.cli.framework.context import Call, Document


_ID_CHARS = 12
# How a list of tokens fits a narrow terminal.
LEAST = {"LIMITS": 8, "NAMESPACE": 8, "NAME": 10}
LEAVES = ("KEPT AS", "LIMITS", "ID", "NAMESPACE", "EXPIRES")
_SIGHUP = "A running server reads it on SIGHUP."


def new(call: Call) -> Answer:
    try:
        name = check_principal(call.values["name"])
    except InvalidInput as error:
        raise UsageError(f"NAME: {error.details} This is {call.values['name']!a}.", "token new") from None
    # Only the flag: a namespace in the environment must not restrict a token by accident.
    namespace = call.values.get("namespace")
    age = call.values.get("expires")
    token = new_secret()
    made = TokenLine(
        name=name,
        digest=digest_of(token),
        role=call.values.get("role", AGENT),
        namespace=None if namespace is None else check_namespace(namespace),
        expires_ms=None if age is None else wall_ms() + parse_duration(age, "lifetime of a token"),
    )
    path = call.values.get("append")
    document = {**_document(made), "token": token, "line": made.text(), "file": path}
    if path is None:
        text = f"The token of {name}, shown this once:\n{token}\nThe line for the tokens file:\n{made.text()}"
        return yes(document, text, quiet=f"{token}\t{made.text()}")
    with changing(path):
        _append(path, made.text())
    until = f", until {timestamp(made.expires_ms)[:16]}Z" if made.expires_ms is not None else ""
    text = (
        f"Added {name} ({made.role}{f', namespace {namespace}' if namespace else ''}{until}) to {plain(path)}. "
        f"{_SIGHUP}\nIts token, shown this once:\n{token}"
    )
    return yes(document, text, quiet=token)


def list_file(call: Call) -> Answer:
    path = tokens_file(call)
    entries = [_document(line) for _, line in read_lines(path) if line is not None]
    if not entries:
        return yes({"tokens": []}, f"{plain(path)} holds no token.")
    rows = [("NAME", "ROLE", "NAMESPACE", "EXPIRES", "ID", "KEPT AS")]
    for entry in entries:
        ends = "never" if entry["expires_at"] is None else entry["expires_at"][:16] + "Z"
        ends = f"{ends}, over" if entry["expired"] else ends
        kept = "the token itself" if entry["clear"] else "hash"
        rows.append((entry["name"], entry["role"], entry["namespace"] or "any", ends, entry["id"], kept))
    lines = sheet(rows, call.paint, call.width, LEAST, LEAVES)
    if any(entry["clear"] for entry in entries):
        lines.append("Some tokens are in clear text. Make new ones: dibs token new")
    quiet = "\n".join([entry["name"] for entry in entries])
    return yes({"tokens": entries}, "\n".join(lines), quiet=quiet)


def revoke_in_file(call: Call) -> Answer:
    path, name, wanted = tokens_file(call), call.values["name"], call.values.get("id", "")

    def goes(line: TokenLine) -> bool:
        return line.name == name and line.digest.startswith(wanted)

    gone = [line for _, line in read_lines(path) if line is not None and goes(line)]
    document = {"file": path, "revoked": [_document(line) for line in gone]}
    if not gone:
        message = f"{plain(path)} holds no token of {plain(name)}{' with this id' if wanted else ''}."
        return no(NO, document, message, code="not_found", message=message)
    with changing(path):
        _rewrite(path, lambda line: not goes(line))
    count = f"{len(gone)} tokens" if len(gone) > 1 else "the token"
    return yes(document, f"{call.paint.good('Revoked')} {count} of {plain(name)} in {plain(path)}. {_SIGHUP}")


def show(call: Call) -> Answer:
    path = token_path(call.settings.env)
    if not os.path.exists(path):
        raise InvalidInput("You have no token of your own yet. Your first dibs serve makes one.")
    token = plain(read_token(path))
    return yes({"file": path, "token": token}, token, quiet=token)


def _document(line: TokenLine) -> Document:
    ends_ms = line.expires_ms
    return {
        "name": line.name,
        "role": line.role,
        "namespace": line.namespace,
        "expires_at": None if ends_ms is None else timestamp(ends_ms),
        "expired": ends_ms is not None and wall_ms() >= ends_ms,
        "id": line.digest[:_ID_CHARS],
        "clear": line.is_clear,
    }


def tokens_file(call: Call) -> str:
    path = call.settings.pick("tokens", "DIBS_TOKENS_FILE")
    if path is None:
        raise UsageError("Which file? Give --tokens FILE, as to dibs serve, or set DIBS_TOKENS_FILE.", call.command)
    return path


def read_lines(path: str) -> list[tuple[str, TokenLine | None]]:
    """Each line's text, and its token entry, if it has one."""
    try:
        with open(path, "rb") as file:
            content = file.read(TOKENS_FILE_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InvalidInput(f"{path} cannot be read ({why}).") from None
    if len(content) > TOKENS_FILE_BYTES_MAX:
        raise InvalidInput(f"{path} is larger than {TOKENS_FILE_BYTES_MAX} bytes.")
    found: list[tuple[str, TokenLine | None]] = []
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            found.append((text, parse_line(text) if is_entry(text) else None))
        except (InvalidInput, InvalidName) as error:
            raise InvalidInput(f"{path}, line {number}: {error.details}") from None
    return found


@contextmanager
def changing(path: str) -> Iterator[None]:
    """Keep other changes of the file out: two at once would undo each other. The lock is on the folder, because the
    file is replaced."""
    try:
        turn = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield
        finally:
            os.close(turn)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from None


def _rewrite(path: str, is_kept: Callable[[TokenLine], bool]) -> None:
    """Replace the file as a whole, so that a server never reads half of it."""
    path = os.path.realpath(path)
    kept = [text for text, line in read_lines(path) if line is None or is_kept(line)]
    status = os.stat(path)
    owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
    replace_file(path, "".join([f"{text}\n" for text in kept]), owner=owner, durable=True)


def _append(path: str, line: str) -> None:
    """Add a line to a file that only its owner can read. Create the file if it is missing."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(handle, "r+b", buffering=0) as file:
        if os.fstat(handle).st_mode & 0o077:
            raise InvalidInput(f"{path} can be read by others; a server would refuse it. Run: chmod 600 {path}")
        size = os.fstat(handle).st_size
        joint = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
        file.write(joint + line.encode() + b"\n")
        to_disk(handle)


TOKENS = Option("--tokens FILE", "the tokens file, as for dibs serve", env="DIBS_TOKENS_FILE", completes="file")

COMMANDS = {
    "token new": Command(
        new,
        about="The file that `dibs serve --tokens` reads gets a hash. The token itself is shown this once and stored "
        "nowhere. Viewers look; agents claim, heartbeat and release; operators may also break; admins may do all.",
        arguments=(Argument("NAME", "the token's name: the principal in the history"),),
        options=(
            Option("--role ROLE", "what it may do (default agent)", choices=ROLES),
            Option("--expires TIME", "how long it is valid, as in 30d (default: until revoked)"),
            Option("--append FILE", "add the line to this file; a new file is readable only by you", completes="file"),
        ),
        examples=(
            ("a first token", "dibs token new ci --append tokens"),
            ("one that only sees one project", "dibs token new acme-ci --namespace acme --append tokens"),
            ("one for a month", "dibs token new visitor --expires 30d --append tokens"),
        ),
        exits=((0, "made"), (64, "invalid name, or the file cannot be written")),
    ),
    "token show": Command(
        show,
        about="The token that your first `dibs serve` made for you, to log in at its page in a browser. Other tokens "
        "are kept as hashes and cannot be shown.",
        examples=(("to log in at http://127.0.0.1:3427", "dibs token show"),),
        exits=((0, "printed"), (64, "there is none yet, or the file cannot be read")),
    ),
}
