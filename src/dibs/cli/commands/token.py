"""token create, list, rotate, revoke, limit, import, show: tokens of a store, directly or through a server. With
--tokens, create, list and revoke are about a tokens file. Both keep hashes; a token is shown once."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager

from dibs.base.cheap import Iterator
from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.base.files import forget_drafts, replace_file, to_disk, token_path
from dibs.base.ids import new_secret
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import flag_of, is_number, number_for
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import WIDE, Argument, Command, Option
from dibs.cli.text.listing import sheet
from dibs.client.settings import read_token
from dibs.core.caller_rights import AGENT, ROLES
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import ROTATION_GRACE_MS_DEFAULT, TOKENS_FILE_BYTES_MAX
from dibs.core.names import check_namespace, check_principal
from dibs.wire.codes import NO
from dibs.wire.credentials import TokenLine, digest_of, parse_lines
from dibs.wire.fields import NUMBERS
from dibs.wire.parts import timestamp

# What is said about tokens. Pure. A token itself is in the answer to whoever had it made, and nowhere else.

_ONCE = "Its token, shown this once:"


def _who(body: Document) -> str:
    parts = [plain(body["role"])]
    if body["namespace"]:
        parts.append(f"namespace {plain(body['namespace'])}")
    if body["expires_at"]:
        parts.append(f"until {plain(body['expires_at'][:16])}Z")
    parts += [limits] if (limits := _limits(body)) != "none" else []
    return f"{plain(body['name'])} ({', '.join(parts)})"


def _end(entry: Document) -> str:
    if entry.get("revoked_at"):
        return f"revoked {plain(entry['revoked_at'][:16])}Z"
    if entry["expires_at"] is None:
        return "never"
    is_over = entry.get("expired") or not entry.get("valid", True)
    return f"{plain(entry['expires_at'][:16])}Z" + (", over" if is_over else "")


def _limits(entry: Document) -> str:
    words = {"max_held": "held", "max_waiting": "waiting", "max_sessions": "sessions"}
    parts = [f"{word} {entry[field]}" for field, word in words.items() if entry.get(field)]
    if entry.get("rate_per_second"):
        parts.append(f"{entry['rate_per_second']}/s")
    if entry.get("max_hold_seconds"):
        parts.append(f"{format_duration(entry['max_hold_seconds'] * 1000)} each")
    return ", ".join(parts) or "none"


def _sheet(call: Call, entries: list[Document], heads: tuple[str, ...]) -> str:
    rows = [heads]
    for entry in entries:
        cells = {head: plain(entry[head.lower()]) for head in ("NAME", "ROLE", "ID")}
        cells |= {"NAMESPACE": plain(entry["namespace"] or "any"), "EXPIRES": _end(entry), "LIMITS": _limits(entry)}
        cells["KEPT AS"] = "the token itself" if entry.get("clear") else "hash"
        rows.append(tuple([cells[head] for head in heads]))
    return "\n".join(sheet(rows, call.paint, call.width, LEAST, LEAVES))


# How a list of tokens fits a narrow terminal.
LEAST = {"LIMITS": 8, "NAMESPACE": 8, "NAME": 10}
LEAVES = ("KEPT AS", "LIMITS", "ID", "NAMESPACE", "EXPIRES")


def create(call: Call) -> Answer:
    if "tokens" in call.values:  # only the flag: a variable for `dibs serve` must not say where a new token is kept
        return _create_in_file(call, call.values["tokens"])
    # Only the flag: a namespace in the environment must not restrict a token by accident.
    document: Document = {"name": call.values["name"], **_token_limits(call)}
    document |= {key: call.values[key] for key in ("role", "namespace") if call.values.get(key) is not None}
    document |= _seconds(call, "expires", "lifetime of a token")
    body = call.body("token-create", "", document)
    return yes(body, f"Made a token for {_who(body)}.\n{_ONCE}\n{plain(body['token'])}", quiet=plain(body["token"]))


def list_(call: Call) -> Answer:
    if _is_about_file(call):
        return _list_file(call)
    body = call.body("tokens")
    if not body["tokens"]:
        return yes(body, "The store holds no token. Make one with: dibs token create NAME")
    names = "\n".join([plain(entry["name"]) for entry in body["tokens"] if entry["valid"]])
    text = _sheet(call, body["tokens"], ("NAME", "ROLE", "NAMESPACE", "EXPIRES", "LIMITS", "ID"))
    return yes(body, text, quiet=names)


def rotate(call: Call) -> Answer:
    document = _seconds(call, "expires", "lifetime of a token") | _seconds(call, "grace", "grace", least=0)
    body = call.body("token-rotate", call.values["name"], document | _which(call))
    grace = body["replaces"]["grace_seconds"]
    old = f"goes on for {format_duration(grace * 1000)}" if grace else "is over"
    first = f"Made a token for {_who(body)}. The old one ({plain(body['replaces']['id'])}) {old}."
    return yes(body, f"{first}\n{_ONCE}\n{plain(body['token'])}", quiet=plain(body["token"]))


def revoke(call: Call) -> Answer:
    if _is_about_file(call):
        return _revoke_in_file(call)
    body = call.body("token-revoke", call.values["name"], _which(call))
    count = f"{len(body['revoked'])} tokens" if len(body["revoked"]) > 1 else "the token"
    name = plain(body["revoked"][0]["name"])
    return yes(body, f"{call.paint.good('Revoked')} {count} of {name}. What it holds runs out by its TTL.")


def limit(call: Call) -> Answer:
    document = _token_limits(call)
    if not document:
        raise UsageError("Which limit? Give --max-held, --max-waiting, --max-sessions, --max-hold or --rate.")
    body = call.body("token-limit", call.values["name"], document | _which(call))
    first = body["tokens"][0]
    return yes(body, f"{plain(first['name'])}: {_limits(first)}. What is held already stays.")


def import_(call: Call) -> Answer:
    """Import one hash at a time. The tokens themselves are not sent. A repeated import changes nothing."""
    path = tokens_file(call)
    now_ms = wall_ms()
    tokens: list[Document] = []
    for _, line in read_lines(path):
        if line is None or (line.expires_ms is not None and line.expires_ms <= now_ms):
            continue
        document: Document = {"name": line.name, "role": line.role, "sha256": line.digest}
        if line.namespace is not None:
            document["namespace"] = line.namespace
        if line.expires_ms is not None:
            document["expires_seconds"] = max((line.expires_ms - now_ms) // 1000, 1)
        tokens.append(call.body("token-create", "", document))
    count = f"{len(tokens)} tokens" if len(tokens) != 1 else "1 token"
    text = (
        f"{count} of {plain(path)} in the store. Start the servers without --tokens, and put the file away: "
        "a token that is revoked in the store is refused there too."
    )
    return yes({"file": path, "tokens": tokens}, text)


def _is_about_file(call: Call) -> bool:
    """Tell whether the command is about a tokens file: by --tokens, or by DIBS_TOKENS_FILE without a server."""
    if call.values.get("tokens") is not None:
        return True
    is_store_named = call.values.get("url") is not None or call.values.get("context") is not None
    return not is_store_named and call.settings.pick("tokens", "DIBS_TOKENS_FILE") is not None


def _which(call: Call) -> Document:
    return {"id": call.values["id"]} if call.values.get("id") else {}


def _seconds(call: Call, key: str, what: str, *, least: int = 1) -> Document:
    """The time that a flag gives, in whole seconds, rounded up."""
    given = call.values.get(key)
    if given is None:
        return {}
    if given in ("0", "0s") and not least:
        return {f"{key}_seconds": 0}
    return {f"{key}_seconds": -(-parse_duration(given, what) // 1000)}


def _token_limits(call: Call) -> Document:
    document: Document = {}
    for key in ("max_held", "max_waiting", "max_sessions"):
        given = call.values.get(key)
        if given is not None:
            document[key] = _count(key, flag_of(key), given)
    rate = call.values.get("rate")
    if rate is not None:
        document["rate_per_second"] = _count("rate_per_second", "--rate", rate.removesuffix("/s"))
    if call.values.get("max_hold") is not None:
        document["max_hold_seconds"] = number_for(call, "max_hold", "max_hold_seconds")
    return document


def _count(field: str, flag: str, given: str) -> int:
    least, most = NUMBERS[field]
    if not is_number(given, least, most):
        example = "50/s" if flag == "--rate" else "100"
        says = f"takes a whole number such as {example}, {most} at most, or 0 for no limit; not {given!a}."
        raise UsageError(f"{flag} {says}")
    return int(given)


# Tokens of a file.

_ID_CHARS = 12
_SIGHUP = "A running server reads it on SIGHUP."


def _create_in_file(call: Call, path: str) -> Answer:
    limits = [option.flag for option in _LIMIT_OPTIONS if option.key in call.values]
    if limits:
        raise UsageError(f"{limits[0]} is for tokens of a store: a tokens file has no limits. Leave out --tokens.")
    try:
        name = check_principal(call.values["name"])
    except InvalidInput as error:
        raise UsageError(f"NAME: {error.details} This is {call.values['name']!a}.") from None
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
    document = {**_document(made), "token": token, "line": made.text(), "file": path}
    with changing(path):
        _append(path, made.text())
    return yes(document, f"Added {_who(document)} to {plain(path)}. {_SIGHUP}\n{_ONCE}\n{token}", quiet=token)


def _list_file(call: Call) -> Answer:
    path = tokens_file(call)
    entries = [_document(line) for _, line in read_lines(path) if line is not None]
    if not entries:
        return yes({"tokens": []}, f"{plain(path)} holds no token.")
    text = _sheet(call, entries, ("NAME", "ROLE", "NAMESPACE", "EXPIRES", "ID", "KEPT AS"))
    if any(entry["clear"] for entry in entries):
        text += "\nSome tokens are in clear text. Make new ones: dibs token create NAME --tokens FILE"
    return yes({"tokens": entries}, text, quiet="\n".join([entry["name"] for entry in entries]))


def _revoke_in_file(call: Call) -> Answer:
    path, name, wanted = tokens_file(call), call.values["name"], call.values.get("id", "")

    def goes(line: TokenLine) -> bool:
        return line.name == name and line.digest.startswith(wanted)

    gone = [line for _, line in read_lines(path) if line is not None and goes(line)]
    document = {"file": path, "revoked": [_document(line) for line in gone]}
    if not gone:
        message = f"{plain(path)} holds no token of {plain(name)}{' with this id' if wanted else ''}."
        return no(NO, document, message, code="not_found", message=message)
    with changing(path):
        real = os.path.realpath(path)
        kept = [f"{text}\n" for text, line in read_lines(real) if line is None or not goes(line)]
        status = os.stat(real)
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        replace_file(real, "".join(kept), owner=owner, durable=True)  # as a whole: a server never reads half of it
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
        raise UsageError("Which file? Give --tokens FILE, as to dibs serve, or set DIBS_TOKENS_FILE.")
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
    return [(text, line) for _, text, line in parse_lines(path, content)]


@contextmanager
def changing(path: str) -> Iterator[None]:
    """Keep other changes of the file out. The lock is on the folder, because the file is replaced."""
    try:
        turn = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            forget_drafts(os.path.realpath(path))
            yield
        finally:
            os.close(turn)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from None


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

_NAME = Argument("NAME", "the token's name: the principal in the history")
_ID = Option("--id ID", "only the token whose hash begins with this, as `token list` shows it")
_LIMIT_OPTIONS = (
    Option("--max-held N", "how many jobs it may hold or wait for (default: no limit)"),
    Option("--max-waiting N", "how many places in line it may have (default: no limit)"),
    Option("--max-sessions N", "how many sessions it may have open (default: no limit)"),
    Option("--rate N/s", "how many requests it may send to each server, as in 50/s (default: no limit)"),
    Option("--max-hold TIME", "how long each claim of it may last, whatever is renewed; 0 for no limit (the default)"),
)
_BAD = ((64, "invalid name, time or limit, or a file that cannot be written"),)
_UNKNOWN = ((2, "there is no such valid token"),)
_NOT_ADMIN = ((77, "over HTTP only: your token is not an admin's"),)

COMMANDS = {
    "token create": Command(
        create,
        _NAME,
        Option("--role ROLE", "what it may do (default agent)", choices=ROLES),
        Option("--expires TIME", "how long it is valid, as in 30d (default: until revoked)"),
        *_LIMIT_OPTIONS,
        Option("--tokens FILE", "add it to this tokens file, not to the store", completes="file"),
        about=(
            "The token is shown this once; the store keeps its hash. All its servers accept the token "
            "within a second. With --tokens a tokens file keeps it, without limits; a new file is readable only by "
            "you, and a server reads it again on SIGHUP. --url names the store, if you may write to it, or a server, "
            "which needs an admin's token. Viewers look; agents claim, heartbeat and release; operators may also "
            "break, free, close and set pools; admins may do all."
        ),
        examples=(
            ("dibs token create ops --role admin --url sqlite:dibs.db", "the first one, on the store itself"),
            ("dibs token create acme-ci --namespace acme --expires 30d", "one that only sees one project"),
            ("dibs token create visitor --max-held 10 --rate 20/s", "one that cannot take everything"),
            ("dibs token create ci --tokens /etc/dibs/tokens", "in a tokens file"),
        ),
        exits=(
            (0, "made"),
            *_BAD,
            *_NOT_ADMIN,
        ),
    ),
    "token list": Command(
        list_,
        TOKENS,
        WIDE,
        about="Shows name, role, namespace, limits, expiry and the beginning of the hash, never a token.",
        examples=(
            ("dibs token list", "which tokens are valid"),
            ("dibs token list --tokens /etc/dibs/tokens", "of a tokens file"),
        ),
        exits=(
            (0, "listed"),
            (64, "the file cannot be read"),
            *_NOT_ADMIN,
        ),
    ),
    "token rotate": Command(
        rotate,
        _NAME,
        _ID,
        Option(
            "--grace TIME",
            f"how long the old one stays valid (default {ROTATION_GRACE_MS_DEFAULT // 60_000}m, 0 ends it at once)",
        ),
        Option("--expires TIME", "how long it is valid, as in 30d"),
        about=(
            "The new token has the name, role, namespace, limits and lifetime of the old one, and may use "
            "its claims. The old one stays valid for --grace."
        ),
        examples=(
            ("dibs token rotate ci", "with time to change over"),
            ("dibs token rotate ci --grace 0", "at once"),
        ),
        exits=(
            (0, "made"),
            *_UNKNOWN,
            (64, "there are several; say which with --id"),
            *_NOT_ADMIN,
        ),
    ),
    "token revoke": Command(
        revoke,
        Argument("NAME", "whose tokens"),
        TOKENS,
        _ID,
        about=(
            "Revokes all tokens of NAME, or the one with --id. Every server on the store refuses them "
            "within two seconds, usually 0.2 s. Their leases expire by their TTL. With --tokens it deletes "
            "lines of a tokens file; a server reads the file again on SIGHUP."
        ),
        examples=(
            ("dibs token revoke ci", "somebody left"),
            ("dibs token revoke ci --tokens /etc/dibs/tokens", "in a tokens file"),
        ),
        exits=(
            (0, "revoked"),
            (1, "the file has none"),
            *_UNKNOWN,
            (64, "the file cannot be changed"),
            *_NOT_ADMIN,
        ),
    ),
    "token limit": Command(
        limit,
        _NAME,
        _ID,
        *_LIMIT_OPTIONS,
        about=(
            "Limits that are not named stay unchanged; 0 removes a limit. Nothing is taken away: a holder "
            "above a limit gets nothing new."
        ),
        examples=(("dibs token limit ci --max-held 100 --max-waiting 20", "fewer jobs for one"),),
        exits=(
            (0, "changed"),
            *_UNKNOWN,
            *_BAD,
            *_NOT_ADMIN,
        ),
    ),
    "token import": Command(
        import_,
        TOKENS,
        about=(
            "It sends only hashes. The tokens stay valid; expired lines are left out. A repeated import "
            "changes nothing. After it, start the servers without --tokens."
        ),
        examples=(("dibs token import --tokens /etc/dibs/tokens --url sqlite:///var/lib/dibs/dibs.db", "move"),),
        exits=(
            (0, "imported"),
            (64, "the file cannot be read"),
            *_NOT_ADMIN,
        ),
    ),
    "token show": Command(
        show,
        about=(
            "The token that your first `dibs serve` made for you, to log in at its page in a browser. Other "
            "tokens are kept as hashes and cannot be shown."
        ),
        examples=(("dibs token show", "to log in at http://127.0.0.1:3427"),),
        exits=(
            (0, "printed"),
            (64, "there is none yet, or the file cannot be read"),
        ),
    ),
}
