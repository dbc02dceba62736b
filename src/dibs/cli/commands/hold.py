"""hold: holds a job for another program, and prints a line for every event.

It is a sidecar for programs that cannot call dibs themselves. It ends on a signal, at the end of its input, after a
time, or when the job is lost. It reports a loss `--notice` before anybody else can own the job.
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import FrameType, signal
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.jsontext import encode_ascii
from dibs.base.terminal import plain
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer
from dibs.cli.framework.spec import NEW_JOB, Command, Option
from dibs.cli.supervise.process_session import (
    UNCOUNTED,
    ProcessSession,
    SessionTerms,
    claim,
    open_process_session,
)
from dibs.cli.text.words import span
from dibs.core.durations import is_duration, parse_duration
from dibs.core.limits import CHECKPOINT_BYTES_MAX, DONE_MS_DEFAULT, DONE_MS_MAX, REASON_CHARS_MAX
from dibs.core.names import is_resource
from dibs.system.session_mark import process_mark
from dibs.wire.codes import LOST, NO
from dibs.wire.parts import timestamp
from dibs.wire.sentences import not_a_job

# The events of `hold` in words. Pure.


_WORDS = {
    "waiting": "{name}: {has}, you are number {position} in line",
    "acquired": "{name} is yours, fencing token {fencing_token}",
    "renewed": "{name}, certain for {left}",
    "uncertain": "{name}, certain only for {left}: {why}",
    "lost": "{name}: {why}",
    "released": "{name}: {why}",
    "error": "{message}",
}


def said(event: Document) -> str:
    """One line, beginning with the time of day."""
    owner, left = event.get("owner"), span(event.get("remaining_ms") or 0)
    more = {"has": f"{owner} has it" if owner is not None else "others come first", "left": left}
    words = _WORDS[event["event"]].format(**event, **more)
    return plain(f"{event['at'][11:19]}Z  {event['event']:<9}  {words}".rstrip())


NOTICE_MS = 2_000
LINE_BYTES_MAX = CHECKPOINT_BYTES_MAX + 64
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRANTED = ("owner", "attempt", "slot", "slot_numbers", "ends_at", "previous")  # what is said of a grant
_ORDERS = "checkpoint TEXT, release, done[=TIME] [RESULT], fail [REASON]"


def hold(call: Call) -> Answer:
    for_ms = flags.milliseconds(call, "for", 0, DONE_MS_MAX)
    if call.values.get("for") is not None and not for_ms:
        raise UsageError("--for 0 would release the job at once. Leave it out to hold until told to stop.")
    terms = SessionTerms(call, "notice", NOTICE_MS)
    events = EventWriter(call)
    session = open_process_session(call, terms, process_mark(os.getpid()))
    if isinstance(session, Answer):
        return events.failed(session)
    loop = HoldLoop(call, session, events, for_ms)
    ending: Document | None = None
    try:
        answer = claim(session, call.values["job"], queued=events.queued)
        if answer is not None:
            return events.failed(answer)
        ending = loop.until_over()
    finally:
        trouble = session.end(ending, asks=True)
    if session.is_over and not loop.is_lost:
        loop.say_lost()  # it was told to release a job that was lost before
    if loop.is_lost:
        return Answer(LOST, {"why": session.why}, "", code="lost", message=session.why, is_said=True)
    result = {"done": "done_seconds" in (ending or {}), "failed": "failed" in (ending or {})}
    events.say("released", loop.token | result | {"why": loop.why})
    if trouble is not None:
        events.say("error", {"message": trouble})
    return Answer(0, {}, "", is_said=True)


class EventWriter:
    """Writes one line per event to stdout, immediately: a JSON document, or words."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._job: str = call.values["job"]
        self._as_json = bool(call.values.get("json"))
        self._last: tuple[object, ...] = ()
        self.is_heard = True

    def say(self, event: str, fields: Document) -> None:
        document = {"event": event, "name": self._job, "at": timestamp(wall_ms()), **fields}
        line = encode_ascii(document) if self._as_json else said(document)
        if self._call.stdout is not None and (self._as_json or not self._call.values.get("quiet")):
            self.is_heard = self._call.say([line])

    def queued(self, body: Document) -> None:
        now = (body.get("position"), body.get("owner"))
        if now != self._last:
            self._last = now
            kept = ("position", "owner", "remaining_ms", "conflict")
            self.say("waiting", {key: body[key] for key in kept if key in body})

    def failed(self, answer: Answer) -> Answer:
        """Nothing is held. Writes the event, which is all the output."""
        self.say("error", {"code": answer.code, "message": answer.message, "details": answer.document})
        return Answer(answer.exit, answer.document, "", code=answer.code, message=answer.message, is_said=True)


def _wrong_time(time: str | None, result: str) -> str:
    """Return why the time of an order `done` is wrong; empty if it is right. It is written with `=` only, like a
    flag's, because a result may begin with a number."""
    if time is not None and not (is_duration(time) and parse_duration(time) <= DONE_MS_MAX):
        return f"{time[:80]!a} is no time for which a job can be done: done=1h. The job is still held"
    first = result.partition(" ")[0]
    if time is None and is_duration(first):
        return f"done takes a time with = only: done={first}. The job is still held"
    return ""


