"""Words and exit codes of `dibs token`: on a store and through a server, the same."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.main import run
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal

    Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["store", "server"])
def typed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Typed]:
    """Types words of the token family at a store of one's own, or at a server as its admin."""
    if request.param == "store":
        yield lambda *words: type_(words, {"DIBS_URL": f"sqlite:{tmp_path}/dibs.db"})
        return
    with running(tmp_path) as server:
        env = {"DIBS_URL": f"http://127.0.0.1:{server.port}", "DIBS_TOKEN": TOKENS["admin"]}
        yield lambda *words: type_(words, env)


def type_(words: tuple[str, ...], env: dict[str, str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run(["token", *words], env, out, err, io.BytesIO())
    return code, out.getvalue(), err.getvalue()


def data(answer: tuple[int, str, str]) -> Any:
    assert answer[0] == 0, answer
    return json.loads(answer[1])["data"]


def test_a_token_is_made_listed_replaced_limited_and_revoked(typed: Typed) -> None:
    code, out, _ = typed("create", "ci", "--role", "operator", "--namespace", "acme", "--expires", "30d")
    assert code == 0
    assert out.startswith("Made a token for ci (operator, namespace acme, until 20")
    secret = out.splitlines()[-1]
    assert secret.startswith("dibs_")
    assert len(secret) == 69
    _, out, _ = typed("list")
    assert secret not in out
    assert out.splitlines()[1].split()[:3] == ["ci", "operator", "acme"]
    assert data(typed("list", "--json"))["tokens"][0]["valid"] is True
    code, out, _ = typed("rotate", "ci", "--grace", "1h")
    assert "goes on for 1h" in out
    assert out.splitlines()[-1] != secret
    newest = data(typed("list", "--json"))["tokens"][-1]["id"]
    code, out, _ = typed("limit", "ci", "--id", newest, "--max-held", "100", "--rate", "50/s")
    assert (code, out) == (0, "ci: held 100, 50/s. What is held already stays.\n")
    code, out, _ = typed("revoke", "ci")
    assert (code, out) == (0, "Revoked 2 tokens of ci. What it holds runs out by its TTL.\n")
    assert typed("revoke", "ci")[0] == 2
    assert typed("rotate", "ci") == (2, "", "dibs: There is no valid token of ci in the store.\n")


def test_a_rotation_without_grace_says_that_the_old_token_is_over(typed: Typed) -> None:
    typed("create", "ci")
    assert "is over." in typed("rotate", "ci", "--grace", "0")[1]
    assert sorted(each["valid"] for each in data(typed("list", "--json"))["tokens"]) == [False, True]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "a b"), 64),
        (("create", "ci", "--expires", "soon"), 64),
        (("create", "ci", "--max-held", "many"), 64),
        (("create", "ci", "--rate", "5/m"), 64),
        (("create", "ci", "--role", "root"), 64),
        (("limit", "ci"), 64),
        (("limit", "nobody", "--max-held", "1"), 2),
    ],
)
def test_what_cannot_be_is_refused(typed: Typed, words: tuple[str, ...], code: int) -> None:
    answer = typed(*words)
    assert answer[0] == code, answer
    assert data(typed("list", "--json"))["tokens"] == []


def test_a_file_is_imported_by_its_hashes_and_again_without_harm(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "old-tokens"
    path.touch(mode=0o600)
    path.write_text("# ours\nci:tok-ci:agent:acme\nops:tok-ops:operator\ngone:tok-gone:agent::20200101T000000Z\n")
    for _ in range(2):
        code, out, _ = typed("import", "--tokens", str(path))
        assert (code, out.partition(". Start")[0]) == (0, f"2 tokens of {path} in the store")
    found = {(each["name"], each["role"], each["namespace"]) for each in data(typed("list", "--json"))["tokens"]}
    assert found == {("ci", "agent", "acme"), ("ops", "operator", None)}


def test_a_tokens_file_that_is_named_is_what_list_and_revoke_are_about(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "old-tokens"
    typed("create", "stored")
    assert type_(("create", "ci", "--tokens", str(path)), {})[0] == 0
    assert "ci" in typed("list", "--tokens", str(path))[1]
    assert typed("revoke", "stored", "--tokens", str(path))[0] == 1
    assert typed("revoke", "ci", "--tokens", str(path))[0] == 0
    assert typed("list", "-q")[1] == "stored\n"


def test_a_git_store_takes_no_tokens(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "r")], check=True)
    answer = type_(("create", "ci"), {"DIBS_URL": f"git+file://{tmp_path}/r"})
    assert (answer[0], "no server stands on this store" in answer[2]) == (64, True), answer


def test_a_count_that_is_wrong_is_reported_by_doctor_and_put_right_by_gc(tmp_path: Path) -> None:
    """Somebody ended a hold in the store by hand."""
    from dibs.core.commands import Acquire
    from dibs.core.records import lock_key
    from dibs.engine.coordinator import Coordinator
    from dibs.stores.sqlite import SqliteStore

    store = SqliteStore(str(tmp_path / "dibs.db"))
    terms: Any = {"ns": "default", "principal": "ci", "owner": "ci", "ttl_ms": 60_000, "payer": "/ci"}
    for name in ("a", "b"):
        Coordinator(store).one(Acquire(name=name, fresh_lease_id=name, held_max=5, **terms))
    key = lock_key("default", "a")
    found = store.read((key,)).records[key]
    assert found.record is not None
    store.commit({key: found.version}, {key: found.record.replace(holders=())}, ())
    store.close()

    def typed(*words: str) -> tuple[int, str]:
        out = io.StringIO()
        env = {"DIBS_URL": f"sqlite:{tmp_path}/dibs.db"}
        return run(list(words), env, out, io.StringIO(), io.BytesIO()), out.getvalue()

    assert "what ci may have is counted wrong. Run: dibs gc" in typed("doctor")[1]
    assert "Counted anew what ci may have." in typed("gc")[1]
    assert "counted wrong" not in typed("doctor")[1]
    assert "Counted anew" not in typed("gc")[1]


def test_a_lifetime_that_cannot_be_is_reported_in_words_of_the_command(terminal: Terminal) -> None:
    assert "--expires in seconds is a number from 1 to " in terminal("token", "create", "ann", "--expires", "0s").err
