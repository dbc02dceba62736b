"""A server that is no etcd, or an etcd behind a proxy that breaks the rules of HTTP/2 and gRPC.

Every call ends in time with StoreUnavailable, and `unknown` is right: a write that may have been executed is unknown.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.limits import ETCD_MS_MAX
from dibs.stores.etcd import EtcdLocation, client
from dibs.stores.etcd.client import EtcdClient
from dibs.stores.etcd.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW,
    WINDOW_UPDATE,
)
from dibs.stores.etcd.messages import message, put_op, txn
from tests.programs import wait_until
from tests.stalls import is_in_time
from tests.stores.etcd.hostile import SERVED, HostileServer, answered, block, frame, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stores.etcd.hostile import Answer

CALL_MS, TRY_MS = 600, 200
LATE_S = 3.0  # on a busy machine
MEMORY_BYTES_MAX = 16 * 1024 * 1024
REQUEST = txn([put_op(b"k", b"v")])
HEAD = block(status="200", content_type="application/grpc")
SPEAKS_GRPC = frame(HEADERS, END_HEADERS, 1, HEAD)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ETCD_MS_MAX", CALL_MS)
    monkeypatch.setattr(client, "ETCD_TRY_MS_MAX", TRY_MS)


@pytest.fixture
def patient(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For calls that are answered: on a slow machine, too."""
    monkeypatch.setattr(client, "ETCD_MS_MAX", ETCD_MS_MAX)


def connected(server: HostileServer) -> EtcdClient:
    return EtcdClient(EtcdLocation(endpoints=(server.endpoint,), prefix="dibs"))


def write_to(server: HostileServer, request: bytes = REQUEST) -> StoreUnavailable | None:
    """The error of a write, or None. In time, and of no other kind."""
    asking = connected(server)
    began_s = time.monotonic()
    try:
        answer = asking.write(request)
        assert (answer.revision, answer.succeeded) == (7, True)
        return None
    except StoreUnavailable as error:
        return error
    finally:
        asking.close()
        assert is_in_time(began_s, CALL_MS / 1000 + LATE_S)


def one(*frames: bytes) -> Answer:
    return lambda _: frames


def padded(data: bytes, size: int) -> bytes:
    return bytes((size,)) + data + bytes(size)


