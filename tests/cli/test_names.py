"""Commands map every spelling of a job to its one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework.context import Call
from dibs.cli.text.words import Paint

if TYPE_CHECKING:
    from dibs.client.settings import Settings
    from dibs.client.transport import Transport
    from tests.cli.conftest import Terminal

ISSUE = "github://acme/app/issues/42"
ADDRESS = "https://github.com/Acme/App/issues/42"


@pytest.mark.promise("names:one-name")
def test_two_ways_to_write_an_issue_are_one_job(terminal: Terminal) -> None:
    lease = terminal("claim", "-q", ADDRESS).out.strip()
    refused = terminal("claim", "acme/app#42", "--json")
    assert refused.exit == 1
    assert refused.everything["name"] == ISSUE
    assert terminal("heartbeat", "Acme/App#42", "--lease", lease).exit == 0
    assert terminal("owner", "https://github.com/acme/app/pull/42/files").exit == 0
    assert terminal("release", "acme/app#42", "--lease", lease, "--done").exit == 0
    assert terminal("claim", ADDRESS).exit == 4


def test_exact_takes_a_name_as_it_is_written(terminal: Terminal) -> None:
    assert terminal("claim", ADDRESS).exit == 0
    assert terminal("claim", "--exact", ADDRESS, "--json").data["name"] == ADDRESS
    assert terminal("owner", "--exact", ADDRESS, "--json").data["name"] == ADDRESS


@pytest.mark.promise("names:old-spellings")
def test_a_claim_under_an_older_spelling_keeps_working(terminal: Terminal) -> None:
    lease = terminal("claim", "-q", "--exact", ADDRESS).out.strip()
    assert terminal("claim", ADDRESS).exit == 1
    assert terminal("owner", ADDRESS, "--json").data["name"] == ADDRESS
    assert terminal("heartbeat", ADDRESS, "--lease", lease).exit == 0
    assert terminal("release", ADDRESS, "--lease", lease).exit == 0
    assert terminal("claim", ADDRESS, "--json").data["name"] == ISSUE


def test_a_done_mark_under_an_older_spelling_counts(terminal: Terminal) -> None:
    lease = terminal("claim", "-q", "--exact", ADDRESS).out.strip()
    assert terminal("release", "--exact", ADDRESS, "--lease", lease, "--done").exit == 0
    assert terminal("claim", ADDRESS).exit == 4


def test_several_jobs_in_one_step_have_their_one_names(terminal: Terminal) -> None:
    found = terminal("claim-all", ADDRESS, "issue-7", "--json").data
    assert [lease["name"] for lease in found["leases"]] == [ISSUE, "issue-7"]
    picked = terminal("claim-any", stdin=f"{ADDRESS}\nacme/app#43\n".encode()).out
    assert "github://acme/app/issues/43" in picked
    assert "twice" in terminal("claim-all", "acme/app#44", "https://github.com/acme/app/issues/44").err


def test_name_shows_the_one_name_and_why(terminal: Terminal) -> None:
    found = terminal("name", ADDRESS, "--json").data
    assert found == {"name": ISSUE, "given": ADDRESS, "why": "It is a GitHub address."}
    assert terminal("name", "-q", ADDRESS).out == f"{ISSUE}\n"
    assert terminal("name", "-q", "UTF-8").out == "UTF-8\n"
    assert terminal("name", "--exact", "-q", ADDRESS).out == f"{ADDRESS}\n"


def test_a_password_in_an_address_gets_into_no_name_and_no_message(terminal: Terminal) -> None:
    assert terminal("claim", "https://ann:hunter2@github.com/acme/app/issues/42", "--json").data["name"] == ISSUE
    refused = terminal("claim", "https://ann:hunter2@ci.example/job/7")
    assert refused.exit != 0
    assert "hunter2" not in refused.out + refused.err
    assert "hunter2" not in terminal("list").out


@pytest.mark.fault("F-191")
@pytest.mark.parametrize("url", ["sqlite:///dibs.db", "http://127.0.0.1:3427"])
def test_a_second_transport_is_in_the_namespace_of_the_repository(url: str) -> None:
    opened: list[str | None] = []

    def opener(settings: Settings) -> Transport:
        opened.append(settings.namespace)
        raise LookupError

    call = Call("run", {"url": url}, {}, stdin=None, stdout=None, paint=Paint(), opener=opener)
    call.fall_back_on({"namespace": "acme-app"})
    for transport in (call.another_transport, call.transport, lambda: call.keeping_transport(1_000)):
        with pytest.raises(LookupError):
            transport()
    assert opened == ["acme-app"] * 3
    with pytest.raises(LookupError):
        call.another_transport(namespace="other")
    assert opened[-1] == "other"


@pytest.mark.parametrize(
    "shut", [("close", "--exact", "https://", "--for", "1h", "--reason", "r"), ("export", "--freeze")]
)
def test_a_closure_or_a_freeze_does_not_make_a_spelling_a_job(terminal: Terminal, shut: tuple[str, ...]) -> None:
    assert terminal(*shut).exit == 0
    assert terminal("owner", ADDRESS, "--json").error["details"]["name"] == ISSUE
