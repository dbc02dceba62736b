"""A server with something to see: an hour of history, workers that hold, wait, fail and finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.server.harness import Poll, wait_until

if TYPE_CHECKING:
    from tests.server.harness import Server

HOSTILE = (
    "<script>document.title='owned'</script>",
    "https://example.com/?next=javascript:alert(1)#top",
    "\N{FOX FACE}" * 128,  # 512 bytes
    "\N{HEBREW LETTER SHIN}\N{HEBREW LETTER LAMED} \N{HEBREW LETTER AYIN}",
    "x" * 512,
)
CHECKPOINT = '{"done": 412, "of": 1300}'


def path(name: str) -> str:
    return f"/locks/{quote(name, safe='')}"


def claim(server: Server, name: str, owner: str, **fields: Any) -> str:
    """The lease id."""
    reply = server.ask("POST", f"{path(name)}/acquire", {"owner": owner, "ttl_seconds": 600, **fields})
    assert reply.json["status"] == "acquired", reply.json
    return str(reply.json["lease_id"])


def end(server: Server, name: str, lease: str, **fields: Any) -> None:
    assert server.ask("POST", f"{path(name)}/release", {"lease_id": lease, **fields}).status < 300


def session(server: Server, owner: str, **fields: Any) -> str:
    asked = {"owner": owner, "ttl_seconds": 300, "metadata": "nightly build", **fields}
    return str(server.ask("POST", "/sessions", asked).json["session_id"])


def play(server: Server) -> list[Poll]:
    """The play. Returns those who still wait; hang them up at the end."""
    for minute in range(12):
        lease = claim(server, f"build-{minute % 4}", f"worker-{minute % 3}")
        server.pass_time(40_000 + 9_000 * minute)
        if minute % 4 == 2:
            end(server, f"build-{minute % 4}", lease, failed=True, reason="tests failed: 3 of 412")
        else:
            end(server, f"build-{minute % 4}", lease)
    _long_story(server)
    for number in range(3):
        lease = claim(server, f"report-{number}", "reporter")
        end(server, f"report-{number}", lease, done=True, result=f"s3://reports/{number}.pdf")
    lease = claim(server, "flaky-import", "importer", max_attempts=1)
    end(server, "flaky-import", lease, failed=True, reason="the file has no header")
    return _present(server)


def _long_story(server: Server) -> None:
    """One job with every ending."""
    lease = claim(server, "issue-1042", "atlas")
    server.pass_time(90_000)
    end(server, "issue-1042", lease, failed=True, reason="merge conflict")
    server.pass_time(45_000)
    claim(server, "issue-1042", "borealis", ttl_seconds=60)
    server.pass_time(61_500)
    claim(server, "issue-1042", "cassini")
    server.pass_time(150_000)
    broken = server.ask("POST", f"{path('issue-1042')}/break", {"reason": "stuck since lunch"}, who="operator")
    assert broken.status == 200
    server.pass_time(20_000)


def _present(server: Server) -> list[Poll]:
    fields = {"metadata": "branch fix/1042", "ttl_seconds": 900}
    lease = claim(server, "issue-1042", "delphi", **fields)
    server.ask("POST", f"{path('issue-1042')}/renew", {"lease_id": lease, "checkpoint": CHECKPOINT})
    own = session(server, "atlas")
    for number in range(4):
        claim(server, f"deploy/eu-{number}", "atlas", session_id=own)
    other = session(server, "borealis")
    claim(server, "migrate-db", "borealis", session_id=other)
    for number in range(1100, 1124):
        claim(server, f"issue-{number}", f"worker-{number % 5}", ttl_seconds=300 + number % 7 * 90)
        server.pass_time(11_000)
    for name, slots in (("gpu", 4), ("render", 1)):
        server.ask("PUT", f"{path(name)}/pool", {"slots": slots}, who="operator")
    for owner, units in (("trainer-1", 2), ("trainer-2", 1)):
        claim(server, "gpu", owner, units=units, metadata=f"{units} of 4 cards")
    server.ask("PUT", f"{path('render')}/pool", {"slots": 0}, who="operator")
    closed = {"for_seconds": 7_200, "reason": "the mirror is moved"}
    server.ask("POST", f"{path('mirror/')}/close", closed, who="operator")
    waits: dict[str, Any] = {"wait_seconds": 600, "ttl_seconds": 600}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("gpu", {"owner": "trainer-3", "units": 2}),
        ("render", {"owner": "studio"}),
        ("migrate-db", {"owner": "atlas", "session_id": own}),
        *[("issue-1042", {"owner": owner}) for owner in ("eridani", "fornax", "gemini")],
        ("deploy/eu-1", {"owner": "borealis-2"}),
    ]
    polls = []
    for name, who in asked:
        polls.append(Poll(server, f"{path(name)}/acquire", {**waits, **who}))
        wait_until(lambda: server.waiting() == len(polls), "nobody waits")
    server.pass_time(8_000)
    return polls