UNDERSTOOD: dict[str, Callable[[int], bytes]] = {
    "plain": answered,
    "padded": lambda stream: (
        frame(HEADERS, END_HEADERS | PADDED, stream, padded(HEAD, 255))
        + frame(DATA, PADDED, stream, padded(told(SERVED), 200))
        + frame(
            HEADERS, END_HEADERS | END_STREAM | PADDED | PRIORITY, stream, padded(bytes(5) + block(grpc_status="0"), 0)
        )
    ),
    "headers in pieces": lambda stream: (
        frame(HEADERS, 0, stream, HEAD[:3])
        + b"".join(frame(CONTINUATION, 0, stream, HEAD[at : at + 1]) for at in range(3, len(HEAD)))
        + frame(CONTINUATION, END_HEADERS, stream, b"")
        + answered(stream)[9 + len(HEAD) :]
    ),
    "data in pieces": lambda stream: (
        answered(stream, b"")[: 9 + len(HEAD)]
        + b"".join(frame(DATA, 0, stream, bytes((each,))) for each in told(SERVED))
        + frame(HEADERS, END_HEADERS | END_STREAM, stream, block(grpc_status="0"))
    ),
    "among frames of others": lambda stream: (
        answered(stream + 2, told(b"\xff"), grpc_status="13")
        + frame(RST_STREAM, 0, stream + 2, bytes(4))
        + frame(0xEE, 0xFF, stream, b"of a kind that nobody knows")
        + frame(PING, 0, 0, b"12345678")
        + frame(PING, ACK, 0, b"12345678")
        + frame(SETTINGS, 0, 0, struct.pack(">HIHI", WINDOW, 0, 0xFFFF, 1))
        + frame(GOAWAY, 0, 0, struct.pack(">II", (1 << 31) - 1, 0))
        + answered(stream)
    ),
    "with the reserved bit": lambda stream: answered(stream | 1 << 31),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_an_answer_is_understood_however_it_is_framed(name: str) -> None:
    with HostileServer(lambda stream: [UNDERSTOOD[name](stream)]) as server:
        assert write_to(server) is None
    with HostileServer(lambda stream: [bytes((each,)) for each in UNDERSTOOD[name](stream)]) as server:
        assert write_to(server) is None


@pytest.mark.fault("F-210")
def test_a_write_whose_answer_is_cut_at_any_byte_is_unknown() -> None:
    whole = answered(1)
    size = iter(range(len(whole)))
    with HostileServer(lambda _: [whole[: next(size)]], closes=True) as server:
        for at in range(len(whole)):
            error = write_to(server)
            assert error is not None, at
            assert error.unknown, at
        assert len(server.requests) == len(whole), "it is not sent twice"


UNKNOWN: dict[str, Answer] = {
    "silence": one(),
    "a goaway for later calls, then silence": one(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0))),
    "a goaway that is cut": one(frame(GOAWAY, 0, 0, b"")),
    "a goaway after the answer began": one(SPEAKS_GRPC, frame(GOAWAY, 0, 0, bytes(8))),
    "a refused call after the answer began": one(SPEAKS_GRPC, frame(RST_STREAM, 0, 1, struct.pack(">I", 7))),
    "no trailers": one(SPEAKS_GRPC, frame(DATA, END_STREAM, 1, told(SERVED))),
    "trailers without a status": lambda stream: [answered(stream, grpc_message="fine")],
    "a status that is no number": lambda stream: [answered(stream, grpc_status="fine")],
    "a status without end": lambda stream: [answered(stream, grpc_status="9" * 5_000)],
    "a proxy that lost it": one(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(status="502"))),
    "a server error": one(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(status="500"))),
    "no message": one(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(status="200", grpc_status="0"))),
    "two messages": lambda stream: [answered(stream, 2 * told(SERVED))],
    "a part of a message": lambda stream: [answered(stream, told(SERVED)[:-1])],
    "a compressed message": lambda stream: [answered(stream, told(SERVED, compressed=1))],
    "a message of 4 GB": one(SPEAKS_GRPC, frame(DATA, 0, 1, b"\0\xff\xff\xff\xff")),
    "a message inside that is none": lambda stream: [answered(stream, told(message(1, 1)))],
    "a revision that is text": lambda stream: [answered(stream, told(message(message(1, 1, b"x"), 1)))],
    "a number without end": lambda stream: [
        answered(stream, b"")[: 9 + len(HEAD)] + frame(DATA, 0, stream, told(bytes(2_000_000))[:5] + b"\x08"),
        *[frame(DATA, 0, stream, b"\xff" * 16_000)] * 125,
        answered(stream)[-9 - len(block(grpc_status="0")) :],
    ],
    "messages in messages": lambda stream: [answered(stream, told(nested(2_000)))],
    "a frame that is too large": one(SPEAKS_GRPC, frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX + 1))),
    "padding that is longer than its frame": one(SPEAKS_GRPC, frame(DATA, PADDED, 1, b"\x09" + told(SERVED)[:3])),
    "headers that are not HPACK": one(frame(HEADERS, END_HEADERS, 1, b"\xff" * 100)),
    "a header table that we refused": one(frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x1f" + HEAD)),
    "a header of 60 MB": one(frame(HEADERS, END_HEADERS, 1, b"\x00\x01a\x7f\x81\xff\xff\x1c")),
}


def nested(depth: int) -> bytes:
    """Transactions in transactions."""
    found = SERVED
    for _ in range(depth):
        found = message(b"", 1, message(b"", b"", b"", found))
    return found


@pytest.mark.fault("F-210")
@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_write_that_may_have_been_executed_is_unknown(name: str) -> None:
    with HostileServer(UNKNOWN[name]) as server:
        error = write_to(server)
        assert error is not None
        assert error.unknown
        wait_until(lambda: server.requests, "it was sent")
        assert len(server.requests) == 1, "it is not sent twice"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("code", range(15))
def test_a_call_that_the_server_ends_is_unknown_unless_it_says_that_it_did_nothing(code: int) -> None:
    with HostileServer(lambda stream: [frame(RST_STREAM, 0, stream, struct.pack(">I", code))]) as server:
        error = write_to(server)
    assert error is not None
    assert error.unknown == (code != REFUSED_STREAM)


