"""A field that no operation has: refused on dibs' own routes, ignored on those that OctoStore's clients use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import Unprocessable
from dibs.wire.fields import REQUESTS
from dibs.wire.values import OF_OCTOSTORE, shape

if TYPE_CHECKING:
    from tests.server.harness import Server

SOME = {"id": "00000000-0000-4000-8000-000000000000", "list": ["x"], "text": "x", "object": {}, "whole": 1, "number": 1}


def least(verb: str) -> dict[str, Any]:
    """The fields that a request must have."""
    found = {field: SOME[kind[:-1]] for field, kind in REQUESTS[verb].items() if kind.endswith(("!", "?"))}
    return {**found, "lease_id": SOME["id"]} if "lease_id" in REQUESTS[verb] else found


@pytest.mark.fault("F-324")
@pytest.mark.parametrize("verb", sorted(REQUESTS))
def test_each_request_refuses_what_it_does_not_know_or_is_octostores(verb: str) -> None:
    document = least(verb)
    known = shape(verb, document)
    assert shape(verb, {**document, "no_such": None}) == known
    if verb in OF_OCTOSTORE:
        assert shape(verb, {**document, "no_such": 1}) == known
    else:
        with pytest.raises(Unprocessable, match='There is no field "no_such" here'):
            shape(verb, {**document, "no_such": 1})


@pytest.mark.fault("F-324")
def test_a_token_with_a_field_that_is_not_known_is_not_made(server: Server, name: str) -> None:
    before = server.ask("GET", "/tokens", who="admin").json
    for field in ("ttl_seconds", "max_hold", "\u202e\u2028" + "x" * 5_000):
        refused = server.ask("POST", "/tokens", {"name": name, field: 60}, who="admin")
        assert refused.status == 422
        assert len(refused.body) < 1_000
        assert "\u202e" not in refused.json["details"]
    assert (
        "The fields are: name, " in server.ask("POST", "/tokens", {"name": name, "zz": 1}, who="admin").json["details"]
    )
    assert server.ask("GET", "/tokens", who="admin").json == before


@pytest.mark.fault("F-324")
def test_the_nearest_field_is_named(server: Server, name: str) -> None:
    refused = server.ask("POST", "/locks/acquire-all", {"names": [name], "ttl_second": 60})
    assert (refused.status, refused.json["details"]) == (
        422,
        'There is no field "ttl_second" here. Did you mean ttl_seconds?',
    )
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.fault("F-324")
def test_what_octostores_clients_send_beside_is_ignored(server: Server, name: str) -> None:
    assert (
        server.acquire(name, {"ttl_seconds": 60, "client_version": "3", "hostname": "x"}).json["status"] == "acquired"
    )
    described = server.ask("GET", "/openapi.json").json["components"]["schemas"]
    assert "additionalProperties" not in described["acquire-request"]
    assert json.dumps(described["token-create-request"]["additionalProperties"]) == '{"type": "null"}'
