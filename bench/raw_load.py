"""Load by raw sockets, for servers whose protocol wrk does not speak: sessions with one request under way each, in one
thread. A client library in Python would be slower than the server. Prints a line of JSON, as the scripts of wrk do."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Protocol


class Session(Protocol):
    """One connection."""

    link: socket.socket
    sent_ns: int
    counts: list[int]
    """Acquired, released."""

    def send(self) -> None: ...
    def receive(self) -> str | None:
        """None if the answer is whole and right; "" if more is to come; else what is wrong."""


def connected(port: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), 20.0)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def run(sessions: Sequence[Session], seconds: float) -> None:
    chooser = selectors.EpollSelector()
    for session in sessions:
        chooser.register(session.link, selectors.EVENT_READ, session)
        session.send()
    began = time.perf_counter()
    bad, first_bad, taken = 0, "", []
    while time.perf_counter() - began < seconds:
        for key, _ in chooser.select(1.0):
            session = key.data
            trouble = session.receive()
            if trouble == "":
                continue
            if trouble is not None:
                bad, first_bad = bad + 1, first_bad or trouble
            taken.append(time.perf_counter_ns() - session.sent_ns)
            session.send()
    spent = time.perf_counter() - began
    if not taken:
        raise SystemExit(f"nothing was answered in {seconds:.0f} s")
    taken.sort()
    acquired, released = (sum(session.counts[which] for session in sessions) for which in (0, 1))
    figures = {
        "requests": len(taken),
        "micros": int(spent * 1e6),
        "acquired": acquired,
        "released": released,
        "bad": bad,
        "p50_us": taken[len(taken) // 2] // 1000,
        "p99_us": taken[len(taken) * 99 // 100] // 1000,
        "socket_errors": 0,
        "timeouts": 0,
        "first_bad": first_bad,
    }
    print("BENCH " + json.dumps(figures))
