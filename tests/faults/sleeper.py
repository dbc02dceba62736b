"""An owner that falls asleep in its block (SIGSTOP to itself), and tries to go on with its work when it is woken.

python -m tests.faults.sleeper sync|async URL TOKEN JOB FILE       TOKEN may be empty; prints one JSON line an event
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs import AsyncClient, Client, LeaseLost
from tests.programs import pause

if TYPE_CHECKING:
    from collections.abc import Callable

called: list[LeaseLost] = []


def say(event: str) -> None:
    print(json.dumps({"event": event}), flush=True)


def work(claim: Any, file: str) -> None:
    say("holds")
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        claim.check()
    except LeaseLost:
        say("check raised")
        raise
    Path(file).write_text("by an owner that slept")


async def hold_async(url: str, token: str | None, job: str, file: str) -> None:
    async with AsyncClient(url, token) as client, client.claim(job, ttl=1, on_lost=called.append) as claim:
        work(claim, file)


def hold_sync(url: str, token: str | None, job: str, file: str) -> None:
    with Client(url, token) as client, client.claim(job, ttl=1, on_lost=called.append) as claim:
        work(claim, file)


def main(kind: str, url: str, token: str, job: str, file: str) -> None:
    hold: Callable[..., Any] = hold_sync if kind == "sync" else lambda *args: asyncio.run(hold_async(*args))
    try:
        hold(url, token or None, job, file)
    except LeaseLost:
        say("block raised")
    pause(0.1)
    say(f"on_lost was called {len(called)} times")


if __name__ == "__main__":
    main(*sys.argv[1:])
