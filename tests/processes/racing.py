"""Many processes, started once, let loose on the same job again and again."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dibs.base.clock import steady_ms
from tests.programs import WAIT_S_MAX, start_program

if TYPE_CHECKING:
    from collections.abc import Callable

RACER = "tests.processes.racer"


class Place:
    """Where a race is: a store or a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token


class Answer:
    def __init__(self, raw: dict[str, Any]) -> None:
        self.racer: int = raw["racer"]
        self.http: int = raw["status"]
        self.body: dict[str, Any] = raw["body"] or {}

    @property
    def status(self) -> str:
        return str(self.body.get("status"))

    @property
    def owner(self) -> str:
        return str(self.body.get("owner"))

    @property
    def token(self) -> int:
        return int(self.body["fencing_token"])

    def __repr__(self) -> str:
        return f"<{self.racer}: {self.http} {self.body}>"


class Racers:
    """`size` processes behind one gate. What they say on standard error is in `log`."""

    def __init__(self, size: int, log: Path) -> None:
        self._log = log
        self._gate, self._shot = os.pipe()
        self._answers, theirs = os.pipe()
        self._rest = b""
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            with open(log, "wb") as said:
                for number in range(size):
                    self.processes.append(
                        start_program(
                            RACER,
                            str(number),
                            str(self._gate),
                            str(theirs),
                            stdin=subprocess.PIPE,
                            stderr=said,
                            pass_fds=(self._gate, theirs),
                        )
                    )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(WAIT_S_MAX)
            assert process.stdin is not None
            process.stdin.close()
        for descriptor in (self._gate, self._shot, self._answers):
            os.close(descriptor)
        self.processes = []

    def race(
        self,
        place: Place | Callable[[int], Place],
        name: str,
        *,
        verb: str = "acquire",
        while_owner: str | None = None,
        late_ms: Callable[[int], int] = lambda _: 0,
        **document: Any,
    ) -> list[Answer]:
        """All of them ask for the same at the same moment. `place` may differ from racer to racer, and how late each
        one starts."""
        for number, process in enumerate(self.processes):
            at = place(number) if callable(place) else place
            order = {
                "url": at.url,
                "token": at.token,
                "verb": verb,
                "name": name,
                "document": {"owner": f"racer-{number}", **document},
                "while_owner": while_owner,
                "late_ms": late_ms(number),
            }
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        os.write(self._shot, bytes(len(self.processes)))
        return sorted(map(Answer, self._read(len(self.processes))), key=lambda answer: answer.racer)

    def _read(self, count: int) -> list[dict[str, Any]]:
        give_up_ms = steady_ms() + int(2 * WAIT_S_MAX * 1000)
        while self._rest.count(b"\n") < count:
            left_ms = give_up_ms - steady_ms()
            ready, _, _ = select.select([self._answers], [], [], max(0, left_ms) / 1000)
            assert ready, f"not all {count} answered: {self._rest!r} {self._log.read_text()[-2000:]}"
            part = os.read(self._answers, 65536)
            assert part, f"all racers have ended: {self._log.read_text()[-2000:]}"
            self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


def only_winner(answers: list[Answer]) -> Answer:
    """The one that got the job. Everybody else was told so."""
    winners = [answer for answer in answers if answer.status == "acquired"]
    others = [answer for answer in answers if answer.status not in ("acquired", "held")]
    assert len(winners) == 1, (winners, others)
    for answer in answers:
        if answer is not winners[0]:
            assert answer.status == "held", answer
            assert (answer.owner, answer.token) == (winners[0].owner, winners[0].token), (answer, winners[0])
    return winners[0]
