"""Settings: a flag, else a variable, else the user's file, else the default. Knows where each comes from.

The server may be named by a URL or as a context, a saved server (`client/contexts.py`). Of the two, the one counts that
is named by a flag, else by a variable, else by a repository, else in config.toml; there a context wins over `url`.
"""

from __future__ import annotations

import os
import stat

from dibs.base.cheap import Any, Mapping
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, ServerUnreachable
from dibs.base.files import config_path, logins_path, read_settings, read_toml, state_folder, token_path
from dibs.client.transport import JobNamespaces, OneNamespace, Transport
from dibs.core.durations import parse_duration
from dibs.core.limits import SETTINGS_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.contexts import Context
    from dibs.client.servers import Servers
    from dibs.client.urls import ServerAddress

# From the origin of a server and the name of a context to the token, and whether the server has shown that it knows it.
# Without the name of a context, a token is for every context with this server.
Logins = dict[tuple[str, str], tuple[str, bool]]


# The user's own settings: `dibs/config.toml` in the folder for configuration. Flags and variables take precedence over
# it. Which settings it may have, and what a repository may say, is in `client/setting_sources.py`.


def user_config(env: Mapping[str, str]) -> dict[str, str]:
    """The settings in the user's file, by key. Raises InvalidInput for an invalid setting."""
    path = config_path(env)
    table = read_toml(path, SETTINGS_BYTES_MAX) if path is not None else None
    found: dict[str, str] = {}
    if not table:
        return found
    from dibs.client.setting_sources import USER_KEYS

    for key, value in table.items():
        if key not in USER_KEYS:
            raise InvalidInput(f"{path}: there is no setting {key!a}. Settings are {', '.join(USER_KEYS)}.")
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{path}: {key!a} must be a text that is not empty, not {value!a}.")
        found[key] = os.path.expanduser(value) if key == "token_file" else value
    if not os.path.isabs(found.get("token_file", "/")):
        raise InvalidInput(f"{path}: token_file must be an absolute path, or begin with ~/.")
    return found


# The owner of the session around, if `dibs run` or `dibs session run` set DIBS_OWNER to it.
RUN_OWNER = "DIBS_SESSION_OWNER"
CONTEXT = "DIBS_CONTEXT"
TIMEOUT_MS_DEFAULT = 10_000
TOKEN_FILE_BYTES_MAX = 64 * 1024
TOKEN_LOOK_MS = 1_000


_NOT_ASKED = object()


