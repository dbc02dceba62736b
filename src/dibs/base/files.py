"""Files: replaced atomically, so that a reader sees the old content or the new; locked; put on the disk; settings."""

from __future__ import annotations

import os
import stat
from time import sleep

from dibs.base.cheap import Any, Mapping
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.ids import is_id, new_id

# Where dibs keeps things of its own: one folder, in the user's state folder. Makes nothing; whoever writes does.
#
# And where the user keeps settings for it.


def state_folder(env: Mapping[str, str] | None = None) -> str:
    """`$XDG_STATE_HOME/dibs`, else `~/.local/state/dibs`. A relative XDG_STATE_HOME is ignored, as it should be."""
    env = os.environ if env is None else env
    base = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        home = env.get("HOME", "")
        base = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "dibs")


def store_path(env: Mapping[str, str] | None = None) -> str:
    """The user's own store, in which claims are kept when nobody names another."""
    return os.path.join(state_folder(env), "dibs.db")


def token_path(env: Mapping[str, str] | None = None) -> str:
    """The file of the token that `dibs serve` makes on its first start: one line, readable by its owner only."""
    return os.path.join(state_folder(env), "token")


def config_path(env: Mapping[str, str]) -> str | None:
    """`config.toml` in `$XDG_CONFIG_HOME/dibs`, else `~/.config/dibs`. None where no home is named."""
    base = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = env.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "dibs", "config.toml")


def logins_path(env: Mapping[str, str]) -> str | None:
    """The file with the tokens that `dibs login` saved, beside config.toml."""
    config = config_path(env)
    return None if config is None else os.path.join(os.path.dirname(config), "logins")


def contexts_folder(env: Mapping[str, str]) -> str | None:
    """The folder with a file for each saved server (`client/contexts.py`), beside config.toml."""
    config = config_path(env)
    return None if config is None else os.path.join(os.path.dirname(config), "contexts")


def trusted_path(env: Mapping[str, str]) -> str | None:
    """The list of repositories that the user trusts, beside config.toml."""
    config = config_path(env)
    return None if config is None else os.path.join(os.path.dirname(config), "trusted")


def content(path: str, most: int = -1) -> bytes | None:
    """Read a file, up to a number of bytes; None if it cannot be read."""
    try:
        return read_ordinary(path, most)
    except OSError:
        return None


def read_ordinary(path: str, most: int = -1) -> bytes:
    """Read a file, up to a number of bytes. Raises OSError, also if it is no ordinary file: a pipe would never end."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(_INVALID, "it is not a regular file")
        with open(number, "rb", buffering=0, closefd=False) as file:
            return file.read(most) or b""
    finally:
        os.close(number)  # also of a folder, for which `open` raises and closes nothing


# Files of settings, the user's and a repository's.


def read_toml(path: str, most: int) -> dict[str, Any] | None:
    """Read a settings file; None where there is none. Raises InvalidInput, naming it, for what cannot be read, or is a
    pipe, a device or longer than `most` bytes. `tomllib` is imported only for a file that is there: a claim must not
    pay for it."""
    content = read_settings(path, most)
    if content is None:
        return None
    try:
        text = content.decode()
        if (simple := _simple_toml(text)) is not None:
            return simple
        import tomllib

        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}.") from None


def _simple_toml(text: str) -> dict[str, Any] | None:
    """Return what a file of lines such as `url = "..."` says, without the import of a parser; None if there is more."""
    found: dict[str, Any] = {}
    for line in map(str.strip, text.split("\n")):
        key, _, value = [part.strip() for part in line.partition("=")]
        if not line or line[0] == "#":
            continue
        if not key.isidentifier() or not key.isascii() or key in found or not value.isprintable():
            return None
        if len(value) < 2 or value[0] + value[-1] != '""' or not {'"', "\\"}.isdisjoint(value[1:-1]):
            return None
        found[key] = value[1:-1]
    return found


def read_settings(path: str, most: int) -> bytes | None:
    """The content of a file; None where there is none. Raises InvalidInput."""
    try:
        # A pipe without a writer must not block the opening of it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise InvalidInput(f"{path} is no ordinary file. Put the settings into one, or remove it.")
        content = os.read(number, most + 1)
    finally:
        os.close(number)
    if len(content) > most:
        raise InvalidInput(f"{path} has more than the {most} bytes that settings may have.")
    return content


_INVALID = 22  # EINVAL, without an import
PRIVATE = 0o600
SHARED = 0o666  # less what the umask takes
_LOCK_LOOK_S = 0.005


def to_disk(handle: int) -> None:
    """Wait until the content of an open file is on the disk. On macOS `fsync` leaves it in the cache of the drive."""
    import fcntl

    try:
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined]  # only macOS has it
    except (AttributeError, OSError):  # another system, or a file system without it
        os.fsync(handle)


def lock_file(handle: int, wait_ms: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file, which ends when it is closed. False if another process had it all the time: one
    that is stopped would keep everybody waiting."""
    import fcntl

    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    until_ms = steady_ms() + wait_ms
    while True:
        try:
            fcntl.flock(handle, how)
            return True
        except BlockingIOError:
            if steady_ms() >= until_ms:
                return False
            sleep(_LOCK_LOOK_S)


def replace_file(
    path: str, text: str, *, mode: int = PRIVATE, owner: tuple[int, int] | None = None, durable: bool = False
) -> None:
    """`owner`: the user and group it shall belong to. `durable`: it is on the disk before it is in place. Raises
    OSError; then the file is as it was, and no draft is left."""
    drafted = f"{path}.{new_id()}"
    handle = os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(handle, "wb") as file:
            if owner is not None:
                os.fchown(handle, *owner)
            file.write(text.encode("utf-8", "surrogateescape"))
            if durable:
                file.flush()
                to_disk(handle)
        os.replace(drafted, path)
    except BaseException:
        os.unlink(drafted)
        raise


def forget_drafts(path: str) -> None:
    """Remove what `replace_file` left of a file when its process was killed: it may have secrets. For those who keep
    others from replacing the file meanwhile. What cannot be removed stays."""
    folder, name = os.path.split(path)
    try:
        for each in os.listdir(folder):
            stem, _, end = each.rpartition(".")
            if stem == name and is_id(end):
                os.unlink(os.path.join(folder, each))
    except OSError:
        pass
