"""Load on a ZooKeeper, in its own protocol: creates nodes, or creates and deletes them in turn.

    python bench/zookeeper_load.py PORT CONNECTIONS SECONDS acquire|cycle TAG

Every answer is checked: its number, and that it is no error.
"""

from __future__ import annotations

import struct
import sys
import time

import raw_load

ANYBODY = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
EPHEMERAL = 1
CREATE, DELETE = 1, 2


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def connect_request() -> bytes:
    # protocol, last zxid seen, timeout, session, password
    return framed(struct.pack(">iqiqi", 0, 0, 30_000, 0, 16) + bytes(16))


def create_request(number: int, path: bytes) -> bytes:
    value = b"bench-owner"
    body = struct.pack(">iii", number, CREATE, len(path)) + path + struct.pack(">i", len(value)) + value
    return framed(body + ANYBODY + struct.pack(">i", EPHEMERAL))


def delete_request(number: int, path: bytes) -> bytes:
    return framed(struct.pack(">iii", number, DELETE, len(path)) + path + struct.pack(">i", -1))


class Session:
    """One connection. It has one request under way."""

    def __init__(self, port: int, prefix: str, *, deletes: bool) -> None:
        self.link = raw_load.connected(port)
        self.link.sendall(connect_request())
        if len(self.link.recv(4096)) < 36:
            raise SystemExit("ZooKeeper did not take the connection")
        self._prefix = prefix
        self._deletes = deletes
        self._number = 0
        self._path = b""
        self._received = b""
        self.sent_ns = 0
        self.counts = [0, 0]  # created, deleted

    def send(self) -> None:
        self._number += 1
        is_delete = self._deletes and bool(self._path)
        if is_delete:
            raw, self._path = delete_request(self._number, self._path), b""
        else:
            self._path = f"/{self._prefix}-{self._number:09}".encode()
            raw = create_request(self._number, self._path)
        self._kind = int(is_delete)
        self.sent_ns = time.perf_counter_ns()
        self.link.sendall(raw)

    def receive(self) -> str | None:
        """None if the answer is whole and right; "" if more is to come; else what is wrong."""
        self._received += self.link.recv(65536)
        if len(self._received) < 4 or len(self._received) < 4 + struct.unpack(">i", self._received[:4])[0]:
            return ""
        number, _, error = struct.unpack(">iqi", self._received[4:20])
        self._received = b""
        if (number, error) != (self._number, 0):
            return f"answer {number} to {self._number}, error {error}"
        self.counts[self._kind] += 1
        return None


def main() -> None:
    port, connections, seconds, workload, tag = sys.argv[1:]
    sessions = [
        Session(int(port), f"bench{tag}-{number}", deletes=workload == "cycle") for number in range(int(connections))
    ]
    raw_load.run(sessions, float(seconds))


if __name__ == "__main__":
    main()
