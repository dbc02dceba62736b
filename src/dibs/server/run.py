"""`dibs serve`: open the store, let the right people in, listen, and end cleanly.

SIGTERM and SIGINT stop accepting, finish what is under way and drain the writes, within SHUTDOWN_MS_MAX. SIGHUP reads
the tokens again. Standard error gets one line for what matters; no line ever holds a token or a lease id.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import getpass
import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dibs import paths
from dibs._version import __version__
from dibs.core.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_CLIENT_MAX,
    CONNECTIONS_TURNED_AWAY_MAX,
    EVENTS_AGE_MS_MAX,
    EVENTS_KEPT_MAX,
    LOCKS_PER_PRINCIPAL_MAX,
    RLOCK_TTL_MS_DEFAULT,
    SHUTDOWN_MS_MAX,
)
from dibs.errors import InvalidInput, MissingExtra
from dibs.loglines import LogLines
from dibs.redact import without_secrets
from dibs.server.accesslog import hide_secrets
from dibs.server.listen import BindAddress, open_socket, parse_bind, url_of
from dibs.service.auth import MachineGuard, TokenGuard, ensure_token_file
from dibs.stores.port import Opening
from dibs.stores.registry import default_url, open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    import uvicorn
    from starlette.types import ASGIApp

    from dibs.server.admission import Admission
    from dibs.server.handlers import Api
    from dibs.stores.port import Store

log = logging.getLogger("dibs")

DEFAULT_BIND = "127.0.0.1:3427"
SYSTEM_SOCKET = "/run/dibs/dibs.sock"
SYSTEM_STORE = "sqlite:///var/lib/dibs/dibs.db"
# Reading requests and waiting for the disk are two threads. The default of 5 ms between switches starves the second.
SWITCH_INTERVAL_S = 0.001
# Nearly nothing a server makes is in a cycle: looking for them after every 700 new objects is a tenth of its time.
GC_THRESHOLDS = (50_000, 20, 100)
# The store, its readers, the turned away that are still being told so, and what Python opens.
FILES_OF_OUR_OWN = 100 + CONNECTIONS_TURNED_AWAY_MAX


@dataclass(frozen=True)
class ServerSettings:
    """What can be chosen about a server. `store` None: the user's own; `tokens_file` None: the user's own token."""

    bind: str = DEFAULT_BIND
    store: str | None = None
    tokens_file: str | None = None
    keep_events: int = EVENTS_KEPT_MAX
    keep_events_ms: int = EVENTS_AGE_MS_MAX
    locks_per_principal: int = LOCKS_PER_PRINCIPAL_MAX
    log_level: str = "warning"
    access_log: bool = False
    gateway: bool = False
    gateway_upstream: str | None = None
    rlock_ttl_ms: int = RLOCK_TTL_MS_DEFAULT
    token_floor: int = 0
    # One service for all users of the machine: who asks is who the kernel says. `group`: only its members may.
    system: bool = False
    group: str | None = None
    # 0 is no bound.
    connections: int = CONNECTIONS_MAX
    connections_per_client: int = CONNECTIONS_PER_CLIENT_MAX
    # Names of this machine that /mcp is asked under, besides the obvious ones.
    mcp_hosts: tuple[str, ...] = ()


def serve(settings: ServerSettings) -> None:
    """Serve until told to stop. Raises DibsError for everything that keeps it from starting."""
    _check_extras()
    address = parse_bind(settings.bind)
    _set_up_logging(settings)
    guard, says = _open_guard(settings, address)
    store_url = settings.store or default_url()
    if settings.system:
        _make_folders(address.path, store_url)
    with contextlib.ExitStack() as stack:
        store = open_store(store_url, Opening(serves=True))
        stack.callback(store.close)
        if not store.capabilities.serves:
            raise InvalidInput(
                f"A server cannot stand on {without_secrets(store_url)}: it writes several times a second. Workers can "
                "use a git store directly, without a server; for a server take SQLite."
            )
        says += _open_directory(stack, guard, store, settings, address)
        listening = open_socket(address, shared=settings.system, group=settings.group)
        stack.callback(listening.close)
        if address.path:
            stack.callback(_remove, address.path)
        url = url_of(address, listening)
        made = " (made just now)" if getattr(store, "made", False) else ""
        greeting = _greeting(settings, url, f"{without_secrets(store_url)}{made}", says)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            names = _names_of(settings, address)
            runner.run(_serve(settings, store, guard, listening, names, lambda: _tell(greeting)))
    log.warning("stopped")


def _check_extras() -> None:
    try:
        import httptools  # noqa: F401 - only whether it is there
        import msgspec  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"dibs serve needs {error.name}. In a clone of dibs, run: pip install '.[server]'"
        ) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _open_guard(settings: ServerSettings, address: BindAddress) -> tuple[TokenGuard, str]:
    """Who is let in, and the words about where their tokens are."""
    if settings.system:
        if not address.path or settings.tokens_file is not None:
            raise InvalidInput(
                "--system serves the users of this machine, on a Unix socket and without tokens."
            )
        who = f"members of {settings.group}" if settings.group else "all users of this machine"
        return MachineGuard(), f"for      {who}; their dibs finds it when it is at {SYSTEM_SOCKET}"
    if settings.tokens_file is not None:
        guard = TokenGuard(settings.tokens_file)
        return guard, f"tokens   {guard.path} ({len(guard)}); SIGHUP reads it again"
    if not address.is_local:
        return TokenGuard(None), ""  # who is let in is for the store to say
    path = paths.token_path()
    made = ensure_token_file(path, _login())
    return TokenGuard(
        path, own=True
    ), f"token    {path}{' (made just now)' if made else ''}; your own dibs finds it there"


def _open_directory(
    stack: contextlib.ExitStack,
    guard: TokenGuard,
    store: Store,
    settings: ServerSettings,
    address: BindAddress,
) -> str:
    """Let the store's tokens in, too. Returns the words about them."""
    if settings.system:
        return ""
    from dibs.service.directory import CredentialDirectory

    directory = CredentialDirectory(store)
    directory.start()
    stack.callback(directory.stop)
    guard.directory = directory
    if guard.path is None and not directory:
        raise InvalidInput(
            f"{settings.bind} can be reached from other machines, and no token lets anybody in. Run `dibs token create "
            "NAME --role admin --url STORE`, or give --tokens FILE, or bind to 127.0.0.1."
        )
    if guard.path is None or directory:
        lead = "" if guard.path is None else "\n  "
        return f"{lead}tokens   in the store ({len(directory)}); dibs token list shows them"
    return ""


