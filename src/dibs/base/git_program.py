"""Runs git, or another program: with a timeout, without a terminal, and killed with all its children."""

from __future__ import annotations

import os
import signal
import subprocess

from dibs.base.errors import StoreUnavailable
from dibs.base.redact import without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCAL_MS_MAX = 30_000  # for a command that reaches no network
_BYTES_SHOWN_MAX = 2_000

# What the configuration of a repository may not decide: that git runs a program whenever it reads the index, and that
# a folder which is tracked, with a configuration in it, is a repository. git before 2.38 does not know the latter.
_CONFIG = ("core.fsmonitor=false", "safe.bareRepository=explicit")


# What git adds below the reason that ssh or the server gave.
_PADDING = ("Please make sure you have the correct access", "and the repository exists")


class GitResult:
    """The end and the output of a git process. `timed_out`: it was killed, and `code` means nothing."""

    __slots__ = ("code", "err", "out", "timed_out")

    def __init__(self, code: int, out: bytes, err: bytes, *, timed_out: bool = False) -> None:
        self.code = code
        self.out = out
        self.err = err.decode("utf-8", "replace")
        self.timed_out = timed_out

    @property
    def words(self) -> str:
        """Return what git and the server said, in one line, without anybody's password."""
        lines = [line.strip().rstrip(".") for line in self.err.splitlines() if line.strip()]
        kept = [line for line in lines if not line.startswith(("hint:", "To ", "warning: redirecting", *_PADDING))]
        return without_secrets("; ".join(kept))[:_BYTES_SHOWN_MAX] or f"exit status {self.code}"


def run_git(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: str | None,
    given: bytes = b"",
    timeout_ms: int = LOCAL_MS_MAX,
    config: Sequence[str] = (),
) -> GitResult:
    """Every git process of dibs is started here. `config` is for this one, as `git -c` takes it."""
    options = [word for setting in (*_CONFIG, *config) for word in ("-c", setting)]
    return run_program(["git", *options, *words], env=env, folder=folder, given=given, timeout_ms=timeout_ms)


def run_program(
    words: list[str],
    *,
    env: Mapping[str, str],
    folder: str | None,
    given: bytes,
    timeout_ms: int,
    install: str = "git 2.34 or newer",
) -> GitResult:
    """One process in a session of its own: it has no terminal to ask on, and is killed with its children. `install`
    is what to install if the program is missing. Raises StoreUnavailable if it cannot be started."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
        )
    except FileNotFoundError:
        if folder is not None and not os.path.isdir(folder):
            raise StoreUnavailable(f"The folder {folder} is gone.") from None
        raise StoreUnavailable(f"The {words[0]} program is not installed. Install {install}.") from None
    except OSError as error:
        raise StoreUnavailable(f"{words[0]} cannot be started: {error.strerror or error}.") from None
    try:
        out, err = process.communicate(given or None, timeout=timeout_ms / 1000)
        return GitResult(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        _kill(process)
        return GitResult(-1, b"", f"no answer within {timeout_ms / 1000:g} s".encode(), timed_out=True)
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
