"""Turns signals into exceptions, so that cleanup runs before the process ends, and claims are given back."""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, FrameType, signal
from dibs.client.flow import drive
from dibs.client.pending import PendingClaim
from dibs.client.transport import Transport

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
                    self._before[number] = signal.signal(number, stop)
                except ValueError:  # not in the main thread, which handles signals
                    break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


# Claims of a command whose answer was not printed yet.
#
# From the request of a claim until its answer is printed, SIGINT, SIGTERM and SIGHUP become exceptions, and the claim
# is given back: an exit code of 128+n means that nothing is held. Once it is printed, signals are blocked, and the exit
# code is that of the answer. A claim with the caller's own request key is not given back: the caller can repeat it.

GIVE_BACK_MS = 2_000  # how long a server may take to answer when a claim is given back


class UnconfirmedClaims:
    def __init__(self) -> None:
        self._claims: list[tuple[PendingClaim, Callable[[], Transport]]] = []
        self._stops: StopSignals | None = None
        self._before: set[int] | None = None  # the signals that were blocked before the answer was printed

    def begin(self, pending: PendingClaim, open_transport: Callable[[], Transport]) -> None:
        """A claim is about to be requested. `open_transport` opens a transport to give it back through."""
        if self._stops is None:
            self._stops = StopSignals().__enter__()
        self._claims.append((pending, open_transport))

    def __bool__(self) -> bool:
        """Tell whether there are claims that the caller does not know of."""
        return bool(self._claims)

    def give_back(self) -> None:
        """Give all claims back. A second signal is blocked until that is done."""
        if not self._claims:
            return
        self._hold_signals()
        claims, self._claims = self._claims, []
        for pending, open_transport in claims:
            transport = open_transport()
            try:
                drive(transport, pending.withdraw())
            except Exception:  # a claim that cannot be withdrawn expires
                pass
            finally:
                transport.close()

    def settle(self, *, is_known: bool) -> None:
        """The command is over. `is_known`: the caller knows what it got; otherwise all is given back. From then on
        nothing is given back any more, and signals are blocked until the process ends."""
        if not is_known:
            self.give_back()
        if self._claims:
            self._hold_signals()
            self._claims = []

    def close(self) -> None:
        """Restore the signals. A blocked one is delivered now."""
        if self._stops is not None:
            self._stops.__exit__()
            self._stops = None
        if self._before is not None:
            before, self._before = self._before, None
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _hold_signals(self) -> None:
        if self._before is None:
            self._before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
