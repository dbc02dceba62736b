"""A session that this process opens, renews and ends, with at most one job in it. For `session run`, `run` and `hold`.

Nothing here runs by itself: the caller calls `renew_if_due` when it is due. There is one thread, besides one that reads
the checkpoint file. A call to a store of this machine is short, and during a slow call to a server the guardian
(guardian.py) still enforces the deadline.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, start_new_thread
from stat import S_ISREG

from dibs.base.cheap import Callable
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.base.ids import new_id
from dibs.cli.commands.wait import wait_in_queue
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import flag_of, given_ms, milliseconds, open_request, seconds, terms, tracker_for
from dibs.cli.framework.result import Answer, failure, is_failure, is_granted
from dibs.client.embedded import EmbeddedTransport
from dibs.client.flow import StillWaiting, drive, ending_of, patiently
from dibs.client.renewal_plan import CEILING_REACHED, RenewalPlan, slack_ms, stop_ms_default, ttl_ms_min
from dibs.client.transport import Ask, Transport, is_over
from dibs.core.durations import format_duration
from dibs.core.limits import CHECKPOINT_BYTES_MAX, SESSION_OWN_TTL_MS_MAX, SESSION_TTL_MS_DEFAULT, TTL_MS_MAX
from dibs.wire.documents import Reply
from dibs.wire.sentences import parked

# How long a renewal, and the end of a run, waits for the file's content. On a mount that hangs, reading never ends.
_READ_MS = 200
_LAST_READ_MS = 2_000
_NO_FILE = "is no ordinary file, but a folder, a pipe or a device"


class CheckpointFile:
    """A file in which a command notes its progress. It is sent as the checkpoint. `trouble`: why it is not a valid
    one. A thread of its own reads it, so that nothing but the checkpoint waits for a file system that hangs."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.trouble: str | None = None
        self._sent = ""
        self._reading: LockType | None = None  # taken until the thread has read the file
        self._found: bytes | str | None = None  # what it read, or why it could not

    def check(self) -> None:
        """Raise InvalidInput for what can never be such a file."""
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise InvalidInput(f"--checkpoint-file {self.path}: there is no folder {folder}.")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise InvalidInput(f"--checkpoint-file {self.path} {_NO_FILE}. Name an ordinary file.")

    def fill(self, checkpoint: str | None) -> None:
        """Write the last owner's checkpoint into the file, unless that exists: a run in the folder knows more."""
        if checkpoint is None:
            return
        self._sent = checkpoint
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return
        except OSError as error:
            raise InvalidInput(
                f"--checkpoint-file {self.path} cannot be written ({error.strerror}). Use a file that you can write."
            ) from None
        with os.fdopen(number, "wb") as file:
            file.write(checkpoint.encode())

    def news(self, patience_ms: int = _READ_MS) -> str | None:
        """The content, if it differs from what was sent last. Call `sent` after sending it."""
        if self._reading is None:
            self._found, reading = None, allocate_lock()
            reading.acquire()
            try:
                start_new_thread(self._read, (reading,))
            except RuntimeError:  # the user, or the container, has as many as allowed
                self.trouble = "no thread can be started to read it"
                return None
            self._reading = reading
        if not self._reading.acquire(timeout=patience_ms / 1000):
            self.trouble = "its file system does not answer"
            return None
        self._reading = None
        if not isinstance(self._found, bytes):
            self.trouble = self._found
            return None
        text = self._text(self._found.removesuffix(b"\n"))
        return None if text == self._sent else text

    def last_news(self) -> str | None:
        """The same at the end of the run. A read that began earlier may have found older content."""
        if self._reading is not None and self._reading.acquire(timeout=_LAST_READ_MS / 1000):
            self._reading = None
        return self.news(_LAST_READ_MS)

    def _read(self, done: LockType) -> None:
        try:
            # A pipe without a writer must not block the opening of it.
            number = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                is_file = S_ISREG(os.fstat(number).st_mode)
                self._found = os.read(number, CHECKPOINT_BYTES_MAX + 2) if is_file else f"it {_NO_FILE}"
            finally:
                os.close(number)
        except FileNotFoundError:
            pass  # it does not exist yet
        except OSError as error:
            self._found = f"it cannot be read ({error.strerror})"
        finally:
            done.release()

    def sent(self, text: str) -> None:
        self._sent = text

    def _text(self, content: bytes) -> str | None:
        if len(content) > CHECKPOINT_BYTES_MAX:
            self.trouble = f"it is longer than {CHECKPOINT_BYTES_MAX} bytes"
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self.trouble = "it is not UTF-8 text"
            return None
        self.trouble = None
        return text


