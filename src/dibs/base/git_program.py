"""Runs git, or another program: with a timeout, without a terminal, and killed with all its children."""

from __future__ import annotations

import os
import select

from dibs.base.cheap import Mapping, Sequence, signal
from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable

LOCAL_MS_MAX = 30_000  # for a command that reaches no network
_BYTES_SHOWN_MAX = 2_000
_GIT = "git 2.34 or newer"

# What the configuration of a repository may not decide: that git runs a program whenever it reads the index, and that
# a folder which is tracked, with a configuration in it, is a repository. git before 2.38 does not know the latter.
_CONFIG = ("core.fsmonitor=false", "safe.bareRepository=explicit")

# What git adds below the reason that ssh or the server gave.
_PADDING = ("Please make sure you have the correct access", "and the repository exists")


class GitResult:
    """The end and the output of a git process. `timed_out`: it was killed, and `code` means nothing. `pid`: its number,
    which another process may have by now."""

    def __init__(self, code: int, out: bytes, err: bytes, *, timed_out: bool = False, pid: int = 0) -> None:
        self.pid = pid
        self.code = code
        self.out = out
        self.err = err.decode("utf-8", "replace")
        self.timed_out = timed_out

    @property
    def words(self) -> str:
        """Return what git and the server said, in one line, without anybody's password."""
        from dibs.base.redact import without_secrets

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
    dies_with_us: bool = False,
) -> GitResult:
    """Every git process of dibs is started here. `config` is for this one, as `git -c` takes it."""
    if folder is not None and not os.path.isdir(folder):
        raise StoreUnavailable(f"The folder {folder} is gone.")
    there = () if folder is None else ("-C", folder)
    options = [word for setting in (*_CONFIG, *config) for word in ("-c", setting)]
    command = ["git", *there, *options, *words]
    if dies_with_us and (program := _setpriv()):
        until_ms = steady_ms() + timeout_ms
        path = _path_of("git", env, _GIT)
        done = run_program([program, *_TIED, path, *command[1:]], env=env, given=given, timeout_ms=timeout_ms)
        if not done.err.startswith("setpriv: "):
            return done
        _cannot_tie.append(program)
        timeout_ms = max(1, until_ms - steady_ms())
    return run_program(command, env=env, given=given, timeout_ms=timeout_ms)


# A process that ends with the one that started it, also if that is killed. Python cannot ask Linux for it; a program of
# util-linux can, from 2.33 on.
_TIED = ("--pdeathsig", "KILL", "--")
_cannot_tie: list[str] = []


def _setpriv() -> str | None:
    """The program, unless it is another one of that name (busybox), or one that was found to be too old."""
    path = "/usr/bin/setpriv"
    is_real = os.access(path, os.X_OK) and os.path.basename(os.path.realpath(path)) == "setpriv"
    return path if is_real and path not in _cannot_tie else None


def run_program(
    words: list[str], *, env: Mapping[str, str], given: bytes, timeout_ms: int, install: str = _GIT
) -> GitResult:
    """One process in a session of its own: it has no terminal to ask on, and is killed with its children. `install`
    is what to install if the program is missing. Raises StoreUnavailable if it cannot be started.

    `subprocess` would do this, too, but importing it takes longer than Python's own start, in every hook of an agent.
    """
    until_ms = steady_ms() + timeout_ms
    path = words[0] if os.path.isabs(words[0]) else _path_of(words[0], env, install)
    try:
        pid, pipes = _start(path, words, env)
    except OSError as error:
        raise StoreUnavailable(f"{words[0]} cannot be started: {error.strerror or error}.") from None
    try:
        said = _talk(pipes, given, until_ms)
        code = None if said is None else _end(pid, until_ms)
    except BaseException:
        _kill(pid)
        raise
    finally:
        for end in pipes:
            os.close(end)
    if said is None or code is None:
        _kill(pid)
        return GitResult(-1, b"", f"no answer within {timeout_ms / 1000:g} s".encode(), timed_out=True)
    return GitResult(code, *said, pid=pid)


def _path_of(program: str, env: Mapping[str, str], install: str) -> str:
    for folder in env.get("PATH", os.defpath).split(os.pathsep):  # os.get_exec_path would import warnings
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise StoreUnavailable(f"The {program} program is not installed. Install {install}.")


def _start(path: str, words: list[str], env: Mapping[str, str]) -> tuple[int, list[int]]:
    """The number of the process, and our ends of the pipes to its standard input, output and error."""
    pipes: list[tuple[int, int]] = []
    low: list[tuple[int, int]] = []
    try:
        while len(pipes) < 3:
            pipe = os.pipe()
            (pipes if min(pipe) > 2 else low).append(pipe)  # 2 and less where a standard stream is closed here
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, end, stream) for stream, end in enumerate(theirs)]
        actions += [(os.POSIX_SPAWN_CLOSE, each) for each in _inherited()]
        usual = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
        pid = os.posix_spawn(path, words, env, file_actions=actions, setsid=True, setsigdef=usual)
    except BaseException:
        low += pipes
        raise
    finally:
        for each in (end for pipe in low for end in pipe):
            os.close(each)
    for end in theirs:
        os.close(end)
    return pid, [pipes[0][1], pipes[1][0], pipes[2][0]]


def _inherited() -> list[int]:
    """Files that this process was started with. What git leaves running must not keep them open."""
    found = []
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # the list itself, which is closed by now
            pass
    return found


def _talk(pipes: list[int], given: bytes, until_ms: int) -> tuple[bytes, bytes] | None:
    """Return what the program says, until it closes its output. None: it took too long. Takes pipes that end out."""
    to, out, err = pipes
    said = {out: bytearray(), err: bytearray()}
    left = memoryview(given)
    watch = select.poll()
    for end in pipes:
        watch.register(end, select.POLLOUT if end == to else select.POLLIN)
    while pipes:
        left_ms = until_ms - steady_ms()
        found = watch.poll(left_ms) if left_ms > 0 else ()
        if not found:
            return None
        for end, _ in found:
            if end == to:
                try:
                    left = left[os.write(end, left[: select.PIPE_BUF]) :] if left else left
                except BrokenPipeError:  # it does not want it
                    left = left[:0]
                is_over = not left
            else:
                part = os.read(end, 65_536)
                said[end] += part
                is_over = not part
            if is_over:
                watch.unregister(end)
                pipes.remove(end)
                os.close(end)
    return bytes(said[out]), bytes(said[err])


def _end(pid: int, until_ms: int) -> int | None:
    """The exit code; None if the program runs on. Mostly it ends at once, so the first looks do not sleep."""
    looks = 0
    while steady_ms() < until_ms:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # the system reports no child's end if SIGCHLD is ignored here
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        looks += 1
        select.poll().poll(min(looks // 100, 20))
    return None


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, PermissionError, ChildProcessError):  # it has ended
        pass
