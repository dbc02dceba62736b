"""token create, list, rotate, revoke, limit, import: commands on a store's tokens, directly or through a server."""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.base.terminal import plain
from dibs.cli.commands.token_file import LEAST, LEAVES, TOKENS, list_file, read_lines, revoke_in_file, tokens_file
from dibs.cli.framework.flags import flag_of, is_number
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import WIDE, Argument, Command, Option
from dibs.cli.text.listing import sheet
from dibs.core.durations import format_duration, parse_duration
from dibs.core.identity import ROLES
from dibs.core.limits import ROTATION_GRACE_MS_DEFAULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call, Document


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
    if entry["revoked_at"]:
        return f"revoked {plain(entry['revoked_at'][:16])}Z"
    if entry["expires_at"] is None:
        return "never"
    return f"{plain(entry['expires_at'][:16])}Z" + ("" if entry["valid"] else ", over")


def _limits(entry: Document) -> str:
    words = {"max_held": "held", "max_waiting": "waiting", "max_sessions": "sessions"}
    parts = [f"{word} {entry[field]}" for field, word in words.items() if entry[field]]
    if entry["rate_per_second"]:
        parts.append(f"{entry['rate_per_second']}/s")
    return ", ".join(parts) or "none"


_LIMITS = ("max_held", "max_waiting", "max_sessions")
_LIMIT_MAX = 9_999_999


def create(call: Call) -> Answer:
    # Only the flag: a namespace in the environment must not restrict a token by accident.
    flags = ("role", "namespace")
    document: Document = {"name": call.values["name"], **_token_limits(call)}
    document |= {key: call.values[key] for key in flags if call.values.get(key) is not None}
    document |= _seconds(call, "expires", "lifetime of a token")
    body = call.body("token-create", "", document)
    return yes(body, f"Made a token for {_who(body)}.\n{_ONCE}\n{plain(body['token'])}", quiet=plain(body["token"]))


def list_(call: Call) -> Answer:
    if _is_about_file(call):
        return list_file(call)
    body = call.body("tokens")
    if not body["tokens"]:
        return yes(body, "The store holds no token. Make one with: dibs token create NAME")
    rows = [("NAME", "ROLE", "NAMESPACE", "EXPIRES", "LIMITS", "ID")]
    for entry in body["tokens"]:
        name, role, namespace = plain(entry["name"]), plain(entry["role"]), plain(entry["namespace"] or "any")
        rows.append((name, role, namespace, _end(entry), _limits(entry), plain(entry["id"])))
    names = "\n".join([plain(entry["name"]) for entry in body["tokens"] if entry["valid"]])
    return yes(body, "\n".join(sheet(rows, call.paint, call.width, LEAST, LEAVES)), quiet=names)


def rotate(call: Call) -> Answer:
    document = _seconds(call, "expires", "lifetime of a token") | _seconds(call, "grace", "grace", least=0)
    body = call.body("token-rotate", call.values["name"], document | _which(call))
    grace = body["replaces"]["grace_seconds"]
    old = f"goes on for {format_duration(grace * 1000)}" if grace else "is over"
    first = f"Made a token for {_who(body)}. The old one ({plain(body['replaces']['id'])}) {old}."
    return yes(body, f"{first}\n{_ONCE}\n{plain(body['token'])}", quiet=plain(body["token"]))


def revoke(call: Call) -> Answer:
    if _is_about_file(call):
        return revoke_in_file(call)
    body = call.body("token-revoke", call.values["name"], _which(call))
    count = f"{len(body['revoked'])} tokens" if len(body["revoked"]) > 1 else "the token"
    name = plain(body["revoked"][0]["name"])
    return yes(body, f"{call.paint.good('Revoked')} {count} of {name}. What it holds runs out by its TTL.")


def limit(call: Call) -> Answer:
    document = _token_limits(call)
    if not document:
        raise UsageError("Which limit? Give --max-held, --max-waiting, --max-sessions or --rate.", call.command)
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
    """Tell whether the command is about a tokens file: by --tokens, or by DIBS_TOKENS_FILE without --url."""
    if call.values.get("tokens") is not None:
        return True
    return call.values.get("url") is None and call.settings.pick("tokens", "DIBS_TOKENS_FILE") is not None


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
    for key in _LIMITS:
        given = call.values.get(key)
        if given is not None:
            document[key] = _count(call, flag_of(key), given)
    rate = call.values.get("rate")
    if rate is not None:
        document["rate_per_second"] = _count(call, "--rate", rate.removesuffix("/s"))
    return document


def _count(call: Call, flag: str, given: str) -> int:
    if not is_number(given, 0, _LIMIT_MAX):
        example = "50/s" if flag == "--rate" else "100"
        raise UsageError(
            f"{flag} takes a whole number such as {example}, or 0 for no limit; not {given!a}.", call.command
        )
    return int(given)


