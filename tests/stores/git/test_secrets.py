"""A password in a remote's address is never shown, whatever goes wrong, by whichever command."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest

from dibs.base.redact import without_secrets
from dibs.cli.framework.registry import NAMES
from dibs.cli.main import run
from tests.stores.git.harness import git

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.git.harness import GitHttp, Remote

pytestmark = pytest.mark.full

SECRET = "hunter2"
WORDS = {
    "run": ["job", "--", "true"],
    "hold": ["job", "--until-stdin-closes"],
    "claim": ["job"],
    "claim-any": ["a", "b"],
    "claim-all": ["a", "b"],
    "heartbeat": ["job", "--lease", "x"],
    "release": ["job", "--lease", "x"],
    "transfer": ["job", "--lease", "x", "--to", "ann"],
    "wait": ["job", "--timeout", "1s"],
    "session run": ["--", "true"],
    "session keep": ["x"],
    "session end": ["x"],
    "session show": ["x"],
    "owner": ["job"],
    "verify": ["--for", "1s", "--clients", "1"],
    "history": ["job"],
    "watch": ["--for", "1s"],
    "break": ["job", "--reason", "r"],
    "free": ["job"],
    "git push": ["--job", "job", "--lease", "x"],
    "hook run": ["pre-commit"],
    "lock acquire": ["path:x"],
    "lock renew": ["path:x"],
    "lock release": ["path:x"],
    "run-secret create": ["ann"],
    "run-secret end": ["ann"],
}
# They have processes of their own, or use no store.
ENDLESS = {"serve", "mcp", "demo", "hold", "run", "session run", "simulate"}


def said(words: list[str], url: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    run(words, {**os.environ, "USER": "ann", "DIBS_URL": url}, out, err, io.BytesIO(b""))
    return out.getvalue() + err.getvalue()


@pytest.mark.parametrize("place", ["nowhere", "refusing"])
def test_no_command_shows_the_password_of_a_git_url(
    remote: Remote, http: GitHttp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    clone = remote.clone("one")
    monkeypatch.chdir(clone)
    git(clone, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "m")
    remote.hook("pre-receive", "echo no >&2; exit 1")
    address = remote.address.replace("http://", f"http://ann:{SECRET}@")
    if place == "nowhere":
        address = address.replace("remote.git", "nothing.git")
    git(clone, "remote", "set-url", "origin", address)
    url = f"git+{address}" if place == "nowhere" else "git:origin"
    texts = []
    for number, name in enumerate(NAMES):
        if name not in ENDLESS:
            words = [*name.split(), *WORDS.get(name, []), *(["--json"] if number % 2 else [])]
            texts.append((name, said(words, url)))
    for url in (
        f"git+{address}",
        f"git+{address}?x=1",
        f"got+{address}",
        f"{address}?x=1",
        f"{address}:99999999",
    ):
        texts += [(url, said(["claim", "job"], url)), (url, said(["doctor"], url))]
    assert sum(bool(text) for _, text in texts) > len(NAMES) - len(ENDLESS)
    assert [name for name, text in texts if SECRET in text] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("https://token@h/x", "https://h/x"),
        ("at https://u:p@h/x, and http://v:q@i:1/y.", "at https://h/x, and http://i:1/y."),
        ("ssh://git@h/x", "ssh://git@h/x"),
        ("git+ssh://git:p@h/x", "git+ssh://h/x"),
        ("https://u:p/q@h/x", "https://h/x"),
        ("https://u:p@q@h/x", "https://h/x"),
        ("https://h:8080/a@b", "https://h:8080/a@b"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("git@h:x/y.git and a://b", "git@h:x/y.git and a://b"),
        ("'https://u:p@h/x'", "'https://h/x'"),
        ("ends with ://", "ends with ://"),
    ],
)
def test_a_url_is_shown_without_what_proves_who_one_is(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
