"""What a server needs before it listens: its extras, its log, its tokens, and its first lines of output."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import signal
from typing import TYPE_CHECKING

from dibs._version import __version__
from dibs.base import files as paths
from dibs.base.errors import DibsError, InvalidInput, MissingExtra
from dibs.core.limits import (
    CONNECTIONS_TURNED_AWAY_MAX,
    DRAIN_LOOK_MS,
    DRAIN_MS_DEFAULT,
    DRAIN_QUIET_MS,
    HEALTH_MS_MAX,
    PULSE_LATE_MS,
)
from dibs.core.upkeep import live_servers
from dibs.engine.auth import MachineGuard, TokenGuard, ensure_token_file
from dibs.engine.liveness import pulses_of
from dibs.server.settings import SYSTEM_SOCKET, SYSTEM_STORE
from dibs.stores.registry import default_url
from dibs.stores.sqlite import sqlite_path
from dibs.system import ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.server.engine import Engine
    from dibs.server.http.listen import BindAddress
    from dibs.server.http.tls import ServerTls
    from dibs.server.http_server import HttpServer
    from dibs.server.settings import ServerSettings
    from dibs.stores.port import Store


# How a server ends.
#
# SIGTERM drains the server, if there are other servers on the store: it takes no new claims and no new sessions, and
# sends waiters elsewhere with their tickets. Clients that hold something are still served (renew, release, heartbeat,
# transfer, a look). Draining ends when nobody has asked for a moment, and in any case after `--drain`. Then the
# server stops accepting, finishes the requests under way and writes the accepted commands, within SHUTDOWN_MS_MAX. It
# does so at once on SIGINT, on a second signal, or if there is no other server. A server that is alone does not
# drain: its clients have no other server and wait for it to come back.

log = logging.getLogger("dibs")


class Lifecycle:
    """For one event loop. `drain_ms` None: the default, where there are other servers."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop, drain_ms: int | None = None) -> None:
        self._server = server
        self._loop = loop
        self._drain_ms = drain_ms
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on_signals(self, reload: Callable[[], object], change_level: Callable[[int], object]) -> Iterator[None]:
        handlers = {
            signal.SIGTERM: self.drain,
            signal.SIGINT: self.stop,
            signal.SIGHUP: reload,
            signal.SIGUSR1: lambda: change_level(-1),
            signal.SIGUSR2: lambda: change_level(1),
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                self._loop.remove_signal_handler(number)
            if self._drain is not None:
                self._drain.cancel()

    def stop(self) -> None:
        """Accept nothing more and finish the requests under way; on a second call, without waiting."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True

    def drain(self) -> None:
        """Refuse new claims, still serve clients that hold something, then stop. On a second call, stop at once."""
        if self._drain is not None or self._server.should_exit or self._drain_ms == 0:
            self.stop()
        else:
            self._drain = self._loop.create_task(self._drained())

    async def _drained(self) -> None:
        try:
            drain_ms = self._drain_ms
            if drain_ms is None:
                drain_ms = DRAIN_MS_DEFAULT if await self._has_others() else 0
            if drain_ms:
                await self._serve_on(drain_ms)
        finally:
            if not self._server.should_exit:
                self.stop()

    async def _has_others(self) -> bool:
        """Tell whether there is another server on the store. A server that ended a moment ago also has a recent pulse,
        so this waits for one more pulse of it. Servers send no pulse while nobody holds anything; then there is nobody
        to drain for."""
        with contextlib.suppress(TimeoutError, DibsError):  # without its store it serves nobody
            async with asyncio.timeout(HEALTH_MS_MAX / 1000):
                first = await self._others()
                until_s = self._loop.time() + PULSE_LATE_MS / 1000
                while first and self._loop.time() < until_s and not self._server.should_exit:
                    await asyncio.sleep(DRAIN_LOOK_MS / 1000)
                    now = await self._others()
                    if any(at_ms > first.get(server, 0) for server, at_ms in now.items()):
                        return True
        return False

    async def _others(self) -> dict[str, int]:
        """The last pulse of each other server with a recent pulse."""
        return await asyncio.to_thread(_others_of, self._server.api.engine)

    async def _serve_on(self, drain_ms: int) -> None:
        server = self._server
        server.api.is_draining = True
        log.warning("draining for up to %g s: no new claims", drain_ms / 1000)
        server.dismiss_waiters()
        server.close_idle_connections()
        until_s = self._loop.time() + drain_ms / 1000
        quiet_s = min(until_s, self._loop.time() + DRAIN_QUIET_MS / 1000)
        answered = server.server_state.total_requests
        while self._loop.time() < min(until_s, quiet_s) and not server.should_exit:
            await asyncio.sleep(DRAIN_LOOK_MS / 1000)
            state = server.server_state
            if state.total_requests != answered or state.connections:
                answered = state.total_requests
                quiet_s = self._loop.time() + DRAIN_QUIET_MS / 1000


def _others_of(engine: Engine) -> dict[str, int]:
    pulses = pulses_of(engine.store)
    live = live_servers(pulses, engine.store.read(()).now_ms)
    own = engine.decider.server
    return {pulse.server: pulse.at_ms for pulse in pulses if pulse.server in live and pulse.server != own}


# For the store, its readers, refused connections that are still being answered, and Python's own files.
FILES_OF_OUR_OWN = 100 + CONNECTIONS_TURNED_AWAY_MAX
FILES_OF_MACOS = 10_240  # OPEN_MAX there


def check_extras() -> None:
    try:
        import httptools  # noqa: F401 - only whether it is there
        import msgspec  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"dibs serve needs {error.name}. In a clone of dibs, run: pip install '.[server]'") from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def open_guard(settings: ServerSettings, address: BindAddress) -> tuple[TokenGuard, str]:
    """The guard, and a line that says where its tokens are."""
    if settings.local_registration and not address.is_local:
        raise InvalidInput(
            "Registration is for users of this machine. Bind to a loopback address such as 127.0.0.1:3427."
        )
    if settings.system:
        if not address.path or settings.tokens_file is not None:
            raise InvalidInput("--system serves the users of this machine, on a Unix socket and without tokens.")
        who = f"members of {settings.group}" if settings.group else "all users of this machine"
        return MachineGuard(), f"for      {who}; their dibs finds it when it is at {SYSTEM_SOCKET}"
    if settings.tokens_file is not None:
        guard = TokenGuard(settings.tokens_file)
        return guard, f"tokens   {guard.path} ({len(guard)}); SIGHUP reads it again"
    if settings.contract is not None and not address.is_local:
        return TokenGuard(None), settings.contract.says
    if not address.is_local:
        if _is_missing(settings.store or default_url()):
            raise _nobody_let_in(settings)  # and no store is left behind
        return TokenGuard(None), ""  # the store's tokens decide
    path = paths.token_path()
    made = ensure_token_file(path, _login())
    return TokenGuard(
        path, own=True
    ), f"token    {path}{' (made just now)' if made else ''}; your own dibs finds it there"


def open_tls(settings: ServerSettings, address: BindAddress) -> ServerTls | None:
    """TLS as the settings say. Every fault of a file is InvalidInput."""
    if settings.tls_cert is None:
        return None
    from dibs.server.http.tls import ServerTls, TlsFiles

    if address.path:
        raise InvalidInput("TLS is for HOST:PORT. A Unix socket needs none: no other machine can reach it.")
    return ServerTls(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def warn_without_tls(settings: ServerSettings, address: BindAddress) -> None:
    """Say that tokens can be read on the way. Where a proxy is named, that ends TLS."""
    if settings.tls_cert is None and not address.is_local and not settings.trusted_proxies:
        log.warning(
            "%s CAN BE REACHED FROM OTHER MACHINES WITHOUT TLS: whoever is on the way reads every token. Give "
            "--tls-cert, or listen on 127.0.0.1 behind a proxy that ends TLS, and name it with --trusted-proxy",
            settings.bind,
        )


def socket_mode(settings: ServerSettings) -> int | None:
    """Everybody may connect to the machine's service, unless the settings say otherwise."""
    if settings.socket_mode is None and settings.system and settings.group is None:
        return 0o666
    return settings.socket_mode


def open_directory(
    stack: contextlib.ExitStack,
    guard: TokenGuard,
    store: Store,
    settings: ServerSettings,
    address: BindAddress,
) -> str:
    """Accept the store's tokens, too. Returns a line about them."""
    if settings.system:
        return ""
    from dibs.engine.credentials import CredentialDirectory

    directory = CredentialDirectory(store)
    directory.start()
    stack.callback(directory.stop)
    guard.directory = directory
    if guard.path is None and not directory and settings.contract is None:
        raise _nobody_let_in(settings)
    if guard.path is None or directory:
        lead = "" if guard.path is None else "\n  "
        return f"{lead}tokens   in the store ({len(directory)}); dibs token list shows them"
    return ""


def _is_missing(store_url: str) -> bool:
    """Tell whether it is a file that opening would make."""
    if not store_url.startswith("sqlite:"):
        return False
    path = sqlite_path(store_url)
    return not os.path.exists(path) and (store_url == default_url() or os.path.isdir(os.path.dirname(path)))


def _nobody_let_in(settings: ServerSettings) -> InvalidInput:
    return InvalidInput(
        f"{settings.bind} can be reached from other machines, and no token lets anybody in. Run `dibs token create "
        "NAME --role admin --url STORE`, or give --tokens FILE, or bind to 127.0.0.1."
    )


def make_folders(socket_path: str, store_url: str) -> None:
    """Make the folders as an init system would: the socket's is readable by all, the store's by the service alone."""
    try:
        os.makedirs(os.path.dirname(socket_path), mode=0o755, exist_ok=True)
        if store_url == SYSTEM_STORE:
            os.makedirs(os.path.dirname(SYSTEM_STORE.removeprefix("sqlite://")), mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {error.filename} cannot be made ({error.strerror}). Run it as root.") from None


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id, as in many containers
        return f"uid-{os.getuid()}"


def greeting(settings: ServerSettings, url: str, store_url: str, says: str, *, has_own_token: bool) -> str:
    token = "" if has_own_token or settings.system else "DIBS_TOKEN=... "
    return (
        f"dibs {__version__} listens on {url}\n"
        f"  store    {store_url}\n"
        f"  {says}\n"
        f"{_board_line(url, has_own_token=has_own_token)}"
        f"{_gateway_line(settings, url)}"
        f"  try      {token}dibs claim issue-1842 --url {url}\n"
    )


def _board_line(url: str, *, has_own_token: bool) -> str:
    if url.startswith("unix:"):  # no browser opens it
        return ""
    how = "sign in with: dibs token show" if has_own_token else "sign in with a token"
    return f"  board    {url}/ ({how})\n"


def _gateway_line(settings: ServerSettings, url: str) -> str:
    if "gateway" not in settings.routes:
        return ""
    where = "/gateway on the socket" if url.startswith("unix:") else f"GATEWAY_URL={url}/gateway"
    return f"  gateway  {where}; dibs run-secret create makes secrets\n"


def connections_max(wanted: int) -> int:
    """The wanted number, or fewer if this process may not open so many files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names no bound; old versions refuse that number, new ones accept it and keep to a bound of their own.
    for more in (min(hard, FILES_OF_MACOS),) if ways.IS_MACOS else (hard, FILES_OF_MACOS):
        if soft != hard and (soft < more or more == resource.RLIM_INFINITY):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
                soft = more
                break
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = max(1, soft - FILES_OF_OUR_OWN)
    if wanted > room:
        log.warning("no more than %d connections: this process may have %d files open (ulimit -n)", room, soft)
    return min(wanted or room, room)
