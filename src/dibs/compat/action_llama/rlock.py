"""`rlock`, `runlock`, `rlock-heartbeat`: Action Llama's lock commands, on its gateway or ours, or on dibs itself.

One key in, one line of JSON out, an exit code that says the same. With GATEWAY_URL they show SHUTDOWN_SECRET to that
gateway; with DIBS_URL, or nothing, they ask dibs. Who they are there is a session (DIBS_SESSION), a run
(SHUTDOWN_SECRET), or nobody in particular (`compat/action_llama/callers.py`).
"""

from __future__ import annotations

import gc
import os
import sys

from dibs.cli.supervise.unconfirmed import UnconfirmedClaims
from dibs.compat.action_llama.protocol import Rejected, acquired, check_key, heartbeat, refusal, release
from dibs.errors import DibsError, InvalidInput
from dibs.generators import run_generator
from dibs.jsontext import encode_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TextIO

    from dibs.cli.framework.context import Opener
    from dibs.client.door import Door
    from dibs.client.settings import Settings
    from dibs.compat.action_llama.callers import Callers
    from dibs.compat.action_llama.protocol import Asking, Said
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

USAGE_EXIT = 9
OTHER_EXIT = 7
UNREACHABLE = 599  # no HTTP status: no answer came
EXITS = {200: 0, 409: 1, 404: 2, 403: 3, 400: 4, 503: 5, UNREACHABLE: 6, 502: 10, 504: 11, 500: 12}
VERBS = {"rlock": "acquire", "runlock": "release", "rlock-heartbeat": "heartbeat"}
INTERRUPTED = 130


def rlock() -> int:
    return _entry("rlock")


def runlock() -> int:
    return _entry("runlock")


def rlock_heartbeat() -> int:
    return _entry("rlock-heartbeat")


def _entry(name: str) -> int:
    gc.disable()  # as `dibs` does, and for the same reason
    if sys.stdout is not None:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]  # it is a file
    try:
        exit_code = run(name, sys.argv[1:], os.environ, sys.stdout, is_last=True)
    except KeyboardInterrupt as interrupt:  # a `Stopped` knows by which signal
        exit_code = getattr(interrupt, "exit_code", INTERRUPTED)
    if "threading" not in sys.modules:
        os._exit(exit_code)
    return exit_code


def run(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: TextIO | None,
    opener: Opener | None = None,
    pid: int | None = None,
    *,
    is_last: bool = False,
) -> int:
    """One command from its words to its exit code. `pid` is who calls, unless it is the parent of this process.
    `is_last`: the process ends with it."""
    unconfirmed = UnconfirmedClaims()
    try:
        caller = os.getppid() if pid is None else pid
        exit_code = _told(name, argv, env, stdout, opener, caller, unconfirmed)
        unconfirmed.confirm()
    except KeyboardInterrupt:
        unconfirmed.give_back()
        raise
    finally:
        if not is_last:
            unconfirmed.close()
    return exit_code


