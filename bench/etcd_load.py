"""Load on an etcd by gRPC: a transaction that puts a fresh key, or that and its deletion in turn.

    python bench/etcd_load.py PORT CONNECTIONS SECONDS acquire|cycle TAG LEASE

gRPC is HTTP/2 with one message in a stream. Of HTTP/2 this knows what one request under way needs: headers as literals,
frames, and answers to settings and pings. An answer without a message is an error of etcd.
"""

from __future__ import annotations

import struct
import sys
import time

import raw_load

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
WINDOW = 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTING_WINDOW = 4
DONE = b"\x10\x01"  # after the header: TxnResponse.succeeded is true, DeleteRangeResponse.deleted is 1
TXN, DELETE_RANGE = "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/DeleteRange"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str) -> bytes:
    """Literals that are never indexed (RFC 7541, 6.2.2): the same bytes for each request."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "bench"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def put_if_absent(key: bytes, lease: int) -> bytes:
    compare = field(2, 1) + field(3, key) + field(5, 0)  # target CREATE, create_revision 0
    put = field(1, key) + field(2, b"bench-owner") + field(3, lease)
    return field(1, compare) + field(2, field(2, put))


def delete(key: bytes) -> bytes:
    return field(1, key)


def grpc(message: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", len(message)) + message


class EtcdSession:
    """One HTTP/2 connection. It has one stream open."""

    def __init__(self, port: int, prefix: str, lease: int, *, deletes: bool) -> None:
        self.link = raw_load.connected(port)
        self.link.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", SETTING_WINDOW, WINDOW)))
        # Enough for all that comes in a run.
        self.link.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65535)))
        self._heads = {path: header_block(path) for path in (TXN, DELETE_RANGE)}
        self._prefix = prefix
        self._lease = lease
        self._deletes = deletes
        self._stream = -1
        self._number = 0
        self._key = b""
        self._received = b""
        self._message = b""
        self.sent_ns = 0
        self.counts = [0, 0]

    def send(self) -> None:
        self._stream += 2
        is_delete = self._deletes and bool(self._key)
        if is_delete:
            path, body, self._key = DELETE_RANGE, delete(self._key), b""
        else:
            self._number += 1
            self._key = f"{self._prefix}-{self._number:09}".encode()
            path, body = TXN, put_if_absent(self._key, self._lease)
        self._kind = int(is_delete)
        self._message = b""
        raw = frame(HEADERS, END_HEADERS, self._stream, self._heads[path])
        raw += frame(DATA, END_STREAM, self._stream, grpc(body))
        self.sent_ns = time.perf_counter_ns()
        self.link.sendall(raw)

    def receive(self) -> str | None:
        self._received += self.link.recv(65536)
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return ""
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == GOAWAY:
                raise SystemExit(f"etcd ended the connection: {payload[8:]!r}")
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.link.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind == DATA and stream == self._stream:
                self._message += payload
            if kind in (DATA, HEADERS) and stream == self._stream and flags & END_STREAM:
                return self._judged()
        return ""

    def _judged(self) -> str | None:
        # Five bytes of gRPC, then the header with its tag and its length, below 128.
        header_end = 7 + self._message[6] if len(self._message) > 6 else 0
        if self._message[header_end : header_end + 2] != DONE:
            return f"etcd answered {self._message!r} to {('a transaction', 'a deletion')[self._kind]}"
        self.counts[self._kind] += 1
        return None


def main() -> None:
    port, connections, seconds, workload, tag, lease = sys.argv[1:]
    sessions = [
        EtcdSession(int(port), f"bench{tag}-{number}", int(lease), deletes=workload == "cycle")
        for number in range(int(connections))
    ]
    raw_load.run(sessions, float(seconds))


if __name__ == "__main__":
    main()
