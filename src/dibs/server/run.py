"""`dibs serve`: open the store and the tokens, listen, and end cleanly. `startup.py` has the end. Standard error gets
one line for each important event; no line ever holds a token or a lease id.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput
from dibs.base.redact import without_secrets
from dibs.core.limits import SHUTDOWN_MS_MAX
from dibs.server.http.browser import OwnNames
from dibs.server.http.listen import open_socket, parse_bind, url_of
from dibs.server.http.proxies import TrustedProxies
from dibs.server.monitor.server_log import change_level, flush_log, set_up_logging
from dibs.server.settings import ServerSettings
from dibs.server.startup import (
    check_extras,
    connections_max,
    greeting,
    loop_factory,
    make_folders,
    open_directory,
    open_guard,
    open_tls,
    socket_mode,
    warn_without_tls,
)
from dibs.stores import codec
from dibs.stores.port import Opening
from dibs.stores.registry import default_url, open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from dibs.engine.auth import TokenGuard
    from dibs.server.http.listen import BindAddress
    from dibs.server.http.tls import ServerTls
    from dibs.server.monitor.request_note import RequestObserver
    from dibs.stores.port import Store

log = logging.getLogger("dibs")

# One thread reads requests, another waits for the disk. The default of 5 ms between switches starves the second.
SWITCH_INTERVAL_S = 0.001
# Almost no object of a server is in a reference cycle. Collecting after every 700 new objects would take a tenth of its
# time.
GC_THRESHOLDS = (50_000, 20, 100)


def serve(settings: ServerSettings) -> None:
    """Serve until told to stop. Raises DibsError if it cannot start."""
    check_extras()
    address = parse_bind(settings.bind)
    set_up_logging(settings)
    tls = open_tls(settings, address)
    proxies = TrustedProxies(settings.trusted_proxies)
    guard, says = open_guard(settings, address)
    if settings.contract is not None:
        guard.fixed = dict(settings.contract.callers)
    store_url = settings.store or default_url()
    if settings.system:
        make_folders(address.path, store_url)
    with contextlib.ExitStack() as stack:
        observers = _observers(settings, stack)
        store = _open(store_url)
        stack.callback(store.close)
        says += open_directory(stack, guard, store, settings, address)
        listening = open_socket(address, mode=socket_mode(settings), group=settings.group)
        stack.callback(listening.close)
        warn_without_tls(settings, address)
        if address.path:
            stack.callback(_remove, address.path)
        made = " (made just now)" if getattr(store, "made", False) else ""
        url = url_of(address, listening, "http" if tls is None else "https")
        stored = f"{without_secrets(store_url)}{made}"
        text = greeting(settings, url, stored, says, has_own_token=guard.has_own_token)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            names = _names_of(settings, address)
            # A browser of this machine reaches it under any name, unless a certificate says which is right. A proxy has
            # names that are not known here.
            is_for_machine = bool(address.host) and address.is_local and tls is None and not proxies
            runner.run(
                _serve(
                    *(settings, store, guard, tls, proxies, listening, names),
                    *(is_for_machine, observers, lambda: _tell(text)),
                )
            )
    log.warning("stopped")
    flush_log()


def _open(store_url: str) -> Store:
    import msgspec  # noqa: F401 - the stores' records are read and written by it from now on

    codec.pick_again()
    store = open_store(store_url, Opening(serves=True))
    if store.capabilities.serves:
        return store
    store.close()
    raise InvalidInput(
        f"A server cannot use {without_secrets(store_url)}: it writes several times a second. Workers can "
        "use a git store directly, without a server; for a server take SQLite."
    )


def _tell(text: str) -> None:
    flush_log()  # what was logged before stands before it
    with contextlib.suppress(OSError):  # the disk that it goes to may be full; the server serves
        sys.stderr.write(text)
        sys.stderr.flush()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _names_of(settings: ServerSettings, address: BindAddress) -> OwnNames:
    names = (*settings.mcp_hosts, os.uname().nodename, *([address.host] if address.host else ()))
    return OwnNames(names, settings.cors_origins)


def _reload(guard: TokenGuard, tls: ServerTls | None) -> None:
    guard.reload()
    if tls is not None:
        tls.reload()


def _observers(settings: ServerSettings, stack: contextlib.ExitStack) -> list[RequestObserver]:
    if not settings.traces:
        return []
    from dibs.server.monitor.request_spans import open_spans

    spans = open_spans()
    stack.callback(spans.close)
    return [spans]


async def _serve(
    settings: ServerSettings,
    store: Store,
    guard: TokenGuard,
    tls: ServerTls | None,
    proxies: TrustedProxies,
    listening: socket.socket,
    names: OwnNames,
    is_for_machine: bool,
    observers: list[RequestObserver],
    on_ready: Callable[[], None],
) -> None:
    from dibs.engine.webhooks.target import TargetPolicy
    from dibs.server.annexes import open_routes
    from dibs.server.engine import Engine
    from dibs.server.handlers import Api
    from dibs.server.http.admission import Admission
    from dibs.server.http_server import make_server
    from dibs.server.startup import Lifecycle

    loop = asyncio.get_running_loop()
    engine = Engine(
        store,
        loop,
        keep_events=settings.keep_events,
        keep_events_ms=settings.keep_events_ms,
        token_floor=settings.token_floor,
        webhook_policy=TargetPolicy(private=settings.webhook_allow_private, http=settings.webhook_allow_http),
    )
    await asyncio.to_thread(engine.start)
    api = Api(
        engine,
        guard,
        locks_per_principal=settings.locks_per_principal,
        settings=settings,
    )
    if tls is not None:
        api.certificate_ends_ms = tls.ends_ms
    api.names, api.checks_names = names, is_for_machine
    try:
        server = make_server(
            api,
            access_log=settings.access_log,
            json_log=settings.log_format == "json",
            observers=observers,
            on_ready=on_ready,
            annexes=open_routes(api, settings.routes),
            knows_peers=settings.system,
            tls=None if tls is None else tls.context,
            admission=Admission(
                connections_max(settings.connections), settings.connections_per_client, proxies=proxies
            ),
            proxies=proxies,
        )
        lifecycle = Lifecycle(server, loop, settings.drain_ms)
        with lifecycle.on_signals(lambda: _reload(guard, tls), change_level):
            await server.serve(listening)
    finally:
        api.close()
        if not await asyncio.to_thread(engine.stop, SHUTDOWN_MS_MAX // 2):
            log.error("the store did not finish the last writes in time; their callers got no answer")
