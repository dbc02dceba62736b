"""Numbers of a series over HTTP: fields, codes and roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.test_contract import assert_error

if TYPE_CHECKING:
    from tests.server.harness import Server


@pytest.mark.promise("number", "roles")
def test_an_agent_gets_numbers_and_is_told_whose_a_taken_one_is(server: Server, name: str) -> None:
    first = server.ask("POST", f"/locks/{name}/next", {"at_least": 436, "owner": "a", "request_key": "k"})
    assert (first.status, first.json) == (200, {"name": name, "number": 436, "owner": "a"})
    again = server.ask("POST", f"/locks/{name}/next", {"request_key": "k"})
    assert (again.json["number"], again.json["again"]) == (436, True)
    taken = server.ask("POST", f"/locks/{name}/next", {"number": 436, "owner": "b"})
    assert (taken.status, taken.json["code"]) == (409, "number_taken")
    assert (taken.json["owner"], taken.json["number"], taken.json["next"]) == ("a", 436, 437)
    assert server.ask("GET", f"/locks/{name}").json["last_number"] == 436
    assert_error(server.ask("POST", f"/locks/{name}/next", {}, who="viewer"), 403, "forbidden")
    assert_error(server.ask("POST", f"/locks/{name}/give-back", {"number": 436}, who="viewer"), 403, "forbidden")
    back = server.ask("POST", f"/locks/{name}/give-back", {"number": 436})
    assert back.json == {"name": name, "number": 436, "returned": True, "last_number": 0}


def test_what_is_no_number_and_what_is_no_series_is_refused(server: Server, name: str) -> None:
    for body in ({"number": 0}, {"number": 10**9 + 1}):
        assert_error(server.ask("POST", f"/locks/{name}/next", body), 400, "invalid_input")
    for job in ("path:src", "repo:x"):
        assert_error(server.ask("POST", f"/locks/{job}/next", {}), 400, "invalid_input")