_NAME = Argument("NAME", "the token's name: the principal in the history")
_ID = Option("--id ID", "only the token whose hash begins with this, as `token list` shows it")
_LIMIT_OPTIONS = (
    Option("--max-held N", "how many jobs it may hold or wait for (default: no limit)"),
    Option("--max-waiting N", "how many places in line it may have (default: no limit)"),
    Option("--max-sessions N", "how many sessions it may have open (default: no limit)"),
    Option("--rate N/s", "how many requests it may send to each server, as in 50/s (default: no limit)"),
)
_EXPIRES = Option("--expires TIME", "how long it is valid, as in 30d")
_BAD = (64, "invalid name, time or limit")
_UNKNOWN = (2, "there is no such valid token")
_NOT_ADMIN = (77, "over HTTP only: your token is not an admin's")

COMMANDS = {
    "token create": Command(
        create,
        about="The token is shown this once; the store keeps its hash. All its servers accept the token within a "
        "second. --url names the store, if you may write to it, or a server, which needs an admin's token. Viewers "
        "look; agents claim, heartbeat and release; operators may also break; admins may do all.",
        arguments=(_NAME,),
        options=(
            Option("--role ROLE", "what it may do (default agent)", choices=ROLES),
            Option("--expires TIME", "how long it is valid, as in 30d (default: until revoked)"),
            *_LIMIT_OPTIONS,
        ),
        examples=(
            ("the first one, on the store itself", "dibs token create ops --role admin --url sqlite:dibs.db"),
            ("one that only sees one project", "dibs token create acme-ci --namespace acme --expires 30d"),
            ("one that cannot take everything", "dibs token create visitor --max-held 10 --rate 20/s"),
        ),
        exits=((0, "made"), _BAD, _NOT_ADMIN),
    ),
    "token list": Command(
        list_,
        about="Shows name, role, namespace, limits, expiry and the beginning of the hash, never a token.",
        options=(TOKENS, WIDE),
        examples=(
            ("which tokens are valid", "dibs token list"),
            ("of a tokens file", "dibs token list --tokens /etc/dibs/tokens"),
        ),
        exits=((0, "listed"), (64, "the file cannot be read"), _NOT_ADMIN),
    ),
    "token rotate": Command(
        rotate,
        about="The new token has the name, role, namespace, limits and lifetime of the old one, and may use its "
        "claims. The old one stays valid for --grace, so that workers can change over.",
        arguments=(_NAME,),
        options=(
            _ID,
            Option(
                "--grace TIME",
                f"how long the old one stays valid (default {ROTATION_GRACE_MS_DEFAULT // 60_000}m, 0 ends it at once)",
            ),
            _EXPIRES,
        ),
        examples=(("with time to change over", "dibs token rotate ci"), ("at once", "dibs token rotate ci --grace 0")),
        exits=((0, "made"), _UNKNOWN, (64, "there are several; say which with --id"), _NOT_ADMIN),
    ),
    "token revoke": Command(
        revoke,
        about="Revokes all tokens of NAME, or the one with --id. Every server on the store refuses them within two "
        "seconds, usually 0.2 s. Their leases expire by their TTL. With --tokens it deletes lines of a tokens file; a "
        "server reads the file again on SIGHUP.",
        arguments=(Argument("NAME", "whose tokens"),),
        options=(TOKENS, _ID),
        examples=(
            ("somebody left", "dibs token revoke ci"),
            ("in a tokens file", "dibs token revoke ci --tokens /etc/dibs/tokens"),
        ),
        exits=((0, "revoked"), (1, "the file has none"), _UNKNOWN, (64, "the file cannot be changed"), _NOT_ADMIN),
    ),
    "token limit": Command(
        limit,
        about="Limits that are not named stay unchanged; 0 removes a limit. Nothing is taken away: a holder above a "
        "limit gets nothing new.",
        arguments=(_NAME,),
        options=(_ID, *_LIMIT_OPTIONS),
        examples=(("fewer jobs for one", "dibs token limit ci --max-held 100 --max-waiting 20"),),
        exits=((0, "changed"), _UNKNOWN, _BAD, _NOT_ADMIN),
    ),
    "token import": Command(
        import_,
        about="It sends only hashes. The tokens stay valid; expired lines are left out. A repeated import changes "
        "nothing. After it, start the servers without --tokens.",
        options=(TOKENS,),
        examples=(("move", "dibs token import --tokens /etc/dibs/tokens --url sqlite:///var/lib/dibs/dibs.db"),),
        exits=((0, "imported"), (64, "the file cannot be read"), _NOT_ADMIN),
    ),
}
