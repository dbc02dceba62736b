"""once: a step of the work that changes something outside, and must not be repeated blindly."""

from __future__ import annotations

import os
from time import sleep

from dibs.base.cheap import Any, FrameType, signal
from dibs.base.ids import new_id
from dibs.base.terminal import plain
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, yes
from dibs.cli.framework.spec import JOB, REST, Argument, Command, Option
from dibs.core.limits import EFFECT_RESULT_BYTES_MAX
from dibs.core.records import EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT
from dibs.wire import sentences
from dibs.wire.codes import IN_DOUBT, INTERNAL, NOT_NOW, USAGE, kind_of

TRIES = 3
PAUSE_S = 1.0
PROBED_NO = 1  # of --probe: it did not happen. Any other exit code but 0 is no answer.


def once(call: Call) -> Answer:
    words: list[str] = call.values["command"]
    if not words:
        raise UsageError("once needs a command: dibs once JOB KEY -- COMMAND.")
    step = _Step(call)
    noted = step.begun()
    if isinstance(noted, Answer):
        return noted
    if noted["status"] == EFFECT_DONE:
        return step.was_done(noted)
    if noted["status"] == EFFECT_IN_DOUBT and not call.values.get("again"):
        probe = call.values.get("probe")
        if probe is None:
            return step.doubted(noted)
        code, out = _run(call, ["sh", "-c", probe], _Output(None))
        if code == 0:
            step.output.pass_on(out)
            return step.ended(EFFECT_DONE, 0, out)
        if code != PROBED_NO:
            return step.doubted(noted, f"--probe ended with {code}, which is no answer: 0 is yes, 1 is no.")
    code, out = _run(call, words, step.output)
    if code == 0:
        return step.ended(EFFECT_DONE, 0, out)
    state = EFFECT_IN_DOUBT if code > 128 else EFFECT_FAILED  # a signal: it was in the middle of something
    return step.ended(state, code, b"", f"exit {code}")


