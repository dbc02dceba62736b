"""The transport of an agent's hook: it answers in time, or raises.

A harness waits some seconds for a hook, and then lets the agent go on. So a hook waits for a server for less than
that, and a missing answer is an error, never an empty answer. A server that was silent is noted in the state folder:
for some seconds the next hooks do not ask it, because every edit would wait as long again.
"""

from __future__ import annotations

import os
import stat

from dibs.base.cheap import Iterator, Mapping, Sequence
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import ServerUnreachable, StoreUnavailable
from dibs.base.files import replace_file, state_folder
from dibs.base.ids import digest
from dibs.base.redact import without_secrets
from dibs.base.reply import Reply
from dibs.cli.framework.context import Call
from dibs.client.settings import Settings, connect_as, servers_at
from dibs.client.transport import Ask, Streamed, Transport

ANSWER_MS = 3_000  # how long a server may take
SILENCE_MS = 15_000  # how long one that took longer is not asked
# Statuses that say nothing of the job: not now, and not you.
_REFUSED = (401, 403, 429)


def guarded(call: Call) -> Call:
    """The same call for a hook: it prints nothing, and its transport answers in time."""
    values = {**call.values, "timeout": f"{min(ANSWER_MS, call.settings.timeout_ms)}ms"}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"))
    return Call(call.command, values, call.env, **streams, paint=call.paint, opener=HookTransport)


class HookTransport:
    """Another transport, whose failures are exceptions."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.url if servers_at(settings.url) else None
        self._note = None if self._url is None else note_path(settings.env, self._url)
        self._transport: Transport = connect_as(settings, keep=True)
        self._asked_ms = 0  # how long all asks took

    def ask(self, asked: Ask) -> Reply:
        return self.ask_all([asked])[0]

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        """Raises StoreUnavailable for a reply that says nothing of the job."""
        if self._note is not None and was_silent(self._note):
            where = without_secrets(self._url or "")
            raise ServerUnreachable(f"{where} did not answer a moment ago, and is asked again after some seconds.")
        begun_ms, is_answered = steady_ms(), False
        try:
            replies = [self._transport.ask(asks[0])] if len(asks) == 1 else self._transport.ask_all(asks)
            reply = next((each for each in replies if each.status >= 500 or each.status in _REFUSED), None)
            is_answered = reply is None
        finally:
            waited_s = sum([each.document.get("wait_seconds", 0) for each in asks])
            self._asked_ms += steady_ms() - begun_ms - round(1000 * waited_s)
            if self._note is not None and not is_answered and self._asked_ms >= ANSWER_MS:
                note_silence(self._note)
        if reply is None:
            return replies
        body = reply.body or {}
        raise StoreUnavailable(str(body.get("details") or body.get("error") or reply.status))

    def await_events(self, asked: Ask, timeout_ms: int) -> Iterator[Streamed]:
        return self._transport.await_events(asked, timeout_ms)

    def news(self, timeout_ms: int) -> None:
        self._transport.news(timeout_ms)

    def close(self) -> None:
        self._transport.close()

    def notices(self) -> list[str]:
        found: list[str] = getattr(self._transport, "notices", list)()
        return found


def note_path(env: Mapping[str, str], url: str) -> str:
    return os.path.join(state_folder(env), f"silent-{digest(url)[:16]}")


def was_silent(path: str) -> bool:
    """Only the time of the note counts, and only of a file of the user's own: it is not opened."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and 0 <= wall_ms() - found.st_mtime_ns // 1_000_000 < SILENCE_MS


def note_silence(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, "")  # in the place of whatever is there: a link is not followed
    except OSError:
        pass  # the next hook waits again
