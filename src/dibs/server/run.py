"""`dibs serve`: open the store and the tokens, listen, and say so. `http_server.Lifecycle` has the end. Standard error
gets one line for each important event; no line ever holds a token or a lease id.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import getpass
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from dibs._version import __version__
from dibs.base import build_kind
from dibs.base import files as paths
from dibs.base.errors import InvalidInput, MissingExtra
from dibs.base.logger import log
from dibs.base.plugins import PARTS, plugin
from dibs.base.redact import without_secrets
from dibs.core.limits import CONNECTIONS_TURNED_AWAY_MAX, SHUTDOWN_MS_MAX
from dibs.engine.auth import MachineGuard, SignedGuard, TokenGuard, ensure_token_file

try:
    import httptools  # noqa: F401 - only whether these are there
    import msgspec  # noqa: F401
    import prometheus_client  # noqa: F401
except ImportError as error:
    raise MissingExtra(f"dibs serve needs {error.name}. Run: pip install 'dibs-lease[server]'") from None

from dibs.base import platforms
from dibs.engine.credentials import CredentialDirectory
from dibs.engine.webhooks import TargetPolicy
from dibs.server.connection import RequestObserver
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http.admission import Admission, TrustedProxies
from dibs.server.http.browser import OwnNames
from dibs.server.http.listen import BindAddress, check_address, open_socket, parse_bind, publish, url_of, withdraw
from dibs.server.http.tls import ServerTls, TlsFiles
from dibs.server.http_server import Lifecycle, make_server
from dibs.server.monitor.server_log import change_level, flush_log, open_spans, set_up_logging
from dibs.server.plugins import open_routes
from dibs.server.settings import SYSTEM_SOCKET, SYSTEM_STORE, ServerSettings
from dibs.stores import codec
from dibs.stores.port import Opening, Store
from dibs.stores.registry import default_url, open_store
from dibs.stores.sqlite import sqlite_path

# One thread reads requests, another waits for the disk. The default of 5 ms between switches starves the second.
SWITCH_INTERVAL_S = 0.001
# Almost no object of a server is in a reference cycle. To collect after 700 objects would take a tenth of its time.
# After 50,000, which are mostly records of new leases, all requests would wait for 25 ms. While as many records are
# forgotten as remembered (`stores/sqlite/rows.py`: a thousand at a time, of four objects each), nothing is collected.
GC_THRESHOLDS = (10_000, 100, 100)

# For the store, its readers, refused connections that are still being answered, and Python's own files.
FILES_OF_OUR_OWN = 100 + CONNECTIONS_TURNED_AWAY_MAX
FILES_OF_MACOS = 10_240  # OPEN_MAX there


def serve(settings: ServerSettings) -> None:
    """Serve until told to stop. Raises DibsError if it cannot start."""
    address = parse_bind(settings.bind)
    set_up_logging(settings)
    tls = open_tls(settings, address)
    TrustedProxies(settings.trusted_proxies)  # raises for what is no address
    check_address(address, settings.group)
    guard, says = open_guard(settings, address)
    store_url = settings.store or default_url()
    if settings.system:
        make_folders(address.path, store_url)
    with contextlib.ExitStack() as stack:
        # The kernel drops a signal to the first process of a container that has no handler for it. Opening a store may
        # take seconds, and whoever stops the container then would wait for nothing.
        stack.callback(
            signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        )
        observers: list[RequestObserver] = []
        if settings.traces:
            spans = open_spans()
            stack.callback(spans.close)
            observers.append(spans)
        store = _open(store_url)
        stack.callback(store.close)
        says += open_directory(stack, guard, store, settings, address)
        stack.callback(withdraw, address)
        listening = open_socket(address, mode=socket_mode(settings), group=settings.group)
        stack.callback(listening.close)
        warn_without_tls(settings, address)
        made = " (made just now)" if getattr(store, "made", False) else ""
        url = url_of(address, listening, "http" if tls is None else "https")
        stored = f"{without_secrets(store_url)}{made}"
        text = greeting(settings, url, stored, says, has_own_token=guard.has_own_token)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(*GC_THRESHOLDS)

        def on_ready() -> None:
            publish(address)
            _print(text)

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, store, guard, tls, address, listening, observers, on_ready))
    log.info("stopped")
    flush_log()


def _open(store_url: str) -> Store:
    codec.pick_again()  # msgspec reads and writes the stores' records from now on
    store = open_store(store_url, Opening(serves=True))
    if store.capabilities.serves:
        return store
    store.close()
    raise InvalidInput(
        f"A server cannot use {without_secrets(store_url)}: it writes several times a second. Workers can "
        "use a git store directly, without a server; for a server take SQLite."
    )


def _print(text: str) -> None:
    flush_log()  # what was logged before stands before it
    with contextlib.suppress(OSError):  # the disk that it goes to may be full; the server serves
        sys.stderr.write(text)
        sys.stderr.flush()


async def _serve(
    settings: ServerSettings,
    store: Store,
    guard: TokenGuard,
    tls: ServerTls | None,
    address: BindAddress,
    listening: socket.socket,
    observers: list[RequestObserver],
    on_ready: Callable[[], None],
) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(
        store,
        loop,
        keep_events=settings.keep_events,
        keep_events_ms=settings.keep_events_ms,
        token_floor=settings.token_floor,
        metric_jobs=settings.metric_jobs,
        webhook_policy=TargetPolicy(
            private=settings.webhook_allow_private, http=settings.webhook_allow_http, ca=settings.webhook_ca
        ),
    )
    await asyncio.to_thread(engine.start)
    api = Api(engine, guard, settings)
    if tls is not None:
        api.certificate_ends_ms = tls.ends_ms
    names = (*settings.mcp_hosts, os.uname().nodename, *([address.host] if address.host else ()))
    api.names = OwnNames(names, settings.cors_origins)
    # A browser of this machine reaches it under any name that no certificate names. A proxy has names of its own.
    api.checks_names = bool(address.host) and address.is_local and tls is None and not settings.trusted_proxies
    try:
        server = make_server(
            api,
            observers=observers,
            on_ready=on_ready,
            plugins=open_routes(api, settings.routes),
            tls=None if tls is None else tls.context,
            admission=Admission(
                connections_max(settings.connections),
                settings.connections_per_client,
                proxies=TrustedProxies(settings.trusted_proxies),
            ),
        )
        lifecycle = Lifecycle(server, loop, settings.drain_ms)

        def reload() -> None:
            guard.reload()
            if tls is not None:
                tls.reload()

        with lifecycle.on_signals(reload, change_level):
            await server.serve(listening)
    finally:
        api.close()
        if not await asyncio.to_thread(engine.stop, SHUTDOWN_MS_MAX // 2):
            log.error("the store did not finish the last writes in time; their callers got no answer")


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
    fixed = {} if settings.contract is None else dict(settings.contract.callers)
    if settings.system:
        if not address.path or settings.tokens_file is not None or settings.identity_file is not None:
            raise InvalidInput("--system serves the users of this machine, on a Unix socket and without tokens.")
        who = f"members of {settings.group}" if settings.group else "all users of this machine"
        return MachineGuard(), f"for      {who}; their dibs finds it when it is at {SYSTEM_SOCKET}"
    if settings.tokens_file is not None:
        guard = TokenGuard(settings.tokens_file, fixed=fixed)
        return guard, f"tokens   {guard.path} ({len(guard)}); SIGHUP reads it again"
    if settings.contract is not None and not address.is_local:
        return TokenGuard(None, fixed=fixed), settings.contract.says
    if not address.is_local:
        if settings.identity_file is None and _is_missing(settings.store or default_url()):
            raise _nobody_let_in(settings)  # and no store is left behind
        return TokenGuard(None), ""  # the store's tokens decide
    path = paths.token_path()
    made = ensure_token_file(path, _login())
    says = f"token    {path}{' (made just now)' if made else ''}; your own dibs finds it there"
    return TokenGuard(path, own=True, fixed=fixed), says if settings.contract is None else settings.contract.says


def open_tls(settings: ServerSettings, address: BindAddress) -> ServerTls | None:
    """TLS as the settings say. Every error in a file is InvalidInput."""
    if settings.tls_cert is None:
        return None
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
    stack: contextlib.ExitStack, guard: TokenGuard, store: Store, settings: ServerSettings, address: BindAddress
) -> str:
    """Accept the store's tokens, too. Returns a line about them."""
    if settings.system:
        return ""
    directory = CredentialDirectory(store)
    directory.start()
    stack.callback(directory.stop)
    guard.directory = directory
    guard.signed = open_signed(settings)
    if guard.path is None and not directory and settings.contract is None and guard.signed is None:
        raise _nobody_let_in(settings)
    lines = [""] if guard.path is not None else []
    if guard.path is None or directory:
        lines.append(f"tokens   in the store ({len(directory)}); dibs token list shows them")
    if guard.signed is not None:
        lines.append(f"identity {settings.identity_file} ({len(guard.signed.rules)} rules); SIGHUP reads it again")
    return "\n  ".join(lines) if lines != [""] else ""