class Settings:
    """Each setting is computed when it is needed: a claim on the user's own store needs no token. `repository` is what
    the repository around says of `url` and `namespace`, as far as it may."""

    def __init__(
        self, values: Mapping[str, Any], env: Mapping[str, str], repository: Mapping[str, str] | None = None
    ) -> None:
        self._values = values
        self.env = env
        self._repository = {} if repository is None else repository
        self._config: dict[str, str] | None = None
        self._logins: Logins | None = None
        self._url: object = _NOT_ASKED
        self._context: object = _NOT_ASKED
        self._has_own_token = False  # the context is named by a flag or variable, and so is its token
        self.servers: Servers | None = None  # those that `url` names, once somebody asked them

    def pick(self, key: str, variable: str) -> str | None:
        """An empty flag counts, so that the mistake is reported. An empty variable counts as unset."""
        given = self._values.get(key)
        return given if given is not None else self.env.get(variable) or None

    @property
    def config(self) -> dict[str, str]:
        if self._config is None:
            self._config = user_config(self.env)
        return self._config

    def source(self, key: str, variable: str) -> str:
        """Return where a setting comes from, in words."""
        if self._values.get(key) is not None:
            return f"--{key.replace('_', '-')}"
        context = self.context if key in ("url", "namespace") else None
        if context is not None and key == "url":
            return f"context {context.name}, {self.named_context[1]}"
        if self.env.get(variable):
            return variable
        if context is not None and context.namespace is not None:
            return f"context {context.name}"
        return str(config_path(self.env)) if key in self.config else "the default"

    @property
    def url(self) -> str | None:
        """The URL that was given; else the machine's service, if there is one. None: the user's own store."""
        if self._url is _NOT_ASKED:
            named = self.named_url
            self._url = system_url(self.env, of_a_claim=OF_A_CLAIM in self._values) if named is None else named
        return self._url  # type: ignore[return-value]  # text or None, once it was asked for

    @property
    def named_url(self) -> str | None:
        given: str | None = self._values.get("url")
        if given is None and (context := self.context) is not None:
            return context.url
        return self._named("url", "DIBS_URL")

    @property
    def namespace(self) -> str | None:
        return self._named("namespace", "DIBS_NAMESPACE")

    def _named(self, key: str, variable: str) -> str | None:
        named = self.pick(key, variable)
        if named is None:
            named = self._repository.get(key)
        if named is None and key == "namespace" and (context := self.context) is not None:
            named = context.namespace
        return self.config.get(key) if named is None else named

    @property
    def context(self) -> Context | None:
        """The saved server that is used; None if the server or store is named by a URL, or by nobody. Raises
        InvalidInput if it is not saved: to go on with another store would be two owners."""
        if self._context is _NOT_ASKED:
            self._context = self._found_context()
        return self._context  # type: ignore[return-value]  # a context or None, once it was asked for

    def _found_context(self) -> Context | None:
        name, says = self.named_context
        if name is None:
            return None
        from dibs.client.contexts import used_context

        found = used_context(name, self.env, self.config, "" if says == "--context" else says)
        self._has_own_token = says in ("--context", CONTEXT) and self._values.get("token") is None
        url = self.env.get("DIBS_URL")
        if says == CONTEXT and url and url != found.url:
            raise InvalidInput("DIBS_URL and DIBS_CONTEXT name two servers. Unset one of them.")
        return found

    @property
    def named_context(self) -> tuple[str | None, str]:
        """The name of the context that is used, and the flag, variable or file that says it; None if a URL is named
        before it, or no context is."""
        values, env = self._values, self.env
        if (name := values.get("context")) is not None:
            return name, "--context"
        if values.get("url") is not None:
            return None, ""
        if name := env.get(CONTEXT):
            return name, CONTEXT  # `dibs run` sets DIBS_URL as well, to the same server
        if env.get("DIBS_URL") or "url" in self._repository:
            return None, ""
        return self.config.get("context"), str(config_path(env))

    @property
    def passed_context(self) -> str | None:
        """The context to name to a program that is started, which has the same variables. None also if a token among
        these is used in place of its own."""
        context = self.context
        is_replaced = self.env.get("DIBS_TOKEN") or self.env.get("DIBS_TOKEN_FILE")
        return None if context is None or (is_replaced and not self._has_own_token) else context.name

    @property
    def has_url_of_repository(self) -> bool:
        """Tell whether the repository around names the server or store, and neither flag, variable nor config.toml."""
        return "url" in self._repository and self.pick("url", "DIBS_URL") is None and self.context is None

    def within(self, repository: Mapping[str, str]) -> Settings:
        """The same, with what the repository around says."""
        return Settings(self._values, self.env, {**self._repository, **repository})

    def but_with(self, values: Mapping[str, Any]) -> Settings:
        """The same, with other flags. What they name, the repository does not."""
        kept = {key: value for key, value in self._repository.items() if key not in values}
        made = Settings({**self._values, **values}, self.env, kept)
        made._context, made._has_own_token = self._context, self._has_own_token  # also for one alone of its servers
        if "url" not in values:
            made._url = self._url
        return made

    @property
    def owner(self) -> str:
        named = self.pick("owner", "DIBS_OWNER") or self.config.get("owner")
        return named or f"{_user(self.env)}@{os.uname().nodename}"

    @property
    def stated_owner(self) -> str | None:
        """The name that the user gave, by flag or variable; not the one that `dibs run` around set for its command."""
        named = self.pick("owner", "DIBS_OWNER")
        is_runs = self._values.get("owner") is None and named == self.env.get(RUN_OWNER)
        return None if is_runs else named

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
        """Return where the token for a server comes from: `DIBS_TOKEN`, or a file's path. None: there is none. A token
        that names no server goes only to one that the user named: to a repository's, one that was saved for it."""
        is_users = not self.has_url_of_repository
        if self.context is not None and self._has_own_token and self.login(address):
            return logins_path(self.env)
        if is_users and self.env.get("DIBS_TOKEN"):
            return "DIBS_TOKEN"
        if self.is_system(address):
            return None
        if is_users and (named := self.env.get("DIBS_TOKEN_FILE")):
            return named
        if self.login(address) is not None:
            return logins_path(self.env)
        if is_users and (named := self.config.get("token_file")):
            return named
        own = token_path(self.env)
        # The token of this user's own server is sent only to this machine, never to another host in DIBS_URL.
        return own if address.is_local and os.path.exists(own) else None

    def is_system(self, address: ServerAddress) -> bool:
        """Tell whether it is the machine's service, which knows its users without a token."""
        return address.scheme == "unix" and address.path == socket_path(self.env)

    def token(self, address: ServerAddress) -> str | None:
        source = self.token_source(address)
        if source is None:
            return None
        if source == "DIBS_TOKEN":
            return token_in(self.env["DIBS_TOKEN"].encode("utf-8", "surrogatepass"))  # also `$(cat FILE)`
        if source == logins_path(self.env) and (login := self.login(address)) is not None:
            token, proves = login
        else:
            file = TokenFile(source)
            token, proves = file.token(), source == token_path(self.env)  # that was not given for this server
            address.renewed = None if proves else file.token
        if proves:
            address.own_token = token
        return token

    def login(self, address: ServerAddress) -> tuple[str, bool] | None:
        """The token that was saved for this server in the context that is used. With a URL in place of a context, it is
        the one of config.toml's context, else the only one. Raises InvalidInput if there are several."""
        context = self.context
        name = self.config.get("context", "") if context is None else context.name
        logins, origin = self.logins, address.origin
        found = logins.get((origin, name)) or logins.get((origin, ""))
        if found is not None or context is not None:
            return found
        names = [name for where, name in logins if where == origin]
        if len(names) > 1:
            raise InvalidInput(
                f"{origin} has a token in several contexts: {', '.join(names)}. Name one of them, not the URL."
            )
        return logins[origin, names[0]] if names else None

    @property
    def logins(self) -> Logins:
        """The tokens that `dibs login` saved."""
        if self._logins is None:
            self._logins = read_logins(self.env)
        return self._logins


