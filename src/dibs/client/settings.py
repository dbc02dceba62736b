"""Settings: a flag, else a variable, else the user's file, else the default. Knows where each comes from."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput
from dibs.base.files import config_path, read_toml, token_path
from dibs.core.durations import parse_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.client.door import JobNamespaces
    from dibs.client.servers import Servers
    from dibs.client.urls import ServerAddress


# The user's own settings: `dibs/config.toml` in the folder for configuration.
#
# A file that comes with a repository may not say where claims and tokens go (`agents/repository/settings.py` says
# what it may). Flags and variables take precedence over this file.

KEYS = ("url", "namespace", "owner", "token_file", "timeout")


def user_config(env: Mapping[str, str]) -> dict[str, str]:
    """The settings in the user's file, by key. Raises InvalidInput for an invalid setting."""
    path = config_path(env)
    table = read_toml(path) if path is not None else None
    found: dict[str, str] = {}
    for key, value in (table or {}).items():
        if key not in KEYS:
            raise InvalidInput(f"{path}: there is no setting {key!a}. Settings are {', '.join(KEYS)}.")
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{path}: {key} must be a text that is not empty, not {value!a}.")
        found[key] = os.path.expanduser(value) if key == "token_file" else value
    if not os.path.isabs(found.get("token_file", "/")):
        raise InvalidInput(f"{path}: token_file must be an absolute path, or begin with ~/.")
    return found


TIMEOUT_MS_DEFAULT = 10_000
TOKEN_FILE_BYTES_MAX = 64 * 1024


_NOT_ASKED = object()


class Settings:
    """Each setting is computed when it is needed: a claim on the user's own store needs no token."""

    def __init__(self, values: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._values = values
        self.env = env
        self._config: dict[str, str] | None = None
        self._system: object = _NOT_ASKED
        self.servers: Servers | None = None  # those that `url` names, once somebody asked them

    def pick(self, key: str, variable: str) -> str | None:
        """An empty flag counts, so that the mistake is reported. An empty variable counts as unset."""
        given = self._values.get(key)
        return given if given is not None else self.env.get(variable) or None

    @property
    def config(self) -> dict[str, str]:
        """The settings of the user's file."""
        if self._config is None:
            self._config = self._read_config()
        return self._config

    def _read_config(self) -> dict[str, str]:
        path = config_path(self.env)
        if path is None:
            return {}
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError:
            pass  # reading it raises the reason
        from dibs.client.settings import user_config

        return user_config(self.env)

    def source(self, key: str, variable: str) -> str:
        """Where a setting comes from, in words."""
        if self._values.get(key) is not None:
            return f"--{key.replace('_', '-')}"
        if self.env.get(variable):
            return variable
        return str(config_path(self.env)) if key in self.config else "the default"

    @property
    def url(self) -> str | None:
        """The URL that was given; else the machine's service, if there is one. None: the user's own store."""
        named = self.named_url
        if named is not None:
            return named
        if self._system is _NOT_ASKED:
            from dibs.client.machine import system_url

            self._system = system_url(self.env)
        return self._system  # type: ignore[return-value]  # text or None, once it was asked for

    @property
    def named_url(self) -> str | None:
        return self.pick("url", "DIBS_URL") or self._missing("url")

    @property
    def namespace(self) -> str | None:
        return self.pick("namespace", "DIBS_NAMESPACE") or self._missing("namespace")

    def _missing(self, key: str) -> str | None:
        """The setting of the file, if neither a flag nor a variable was given. An empty flag was given."""
        given: str | None = self._values.get(key)
        return self.config.get(key) if given is None else given

    @property
    def owner(self) -> str:
        named = self.pick("owner", "DIBS_OWNER") or self.config.get("owner")
        return named or f"{_user(self.env)}@{os.uname().nodename}"

    @property
    def timeout_ms(self) -> int:
        text = self._values.get("timeout")
        what = "--timeout"
        if text is None:
            text, what = self.config.get("timeout"), f"timeout in {config_path(self.env)}:"
        if text is None:
            return TIMEOUT_MS_DEFAULT
        timeout_ms = parse_duration(text, "time-out")
        if timeout_ms == 0:
            raise InvalidInput(f"{what} 0 would give up before asking. Leave it out for 10s.")
        return timeout_ms

    def token_source(self, address: ServerAddress) -> str | None:
        """Where the token for a server comes from: `DIBS_TOKEN`, or a file's path. None: there is none."""
        if self.env.get("DIBS_TOKEN"):
            return "DIBS_TOKEN"
        if self.is_system(address):
            return None
        if named := self.env.get("DIBS_TOKEN_FILE") or self.config.get("token_file"):
            return named
        own = token_path(self.env)
        # The token of this user's own server is sent only to this machine, never to another host in DIBS_URL.
        return own if address.is_local and os.path.exists(own) else None

    def is_system(self, address: ServerAddress) -> bool:
        """Whether it is the machine's service, which knows its users without a token."""
        if address.scheme != "unix":
            return False
        from dibs.client.machine import socket_path

        return address.path == socket_path(self.env)

    def token(self, address: ServerAddress) -> str | None:
        source = self.token_source(address)
        if source is None:
            return None
        if source == "DIBS_TOKEN":
            return self.env["DIBS_TOKEN"].strip()
        token = read_token(source)
        if source == token_path(self.env):
            address.own_token = token  # it was not given for this server
        return token


def naming_of(settings: Settings) -> JobNamespaces:
    """The namespace of each name, for a client that is made here: `path:` and `repo:` names are the repository's."""
    from dibs.base.checkout import current_folder
    from dibs.client.naming import Namespaces

    stated = settings.pick("namespace", "DIBS_NAMESPACE")
    return Namespaces(stated, settings.namespace, settings.env, current_folder())


def read_token(path: str) -> str:
    """The token in a file: alone on its line, or as in a tokens file (`name:token[:role[:namespace]]`)."""
    try:
        with open(path, "rb") as file:
            content = file.read(TOKEN_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(
            f"The token file {path} cannot be read ({error.strerror}). Set DIBS_TOKEN_FILE to one that can."
        ) from None
    for line in content.decode("utf-8", "replace").splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            return line.split(":")[1].strip() if ":" in line else line
    raise InvalidInput(f"The token file {path} holds no token.")


def _user(env: Mapping[str, str]) -> str:
    for variable in ("LOGNAME", "USER"):
        if env.get(variable):
            return env[variable]
    import pwd  # a built-in module; a container may lack both variables, and the entry

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def place_of(settings: Settings) -> str:
    """The store or server for display, without passwords."""
    from dibs.base.redact import without_secrets

    where = "your own store" if settings.url is None else without_secrets(settings.url)
    return where if settings.namespace is None else f"{where}, namespace {settings.namespace}"
