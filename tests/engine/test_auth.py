"""Who is let in, what a tokens file may look like, and that no token is ever told."""

from __future__ import annotations

import gc
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, InvalidInput
from dibs.base.ids import proof_key_id
from dibs.core.caller_rights import Caller
from dibs.engine import auth
from dibs.engine.auth import TokenGuard, ensure_token_file, principal_name, read_tokens
from dibs.wire.requests import token_badge

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "tokens"
    made.touch(mode=0o600)
    return made


def test_a_line_names_a_principal_its_role_and_its_namespace(file: Path) -> None:
    file.write_text("# people\n\nalice:t1\n bob:t2:operator \ncarol:t3:admin:team-a\ndave:t4::team-b\n")
    guard = TokenGuard(str(file))
    assert len(guard) == 4
    assert guard.caller(b"Bearer t1") == Caller(principal="alice", badges=("user:alice", token_badge("t1")))
    assert guard.caller(b"Bearer t2").role == "operator"
    carol = guard.caller(b"Bearer t3")
    assert (carol.role, carol.namespace) == ("admin", "team-a")
    dave = guard.caller(b"Bearer t4")
    assert (dave.role, dave.namespace) == ("agent", "team-b")


def test_a_principal_may_have_two_tokens_while_one_replaces_the_other(file: Path) -> None:
    file.write_text("alice:old\nalice:new\n")
    guard = TokenGuard(str(file))
    assert guard.caller(b"Bearer old").principal == guard.caller(b"Bearer new").principal == "alice"


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"bearer t1", b"Basic t1", b"t1"])
def test_without_a_bearer_token_one_is_required(file: Path, header: bytes | None) -> None:
    file.write_text("alice:t1\n")
    with pytest.raises(AuthenticationRequired, match="Bearer token required"):
        TokenGuard(str(file)).caller(header)


@pytest.mark.parametrize("header", [b"Bearer t", b"Bearer t11", b"Bearer T1", b"Bearer \xff", b"Bearer t1 t1"])
def test_a_token_that_is_not_in_the_file_fails(file: Path, header: bytes) -> None:
    file.write_text("alice:t1\n")
    with pytest.raises(AuthenticationFailed):
        TokenGuard(str(file)).caller(header)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:",
        ":secret-token",
        "a b:secret-token",
        "alice:secret token",
        "alice:secret-tökén",
        "alice:secret-token:root",
        "alice:secret-token:agent:no/slash",
        "alice:secret-token:agent:",
        "alice:secret-token:agent:team:more",
        f"{'a' * 65}:secret-token",
        "alice:secret-token\nbob:secret-token",
    ],
)
def test_a_bad_line_is_refused_by_its_number_and_without_its_token(file: Path, line: str) -> None:
    file.write_text(f"# first\n{line}\n")
    with pytest.raises(InvalidInput) as refused:
        read_tokens(str(file))
    assert f"line {3 if 'bob' in line else 2}" in refused.value.details
    assert "secret" not in refused.value.details


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o644])
def test_a_file_that_others_can_touch_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(InvalidInput, match="chmod 600"):
        read_tokens(str(file))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (("pipe", "regular"), (".", "regular"), ("missing", "No such file")):
        with pytest.raises(InvalidInput, match=words):
            read_tokens(str(tmp_path / name))


def test_a_link_to_a_private_file_is_followed(file: Path, tmp_path: Path) -> None:
    file.write_text("alice:t1\n")
    (tmp_path / "link").symlink_to(file)
    assert len(read_tokens(str(tmp_path / "link"))) == 1


def test_a_file_that_is_no_text_or_endless_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"alice:\xff\xfe\n")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_tokens(str(file))
    monkeypatch.setattr("dibs.engine.auth.TOKENS_FILE_BYTES_MAX", 10)
    file.write_text("alice:" + "x" * 20)
    with pytest.raises(InvalidInput, match="larger"):
        read_tokens(str(file))


def test_reloading_revokes_what_was_removed_and_adds_what_is_new(file: Path) -> None:
    file.write_text("alice:t1\nbob:t2\n")
    guard = TokenGuard(str(file))
    file.write_text("bob:t2\ncarol:t3\n")
    assert guard.reload()
    assert guard.caller(b"Bearer t3").principal == "carol"
    with pytest.raises(AuthenticationFailed):
        guard.caller(b"Bearer t1")


@pytest.mark.parametrize("fault", ["line", "mode", "gone"])
def test_a_broken_file_keeps_the_old_tokens_and_says_so_loudly(
    file: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("alice:t1\n")
    guard = TokenGuard(str(file))
    assert "dibs token create NAME --tokens" in caplog.text
    caplog.clear()
    if fault == "line":
        file.write_text("nonsense\n")
    elif fault == "mode":
        file.chmod(0o644)
    else:
        file.unlink()
    assert not guard.reload()
    assert guard.caller(b"Bearer t1").principal == "alice"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "NOT reloaded" in caplog.text


def test_a_file_emptied_on_purpose_revokes_everything(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("alice:t1\n")
    guard = TokenGuard(str(file))
    file.write_text("# nobody\n")
    assert guard.reload()
    assert len(guard) == 0
    assert "every request is refused" in caplog.text


def test_tokens_are_kept_hashed(file: Path) -> None:
    secret = "very" + "-secret-" + "token-1234567890"
    file.write_text(f"alice:{secret}\n")
    guard = TokenGuard(str(file))
    assert guard.caller(f"Bearer {secret}".encode()).principal == "alice"
    assert secret not in repr(vars(guard))
    gc.collect()
    held = [value for value in gc.get_referents(guard._callers) if isinstance(value, str | bytes)]
    assert not any(secret in str(value) for value in held)


def test_a_first_start_makes_a_token_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "dibs" / "token"
    assert ensure_token_file(str(path), "alice")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]
    name, token, role = path.read_text().strip().split(":")
    assert (name, role) == ("alice", "admin")
    assert TokenGuard(str(path)).caller(f"Bearer {token}".encode()).role == "admin"
    assert not ensure_token_file(str(path), "alice")
    assert path.read_text().split(":")[1] == token


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made"):
        ensure_token_file(str(tmp_path / "file" / "token"), "alice")


@pytest.mark.parametrize(
    ("login", "name"), [("alice", "alice"), ("a:b c", "abc"), ("日本", "local"), ("x" * 99, "x" * 64)]
)
def test_a_login_name_becomes_a_principal(login: str, name: str) -> None:
    assert principal_name(login) == name


@pytest.mark.fault("F-102")
def test_a_proof_hashes_no_line_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("a:tok-a\nb:tok-b\n")
    guard = TokenGuard(str(tokens))
    names = [proof_key_id(hashlib.sha256(token).digest()) for token in (b"tok-a", b"tok-b")]
    with monkeypatch.context() as patched:
        patched.setattr(auth, "proof_key_id", None)
        assert all(guard.proof(name, "challenge") for name in names)
        assert guard.proof("unknown", "challenge") is None
    tokens.write_text("a:tok-a\n")
    guard.reload()
    assert [guard.proof(name, "challenge") is None for name in names] == [False, True]
