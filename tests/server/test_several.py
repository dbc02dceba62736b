"""The other verbs of coordination over HTTP: any, all, trees, shares and slots, handing over, parking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dibs.core.limits import ALL_NAMES_MAX, NAMES_MAX
from tests.server.harness import UNKNOWN_LEASE, running
from tests.server.test_contract import assert_error
from tests.server.test_sessions import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import Response, Server


def several(server: Server, verb: str, *names: str, who: str = "agent", **fields: Any) -> Response:
    return server.ask("POST", f"/locks/acquire-{verb}", {"names": list(names), **fields}, who=who)


def test_any_gives_the_first_that_is_free_and_says_which(server: Server, name: str) -> None:
    server.lease(f"{name}-a")
    reply = several(server, "any", f"{name}-a", f"{name}-b", f"{name}-c", owner="agent-7")
    assert (reply.status, reply.json["status"], reply.json["name"]) == (200, "acquired", f"{name}-b")
    assert server.ask("GET", f"/locks/{name}-c").json["status"] == "free"


def test_any_says_of_each_name_why_not(server: Server, name: str) -> None:
    server.lease(f"{name}-held", owner="agent-7")
    lease = server.lease(f"{name}-done")
    server.ask("POST", f"/locks/{name}-done/release", {"lease_id": lease, "done_seconds": 60})
    body = several(server, "any", f"{name}-held", f"{name}-done").json
    assert body["status"] == "held"
    assert [(each["name"], each["status"]) for each in body["refused"]] == [
        (f"{name}-held", "held"),
        (f"{name}-done", "done"),
    ]
    assert body["refused"][0]["owner"] == "agent-7"
    assert body["retry_after_ms"] == 60_000


@pytest.mark.promise("idem:acquire")
def test_any_with_the_same_key_gives_the_same_job(server: Server, name: str) -> None:
    names = [f"{name}-{letter}" for letter in "ab"]
    key = {"Idempotency-Key": f"k-{name}"}
    body = {"names": names}
    first = server.ask("POST", "/locks/acquire-any", body, headers=key).json
    again = server.ask("POST", "/locks/acquire-any", body, headers=key).json
    assert (first["name"], first["lease_id"]) == (again["name"], again["lease_id"])
    assert several(server, "any", *names).json["name"] == names[1]


@pytest.mark.promise("all-or-nothing")
def test_all_gives_all_or_none(server: Server, name: str) -> None:
    names = [f"{name}-{letter}" for letter in "cab"]
    blocking = server.lease(names[0], owner="agent-7")
    body = several(server, "all", *names).json
    assert body["status"] == "held"
    assert [each["name"] for each in body["refused"]] == [names[0]]
    assert server.ask("GET", f"/locks/{names[1]}").json["status"] == "free"
    server.ask("POST", f"/locks/{names[0]}/release", {"lease_id": blocking})
    body = several(server, "all", *names).json
    assert body["status"] == "acquired"
    assert [lease["name"] for lease in body["leases"]] == sorted(names)
    for lease in body["leases"]:
        reply = server.ask("POST", f"/locks/{lease['name']}/release", {"lease_id": lease["lease_id"]})
        assert reply.status == 200


NAMES = [f"n-{number}" for number in range(10_000)]


@pytest.mark.parametrize("verb", ["any", "all"])
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 422, "invalid_input"),
        ({"names": None}, 422, "invalid_input"),
        ({"names": "a"}, 422, "invalid_input"),
        ({"names": {"a": 1}}, 422, "invalid_input"),
        ({"names": []}, 400, "invalid_input"),
        ({"names": NAMES}, 400, "invalid_input"),
        ({"names": ["a-twin", "b-twin", "a-twin"]}, 400, "invalid_input"),
        ({"names": [""]}, 400, "invalid_lock_name"),
        ({"names": ["x" * 513]}, 400, "invalid_lock_name"),
        ({"names": ["free-1", 7]}, 400, "invalid_lock_name"),
        ({"names": ["free-1", None]}, 400, "invalid_lock_name"),
        ({"names": ["free-1", "a\tb"]}, 400, "invalid_lock_name"),
        ({"names": ["path:../secret"]}, 400, "invalid_lock_name"),
        ({"names": ["free-1"], "ttl_seconds": 0}, 400, "invalid_ttl"),
        ({"names": ["free-1"], "slots": 0}, 400, "invalid_input"),
        ({"names": ["free-1"], "mode": "both"}, 400, "invalid_input"),
        ({"names": ["free-1"], "session_id": "x"}, 422, "invalid_input"),
        ({"names": ["free-1"], "wait_seconds": -1}, 422, "invalid_input"),
        ({"names": ["free-1"], "wait_seconds": 3_601}, 400, "invalid_input"),
    ],
)
def test_a_list_that_cannot_be_claimed_is_refused_and_nothing_changes(
    server: Server, verb: str, fields: dict[str, Any], status: int, code: str
) -> None:
    assert_error(server.ask("POST", f"/locks/acquire-{verb}", fields), status, code)
    assert server.ask("GET", "/locks/free-1").json["fencing_token"] == 0


def test_names_may_be_as_many_as_the_limit_says(server: Server, name: str) -> None:
    many = [f"{name}-{number}" for number in range(NAMES_MAX)]
    assert several(server, "any", *many).json["name"] == many[0]
    assert len(several(server, "all", *many[1 : ALL_NAMES_MAX + 1]).json["leases"]) == ALL_NAMES_MAX
    assert_error(several(server, "all", *many[: ALL_NAMES_MAX + 1]), 400, "invalid_input")


def test_any_does_not_wait_and_all_refuses_what_overlaps_itself(server: Server, name: str) -> None:
    assert_error(several(server, "any", name, wait_seconds=5), 400, "invalid_input")
    assert_error(several(server, "all", f"path:{name}", f"path:{name}/src"), 400, "invalid_input")


def test_several_is_a_place_of_its_own_and_a_name_too(server: Server) -> None:
    assert server.ask("GET", "/locks/acquire-any").json["name"] == "acquire-any"
    assert server.acquire("acquire-all").json["name"] == "acquire-all"
    assert server.ask("POST", "/locks//acquire-any", {"names": ["x"]}).status == 404
    assert server.ask("PUT", "/locks/acquire-any", {}).status == 405
    assert server.ask("POST", "/locks/acquire-any", {"names": ["x"]}, who=None).status == 401


@pytest.mark.parametrize("verb", ["any", "all"])
def test_the_quota_holds_for_several_too(tmp_path: Path, verb: str) -> None:
    with running(tmp_path, locks_per_principal=2) as server:
        server.lease("a")
        if verb == "all":
            refused = several(server, "all", "b", "c").json
            assert [each["status"] for each in refused["refused"]] == ["lock_limit_exceeded"] * 2
        assert several(server, verb, "b").json["status"] == "acquired"
        (refused,) = several(server, verb, "c").json["refused"]
        assert (refused["name"], refused["status"]) == ("c", "lock_limit_exceeded")
        assert several(server, verb, "c", who="other").json["status"] == "acquired"


@pytest.mark.promise("tree")
@pytest.mark.parametrize(
    ("held", "asked", "conflict"),
    [
        ("path:T/src", "path:T/src/auth.rs", "path:T/src"),
        ("path:T/src/auth.rs", "path:T/src", "path:T/src/auth.rs"),
        ("path:T/src", "path:T/src/", None),
    ],
)
def test_names_in_a_tree_conflict_with_what_is_above_and_beneath(
    server: Server, name: str, held: str, asked: str, conflict: str | None
) -> None:
    held, asked = held.replace("T", name), asked.replace("T", name)
    conflict = conflict and conflict.replace("T", name)
    server.lease(quote(held, safe=""))
    body = server.acquire(quote(asked, safe="")).json
    assert (body["status"], body.get("conflict")) == ("held", conflict)


@pytest.mark.promise("tree")
@pytest.mark.parametrize("bad", ["path:..", "path:a/../../b", "path:../x"])
def test_a_tree_name_that_escapes_its_root_is_refused(server: Server, bad: str) -> None:
    assert_error(server.acquire(quote(bad, safe="")), 400, "invalid_lock_name")


def test_slots_let_in_so_many_and_another_number_is_an_error_that_names_both(server: Server, name: str) -> None:
    for _ in range(2):
        assert server.acquire(name, {"slots": 2}).json["status"] == "acquired"
    assert server.acquire(name, {"slots": 2}).json["status"] == "held"
    body = assert_error(server.acquire(name, {"slots": 3}), 409, "conflict")
    assert "slots 2" in body["details"]
    assert "slots 3" in body["details"]
    for fields in ({"slots": 0}, {"slots": 10_001}, {"slots": 2, "mode": "shared"}, {"mode": "x"}):
        assert_error(server.acquire(name, fields), 400, "invalid_input")


@pytest.mark.promise("proof")
def test_a_transfer_gives_a_new_lease_and_a_higher_token_and_keeps_the_checkpoint(server: Server, name: str) -> None:
    path = f"/locks/{name}/transfer"
    first = server.acquire(name, {"owner": "one", "metadata": "m"}).json
    proof = {"lease_id": first["lease_id"]}
    assert_error(server.ask("POST", path, proof), 400, "invalid_input")
    assert_error(server.ask("POST", path, {"to_owner": "two"}), 422, "invalid_input")
    wrong = {"lease_id": UNKNOWN_LEASE, "to_owner": "two"}
    assert_error(server.ask("POST", path, wrong), 400, "lease_not_current")
    assert_error(server.ask("POST", path, {**proof, "to_owner": "x"}, who="other"), 400, "lease_not_current")
    nobody = {**proof, "to_session": UNKNOWN_LEASE}
    assert_error(server.ask("POST", path, nobody), 404, "not_found")
    body = server.ask("POST", path, {**proof, "to_owner": "two", "checkpoint": "half"}).json
    assert (body["status"], body["owner"], body["checkpoint"]) == ("transferred", "two", "half")
    assert body["fencing_token"] > first["fencing_token"]
    told = assert_error(server.ask("POST", f"/locks/{name}/renew", proof), 400, "lease_not_current")
    assert "handed to two" in told["details"]
    assert server.ask("POST", f"/locks/{name}/renew", {"lease_id": body["lease_id"]}).status == 200


def test_a_transfer_to_a_session_of_another_is_that_sessions(server: Server, name: str) -> None:
    lease = server.lease(name)
    heir = open_session(server, who="other", owner="heir")
    body = server.ask("POST", f"/locks/{name}/transfer", {"lease_id": lease, "to_session": heir}).json
    assert body["owner"] == "heir"
    assert server.ask("POST", f"/locks/{name}/release", {"session_id": heir}, who="other").status == 200


def test_a_job_that_too_many_lost_is_parked_until_an_operator_frees_it(server: Server, name: str) -> None:
    for _ in range(2):
        server.lease(name, max_attempts=2)
        server.ask("POST", f"/locks/{name}/break", {"reason": "stuck"}, who="operator")
    reply = server.acquire(name, {"wait_seconds": 5})
    assert (reply.status, reply.json["status"], reply.json["failures"]) == (409, "parked", 2)
    assert "error" not in reply.json
    assert server.ask("GET", f"/locks/{name}").json["status"] == "parked"
    path = f"/locks/{name}/free"
    assert_error(server.ask("POST", path, {}), 403, "forbidden")
    assert_error(server.ask("POST", path), 403, "forbidden")
    assert server.ask("POST", path, who="operator").json == {"name": name, "freed": True}
    assert server.ask("POST", path, {}, who="admin").json == {"name": name, "freed": False}
    assert server.acquire(name).json["attempt"] == 1


@pytest.mark.parametrize("verb", ["leave", "transfer"])
def test_the_body_is_looked_at_before_the_caller(server: Server, name: str, verb: str) -> None:
    path = f"/locks/{name}/{verb}"
    assert_error(server.ask("POST", path, b"{}", who=None), 415, "invalid_input")
    assert_error(server.ask("POST", path, {}, who=None), 422, "invalid_input")
    fields = {"leave": {"ticket": "1.x.y"}, "transfer": {"lease_id": UNKNOWN_LEASE, "to_owner": "x"}}
    assert_error(server.ask("POST", path, fields[verb], who=None), 401, "authentication_required")


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
def test_what_is_left_of_a_repeated_claim_is_not_taken_from_another_process_of_the_session(
    server: Server, name: str
) -> None:
    """One reads the refusal, and its withdrawal comes late. The other claims the job meanwhile, and works on it."""
    session, names = open_session(server), [f"{name}-a", f"{name}-b"]
    terms = {"session_id": session, "request_key": name}
    several(server, "all", *names, **terms)  # its answer is lost
    server.ask("POST", f"/locks/{names[0]}/break", {"reason": "stuck"}, who="operator")
    (left,) = several(server, "all", *names, **terms).json["rest"]
    assert server.acquire(names[1], {"session_id": session, "request_key": "other"}).json["held_before"] is True
    for _ in range(2):
        undone = server.ask("POST", "/locks/withdraw", {"request_key": name, "names": names}).json
        assert undone == {"status": "withdrawn", "left": False, "released": [], "kept": [names[1]]}
    assert server.ask("POST", f"/locks/{names[1]}/renew", {"session_id": session}).status == 200
    assert server.ask("POST", "/locks/withdraw", {"names": names}).json["kept"] == [], "it names no claim"
    back = {"lease_id": left["lease_id"], "uncounted": True}
    assert server.ask("POST", f"/locks/{names[1]}/release", back).status == 200
