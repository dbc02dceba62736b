"""run-secret create, list, end: on a store in memory, and over HTTP what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import is_id, new_id
from dibs.client.transport import Ask
from dibs.core.commands import Freeze
from dibs.core.limits import RUN_TTL_MS
from dibs.engine.coordinator import Coordinator, run_one
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

HOLDER = "dev-1a2b3c4d"


def test_a_run_is_begun_listed_and_ended(terminal: Terminal) -> None:
    begun = terminal("run-secret", "create", "--holder", HOLDER)
    assert begun.exit == 0
    assert "shown this once" in begun.out
    listed = terminal("run-secret", "list", "--json").data["runs"]
    assert [run["holder"] for run in listed] == [HOLDER]
    ended = terminal("run-secret", "end", HOLDER, "--json").data
    assert ended == {"holder": HOLDER, "ended": 1, "released": []}
    assert terminal("run-secret", "list").out == "There are no active runs.\n"
    assert terminal("run-secret", "end", HOLDER).exit == 2


def test_with_quiet_only_the_secret_is_printed(terminal: Terminal) -> None:
    secret = terminal("run-secret", "create", "-q", "--holder", HOLDER).out.strip()
    assert is_id(secret)
    assert terminal("run-secret", "list", "-q").out == f"{HOLDER}\n"


@pytest.mark.promise("session")
def test_ending_a_run_frees_what_it_locked(terminal: Terminal) -> None:
    from dibs.client.embedded import EmbeddedTransport
    from dibs.compat.action_llama.runs import as_run

    secret = terminal("run-secret", "create", "-q", "--holder", HOLDER).out.strip()
    found = as_run(EmbeddedTransport(lambda: Coordinator(terminal.store)), secret)
    assert found is not None
    run, transport = found
    transport.ask(Ask("acquire", "a:b", {"session_id": run.session, "owner": run.holder}))
    assert "a:b" in terminal("run-secret", "list").out
    assert "a:b" in terminal("run-secret", "end", HOLDER).out
    assert terminal("owner", "a:b").exit != 0
    assert as_run(EmbeddedTransport(lambda: Coordinator(terminal.store)), secret) is None


def test_a_secret_is_nowhere_but_in_the_answer_that_made_it(terminal: Terminal) -> None:
    secret = terminal("run-secret", "create", "-q", "--holder", HOLDER).out.strip()
    for words in (("run-secret", "list"), ("session", "list"), ("run-secret", "end", HOLDER)):
        assert secret not in str(terminal(*words, "--json").document)
    kept = [repr(found.record) for _, found in terminal.store.scan("", "", 1000)]
    kept += [repr(event) for event in terminal.store.events(0, 1000)]
    assert kept
    assert not [text for text in kept if secret in text]


def test_the_id_of_a_runs_session_is_no_proof_of_it(terminal: Terminal) -> None:
    terminal("run-secret", "create", "--holder", HOLDER)
    [session] = terminal("session", "list", "--json").data["sessions"]
    assert terminal("claim", "a:b", "--session", session["session_id"]).exit == 2
    assert terminal("session", "end", session["session_id"]).exit == 2


def test_a_secret_that_somebody_else_made_is_taken_from_the_environment(terminal: Terminal) -> None:
    terminal.env["SHUTDOWN_SECRET"] = new_id()
    made = terminal("run-secret", "create", "--holder", HOLDER, "--json").data["secret"]
    assert made != terminal.env["SHUTDOWN_SECRET"]
    given = terminal("run-secret", "create", "--holder", HOLDER, "--given", "--json").data["secret"]
    assert given == terminal.env["SHUTDOWN_SECRET"]
    terminal.env["SHUTDOWN_SECRET"] = "weak"
    assert terminal("run-secret", "create", "--holder", HOLDER, "--given").exit == 64
    del terminal.env["SHUTDOWN_SECRET"]
    assert terminal("run-secret", "create", "--holder", HOLDER, "--given").exit == 64


def test_a_secret_of_a_run_that_is_over_is_not_used_again(terminal: Terminal) -> None:
    terminal.env["SHUTDOWN_SECRET"] = new_id()
    words = ("run-secret", "create", "--holder", HOLDER, "--given")
    assert terminal(*words).exit == 0
    assert terminal(*words).exit == 0  # a repeat of the same
    assert terminal(*words[:3], "other", "--given").exit == 64
    terminal.wait(RUN_TTL_MS / 1000)
    assert terminal(*words).exit == 64
    assert terminal("run-secret", "list", "--json").data["runs"] == []


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-767")
def test_a_run_that_did_not_begin_or_end_in_a_frozen_store_is_not_said_to_have(terminal: Terminal) -> None:
    terminal("run-secret", "create", "--holder", HOLDER)
    run_one(terminal.store, Freeze(id="move"))
    for words in (("end", HOLDER), ("create", "--holder", "dev-8")):
        answer = terminal("run-secret", *words)
        assert answer.exit == 69
        assert "The store is frozen" in answer.err


def test_a_server_refuses_a_time_for_locks_that_cannot_be(terminal: Terminal) -> None:
    refused = terminal("serve", "--gateway", "--rlock-ttl", "0")
    assert refused.exit == 64
    assert "--rlock-ttl" in refused.err


def test_a_holder_is_needed_and_must_be_one(terminal: Terminal) -> None:
    assert terminal("run-secret", "create").exit == 64
    assert terminal("run-secret", "create", "--holder", "").exit == 64
    assert terminal("run-secret", "create", "--holder", "a\nb").exit == 64


def test_runs_of_one_namespace_are_not_seen_in_another(terminal: Terminal) -> None:
    terminal("run-secret", "create", "--holder", HOLDER, "--namespace", "acme")
    assert terminal("run-secret", "list", "--json").data["runs"] == []
    assert terminal("run-secret", "end", HOLDER).exit == 2
    assert terminal("run-secret", "end", HOLDER, "--namespace", "acme").exit == 0


def test_over_http_the_secret_comes_with_the_request_so_that_it_may_be_repeated() -> None:
    from dibs.client.http import HttpTransport
    from dibs.client.servers import Servers
    from dibs.client.urls import server_address

    run = {"secret": "s", "holder": HOLDER, "namespace": "default"}
    with ScriptedServer([b"", reply_of(201, run)]) as server:
        transport = HttpTransport(Servers((server_address(server.url),)))
        assert transport.ask(Ask("run-open", "", {"holder": HOLDER, "secret": "s"})).status == 201
        assert server.body(0) == server.body(1)
    with ScriptedServer([b""]) as server:  # without one, a repeat would begin a second run
        transport = HttpTransport(Servers((server_address(server.url),)))
        assert transport.ask(Ask("run-open", "", {"holder": HOLDER})).status == 503
    with ScriptedServer([reply_of(200, {"runs": []}), b""]) as server:
        transport = HttpTransport(Servers((server_address(server.url),)))
        assert transport.ask(Ask("runs")).status == 200
        # Not repeated: it could hit the next run of that holder.
        assert transport.ask(Ask("run-end", "a/b")).status == 503
        assert server.requests[1].startswith(b"DELETE /gateway/runs/a%2Fb HTTP/1.1\r\n")
