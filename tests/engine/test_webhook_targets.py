"""Where webhooks may lead, and how the address that was checked is the one that is connected to."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from dibs.core.limits import WEBHOOK_LOOKUPS_MAX
from dibs.engine.webhooks import (
    TargetPolicy,
    TargetRefused,
    check_addresses,
    is_refused,
    parse_target,
)
from dibs.engine.webhooks.sender import LookupFailed, Resolver, Sender

if TYPE_CHECKING:
    from dibs.engine.webhooks.sender import DeliveryResult

OPEN = TargetPolicy(private=True, http=True)


@pytest.mark.promise("webhook:private")
@pytest.mark.parametrize(
    "address",
    """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.9.9.9 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1
    203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
    :: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::a00:1 64:ff9b::808:808 64:ff9b:1::1 100::1
    2001::1 2001:db8::1 2002:7f00:1::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
    """.split(),
)
def test_an_address_that_is_not_of_the_public_internet_is_refused(address: str) -> None:
    assert is_refused(address)
    with pytest.raises(TargetRefused):
        check_addresses(["8.8.8.8", address], TargetPolicy())
    assert check_addresses([address], OPEN) == [address]


@pytest.mark.parametrize(
    "address", "8.8.8.8 1.1.1.1 100.63.255.255 172.32.0.1 223.255.255.1 2606:4700::1111 2a00:1450::8".split()
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert check_addresses([address], TargetPolicy()) == [address]


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "header"),
    [
        ("https://Hook.Test", "hook.test", 443, "/", "hook.test"),
        ("https://hook.test.:8443/a?b=c#d", "hook.test", 8443, "/a?b=c", "hook.test:8443"),
        ("https://[2606:4700::1]:444/", "2606:4700::1", 444, "/", "[2606:4700::1]:444"),
        ("http://1.1.1.1/x", "1.1.1.1", 80, "/x", "1.1.1.1"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, path: str, header: str) -> None:
    target = parse_target(url, OPEN)
    assert (target.host, target.port, target.path, target.host_header) == (host, port, path, header)


def send(sender: Sender, url: str) -> DeliveryResult:
    async def once() -> DeliveryResult:
        return await sender.send(url, {}, b"{}")

    return asyncio.run(once())


NOVEMBER_MS = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("status", "lines", "rest_ms"),
    [
        (429, ["Retry-After: 120"], 120_000),
        (503, ["retry-after:  7 "], 7_000),
        (503, ["Retry-After: Sun, 06 Nov 1994 08:50:37 GMT"], 60_000),
        (503, ["Retry-After: Sun, 06 Nov 1994 08:48:37 GMT"], 0),
        (500, ["Retry-After: 120"], 0),
        (200, ["Retry-After: 120"], 0),
        (429, [], 0),
        (429, ["Retry-After: -1"], 0),
        (429, ["Retry-After: 1.5"], 0),
        (429, ["Retry-After: \u00b2"], 0),
        (429, ["Retry-After: soon"], 0),
        (429, ["Retry-After:"], 0),
        (429, [f"Retry-After: {10**30}"], 0),
        (429, ["Retry-After: 5", "Retry-After: 10"], 0),
        (429, ["Retry-After: Sun, 06 Nov 1994 08:50:37 GMT"] * 2, 0),
        (429, ["Retry-After: Sun, 06 Nov 99999999 08:50:37 GMT"], 0),
        (429, ["Retry-After: Sun, 06 Nov 9999999999999999999999 08:50:37 GMT"], 0),
        (429, ["Retry-After: Sun, 06 Foo 1994 08:50:37 GMT"], 0),
        (429, ["Retry-After: Sun, 06 Nov 1994 08:50:37 CET"], 0),
        (429, ["Retry-After: Sunday, 06-Nov-94 08:50:37 GMT"], 60_000),
    ],
)
def test_how_long_a_target_asks_to_be_left_alone(
    status: int, lines: list[str], rest_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.engine.webhooks.sender.wall_ms", lambda: NOVEMBER_MS)
    answer = "\r\n".join([f"HTTP/1.1 {status} Said", *lines, "Content-Length: 0", "", ""]).encode("latin-1")
    result = answered(answer)
    assert (result.status, result.rest_ms) == (status, rest_ms)
    assert ("asks to wait" in result.error) is bool(rest_ms)


def answered(answer: bytes) -> DeliveryResult:
    """What a target with this answer says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def once() -> DeliveryResult:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            sender = Sender(OPEN)
            result = await sender.send(f"http://127.0.0.1:{port}/", {}, b"{}")
            sender.close()
            return result

    return asyncio.run(once())


@pytest.mark.promise("webhook:private")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "127.1"])
def test_no_spelling_of_this_machine_is_connected_to(host: str) -> None:
    result = send(Sender(TargetPolicy(http=True)), f"http://{host}:9/")
    assert "private, local or reserved" in result.error or "no address" in result.error


@pytest.mark.promise("webhook:private")
def test_a_name_that_changes_its_address_is_checked_each_time_and_connected_to_where_it_was_checked() -> None:
    """The second lookup would lead to this machine. No lookup but the checked one is used to connect."""
    answers = [["203.0.113.7"], ["8.8.8.8"], ["127.0.0.1"], ["8.8.8.8", "10.0.0.1"]]
    asked: list[str] = []
    connected: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    class Recording(Sender):
        async def _connect_to(self, target: object, addresses: list[str]) -> object:  # type: ignore[override]
            connected.extend(addresses)
            raise OSError(111, "Connection refused")

    sender = Recording(TargetPolicy(), Resolver(lookup))
    errors = [send(sender, "https://hook.test/").error for _ in answers]
    refused = (
        "url leads to a private, local or reserved address. "
        "A server allows those only if it runs with --webhook-allow-private."
    )
    assert errors == [refused, "no connection: Connection refused", refused, refused]
    assert connected == ["8.8.8.8"]
    assert len(asked) == len(answers)


@pytest.mark.promise("webhook:bounded")
def test_lookups_that_hang_are_bounded_and_one_host_has_one() -> None:
    go_on = threading.Event()
    begun: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        begun.append(host)
        go_on.wait(60)
        return ["8.8.8.8"]

    async def main() -> None:
        resolver = Resolver(lookup)
        hosts = [f"host-{number % WEBHOOK_LOOKUPS_MAX}" for number in range(WEBHOOK_LOOKUPS_MAX * 3)]
        asking = [asyncio.ensure_future(resolver.addresses(host, 443)) for host in hosts]
        await asyncio.sleep(0)
        with pytest.raises(LookupFailed):
            await resolver.addresses("one-more", 443)
        go_on.set()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*asking) == [["8.8.8.8"]] * len(hosts)
            assert await resolver.addresses("one-more", 443) == ["8.8.8.8"]

    asyncio.run(main())
    assert len(begun) == WEBHOOK_LOOKUPS_MAX + 1


def test_what_cannot_be_looked_up_is_said() -> None:
    def lookup(host: str, port: int) -> list[str]:
        raise LookupFailed("the host has no address")

    assert send(Sender(OPEN, Resolver(lookup)), "https://hook.test/").error == "the host has no address"
