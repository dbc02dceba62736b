"""A paused owner's late write, refused by a fence.

    python examples/fence_paused_owner.py

A worker claims the job for one second and is paused (SIGSTOP) in the middle of its work, as a machine that swaps or
sleeps would. Its lease runs out, another worker takes over and writes. Then the first one wakes, believes that it was
gone for a moment, and writes too: without a fence, over the other's work.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import tempfile
import time

import dibs


def open_shop(folder: str) -> tuple[dibs.Client, sqlite3.Connection, dibs.Fence]:
    db = sqlite3.connect(f"{folder}/shop.db", timeout=10)
    return dibs.Client(f"sqlite://{folder}/jobs.db"), db, dibs.Fence(db)


def paused_worker(folder: str) -> None:
    client, db, fence = open_shop(folder)
    lease = client.acquire("price-of-tea", owner="paused", ttl=1)
    print("paused:  has the job with token", lease.fencing_token, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)  # anything can happen between looking and writing
    try:
        # One transaction: the fence is asked first, then the block reads and writes; all of it, or nothing.
        with fence.transaction(name=lease.name, token=lease.fencing_token):
            db.execute("UPDATE price SET pence = 100")
        print("paused:  wrote 100, over the work of another", flush=True)
    except dibs.StaleToken as refused:
        print(f"paused:  refused, token {refused.token} is older than {refused.newest}", flush=True)


def next_worker(folder: str) -> None:
    client, db, fence = open_shop(folder)
    with client.claim("price-of-tea", owner="next", wait=30) as claim:
        print("next:    took over with token", claim.fencing_token, flush=True)
        with fence.transaction(claim):  # also raises LeaseLost when we know already that we lost
            db.execute("UPDATE price SET pence = 250")
        print("next:    wrote 250", flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        _, db, fence = open_shop(folder)
        with db:
            fence.create()
            db.execute("CREATE TABLE price (pence INTEGER)")
            db.execute("INSERT INTO price VALUES (0)")
        db.close()
        pid = os.fork()
        if pid == 0:
            paused_worker(folder)
            os._exit(0)
        os.waitpid(pid, os.WUNTRACED)  # until it is paused
        time.sleep(0.1)
        next_worker(folder)
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        (pence,) = sqlite3.connect(f"{folder}/shop.db").execute("SELECT pence FROM price").fetchone()
        print("the price is", pence)
        return 0 if pence == 250 else 1


if __name__ == "__main__":
    sys.exit(main())