class _Step:
    """One try of a step: its notes, and what is said of them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._name: str = call.values["job"]
        self._key: str = call.values["key"]
        self._id = new_id()
        self._proof = flags.proof(call)
        self._now_ms: int | None = None
        self.output = _Output(call)

    def _words(self, noted: Document) -> str:
        return plain(sentences.effect(noted, self._now_ms))

    def begun(self) -> Document | Answer:
        noted = self.note(EFFECT_BEGUN)
        if not isinstance(noted, Answer) or noted.code != "conflict" or (running := self._running()) is None:
            return noted
        if not self._call.values.get("again"):
            noted.text = noted.message = (
                f"{self._words(running)}. One try at a time.\nIf it was killed: --again runs it all the same. "
                "Or release the job as failed and claim it again; then --probe can look."
            )
            return noted
        self.note(EFFECT_IN_DOUBT, effect_id=None)  # whoever ran it under this lease does not say so any more
        return self.note(EFFECT_BEGUN)

    def _running(self) -> Document | None:
        """The step, if a try of it runs under this lease."""
        body = self._call.ask("inspect", self._name).body or {}
        self._now_ms = sentences.now_ms_of(body)
        running = [each for each in body.get("effects", ()) if each["status"] == "running" and each["key"] == self._key]
        return running[0] if running else None

    def note(self, state: str, **more: str | None) -> Document | Answer:
        """Note how the step stands, and again if there was no answer: a repeat is known by the id of the try."""
        document = {"effect_key": self._key, "effect_id": self._id, "effect_status": state, **more}
        given = {key: value for key, value in document.items() if value is not None}
        asked = flags.check_texts(given) | self._proof
        reply = self._call.ask("renew", self._name, asked)
        for _ in range(TRIES - 1):
            if kind_of(reply) != NOT_NOW:
                break
            sleep(PAUSE_S)
            reply = self._call.ask("renew", self._name, asked)
        if is_failure(reply):
            return failure(reply)
        body = reply.body or {}
        self._now_ms = sentences.now_ms_of(body)
        noted: Document | None = body.get("effect")
        if noted is None:
            text = "This server is older than `dibs once`: it keeps no notes of steps. Upgrade the server first."
            return Answer(USAGE, {}, text, code="invalid_input", is_error=True)
        return noted

    def was_done(self, noted: Document) -> Answer:
        """Print what the command printed, so that a script goes on as if it had run it."""
        result = noted.get("result") or ""
        self._call.complain(f"{self._words(noted)}. Not run again.")
        return yes({"name": self._name, "effect": noted, "ran": False}, result, quiet=result)

    def doubted(self, noted: Document, why: str = "") -> Answer:
        """Nothing was run. The step stays as it was: our own beginning is taken back."""
        self.note(EFFECT_FAILED, effect_reason="not run")
        lines = [f"{self._words(noted)}. Nothing was run.", *([why] if why else [])]
        lines.append(
            "Look whether it happened; if not, --again runs it. --probe COMMAND looks for you (exit 0: it happened)."
        )
        document = {"name": self._name, "effect": noted, "ran": False}
        return Answer(IN_DOUBT, document, "\n".join(lines), code="in_doubt", is_error=True)

    def ended(self, state: str, code: int, out: bytes, reason: str = "") -> Answer:
        more: dict[str, str] = {"effect_reason": reason} if reason else {}
        if state == EFFECT_DONE and (result := _text(out)):
            more["effect_result"] = result
        noted = self.note(state, **more)
        if isinstance(noted, Answer):
            noted.text += f"\nThe step {plain(self._key)} ended with {code}, and is in doubt for the next owner."
            return noted
        if code == 0 and (trouble := self.output.trouble) is not None and not isinstance(trouble, BrokenPipeError):
            text = f"The step {plain(self._key)} is done, and its output could not be written ({trouble.strerror})."
            return Answer(INTERNAL, {}, text, code="internal_error", is_error=True)
        if code == 0:
            return yes({"name": self._name, "effect": noted, "ran": True}, "", quiet="")
        document = {"name": self._name, "effect": noted, "ran": True, "exit": code}
        text = f"The step {plain(self._key)} ended with {code}: {self._words(noted)}."
        return Answer(code, document, text, code=state, is_error=True)


def _text(out: bytes) -> str:
    """The beginning of what a command printed, as it is kept: whole characters, without the end of its last line."""
    return out[:EFFECT_RESULT_BYTES_MAX].decode("utf-8", "ignore").replace("\0", "").rstrip()


class _Output:
    """Passes on a command's output. If nobody takes it any more, the command runs to its end all the same: it would be
    in doubt otherwise."""

    def __init__(self, call: Call | None) -> None:
        self._call = call
        self.trouble: OSError | None = None

    def pass_on(self, part: bytes) -> None:
        if self._call is None or self.trouble is not None:
            return
        try:
            self._call.pass_on(part)
        except OSError as error:
            self.trouble = error


def _run(call: Call, words: list[str], output: _Output) -> tuple[int, bytes]:
    """Exit code, 128+n for a signal, and the beginning of what it printed, which is also passed on. Signals to us are
    passed on, too: the step ends before we do, and what it did is noted."""
    import subprocess

    try:
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
    except OSError as error:
        call.complain(f"{plain(words[0])} cannot be run: {error.strerror}.")
        return (127 if isinstance(error, FileNotFoundError) else 126), b""
    assert child.stdout is not None

    def forward(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:  # the keyboard's goes to the whole group
            child.send_signal(number)

    before: dict[int, Any] = {
        each: signal.signal(each, forward) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    kept = b""
    try:
        with child.stdout:
            while part := os.read(child.stdout.fileno(), 64 * 1024):
                kept += part[: EFFECT_RESULT_BYTES_MAX + 1 - len(kept)]
                output.pass_on(part)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), kept


COMMANDS = {
    "once": Command(
        once,
        JOB,
        Argument("KEY", "names the step: the same for every owner of the job"),
        Argument("COMMAND", "the step, and its arguments", takes=REST),
        *flags.PROOF,
        Option("--again", "if it is in doubt: run it, because it may be repeated"),
        Option("--probe COMMAND", "if it is in doubt: a shell command that looks. 0: it happened, 1: it did not"),
        about=(
            "For a step that changes something outside, such as a mail or a release, and must not be "
            "repeated blindly. Notes that the step begins, runs the command, and notes how it ended. "
            "A step that an earlier owner finished is not run: what it printed is printed again. A step "
            "that an earlier owner began without saying how it ended is in doubt, and is not run either, "
            "unless --probe or --again says what to do. The first 1,024 bytes of what the command prints "
            "are its result."
        ),
        examples=(
            ("dibs once release-7 tag -- git push origin v7", "inside `dibs run release-7 -- ./release`"),
            ("dibs once release-7 mail --probe './was-sent 7' -- ./send 7", "looks, if it is in doubt"),
            ("dibs once release-7 cache --again -- ./purge", "may be repeated"),
        ),
        exits=(
            (0, "the command succeeded, now or earlier"),
            flags.NOT_YOURS[0],
            (IN_DOUBT, "it is in doubt whether it happened; nothing was run"),
            (126, "the command cannot be run"),
            (127, "there is no such command"),
        ),
    ),
}