def _make_folders(socket_path: str, store_url: str) -> None:
    """As the unit of the init system would: the socket's for all to see, the store's for the service alone."""
    try:
        os.makedirs(os.path.dirname(socket_path), mode=0o755, exist_ok=True)
        if store_url == SYSTEM_STORE:
            os.makedirs(os.path.dirname(SYSTEM_STORE.removeprefix("sqlite://")), mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"The folder {error.filename} cannot be made ({error.strerror}). Run it as root."
        ) from None


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id, as in many containers
        return f"uid-{os.getuid()}"


def _set_up_logging(settings: ServerSettings) -> None:
    level = logging.getLevelNamesMapping().get(settings.log_level.upper())
    if level is None:
        raise InvalidInput(f"{settings.log_level!r} is not a log level: debug, info, warning, error.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    log.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.WARNING))
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.INFO if settings.access_log else logging.CRITICAL)
    access.addFilter(hide_secrets)


def _greeting(settings: ServerSettings, url: str, store_url: str, says: str) -> str:
    own = settings.tokens_file is None or settings.system
    token = "" if own else "DIBS_TOKEN=... "
    return (
        f"dibs {__version__} listens on {url}\n"
        f"  store    {store_url}\n"
        f"  {says}\n"
        f"{_gateway_line(settings, url)}"
        f"  try      {token}dibs claim issue-1842 --url {url}\n"
    )