def _told(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: TextIO | None,
    opener: Opener | None,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> int:
    try:
        exit_code, document = _answer(name, argv, env, opener, pid, unconfirmed)
    except Rejected as rejected:
        exit_code, document = EXITS[rejected.status], rejected.body
    except DibsError as error:
        exit_code, document = USAGE_EXIT, refusal(error.code, error.details)
    except Exception as error:  # the last door: whatever it is, one clear line
        exit_code, document = EXITS[500], refusal("internal_error", f"{type(error).__name__}: {error}")
    return _print(exit_code, document, stdout)


def _print(exit_code: int, document: Document, stdout: TextIO | None) -> int:
    """One line. What nobody reads was done all the same."""
    if stdout is None:
        return exit_code
    try:
        stdout.write(encode_ascii(document) + "\n")
        stdout.flush()
    except BrokenPipeError:
        pass
    except OSError:
        return exit_code or EXITS[500]
    return exit_code


def _answer(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    opener: Opener | None,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> tuple[int, Document]:
    key, config = _words(argv)
    if not key:
        usage = f"usage: {name} <resourceKey>"
        return USAGE_EXIT, refusal(usage, f"{usage}, such as {name} github://acme/app/issues/42")
    from dibs.compat.action_llama.ttl import configured

    ttl_seconds = configured(env, config)
    verb, gateway = VERBS[name], _gateway_url(env)
    if gateway is not None:
        status, document = _ask_gateway(gateway, verb, key, ttl_seconds, env)
    else:
        check_key(key)
        status, document = _ask_dibs(verb, key, ttl_seconds, env, opener, pid, unconfirmed)
    return EXITS.get(status, OTHER_EXIT), document


def _words(argv: Sequence[str]) -> tuple[str, str | None]:
    """The key, and the file that --config names. Further words are ignored, as theirs are."""
    words, config = list(argv), None
    while words and words[0].partition("=")[0] == "--config":
        _, equals, value = words.pop(0).partition("=")
        config = value if equals else words.pop(0) if words else ""
        if not config:
            raise InvalidInput("--config needs the path of a config.toml after it.")
    if words and words[0] == "--":
        words.pop(0)
    return (words[0] if words and words[0] not in ("-h", "--help") else ""), config


def _gateway_url(env: Mapping[str, str]) -> str | None:
    """The gateway to ask: the one that is named, else that of a dibs server when all there is to show is a secret."""
    if env.get("GATEWAY_URL"):
        return env["GATEWAY_URL"]
    if not env.get("SHUTDOWN_SECRET") or env.get("DIBS_SESSION"):
        return None
    from dibs.client.connect import server_at
    from dibs.client.settings import Settings

    url = Settings({}, env).url
    if url is None or server_at(url) is None:
        return None
    return url if url.lower().startswith("unix:") else url.rstrip("/") + "/gateway"


def _ask_gateway(url: str, verb: str, key: str, ttl_seconds: int | None, env: Mapping[str, str]) -> Said:
    secret = env.get("SHUTDOWN_SECRET")
    if not secret:
        raise Rejected(
            "missing secret", "Set SHUTDOWN_SECRET to the secret of this run, or unset GATEWAY_URL."
        )
    from dibs.compat.action_llama.client import ask

    document: Document = {"secret": secret, "resourceKey": key}
    if ttl_seconds is not None and verb != "release":
        document["ttl"] = ttl_seconds
    return ask(url, verb, document)


def _ask_dibs(
    verb: str,
    key: str,
    ttl_seconds: int | None,
    env: Mapping[str, str],
    opener: Opener | None,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.cli.framework.context import open_door
    from dibs.client.settings import Settings

    # A run has a namespace of its own.
    settings = Settings({} if env.get("SHUTDOWN_SECRET") else _place_of(key, env), env)
    door = (opener or open_door)(settings)
    try:
        if env.get("DIBS_SESSION"):
            return _in_session(door, verb, key, ttl_seconds, settings, unconfirmed)
        if env.get("SHUTDOWN_SECRET"):
            return _in_run(door, verb, key, ttl_seconds, env["SHUTDOWN_SECRET"], unconfirmed)
        return _as_nobody(door, verb, key, ttl_seconds, settings, pid, unconfirmed)
    finally:
        door.close()


def _place_of(key: str, env: Mapping[str, str]) -> dict[str, str]:
    """A key that is a path is in the repository's namespace, as for the other commands."""
    if env.get("DIBS_NAMESPACE") or not key.startswith(("path:", "repo:")):
        return {}
    from dibs.repository.namespace import current_folder, namespace_around

    folder = current_folder()
    found = None if folder is None else namespace_around(env, folder)
    return {} if found is None else {"namespace": found}


def _in_session(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.wire.shapes import is_id

    session = settings.env["DIBS_SESSION"].strip().lower()
    if not is_id(session):
        raise Rejected(
            "invalid session", "DIBS_SESSION is not the id of a session: `dibs session run` sets it.", 403
        )
    owner = settings.pick("owner", "DIBS_OWNER")
    if owner is None and verb == "acquire":
        found = (door.call("session-show", session, {}).body or {}).get("owner")
        owner = found if isinstance(found, str) else settings.owner  # no such session: the claim is told
    return _shown(door, verb, key, ttl_seconds, {"session_id": session}, owner or "", unconfirmed)


def _in_run(
    door: Door, verb: str, key: str, ttl_seconds: int | None, secret: str, unconfirmed: UnconfirmedClaims
) -> Said:
    from dibs.client.embedded import EmbeddedDoor
    from dibs.compat.action_llama.embedded_runs import EmbeddedRuns

    assert isinstance(door, EmbeddedDoor)  # a server is asked through its gateway
    try:
        # Letting go tries its proof with a heartbeat that nobody sent.
        found = EmbeddedRuns(door).as_run(secret, audited=verb != "release")
    except DibsError as error:
        return UNREACHABLE, refusal(error.code, error.details)
    if found is None:
        reason = "No run of this store has the secret in SHUTDOWN_SECRET. dibs run-secret create makes one."
        raise Rejected("invalid secret", reason, 403)
    run, own_door = found
    return _shown(own_door, verb, key, ttl_seconds, {"session_id": run.session}, run.holder, unconfirmed)


def _shown(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    proof: Document,
    owner: str,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    """Ask as somebody who can prove who it is."""
    if verb == "release":
        return _follow(door, release(key, proof))
    if verb == "heartbeat":
        return _follow(door, heartbeat(key, proof, ttl_seconds))
    return acquired(key, _claim(door, key, _wish(owner, ttl_seconds) | proof, unconfirmed))


def _as_nobody(
    door: Door,
    verb: str,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    """Ask as whoever called this process. Every claim is a newcomer's; what it gets is noted for letting it go."""
    from dibs.compat.action_llama.callers import Callers

    callers = Callers(settings.env, settings.url or "", settings.namespace or "", pid)
    if verb == "acquire":
        return _claim_as_nobody(door, key, ttl_seconds, settings, callers, pid, unconfirmed)
    lease = callers.lease(key)
    proof = None if lease is None else {"lease_id": lease}
    if verb == "release":
        callers.tidy()
        return _follow(door, release(key, proof))
    said = _follow(door, heartbeat(key, proof, ttl_seconds))
    if said[0] == 200:
        callers.freshen(key)
    return said


def _claim_as_nobody(
    door: Door,
    key: str,
    ttl_seconds: int | None,
    settings: Settings,
    callers: Callers,
    pid: int,
    unconfirmed: UnconfirmedClaims,
) -> Said:
    from dibs.compat.action_llama.callers import BE_SOMEBODY

    owner = settings.pick("owner", "DIBS_OWNER") or f"{settings.owner} (pid {pid})"
    reply = _claim(door, key, _wish(owner, ttl_seconds), unconfirmed)
    status, document = acquired(key, reply)
    if status == 200 and reply.body is not None:
        try:
            callers.note(key, reply.body["lease_id"])
        except DibsError as error:
            door.call("release", key, {"lease_id": reply.body["lease_id"]})
            return 500, refusal("not noted", error.details)
    elif document.get("holder") == owner and callers.lease(key) is not None:
        here = (
            "it was asked for from here. rlock-heartbeat keeps it and runlock lets it go; to be known again:"
        )
        document["reason"] += f": {here} {BE_SOMEBODY}"
    return status, document


def _wish(owner: str, ttl_seconds: int | None) -> Document:
    from dibs.core.limits import RLOCK_TTL_MS_DEFAULT
    from dibs.ids import new_id

    return {
        "owner": owner,
        "ttl_seconds": ttl_seconds or RLOCK_TTL_MS_DEFAULT // 1000,
        "request_key": new_id(),
    }


def _follow(door: Door, asking: Asking) -> Said:
    return run_generator(asking, lambda question: _call(door, *question))


def _claim(door: Door, key: str, document: Document, unconfirmed: UnconfirmedClaims) -> Reply:
    """Ask for it. An interrupt gives back what it may have got."""
    from dibs.client.queueing import PendingClaim, drive

    pending = PendingClaim("acquire", key, document)
    unconfirmed.begin(pending, lambda: door)
    return _told_apart(drive(door, pending.ask_once()))


def _call(door: Door, verb: str, key: str, document: Document) -> Reply:
    return _told_apart(door.call(verb, key, document))


def _told_apart(reply: Reply) -> Reply:
    """A server that does not answer, or a store that cannot be opened, is told from one that says "later": only who
    really answered has given the request an id."""
    if reply.status == 401:
        from dibs.cli.framework.result import failure

        return reply.replace(body={**(reply.body or {}), "details": failure(reply).text})
    if reply.status == 503 and "request_id" not in (reply.body or {}):
        return reply.replace(status=UNREACHABLE)
    return reply