def open_signed(settings: ServerSettings) -> SignedGuard | None:
    """The rules for signed tokens. Every error in the file is InvalidInput."""
    if settings.identity_file is None:
        return None
    try:
        signed_tokens: Any = plugin(PARTS, "identity", "--identity")
    except ImportError as error:
        raise MissingExtra(f"--identity needs {error.name}. Run: pip install 'dibs-lease[oidc]'") from None
    signed: SignedGuard = signed_tokens(settings.identity_file)
    return signed


def _is_missing(store_url: str) -> bool:
    """Tell whether it is a file that opening would make."""
    if not store_url.startswith("sqlite:"):
        return False
    path = sqlite_path(store_url)
    return not os.path.exists(path) and (store_url == default_url() or os.path.isdir(os.path.dirname(path)))


def _nobody_let_in(settings: ServerSettings) -> InvalidInput:
    return InvalidInput(
        f"{settings.bind} can be reached from other machines, and no token lets anybody in. Run `dibs token create "
        "NAME --role admin --url STORE`, or give --tokens FILE or --identity FILE, or bind to 127.0.0.1."
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
    board = gateway = ""
    if not url.startswith("unix:"):  # no browser opens it
        how = "sign in with: dibs token show" if has_own_token else "sign in with a token"
        board = f"  board    {url}/ ({how})\n"
    if "gateway" in settings.routes:
        where = "/gateway on the socket" if url.startswith("unix:") else f"GATEWAY_URL={url}/gateway"
        gateway = f"  gateway  {where}; dibs run-secret create makes secrets\n"
    tries = f"{token}dibs claim issue-1842 --url {url}"
    if settings.contract is not None:
        tries = f"{settings.contract.tries} {url}/locks"
    return (
        f"dibs {__version__} listens on {url}\n  store    {store_url}\n  {says}\n{board}{gateway}{_build_line()}"
        f"  try      {tries}\n"
    )


def _build_line() -> str:
    """Offers the compiled build where it can be had and is not there. A clone is there to be edited, and stays pure."""
    is_clone = "site-packages" not in __file__ and "dist-packages" not in __file__
    can_compile = sys.platform == "linux" and sys.implementation.name == "cpython"
    if is_clone or not can_compile or build_kind() == "compiled":
        return ""
    return "  build    pure Python; installed again with DIBS_COMPILE=1 and a C compiler, it takes less CPU a request\n"


def connections_max(wanted: int) -> int:
    """The wanted number, or fewer if this process may not open that many files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names no bound; old versions refuse that number, new ones accept it and keep to a bound of their own.
    for more in (min(hard, FILES_OF_MACOS),) if platforms.IS_MACOS else (hard, FILES_OF_MACOS):
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