def naming_of(settings: Settings) -> JobNamespaces:
    """The namespace of each name, for a client that is made here: `path:` and `repo:` names are the repository's."""
    from dibs.base.checkout import current_folder
    from dibs.client.naming import Namespaces

    return Namespaces(settings.pick("namespace", "DIBS_NAMESPACE"), settings.namespace, settings.env, current_folder())


def read_token(path: str) -> str:
    """The token in a file: alone on its line, or as in a tokens file (`name:token[:role[:namespace]]`)."""
    try:
        with open(path, "rb") as file:
            content = file.read(TOKEN_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(
            f"The token file {path} cannot be read ({error.strerror}). Set DIBS_TOKEN_FILE to one that can."
        ) from None
    if token := token_in(content):
        return token
    raise InvalidInput(f"The token file {path} holds no token.")


class TokenFile:
    """A token in a file, which somebody may replace while we run: Kubernetes and others do so before a token ends. One
    that cannot be read any more stays what it was. The file is looked at once a second at most."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._token = ""
        self._looked_ms = -TOKEN_LOOK_MS
        self._seen: tuple[int, ...] | None = None

    def token(self) -> str:
        now_ms = steady_ms()
        if now_ms - self._looked_ms < TOKEN_LOOK_MS:
            return self._token
        self._looked_ms = now_ms
        try:
            found = os.stat(self._path)
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self._token, self._seen = read_token(self._path), seen
        except (OSError, InvalidInput):
            if not self._token:
                self._token = read_token(self._path)  # which says what is wrong
        return self._token


def token_in(content: bytes) -> str | None:
    for line in content.decode("utf-8", "replace").splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            return line.split(":")[1].strip() if ":" in line else line
    return None


# Saved logins: a line for each server of each context, `ORIGIN TOKEN`, `context=NAME` unless it is the `url` of
# config.toml, and `proves` if the server has shown that it knows the token. Such a server must show it again before the
# token is sent: on a port of this machine any process may listen.
_OF_CONTEXT = "context="


def read_logins(env: Mapping[str, str]) -> Logins:
    """The saved tokens, by the origin of their server and their context."""
    path = logins_path(env)
    content = read_settings(path, SETTINGS_BYTES_MAX) if path is not None else None
    found: Logins = {}
    for words in [line.split() for line in (content or b"").decode("utf-8", "replace").splitlines()]:
        if len(words) > 1 and words[0] != "#":
            of = [word.removeprefix(_OF_CONTEXT) for word in words[2:] if word.startswith(_OF_CONTEXT)]
            found[words[0], of[0] if of else ""] = (words[1], "proves" in words[2:])
    return found


def logins_text(logins: Logins) -> str:
    """The file of these tokens, without its first line."""
    lines = []
    for (origin, context), (token, proves) in logins.items():
        of = f" {_OF_CONTEXT}{context}" if context else ""
        lines.append(f"{origin} {token}{' proves' if proves else ''}{of}\n")
    return "".join(lines)


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
    where = "your own store"
    if settings.url is not None:
        from dibs.base.redact import without_secrets

        where = without_secrets(settings.url)
    return where if settings.namespace is None else f"{where}, namespace {settings.namespace}"


# Opening the transport for a URL. Schemes of servers are known here; those of stores are in the registry of stores.


def servers_at(url: str | None) -> tuple[ServerAddress, ...]:
    """The servers that `url` names; none when it names a store. Raises InvalidInput when it names nothing."""
    if url is None:
        return ()
    from dibs.client.urls import server_addresses

    return server_addresses(url)


def connect_as(settings: Settings, *, keep: bool = False) -> Transport:
    """The transport that the settings name, with the token that they have for it. `keep`: one connection for all
    requests to a server."""
    servers = servers_of(settings)
    if servers is None:
        from dibs.client.embedded import EmbeddedTransport

        return EmbeddedTransport.at(settings.url, settings.namespace)
    from dibs.client.http import HttpTransport

    return HttpTransport(servers, naming=OneNamespace(settings.namespace), timeout_ms=settings.timeout_ms, keep=keep)


def servers_of(settings: Settings) -> Servers | None:
    """The servers that the settings name, each with the token that is for it. None: they name a store."""
    if settings.servers is not None:
        return settings.servers
    url = settings.url
    found = () if url is None else servers_at(url)  # a claim in the user's own store makes no call for it
    if not found:
        return None
    from dibs.client.servers import Servers, remembered

    for address in found:
        address.token = settings.token(address)
    settings.servers = Servers(found) if len(found) == 1 else remembered(found, settings.env)
    return settings.servers


# The machine's service: one store for all users of a machine, behind a Unix socket at a known path.
#
# A user who names no store uses the service if it exists (`dibs serve --system`, /run/dibs/dibs.sock), else their own
# file. Two rules keep one job from having two owners in two stores:
#
# - A user with live claims in their own file is not switched: an error asks which store to use. Only what is about
#   these claims, such as a heartbeat, goes to the file without being asked.
# - A user who has used the service does not fall back to their own file when it is down. A note in the state folder
#   remembers that.
#
# A socket that nobody listens on is no service. A server that could not start or was killed may have left it.
#
# A socket is trusted only if root, or the user to whom root gave the folder, must have made it.

SOCKET = "/run/dibs/dibs.sock"
OF_A_CLAIM = "of a claim"  # among the values of a command that is about a claim made before


def system_url(env: Mapping[str, str], *, of_a_claim: bool = False) -> str | None:
    """The URL of the machine's service, or None if there is none, or if the command is `of_a_claim` and the user's live
    claims are elsewhere. Raises if it cannot be used safely."""
    path = socket_path(env)
    if path is None:
        return None
    note = note_path(env)
    if not os.path.lexists(path):
        if os.path.exists(note):
            raise ServerUnreachable(
                f"This machine's dibs service ({path}) does not answer. Do not begin the work; try again "
                f"later. If the service was removed, remove {note}."
            )
        return None
    reason = distrust(path)
    if reason is not None:
        raise InvalidInput(
            f"{path} cannot be trusted: {reason}. Name a store with --url or DIBS_URL, or set DIBS_SYSTEM_SOCKET=off."
        )
    if not os.path.exists(note):
        if not is_heard(path):
            return None
        if (own := _own_store_in_use()) is not None:
            if of_a_claim:
                return None
            raise InvalidInput(
                f"This machine has a dibs service ({path}), and your own store {own} has live claims. Until they "
                f"end, choose one with --url or DIBS_URL."
            )
        try:
            os.makedirs(os.path.dirname(note), mode=0o700, exist_ok=True)
            with open(note, "w") as file:
                file.write(f"{path}\n")
        except OSError:
            pass  # a user without a home has no file to fall back to
    return f"unix://{path}"


def socket_path(env: Mapping[str, str]) -> str | None:
    """The path of the service's socket; None if the user turned it off."""
    path = env.get("DIBS_SYSTEM_SOCKET") or SOCKET
    return None if path in ("off", "no", "0") else path


def note_path(env: Mapping[str, str]) -> str:
    """The file that notes that this user's claims are in the machine's service."""
    return os.path.join(state_folder(env), "uses-the-machine's-service")


def distrust(path: str) -> str | None:
    """Return why another than root or the service's user may have made this socket; None: nobody can have."""
    folder = os.path.dirname(path)
    try:
        found, around, above = os.lstat(path), os.lstat(folder), os.stat(os.path.dirname(folder) or "/")
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if not stat.S_ISSOCK(found.st_mode):
        return "it is not a socket"
    if not stat.S_ISDIR(around.st_mode) or around.st_mode & 0o022:
        return f"others may write in {folder}"
    if above.st_uid != 0 or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        return f"{folder} may have been made by somebody other than root"
    if above.st_mode & stat.S_ISVTX and around.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to another user, and everybody may make folders beside it"
    if found.st_uid not in (0, around.st_uid):
        return "it belongs to another user than its folder"
    return None


def is_heard(path: str) -> bool:
    """Tell whether somebody listens on a socket."""
    import socket  # only where there is one

    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # a full queue is answered at once
        try:
            asking.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass  # it may be there; whoever asks it is told what is wrong
    return True


def _own_store_in_use() -> str | None:
    """The user's own file, if it has live claims: using the service as well would make two stores."""
    from dibs.client.embedded import EmbeddedTransport, default_store_url

    url = default_store_url()
    if not os.path.exists(url.removeprefix("sqlite://")):
        return None
    transport = EmbeddedTransport.at(None, None)
    try:
        from dibs.client.store_admin import holds_anything

        return url if holds_anything(transport.store()) else None
    finally:
        transport.close()
