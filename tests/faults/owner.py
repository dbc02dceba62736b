"""An owner that falls asleep. It claims a job, stops itself after three heartbeats, and goes on when it is woken.
When a heartbeat is refused, it tries to release the job.

It stops itself, so that it never sleeps while it has the store's file locked.

python -m tests.faults.owner URL TOKEN JOB TTL       TOKEN may be empty; prints one JSON line a reply
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from tests.programs import WAIT_S_MAX, pause
from tests.transports import connect

if TYPE_CHECKING:
    from dibs.wire.documents import Reply

BEATS = 3
HEARTBEAT_S = 0.05


def say(reply: Reply) -> None:
    print(json.dumps({"status": reply.status, "body": reply.body}), flush=True)


def main(url: str, token: str, job: str, ttl: str) -> None:
    transport = connect(url, namespace=None, token=token or None, timeout_ms=10_000)
    claimed = transport.ask(Ask("acquire", job, {"owner": "sleeper", "ttl_seconds": int(ttl)}))
    say(claimed)
    lease = {"lease_id": (claimed.body or {})["lease_id"]}
    give_up_ms = steady_ms() + int(3 * WAIT_S_MAX * 1000)
    beats = 0
    while steady_ms() < give_up_ms:
        beats += 1
        renewed = transport.ask(Ask("renew", job, {**lease, "checkpoint": f"beat {beats}"}))
        say(renewed)
        if renewed.status != 200:
            break
        if beats == BEATS:
            os.kill(os.getpid(), signal.SIGSTOP)
        pause(HEARTBEAT_S)
    say(transport.ask(Ask("release", job, {**lease, "done_seconds": 3600, "result": "done by a ghost"})))
    transport.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
