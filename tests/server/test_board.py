"""What the board asks beside the lists, and its files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dibs.core.limits import NAME_BYTES_MAX
from tests.server.harness import Poll, wait_until

if TYPE_CHECKING:
    from tests.server.harness import Server

HTML = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def ns(name: str) -> str:
    """A namespace of the test's own."""
    return f"ns-{name}"


@pytest.mark.fault("F-776")
def test_a_page_of_waiters_is_followed_by_the_next_however_long_the_name_is(server: Server, ns: str) -> None:
    long = "n" * NAME_BYTES_MAX
    for owner in ("anna", "bert", "carl"):
        server.acquire(long, {"owner": owner, "wait_seconds": 1}, headers={"X-Dibs-Namespace": ns})
    found: list[str] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        page = server.ask("GET", f"/waiters?namespace={ns}&limit=1&after={quote(page['next'], '')}").json
        found += [each["owner"] for each in page["waiters"]]
    assert found == ["bert", "carl"]


def test_waiters_are_listed_with_their_places_and_who_is_in_the_way(server: Server, name: str, ns: str) -> None:
    where = {"X-Dibs-Namespace": ns}
    server.acquire(name, {"owner": "anna", "ttl_seconds": 600}, headers=where)
    polls = []
    for owner in ("bert", "carl"):
        before = server.waiting()
        path = f"/locks/{name}/acquire?namespace={ns}"
        polls.append(Poll(server, path, {"owner": owner, "wait_seconds": 60, "metadata": "m"}))
        wait_until(lambda before=before: server.waiting() > before, "nobody waits")  # type: ignore[misc]
    found = server.ask("GET", f"/waiters?namespace={ns}", who="viewer").json
    first, second = sorted(found["waiters"], key=lambda each: each["position"])
    assert (first["owner"], first["position"], second["owner"], second["position"]) == ("bert", 1, "carl", 2)
    assert [(each["name"], each["owner"]) for each in second["holders"]] == [(name, "anna")]
    assert first["metadata"] == "m"
    assert found["next"] is None
    page = server.ask("GET", f"/waiters?namespace={ns}&limit=1", who="viewer").json
    rest = server.ask("GET", f"/waiters?namespace={ns}&limit=1&after={page['next']}", who="viewer").json
    assert {each["owner"] for each in (*page["waiters"], *rest["waiters"])} == {"bert", "carl"}
    assert server.ask("GET", f"/waiters?namespace={ns}&prefix=other", who="viewer").json["waiters"] == []
    for poll in polls:
        poll.hang_up()


def test_the_last_hour_is_counted_by_the_minute(server: Server, name: str, ns: str) -> None:
    where = {"X-Dibs-Namespace": ns}

    def hour() -> dict[str, list[int]]:
        found = server.ask("GET", f"/activity?namespace={ns}", who="viewer").json
        assert found["whole"]
        assert {len(counts) for counts in found["minutes"].values()} == {60}
        held.append(found["held"])
        return {kind: counts for kind, counts in found["minutes"].items() if sum(counts)}

    held: list[int] = []
    lease = server.acquire(name, {"ttl_seconds": 600}, headers=where).json["lease_id"]
    assert hour() == {"acquired": [0] * 59 + [1]}
    server.pass_time(120_000)
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease}, headers=where)
    assert hour() == {"acquired": [0] * 57 + [1, 0, 0], "released": [0] * 59 + [1]}
    server.clock.advance(3_600_000)
    assert hour() == {}
    assert held == [1, 0, 0]


def test_a_list_shows_the_jobs_whose_last_hold_ended_so(server: Server, name: str, ns: str) -> None:
    where = {"X-Dibs-Namespace": ns}
    for number, body in enumerate(({}, {"failed": True, "reason": "why"})):
        lease = server.acquire(f"{name}-{number}", {}, headers=where).json["lease_id"]
        server.ask("POST", f"/locks/{name}-{number}/release", {"lease_id": lease, **body}, headers=where)
    path = f"/locks?namespace={ns}&status=free,delayed&ended="
    assert [lock["name"] for lock in server.ask("GET", path + "failed,expired").json["locks"]] == [f"{name}-1"]
    assert [lock["name"] for lock in server.ask("GET", path + "released").json["locks"]] == [f"{name}-0"]
    refused = server.ask("GET", path + "lost")
    assert (refused.status, refused.json["code"]) == (400, "invalid_input")


def test_an_operator_ends_a_session_and_history_says_who_and_why(server: Server, name: str) -> None:
    session = server.ask("POST", "/sessions", {"owner": "dora"}).json["session_id"]
    lease = server.acquire(name, {"session_id": session, "owner": "dora", "max_attempts": 5}).json["lease_id"]
    path, why = f"/sessions/{session[:8]}/break", {"reason": "wrong branch"}
    refused = server.ask("POST", path, why)
    assert refused.status == 403
    assert "end somebody's session" in refused.json["details"]
    assert server.ask("POST", path, {}, who="operator").status == 400
    assert server.ask("POST", "/sessions/x/break", why, who="operator").status == 400
    assert server.ask("POST", "/sessions/00000000/break", why, who="operator").status == 404
    assert server.ask("POST", path, why, who="operator-a").status == 404  # an operator of another namespace
    ended = server.ask("POST", path, why, who="operator").json
    assert (ended["session_id"], ended["active"]) == (f"{session[:8]}…", False)
    assert server.ask("POST", path, why, who="operator").status == 200  # the first answer may have been lost
    last = server.ask("GET", f"/locks/{name}/history").json["events"][-1]
    assert (last["event"], last["by"], last["reason"]) == ("broken", "operator", "wrong branch")
    late = server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease})
    assert (late.status, late.json["code"]) == (404, "lease_not_current")
    assert "by operator: wrong branch" in late.json["details"]
    assert server.acquire(name, {}, who="other").json["attempt"] == 2


def test_the_page_is_for_everybody_and_may_load_nothing_from_elsewhere(server: Server) -> None:
    page = server.ask("GET", "/", who=None, headers=HTML)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    again = server.ask("GET", "/", who=None, headers={**HTML, "If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    wanted = re.findall(r'(?:src|href)="(/ui/[^"]+)"', page.body.decode())
    for path in wanted:
        part = server.ask("GET", path, who=None)
        assert (part.status, part.headers["x-content-type-options"]) == (200, "nosniff")
        wanted += [
            f"/ui/{name}"
            for name in re.findall(r'from "\./([^"]+)"', part.body.decode())
            if f"/ui/{name}" not in wanted
        ]
    assert len(wanted) > 15
    for path in ("/ui/", "/ui/..%2fapp.py", "/ui/%2e%2e%2f__init__.py", "/ui/app.py", "/ui/x/app.js"):
        assert server.ask("GET", path, who=None).status == 404, path