class HoldLoop:
    """Holds the job from the grant until the first reason to end."""

    def __init__(self, call: Call, session: ProcessSession, events: EventWriter, for_ms: int) -> None:
        self._session = session
        self._events = events
        self._until_ms: int | None = None
        self._for_ms = for_ms
        self._stdin = call.stdin.fileno() if call.stdin is not None and call.values.get("until_eof") else None
        self._unread = b""
        self._ending: Document = {}
        self._woken, self._waker = os.pipe()
        self.is_lost = False
        self.why = ""

    def until_over(self) -> Document | None:
        """Hold. Returns the fields for the release: done or failed, if asked for; None if the job was lost."""
        os.set_blocking(self._waker, False)
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            if self._session.is_lost:
                self.say_lost()  # this process was paused since the grant
                return None
            first = {key: value for key, value in (self._session.grant or {}).items() if key in _GRANTED}
            self._report("acquired", first | {"session_id": self._session.id})
            self._session.on_kept = lambda: self._report("renewed", {})
            self._session.on_trouble = lambda why: self._report("uncertain", {"why": why})
            if self._for_ms:
                self._until_ms = steady_ms() + self._for_ms
            while not self.why and not self.is_lost:
                self._step()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
        return None if self.is_lost else self._ending

    def _step(self) -> None:
        nap_ms = self._session.renew_if_due()
        if nap_ms is None:
            self.say_lost()
            return
        if self._session.job is None:
            self.why = "it was released by a command in the session"
            return
        if not self._events.is_heard:
            self._cease("nobody reads its output")  # the program that it was held for is gone
            return
        if self._until_ms is not None:
            nap_ms = min(nap_ms, self._until_ms - steady_ms())
            if nap_ms <= 0:
                self.why = "its time was over"
                return
        watched = [self._woken] if self._stdin is None else [self._woken, self._stdin]
        ready = select.select(watched, [], [], nap_ms / 1000)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._stdin in ready:
            self._read()

    def say_lost(self) -> None:
        self.is_lost = True
        self._report("lost", {"why": self._session.why})

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._cease(f"signal {number}")

    def _cease(self, why: str) -> None:
        """End for a reason that says nothing about the work, unless there is one already."""
        if not self.why:
            self.why, self._ending = why, UNCOUNTED

    def _read(self) -> None:
        assert self._stdin is not None
        some = os.read(self._stdin, 65536)
        *lines, self._unread = (self._unread + some).split(b"\n")
        if not some or len(self._unread) > LINE_BYTES_MAX:
            lines, self._unread = [*lines, self._unread], b""
        for line in lines:
            if line.strip() and not self.why:
                self._obey(line.decode("utf-8", "replace").strip())
        if not some:
            self._cease("its input ended")

    def _obey(self, line: str) -> None:
        order, _, rest = line.partition(" ")
        job, time = self._session.job, None
        if order.startswith("done="):
            order, _, time = order.partition("=")
        if order == "release" and not rest:
            self.why = "it was told to"
        elif order == "checkpoint" and rest:
            trouble = self._session.checkpoint(rest)
            if trouble is not None:
                self._report("error", {"message": f"the checkpoint was not kept: {trouble}"})
        elif order in ("done", "fail") and job is not None and is_resource(job):
            self._report("error", {"message": f"{not_a_job(job, order)} The order is: release"})
        elif order == "done" and (wrong := _wrong_time(time, rest)):
            self._report("error", {"message": wrong})
        elif order == "done":
            done_ms = DONE_MS_DEFAULT if time is None else parse_duration(time)
            self._ending = {"done_seconds": max(1, done_ms // 1000)} | ({"result": rest} if rest else {})
            self.why = "it was told to"
        elif order == "fail":
            self._ending = {"failed": True} | ({"reason": rest[:REASON_CHARS_MAX]} if rest else {})
            self.why = "it was told to"
        else:
            self._report("error", {"message": f"{line[:80]!a} is not an order. Orders: {_ORDERS}"})

    def _report(self, event: str, fields: Document) -> None:
        self._events.say(event, self.token | fields | {"remaining_ms": max(0, self._session.lost_ms - steady_ms())})

    @property
    def token(self) -> Document:
        return {"fencing_token": (self._session.grant or {})["fencing_token"]}


COMMANDS = {
    "hold": Command(
        hold,
        NEW_JOB,
        *flags.SESSION_CLAIM,
        *(flags.OWNER, flags.METADATA),
        Option("--until-eof", "release the job when standard input ends"),
        Option("--for TIME", "release the job after this time"),
        Option(
            "--notice TIME",
            "report `lost` this long before anybody else can have the job (default 2s, or a quarter of a short TTL)",
        ),
        *(flags.AGAIN, flags.MAX_ATTEMPTS, flags.LOCK_DELAY, flags.MAX_HOLD),
        about=(
            "Claims the job in a session of its own, renews it, and prints a line for each event "
            "immediately: waiting, acquired, renewed, uncertain (a renewal failed and is tried again), "
            "lost, released, error. With --json each line is a JSON document with event, name, at, and, "
            "while the job is held, fencing_token and remaining_ms, the time for which the job is certainly "
            "yours. SIGTERM, SIGINT, the end of --for, or the end of the input with --until-eof releases "
            f"the job. With --until-eof, lines of the input are orders: {_ORDERS}."
        ),
        examples=(
            ("dibs hold leader --json --wait 1h", "a sidecar"),
            ("program | dibs hold job --until-eof", "while another program runs"),
            ("dibs hold deploy --for 10m", "keep everybody out for ten minutes"),
        ),
        exits=(
            (0, "the job was released"),
            (NO, "somebody else has the job, or still has it after the wait"),
            *flags.CLAIM_EXITS,
            (LOST, "the job was lost"),
        ),
    ),
}
