"""The meaning of a `postgresql:` URL, and what the store can do.

A `postgresql:` URL is a URL of libpq, plus a few options of our own after the question mark:

    postgresql://user@host/database
    postgresql://user@one:5432,two:5432/database            several hosts: the one that accepts writes
    postgresql:///database?host=/var/run/postgresql         a socket
    postgresql://user@host/database?schema=team&timeout=3s  our own options

    schema    the schema that holds the tables: `dibs` unless it is given
    timeout   how long one call may take, connecting included: 5 seconds
    migrate   `off`: never change the schema on opening
    listen    `host:port` to wait for notifications at, if the URL leads through pgbouncer; `off`: polling only

libpq's other sources (PGPASSWORD, ~/.pgpass, a service file) work, too. psycopg is imported when a store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from dibs.base.errors import InvalidInput
from dibs.base.redact import without_secrets
from dibs.core.durations import parse_duration
from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="postgresql",
    clock="the database's wall clock, corrected when it is stepped forward, and never running backwards",
    reach="network",
    watch="native",
    durable=True,
    cannot=(
        "wake waiters at once behind pgbouncer without a direct address to listen at: they look every 100 ms then",
    ),
)


SCHEMA = "dibs"
TIMEOUT_MS = 5_000  # less than a client's own timeout, so that the client gets the reason
TIMEOUT_MS_MIN = 100
NAME_BYTES_MAX = 63  # the limit of PostgreSQL for names
_OWN = ("schema", "timeout", "migrate", "listen")
_SECRET = ("password", "sslpassword", "oauth_client_secret")
_FORM = "postgresql://user@host:5432/database?schema=dibs"


class PostgresLocation:
    """The address of the store, and how to connect. `attempts` are libpq's settings, one for each host."""

    def __init__(self, url: str) -> None:
        self.shown = without_secrets(url)
        base, own = _split(url)
        settings = _settings(base, self.shown)
        self._secrets = [settings[key] for key in _SECRET if settings.get(key)]
        self.schema = _schema(own.get("schema", SCHEMA))
        self.timeout_ms = _timeout_ms(own.get("timeout"))
        migrate = own.get("migrate", "on")
        if migrate not in ("on", "off"):
            raise InvalidInput(f"migrate={migrate} in a store's URL is neither on nor off.")
        self.migrates = migrate == "on"
        self.attempts = _attempts(settings, self.timeout_ms)
        self.listens_at = self._listening(own.get("listen"), settings)
        self.has_several = len(self.attempts) > 1

    @property
    def channel(self) -> str:
        """The name of this store's notifications within the database."""
        name = f"dibs:{self.schema}"
        if len(name.encode()) <= NAME_BYTES_MAX:
            return name
        return "dibs:" + blake2b(self.schema.encode(), digest_size=16).hexdigest()

    def without_secrets(self, says: str) -> str:
        for secret in self._secrets:
            says = says.replace(secret, "***")
        return without_secrets(says)

    def _listening(self, listen: str | None, settings: Mapping[str, str]) -> list[bytes]:
        if listen is None:
            return self.attempts
        if listen == "off":
            return []
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal():
            raise InvalidInput(f"listen={listen} in a store's URL is no address: write host:port, or off.")
        direct = {key: value for key, value in settings.items() if key != "hostaddr"}
        return _attempts({**direct, "host": host.strip("[]"), "port": port}, self.timeout_ms)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """libpq's part of the URL, and our own options."""
    from urllib.parse import unquote

    from psycopg import pq

    base, mark, query = url.partition("?")
    words = [(each.partition("=")[0], each) for each in query.split("&") if each]
    known = {*_OWN, "ssl", *[each.keyword.decode() for each in pq.Conninfo.get_defaults()]}
    unknown = [key for key, _ in words if key not in known]
    if unknown and "%" not in unknown[0] and "@" not in query:
        raise InvalidInput(
            f"{unknown[0]!r} is no option of a PostgreSQL URL. Of dibs are: {', '.join(_OWN)}. All others are libpq's."
        )
    own = {key: unquote(word.partition("=")[2]) for key, word in words if key in _OWN}
    theirs = "&".join([word for key, word in words if key not in _OWN])
    return base + (mark + theirs if theirs else ""), own


def _settings(url: str, shown: str) -> dict[str, str]:
    """Return what libpq reads in its part of the URL. libpq's own error for an invalid URL may show a password."""
    from psycopg import OperationalError, pq

    from dibs.stores.postgres.connection import text

    try:
        found = pq.Conninfo.parse(text(url))
    except (OperationalError, InvalidInput):
        raise _unreadable(shown) from None
    settings = {each.keyword.decode(): each.val.decode() for each in found if each.val is not None}
    ports = settings.get("port", "").split(",")
    # A password with a character that was not percent-encoded ends up in one of these.
    if any(port and not (port.isdecimal() and 0 < int(port) < 65536) for port in ports) or any(
        "@" in settings.get(key, "") for key in ("host", "dbname")
    ):
        raise _unreadable(shown)
    return settings


def _unreadable(shown: str) -> InvalidInput:
    return InvalidInput(
        f"{shown!r} cannot be read as a PostgreSQL URL. Write {_FORM}, with @ : / ? # % in a password as %40 %3A "
        "%2F %3F %23 %25."
    )


def _attempts(settings: Mapping[str, str], timeout_ms: int) -> list[bytes]:
    """One setting for each host, because libpq would spend the whole timeout on a dead host."""
    hosts, ports, addresses = (settings.get(key, "").split(",") for key in ("host", "port", "hostaddr"))
    count = max(len(hosts), len(addresses))
    if any(len(each) not in (1, count) for each in (hosts, ports, addresses)):
        raise InvalidInput("A store's URL names as many ports as hosts, or one port for all of them.")
    ours = {
        "fallback_application_name": "dibs",
        "keepalives_idle": "15",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": str(timeout_ms),
    }
    if count > 1:
        ours["target_session_attrs"] = "read-write"
    found = []
    for index in range(count):
        one = {**ours, **settings, "client_encoding": "UTF8"}
        for key, each in (("host", hosts), ("port", ports), ("hostaddr", addresses)):
            one[key] = each[index if len(each) > 1 else 0]
        quoted = [(key, value.replace("\\", "\\\\").replace("'", "\\'")) for key, value in one.items() if value]
        found.append(" ".join([f"{key}='{value}'" for key, value in quoted]).encode())
    return found


def _schema(name: str) -> str:
    if not name or "\0" in name or len(name.encode(errors="replace")) > NAME_BYTES_MAX or name.startswith("pg_"):
        raise InvalidInput(
            f"schema={name!r} in a store's URL is invalid: 1 to {NAME_BYTES_MAX} bytes, and not beginning with pg_."
        )
    return name


def _timeout_ms(given: str | None) -> int:
    if given is None:
        return TIMEOUT_MS
    found_ms = parse_duration(given, "timeout")
    if found_ms < TIMEOUT_MS_MIN:
        raise InvalidInput(f"timeout={given} in a store's URL is too short: {TIMEOUT_MS_MIN}ms at least.")
    return found_ms