NOT_DONE: dict[str, Answer] = {
    "a goaway for earlier calls": one(frame(GOAWAY, 0, 0, bytes(8))),
    "a refusal": lambda stream: [answered(stream, b"", grpc_status="9", grpc_message="no")],
    "a refusal in a text that is not UTF-8": lambda stream: [
        answered(stream, b"", grpc_status="9", grpc_message=b"\xff\xfe\x1b[2J")
    ],
    "a refusal without headers": one(
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block(status="200", grpc_status="12"))
    ),
    "a web server": one(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(status="404"))),
    "an old web server": one(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", NOT_DONE)
def test_a_write_that_was_refused_is_not_unknown(name: str) -> None:
    with HostileServer(NOT_DONE[name]) as server:
        error = write_to(server)
        assert error is not None
        assert not error.unknown


def test_a_write_that_had_no_room_to_be_sent_is_not_unknown() -> None:
    nothing = frame(SETTINGS, 0, 0, struct.pack(">HI", WINDOW, 0))
    large = txn([put_op(b"k", bytes(100_000))])
    with HostileServer(one(), hello=nothing) as server:
        error = write_to(server, large)
        assert error is not None
        assert not error.unknown
        assert not server.requests


@pytest.mark.usefixtures("patient")
def test_windows_of_one_byte_only_take_longer() -> None:
    tiny = frame(SETTINGS, 0, 0, struct.pack(">HI", WINDOW, 1))
    data = b""
    with HostileServer(lambda stream: [answered(stream)], hello=tiny) as server:
        asking = connected(server)
        assert asking.write(REQUEST).succeeded  # it may begin before the window is known
        data = txn([put_op(b"k", b"v" * 50)])
        assert asking.write(data).succeeded
        asking.close()
        assert server.requests == [told(REQUEST), told(data)]


FLOODS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "continuations": lambda stream: itertools.chain(
        [frame(HEADERS, 0, stream, b"")], itertools.repeat(frame(CONTINUATION, 0, stream, bytes(FRAME_BYTES_MAX)))
    ),
    "empty continuations": lambda stream: itertools.chain(
        [frame(HEADERS, 0, stream, b"")], itertools.repeat(100 * frame(CONTINUATION, 0, stream, b""))
    ),
    "headers": lambda stream: (
        frame(HEADERS, END_HEADERS, stream, block(**{f"x{number}": "x" * 10_000})) for number in itertools.count()
    ),
    "messages": lambda stream: itertools.chain(
        [SPEAKS_GRPC], itertools.repeat(frame(DATA, 0, stream, told(bytes(FRAME_BYTES_MAX - 5))))
    ),
    "empty messages": lambda stream: itertools.chain(
        [SPEAKS_GRPC], itertools.repeat(frame(DATA, 0, stream, 3_000 * told(b"")))
    ),
    "pings": lambda _: itertools.repeat(1_000 * frame(PING, 0, 0, b"12345678")),
    "settings": lambda _: itertools.repeat(1_000 * frame(SETTINGS, 0, 0, struct.pack(">HI", WINDOW, 1 << 31))),
    "windows": lambda stream: itertools.repeat(frame(WINDOW_UPDATE, 0, stream, b"\xff" * FRAME_BYTES_MAX)),
    "answers to others": lambda stream: itertools.repeat(answered(stream + 2)),
}


@pytest.mark.fault("F-211")
@pytest.mark.parametrize("reads", [True, False], ids=["reads", "never reads"])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_in_time_and_fills_no_memory(name: str, reads: bool) -> None:
    tracemalloc.start()
    try:
        with HostileServer(FLOODS[name], reads=reads) as server:
            error = write_to(server)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert error is not None
    assert error.unknown


@pytest.mark.fault("F-211")
def test_a_flood_between_two_calls_does_not_keep_the_next_one() -> None:
    tracemalloc.start()
    try:
        flood = itertools.repeat(1_000 * frame(PING, 0, 0, b"12345678"))
        with HostileServer(lambda stream: itertools.chain([answered(stream)], flood)) as server:
            asking = connected(server)
            for _ in range(3):
                began_s = time.monotonic()
                with suppress(StoreUnavailable):  # the flood may begin when the next request is on its way
                    asking.write(REQUEST)
                assert is_in_time(began_s, CALL_MS / 1000 + LATE_S)
            asking.close()
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.fault("F-210")
def test_answers_that_were_changed_at_random_raise_nothing_else() -> None:
    chance = random.Random(5)
    whole = answered(1)

    def changed(_: int) -> list[bytes]:
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 0xFF, chance.randrange(256)))
        return [bytes(data)]

    with HostileServer(changed, closes=True) as server:
        for _ in range(300):
            asking = connected(server)
            with suppress(StoreUnavailable):
                asking.write(REQUEST)
            asking.close()
