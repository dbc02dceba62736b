"""Turns signals into exceptions, so that cleanup runs before the process ends."""

from __future__ import annotations

from dibs.base.cheap import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
ENDING = (signal.SIGINT, *SIGNALS)


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP. Handled like Ctrl-C, with another exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class StopSignals:
    """Inside `with StopSignals():` SIGTERM and SIGHUP raise Stopped, as Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:  # a signal that is ignored, as under nohup, stays ignored
                try:
                    self._before[number] = signal.signal(number, _stop)
                except ValueError:  # not in the main thread, which handles signals
                    break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