def _gateway_line(settings: ServerSettings, url: str) -> str:
    if not settings.gateway:
        return ""
    where = "/gateway on the socket" if url.startswith("unix:") else f"GATEWAY_URL={url}/gateway"
    return f"  gateway  {where}; dibs run-secret create makes secrets\n"


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _names_of(settings: ServerSettings, address: BindAddress) -> tuple[str, ...]:
    """What this machine may be called in a request to /mcp, besides localhost."""
    return (*settings.mcp_hosts, os.uname().nodename, *([address.host] if address.host else ()))


async def _serve(
    settings: ServerSettings,
    store: Store,
    guard: TokenGuard,
    listening: socket.socket,
    names: tuple[str, ...],
    on_ready: Callable[[], None],
) -> None:
    from dibs.server.admission import Admission
    from dibs.server.engine import Engine
    from dibs.server.handlers import Api
    from dibs.server.mcp import McpEndpoint

    loop = asyncio.get_running_loop()
    engine = Engine(
        store,
        loop,
        keep_events=settings.keep_events,
        keep_events_ms=settings.keep_events_ms,
        token_floor=settings.token_floor,
    )
    await asyncio.to_thread(engine.start)
    api = Api(engine, guard, locks_per_principal=settings.locks_per_principal)
    ttl_ms = settings.rlock_ttl_ms if settings.gateway else None
    mcp = McpEndpoint(api, names)
    try:
        server = make_server(
            api,
            mcp=mcp,
            access_log=settings.access_log,
            on_ready=on_ready,
            gateway_ttl_ms=ttl_ms,
            gateway_upstream=settings.gateway_upstream,
            knows_peers=settings.system,
            admission=Admission(_connections_max(settings.connections), settings.connections_per_client),
        )
        with _signals(loop, server, guard):
            await server.serve(sockets=[listening])
    finally:
        await mcp.close()
        api.close()
        if not await asyncio.to_thread(engine.stop, SHUTDOWN_MS_MAX // 2):
            log.error("the store did not take the last writes in time; who waited for them was not answered")


def _connections_max(wanted: int) -> int:
    """As many as are wanted, or as this process may have open files for."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS gives a bound that it does not accept
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = max(1, soft - FILES_OF_OUR_OWN)
    if wanted > room:
        log.warning(
            "no more than %d connections: this process may have %d files open (ulimit -n)", room, soft
        )
    return min(wanted or room, room)


def make_server(
    api: Api,
    *,
    mcp: ASGIApp | None = None,
    access_log: bool = False,
    lane: bool = True,
    on_ready: Callable[[], None] = lambda: None,
    gateway_ttl_ms: int | None = None,
    gateway_upstream: str | None = None,
    admission: Admission | None = None,
    knows_peers: bool = False,
) -> uvicorn.Server:
    """A uvicorn server for `api`, and for `mcp` at /mcp, that leaves signals to its caller. With `gateway_ttl_ms` it
    serves the gateway, whose locks last that long unless told otherwise. `admission` bounds its connections."""
    import uvicorn

    from dibs.compat.action_llama.routes import Gateway
    from dibs.server.app import build_app
    from dibs.server.head_cache import HeadCacheProtocol
    from dibs.server.protocol import BoundedProtocol

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn would raise the signal again when it is done, and the process would not end with 0.
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            api.engine.waiters.close()  # who waits in line is told the ticket it can come back with
            if gateway is not None:
                gateway.close()
            await super().shutdown(sockets)

    gateway = None if gateway_ttl_ms is None else Gateway(api, gateway_ttl_ms, gateway_upstream)
    made = functools.partial(HeadCacheProtocol, api=api) if lane else BoundedProtocol
    connect = functools.partial(made, admission=admission, knows_peers=knows_peers)
    config = uvicorn.Config(
        build_app(api, gateway, mcp),
        # Called once a connection, as the class it asks for would be.
        http=connect,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_MS_MAX // 2000,
    )
    return Server(config)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, server: uvicorn.Server, guard: TokenGuard) -> Iterator[None]:
    def stop() -> None:
        if server.should_exit:  # asked a second time: without waiting for anybody
            server.force_exit = True
        server.should_exit = True

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: guard.reload}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
