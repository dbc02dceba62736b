"""A member of a group with a beating heart: `python -m tests.plugins.contrib.tooz_member URL MEMBER TIMEOUT`."""

from __future__ import annotations

import sys

from tooz import coordination

from dibs.contrib.tooz import DibsLock
from tests.programs import pause


def main() -> None:
    url, member, timeout = sys.argv[1:]
    mine = coordination.get_coordinator(url, member.encode(), timeout=timeout)
    mine.start(start_heart=True)
    mine.join_group_create(b"group")
    mine.watch_elected_as_leader(b"group", lambda event: None)
    mine.run_watchers()
    lock = mine.get_lock(b"lock")
    assert lock.acquire()
    print("ready", flush=True)
    assert isinstance(lock, DibsLock)
    while lock.acquired:
        pause(0.02)
    print("lost the lock", flush=True)
    mine.stop()


if __name__ == "__main__":
    main()
