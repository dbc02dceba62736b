"""`rlock`, `runlock`, `rlock-heartbeat`: Action Llama's lock commands, on its gateway or ours, or on dibs itself.

A command takes one key and prints one line of JSON; its exit code says the same. With GATEWAY_URL it sends
SHUTDOWN_SECRET to that gateway. With DIBS_URL, or neither, it asks dibs: as a session (DIBS_SESSION), as a run
(SHUTDOWN_SECRET), or without an identity (`compat/action_llama/direct.py`).
"""

from __future__ import annotations

import gc
import os
import sys

from dibs.base.cheap import Mapping, Sequence, TextIO
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.jsontext import Document, encode_shown
from dibs.cli.signals import UnconfirmedClaims
from dibs.compat.action_llama.protocol import UNREACHABLE, Rejected, Said, check_key, configured, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Opener

USAGE_EXIT = 9
OTHER_EXIT = 7
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
    gc.set_threshold(50_000)  # as `dibs` does, and for the same reason
    if sys.stdout is not None:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]  # it is a file
    try:
        exit_code = run(name, sys.argv[1:], os.environ, sys.stdout, is_last=True)
    except KeyboardInterrupt as interrupt:  # a `Stopped` has the number of the signal
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
    """Run one command. `pid` is the caller, by default this process's parent. `is_last`: the process ends after it."""
    unconfirmed = UnconfirmedClaims()
    try:
        caller = os.getppid() if pid is None else pid
        try:
            exit_code, document = _answer(name, argv, env, opener, caller, unconfirmed)
        except Rejected as rejected:
            exit_code, document = EXITS[rejected.status], rejected.body
        except DibsError as error:
            exit_code, document = USAGE_EXIT, refusal(error.code, error.details)
        except Exception as error:  # any other error is one clear line too
            exit_code, document = EXITS[500], refusal("internal_error", f"{type(error).__name__}: {error}")
        try:
            if stdout is not None:
                stdout.write(encode_shown(document, stdout.encoding) + "\n")
                stdout.flush()
        except BrokenPipeError:  # not an error: the command has done its work
            pass
        except OSError:
            exit_code = exit_code or EXITS[500]
        unconfirmed.settle(is_known=exit_code != EXITS[500])
    except KeyboardInterrupt:
        unconfirmed.give_back()
        raise
    finally:
        if not is_last:
            unconfirmed.close()
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
    ttl_seconds = configured(env, config)
    verb, gateway = VERBS[name], _gateway_url(env)
    if gateway is not None:
        status, document = _ask_gateway(gateway, verb, key, ttl_seconds, env)
    else:
        check_key(key)
        from dibs.compat.action_llama.direct import DirectRequest

        status, document = DirectRequest(verb, key, ttl_seconds, unconfirmed).answer(env, opener, pid)
    return EXITS.get(status, OTHER_EXIT), document


def _words(argv: Sequence[str]) -> tuple[str, str | None]:
    """The key, and the file that --config names. Further words are ignored, as Action Llama does."""
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
    """The gateway to ask: GATEWAY_URL, or the one of the dibs server if SHUTDOWN_SECRET is the only proof."""
    if env.get("GATEWAY_URL"):
        return env["GATEWAY_URL"]
    if not env.get("SHUTDOWN_SECRET") or env.get("DIBS_SESSION"):
        return None
    from dibs.client.settings import Settings, servers_at

    urls = [each.url for each in servers_at(Settings({}, env).url)]
    return ",".join(url if url.lower().startswith("unix:") else url.rstrip("/") + "/gateway" for url in urls) or None


def _ask_gateway(url: str, verb: str, key: str, ttl_seconds: int | None, env: Mapping[str, str]) -> Said:
    secret = env.get("SHUTDOWN_SECRET")
    if not secret:
        raise Rejected("missing secret", "Set SHUTDOWN_SECRET to the secret of this run, or unset GATEWAY_URL.")
    from dibs.compat.action_llama.client import ask

    document: Document = {"secret": secret, "resourceKey": key}
    if ttl_seconds is not None and verb != "release":
        document["ttl"] = ttl_seconds
    return ask(url, verb, document)
