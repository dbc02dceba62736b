"""A program whose main thread is interrupted at random moments, hundreds of times, while it uses the SDK.

    python -m tests.faults.interrupted URL TOKEN SEED INTERRUPTS

Prints how often it was interrupted and how often it had the job. It must end by itself.
"""

from __future__ import annotations

import random
import signal
import sys
from typing import Any

from dibs import Client, DibsError, Lock

TTL_S = 2


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but no code takes it as a request to end."""


def interrupt(*_: object) -> None:
    raise Interrupt


def work(client: Client, chance: random.Random) -> None:
    kind = chance.randrange(5)
    if kind == 0:
        with client.claim("job", ttl=TTL_S, wait=0.05) as claim:
            claim.checkpoint("half")
            claim.lost.wait(0.001)
    elif kind == 1:
        with Lock("job", client=client, ttl=TTL_S):
            client.owner("job")
    elif kind == 2:
        with client.session() as session, session.claim("job", wait=0.05) as claim:
            claim.check()
    elif kind == 3:
        with client.claim_all(["job", "other"], ttl=TTL_S) as claim:
            claim.release()
    else:
        with client.claim("job", ttl=TTL_S, on_lost=lambda _: None) as claim:
            client.break_claim("job", "by chance")
            claim.checkpoint("too late")


def main(url: str, token: str, seed: str, interrupts: str) -> None:
    chance = random.Random(seed)
    client = Client(url, token or None, owner="interrupted", timeout=2)
    came = had = 0
    signal.signal(signal.SIGALRM, interrupt)
    while came < int(interrupts):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.choice([0.0002, 0.002, 0.02]) * (0.2 + chance.random()))
                work(client, chance)
                had += 1
            finally:  # the timer fires once: if it fires here, the last line below sees it
                signal.setitimer(signal.ITIMER_REAL, 0)
        except DibsError:
            pass
        except Interrupt:
            came += 1
    client.close()
    print(came, had)


if __name__ == "__main__":
    arguments: Any = sys.argv[1:]
    main(*arguments)
