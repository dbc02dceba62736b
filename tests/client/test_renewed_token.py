"""A token in a file may be replaced while a client runs: by Kubernetes, a CI step, an operator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.errors import InvalidInput
from dibs.client import settings
from dibs.client.settings import TokenFile
from tests.server.harness import running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TOKEN_LOOK_MS", 0)


def replace(path: Path, text: str) -> None:
    """As Kubernetes does: another file under the same name."""
    drafted = path.with_suffix(".new")
    drafted.write_text(text)
    os.replace(drafted, path)


@pytest.mark.usefixtures("at_once")
def test_a_client_sends_the_token_that_the_file_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server:
        path = tmp_path / "token"
        path.write_text("tok-agent\n")
        monkeypatch.setenv("DIBS_TOKEN_FILE", str(path))
        with dibs.Client(f"http://127.0.0.1:{server.port}") as client:
            with client.claim("job") as claim:
                assert claim.owner
            replace(path, "tok-of-nobody")
            with pytest.raises(dibs.AuthenticationFailed):
                client.owner("job")
            replace(path, "tok-agent")
            assert client.owner("job").status == "free"


@pytest.mark.usefixtures("at_once")
def test_a_file_that_is_gone_leaves_the_last_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    file = TokenFile(str(path))
    assert file.token() == "one"
    path.unlink()
    assert file.token() == "one"
    path.write_text("# nothing\n")
    assert file.token() == "one"
    replace(path, "two")
    assert file.token() == "two"


def test_a_file_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        TokenFile(str(tmp_path / "none")).token()