NAP_MS = 1_000  # sleeping does not count suspend, but the clock does: look at it this often
# Ways in which a lease ends that are no loss, because a command in the session did it.
_BY_OURSELVES = ("released", "failed", "transferred")


UNCOUNTED = {"uncounted": True}  # a release that leaves the count of attempts as it is


class SessionTerms:
    """The session's TTL, and how long stopping the work may take. The TTL must leave time for that."""

    def __init__(self, call: Call, flag: str, wanted_ms: int, *, needs_slack: bool = False) -> None:
        terms(call)  # what the claim will ask for is checked before the session is opened
        self.request = open_request(call)
        ttl_ms = self.request.get("ttl_ms", SESSION_TTL_MS_DEFAULT)
        slack = slack_ms(ttl_ms) if needs_slack else 0
        self.kill_after_ms = milliseconds(call, flag, stop_ms_default(ttl_ms, wanted_ms, slack), SESSION_OWN_TTL_MS_MAX)
        self.stop_ms = self.kill_after_ms + slack
        most_ms = given_ms(call, "max_hold")
        if most_ms and most_ms < 2 * self.stop_ms:
            least = format_duration(-(-2 * self.stop_ms // 1000) * 1000)
            raise InvalidInput(
                f"--max-hold {call.values['max_hold']} leaves no time for the work, which is stopped before that. "
                f"Use {least} or more, or less for {flag_of(flag)}."
            )
        least_ms = ttl_ms_min(self.stop_ms)
        if ttl_ms >= least_ms:
            return
        hint = f"Use --ttl {format_duration(least_ms)} or more"
        if least_ms > SESSION_OWN_TTL_MS_MAX:
            hint = f"Choose less: a TTL is at most {format_duration(SESSION_OWN_TTL_MS_MAX)}"
        raise InvalidTtl(f"A TTL of {format_duration(ttl_ms)} leaves no time to renew and to stop the work. {hint}.")


def open_process_session(call: Call, terms: SessionTerms, mark: str | None) -> ProcessSession | Answer:
    """Open the session. Other processes on this machine take it for dead when the processes in `mark` are gone."""
    request = terms.request if mark is None else terms.request | {"process": mark}
    session = ProcessSession(call, request, terms.stop_ms)
    return session.open() or session


class ProcessSession:
    """`on_kept` is called after every renewal, `on_trouble` after a failed one, `before_end` before a release."""

    id: str
    plan: RenewalPlan

    def __init__(self, call: Call, request: Document, stop_ms: int) -> None:
        self.grant: Document | None = None  # the reply to the claim
        self._why = "no keepalive was answered in time"
        self.notes: CheckpointFile | None = None
        self.on_kept: Callable[[], None] | None = None
        self.on_trouble: Callable[[str], None] | None = None
        self.before_end: Callable[[], None] | None = None
        self.call = call
        self._request = request
        self._stop_ms = stop_ms
        self.until_ms = steady_ms() + (seconds(call, "wait", TTL_MS_MAX) or 0) * 1000  # what --wait allows
        self._keeping: Transport | None = None
        self.is_over = False  # the store has said that it is not ours any more
        self._ceiling_ms: int | None = None  # when the work must stop, whatever is renewed
        self._let_go = False

    def open(self) -> Answer | None:
        """Open it, or another one after it was lost. Returns the error, if any."""
        sent_ms = steady_ms()

        def sent_later(_: StillWaiting) -> None:
            nonlocal sent_ms
            sent_ms = steady_ms()

        asked = Ask("session-open", "", {**self._request, "fresh_session_id": new_id()})
        reply = drive(self.call.transport(), patiently(asked, self.until_ms), sent_later)
        if is_failure(reply):
            return failure(reply)
        opened: Document = reply.body or {}
        self.id = opened["session_id"]
        self.plan = RenewalPlan(opened["ttl_seconds"] * 1000, sent_ms, self._stop_ms)
        self.grant, self.is_over, self._ceiling_ms = None, False, None
        return None

    @property
    def job(self) -> str | None:
        """The job, while it is ours."""
        return None if self.grant is None or self._let_go else str(self.grant["name"])

    # Renewing

    @property
    def is_lost(self) -> bool:
        """Tell whether it has ended, or must be treated as ended because its deadline has passed."""
        return self.is_over or steady_ms() >= self.lost_ms

    @property
    def lost_ms(self) -> int:
        """The deadline: of the session, or of its job if that ends sooner, whatever is renewed."""
        if self._ceiling_ms is None or self._let_go:
            return self.plan.lost_ms
        return min(self.plan.lost_ms, self._ceiling_ms)

    @property
    def is_at_ceiling(self) -> bool:
        """Tell whether it is lost only because the job may not last longer."""
        return not self.is_over and self.lost_ms < self.plan.lost_ms and steady_ms() >= self.lost_ms

    @property
    def why(self) -> str:
        """The reason of a loss, or of the last failure."""
        return CEILING_REACHED if self.is_at_ceiling else self._why

    def note_ceiling(self, lease: Document, sent_ms: int) -> None:
        """An answer to a request of `sent_ms` may say how long the job may last."""
        ends_in_ms = lease.get("ends_in_ms")
        self._ceiling_ms = None if ends_in_ms is None else sent_ms + int(ends_in_ms) - self._stop_ms

    def renew_if_due(self) -> int | None:
        """Renew if it is due. Returns in how many ms to call again, or None if the session is lost."""
        if not self.is_lost and steady_ms() >= self.plan.next_ms:
            self._beat()
        now_ms = steady_ms()
        return None if self.is_lost else max(0, min(NAP_MS, self.plan.left_ms(now_ms), self.lost_ms - now_ms))

    def renew_idle(self) -> None:
        """Renew if it is due, even after the deadline: a session without work has nothing to stop, and may be alive."""
        if not self.is_over and steady_ms() >= self.plan.next_ms:
            self._beat()

    def _beat(self) -> None:
        sent_ms = steady_ms()
        reply = self._ask("session-keep", self.id, {})
        if reply is not None and reply.status < 300:
            self.plan.kept(sent_ms)
            self.renew_job()
            if self.on_kept is not None and not self.is_over:
                self.on_kept()
            return
        if reply is not None:
            self._why = _details(reply)
            self.is_over = reply.status in (404, 410)
        self.plan.failed(steady_ms())
        if self.on_trouble is not None and not self.is_over:
            self.on_trouble(self.why)

    def renew_job(self) -> None:
        """Renew the job, which somebody may have broken, and send a new checkpoint from the file."""
        if self.job is None:
            return
        text = self.notes.news() if self.notes is not None else None
        document: Document = {"session_id": self.id}
        if text is not None:
            document["checkpoint"] = text
        sent_ms = steady_ms()
        reply = self._ask("renew", self.job, document)
        if reply is None:
            return  # the next renewal tries again; the session keeps the job
        body = reply.body or {}
        if reply.status < 300:
            self.note_ceiling(body, sent_ms)
        if reply.status < 300 and text is not None and self.notes is not None:
            self.notes.sent(text)
        elif body.get("code") == "lease_not_current":
            self._let_go = body.get("ended") in _BY_OURSELVES
            self.is_over = not self._let_go
            self._why = _details(reply)

    def checkpoint(self, text: str) -> str | None:
        """Send a checkpoint now. Returns the error, if any."""
        if self.job is None:
            return "the job is no longer held"
        reply = self._ask("renew", self.job, {"session_id": self.id, "checkpoint": text})
        if reply is not None and reply.status < 300:
            return None
        return self.why if reply is None else _details(reply)

    def _ask(self, verb: str, name: str, document: Document) -> Reply | None:
        """Send a request. None after an unexpected error: the next attempt may succeed."""
        try:
            if self._keeping is None:
                self._keeping = self.call.keeping_transport(self.plan.call_ms)
            return self._keeping.ask(Ask(verb, name, document))
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
            return None

    # Ending

    def end(self, ending: Document | None = None, *, asks: bool = False) -> str | None:
        """End the session and release the job. `ending` has the fields of the release: done, failed, or empty for a
        success; with None, ending the session releases the job without a result. Returns what could not be reported,
        if anything; the TTL ends it later. `asks`: release the job by name first, so that `is_over` says whether it
        was ours until then. Ending a session does not say that of its jobs."""
        if self.before_end is not None and self.job is not None and not self.is_lost:
            self.before_end()
        trouble = self._release(ending, asks=asks)
        reply = self._ask("session-end", self.id, {})
        if self._keeping is not None:
            self._keeping.close()
        if reply is not None and (reply.status < 300 or reply.status in (404, 410)):
            return trouble
        why = self.why if reply is None else _details(reply)
        ttl = format_duration(self.plan.ttl_ms)
        return trouble or f"the session could not be ended, and expires within {ttl}: {why}"

    def _release(self, ending: Document | None, *, asks: bool) -> str | None:
        if self.job is None or self.is_over:
            return None
        text = self.notes.last_news() if self.notes is not None else None
        trouble = self.notes.trouble if self.notes is not None else None
        if trouble is not None and self.notes is not None:
            trouble = f"{self.notes.path} was not sent as the checkpoint: {trouble}"
        if text is None and not asks and ending is None:
            return trouble  # ending the session releases it, and says nothing about the work
        document = {"session_id": self.id, **ending_of(self.job, UNCOUNTED if ending is None else ending)}
        if text is not None:
            document["checkpoint"] = text
        reply = self._ask("release", self.job, document)
        if reply is not None and reply.status < 300:
            body = reply.body or {}
            return f"{parked(body)} `dibs free` frees it." if body.get("parked") else trouble
        body = {} if reply is None else reply.body or {}
        if reply is not None and is_over(reply) and body.get("ended") not in _BY_OURSELVES:
            self.is_over = True
            self._why = str(body.get("details") or self.why)
        why = self.why if reply is None else _details(reply)
        return f"the result of {self.job} could not be recorded: {why}" if ending else None


def end_dead_session(call: Call, session: str) -> None:
    """End a session whose `dibs run` was killed, once its command is gone: its jobs are lost. A server's expires."""
    transport = call.transport()
    try:
        if isinstance(transport, EmbeddedTransport):
            transport.end_dead_session(session)
    except Exception:  # others see that this process is dead, or the TTL frees it
        pass
    finally:
        transport.close()


def _details(reply: Reply) -> str:
    return str((reply.body or {}).get("details") or f"status {reply.status}")


# The claim of `run` and `hold`: one job, in the session of the process, which is renewed during the wait.
#
# A session that ends during the wait (the machine slept, the server was away) had no job. So nothing is lost but the
# place in line: another session is opened, and the wait goes on at the end of the line.


def claim(
    session: ProcessSession,
    job: str,
    *,
    queued: Callable[[Document], None] | None = None,
    reopened: Callable[[], None] | None = None,
) -> Answer | None:
    """Claim the job in the session; with --wait, wait in line. None if it is ours, else the answer. `queued` is called
    with every place in line, `reopened` when another session had to be opened."""
    call = session.call
    document = {"owner": call.settings.owner} | terms(call)
    wait_seconds = seconds(call, "wait", TTL_MS_MAX) or 0
    tracker = tracker_for([job])
    while True:
        document["session_id"] = session.id
        sent_ms = steady_ms()
        if wait_seconds:
            reply = _in_queue(session, job, document, queued)
        else:
            reply = call.claim("acquire", job, document)
        if tracker is not None:
            reply = tracker.confirm_grant(session, job, document, reply, sent_ms)
        if is_granted(reply):
            session.grant = reply.body or {}
            session.note_ceiling(session.grant, sent_ms)
            if wait_seconds and "ends_in_ms" in session.grant:
                session.renew_job()  # it began with the grant, not with the wait
            if tracker is not None:
                tracker.show_grant(session, reply)
            if wait_seconds:
                session.renew_idle()  # the grant may have come while this process was paused
            if not session.is_over:
                return None
        elif not wait_seconds or not is_over(reply):
            from dibs.cli.commands.claim import refused

            return refused(call, reply, document)
        trouble = session.open()
        if trouble is not None:
            return trouble
        document["request_key"] = new_id()  # a key belongs to one session
        if reopened is not None:
            reopened()


def _in_queue(
    session: ProcessSession, job: str, document: Document, queued: Callable[[Document], None] | None
) -> Reply:
    def meanwhile(body: Document | None) -> int:
        if body is not None and "replaces" in document:
            document["ticket"] = body["ticket"]  # in another session it tells which of the group came first
        if body is not None and queued is not None:
            queued(body)
        session.renew_idle()
        return max(0, session.plan.next_ms - steady_ms())

    return wait_in_queue(
        session.call, "acquire", job, document, meanwhile, wait_ms=max(1, session.until_ms - steady_ms())
    )
