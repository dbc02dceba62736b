"""The list of agents: which sessions are one agent, in which order, page by page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.core.limits import METADATA_CHARS_MAX
from dibs.core.records import EXPIRED, RELEASED, Holder, SessionRecord, Wait, Want
from dibs.core.session_outcomes import SessionLease, SessionState
from dibs.wire.agent_documents import agents_document, listed_agents, page_of
from dibs.wire.agent_notes import agent_note, note_of
from dibs.wire.sentences import readable, said, shown_name

NOW = 1_000_000
DIGEST = "0123456789ab"


def session(number: int, owner: str, **fields: Any) -> SessionRecord:
    made: dict[str, Any] = {
        "id": f"{number:08x}-0000-4000-8000-000000000000",
        "principal": "p",
        "owner": owner,
        "ttl_ms": 60_000,
        "since_ms": NOW - 5_000,
        "renewed_ms": NOW - 1_000,
        "expires_ms": NOW + 59_000,
        "ns": "n",
        "metadata": agent_note("claude", {}),
    }
    return SessionRecord(**{**made, **fields})


def names(*sessions: SessionRecord, gone: str | None = None, ended: bool = False) -> list[tuple[str, str]]:
    found = listed_agents(sessions, NOW, lambda mark: mark is not None and mark == gone, ended=ended)
    return [(agent.at[0], agent.state) for agent in found]


def test_a_subagent_follows_its_agent_and_the_commands_of_an_agent_are_the_agent() -> None:
    agent = session(1, "claude-3f2a in app@main")
    shell = session(
        2,
        "claude-3f2a in app@main",
        parent=agent.id,
        metadata=agent_note("claude", {"part": "shell"}),
        active_ms=NOW - 10,
    )
    child = session(3, "claude-3f2a/77aa in app@main", parent=agent.id)
    other = session(4, "claude-3f2b in app@main")
    worker = session(5, "worker-1", metadata="nightly")
    plain = session(6, "worker-2", metadata=None)
    found = listed_agents([other, child, shell, worker, agent, plain], NOW, lambda _: False, ended=False)
    assert [each.at[0] for each in found] == ["claude-3f2a", "claude-3f2a/77aa", "claude-3f2b"]
    assert [each.parent for each in found] == [None, "claude-3f2a", None]
    assert found[0].parts == (shell,)


def test_an_agent_that_was_lost_is_told_until_it_works_again() -> None:
    lost = session(1, "claude-3f2a in app@main", ended_ms=NOW - 100, how=EXPIRED, since_ms=1)
    late = session(2, "codex-11 in app@main", expires_ms=NOW - 1)
    dead = session(3, "gemini-22 in app@main", process="mark")
    done = session(4, "claude-44 in app@main", ended_ms=NOW - 50, how=RELEASED)
    assert names(lost, late, dead, done, gone="mark") == [
        ("claude-3f2a", "gone"),
        ("codex-11", "gone"),
        ("gemini-22", "gone"),
    ]
    assert names(lost, done, ended=True) == [("claude-3f2a", "gone"), ("claude-44", "ended")]
    again = session(5, "claude-3f2a in app@fix")
    assert names(lost, again) == [("claude-3f2a", "alive")]


def test_two_agents_of_one_name_that_live_are_two() -> None:
    assert names(session(1, "claude-3f2a in app"), session(2, "claude-3f2a in web")) == [("claude-3f2a", "alive")] * 2


def test_a_row_has_files_once_jobs_places_and_what_was_done_last() -> None:
    note = {"host": "vm", "work_tree": "~/app", "branch": "main", "action": "edit src/a"}
    want = Want(ns="n", name=f"path:@{DIGEST}/src/z", until_ms=NOW + 5, more=("path:src/z",))
    agent = session(1, "claude-3f2a in app@main", metadata=agent_note("claude", note), active_ms=NOW - 300, want=want)
    agent = agent.replace(waits=(Wait(ns="n", name="deploy", number=1),))
    holder = Holder(lease_id="l", owner="o", principal="p", token=1, ttl_ms=1, since_ms=1, renewed_ms=1, expires_ms=2)
    held = [f"path:@{DIGEST}/src/a", "path:src/a", "issue-7", "branch:main"]
    holds = tuple([SessionLease(ns="n", name=name, holder=holder, waiting=1) for name in held])
    state = SessionState(now_ms=NOW, session=agent, holds=holds, live=True)
    page = listed_agents([agent], NOW, lambda _: False, ended=False)
    (row,) = agents_document(page, lambda _: state, NOW, None)["agents"]
    wanted = {
        "name": "claude-3f2a",
        "client": "claude",
        "state": "alive",
        "session": "00000001…",
        "host": "vm",
        "work_tree": "~/app",
        "branch": "main",
        "jobs": ["issue-7"],
        "files": ["src/a"],
        "file_count": 1,
        "holds": ["branch:main"],
        "waits": ["deploy", "path:src/z"],
        "waiting": 3,
        "action": "edit src/a",
        "idle_ms": 300,
        "open_ms": 5_000,
    }
    assert {key: row[key] for key in wanted} == wanted
    assert agent.id not in json.dumps(row)


def test_after_an_outage_an_agent_whose_session_lives_is_alive() -> None:
    late = session(1, "claude-3f2a", expires_ms=NOW - 1)
    page = listed_agents([late], NOW, lambda _: False, ended=False)
    state = SessionState(now_ms=NOW, session=late, live=True)
    assert agents_document(page, lambda _: state, NOW, None)["agents"][0]["state"] == "alive"
    assert agents_document(page, lambda _: None, NOW, None)["agents"][0]["state"] == "gone"


def test_pages_have_every_agent_once() -> None:
    many = [session(number, f"claude-{number % 7:04} in app") for number in range(50)]
    agents = listed_agents(many, NOW, lambda _: False, ended=False)
    seen: list[str] = []
    after: str | None = ""
    for _ in range(20):
        if after is None:
            break
        page, after = page_of(agents, after, 3)
        seen += [each.session.id for each in page]
    assert after is None
    assert seen == [each.session.id for each in agents]


@pytest.mark.parametrize("after", ["x", "claude-3f2a", "1", "1 2", "-1 a b", "٣ a b", "9" * 30 + " a b"])
def test_a_place_that_no_page_gave_is_refused(after: str) -> None:
    with pytest.raises(InvalidInput, match="after"):
        page_of([], after, 10)


@pytest.mark.parametrize(
    "text", [None, "", "nightly", "checkout=a", '{"agent":', '{"agent":7}', '{"agent":""}', "{}", "["]
)
def test_a_session_with_another_note_is_no_agents(text: str | None) -> None:
    assert note_of(text) is None


def test_a_note_is_one_printable_line_that_fits() -> None:
    hostile = {"work_tree": '"\\' * 500, "branch": "\x1b[31m\n" * 50, "action": "é\u202e" * 300, "host": "h" * 500}
    text = agent_note("claude\n", hostile)
    assert len(text) <= METADATA_CHARS_MAX
    assert text.isprintable()
    note = note_of(text)
    assert note is not None
    assert note["agent"] == "claude?"
    assert said(text) is None


def test_a_file_has_one_name_for_people() -> None:
    assert shown_name(f"path:@{DIGEST}/src/a") == "path:src/a"
    for name in ("path:@x/src", f"path:@{DIGEST}", f"path:@{DIGEST}/", "path:src", "issue-1", f"repo:@{DIGEST}/a"):
        assert shown_name(name) == name
    refused = {
        "name": "repo:app",
        "overlapping": [{"name": f"path:@{DIGEST}/a", "owner": "o"}, {"name": "path:a", "owner": "o"}],
    }
    assert readable(refused)["overlapping"] == [{"name": "path:a", "owner": "o"}]
    assert readable({"metadata": "checkout=1 clone=2"})["metadata"] is None
    assert readable({"metadata": "by hand"})["metadata"] == "by hand"
