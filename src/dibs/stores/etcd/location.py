"""The meaning of an `etcd:` URL, what the store can do, and which key holds what.

    etcd://host:2379,other:2379/prefix         several members, and the prefix of all keys (`dibs` if none is given)
    etcds://host:2379/prefix?ca=/ca.pem        TLS; also &cert=…&key=… for a client certificate
    etcd://user:password@host:2379/prefix      a user of etcd; %40 and the like are decoded

Options of a URL: `tls=yes`, `ca`, `cert`, `key`.
"""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.base.record import Record
from dibs.core.limits import ETCD_BATCH_MAX
from dibs.stores.codec import names_no_store, utf8
from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="etcd",
    clock="the seconds that etcd's leader counts, and each process's steady clock between them; no wall clock",
    reach="network",
    watch="native",
    durable=True,
    gapless=False,
    batch_max=ETCD_BATCH_MAX,
    cannot=(
        "number events without gaps: numbers come from revisions of the cluster",
        "keep a record of more than 1.4 MB: etcd accepts no more in a request",
        "compact or defragment itself: that is for the operator of etcd",
    ),
)


PORT = 2379
PREFIX = "dibs"
_OPTIONS = ("tls", "ca", "cert", "key")
_HEX = frozenset("0123456789abcdefABCDEF")


class EtcdLocation(Record):
    endpoints: tuple[tuple[str, int], ...]
    prefix: str = PREFIX
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str = ""

    def __repr__(self) -> str:
        """Without the password: this may end up in a traceback."""
        return f"EtcdLocation({self.shown()})"

    def shown(self) -> str:
        scheme = "etcds" if self.tls else "etcd"
        return f"{scheme}://{','.join(map(shown_endpoint, self.endpoints))}/{self.prefix}"


def shown_endpoint(endpoint: tuple[str, int]) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def etcd_location(url: str) -> EtcdLocation:
    scheme, separator, rest = url.partition("://")
    if scheme not in ("etcd", "etcds") or not separator:
        raise names_no_store(url)
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    who, _, hosts = authority.rpartition("@")
    if "@" in path or not hosts:
        raise names_no_store(url)
    user, colon, password = who.partition(":")
    options = _options(query)
    tls = scheme == "etcds" or options.get("tls", "no") == "yes" or bool(options.keys() - {"tls"})
    if options.get("tls", "yes") not in ("yes", "no") or (tls and options.get("tls") == "no"):
        raise InvalidInput("tls in an etcd URL is yes or no; with ca, cert or key it cannot be no.")
    if ("cert" in options) != ("key" in options):
        raise InvalidInput("cert and key in an etcd URL are given together.")
    if who and not (user and colon):
        raise InvalidInput("An etcd URL with a user has a password too: etcd://USER:PASSWORD@HOST.")
    return EtcdLocation(
        endpoints=tuple([_endpoint(each, url) for each in hosts.split(",")]),
        prefix=_prefix(path),
        tls=tls,
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        user=_decoded(user) if user else None,
        password=_decoded(password),
    )


def _endpoint(text: str, url: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise names_no_store(url)
        port = rest[1:]
    else:
        host, colon, port = text.partition(":")
        if colon and not port:
            raise names_no_store(url)
    if not host or any(each <= " " or each == "\x7f" for each in host):
        raise names_no_store(url)
    if not port:
        return host, PORT
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise names_no_store(url)
    return host, int(port)


def _prefix(path: str) -> str:
    """The prefix without empty parts. Two slashes follow it, so no store is inside another one's prefix."""
    prefix = "/".join([part for part in _decoded(path).split("/") if part])
    if any(each < " " or each == "\x7f" for each in prefix):
        raise InvalidInput("The prefix in an etcd URL holds a control character.")
    return prefix or PREFIX


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name not in _OPTIONS or name in found or not value:
            raise InvalidInput(
                f"{name!r} is not an option of an etcd URL, or has no value. There are: {', '.join(_OPTIONS)}."
            )
        found[name] = _decoded(value)
    return found


def _decoded(text: str) -> str:
    first, *others = text.split("%")
    raw = bytearray(first.encode())
    for part in others:
        if len(part) < 2 or not _HEX.issuperset(part[:2]):
            raise InvalidInput("A % in an etcd URL is followed by two hexadecimal digits; % itself is %25.")
        raw.append(int(part[:2], 16))
        raw += part[2:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput("An etcd URL holds bytes that are not UTF-8.") from None


# Which key of etcd holds what. All keys begin with the prefix and two slashes.
#
#     r/KEY                      a record, as JSON; its version is the key's mod revision
#     d/DUE/KEY                  when the record under KEY is due: 16 digits, so that the order of keys is that of times
#     l/KEY                      the record under KEY is live
#     e/CHAPTER/FIRST.LAST.COUNT.ID   the events of one commit, one JSON text a line
#     h/NAMESPACE/JOB NUL CHAPTER/ID  those about one job, each after its position in the commit
#     c/CHAPTER                  the mark of a chapter, written when it began: what is added to its numbers, see log.py
#     chapter                    the chapter that commits write to, and the same of it
#     last                       written with every commit that has events: its mod revision is that of the newest event
#     floor                      the lowest number of an event that is not pruned
#     time, stopwatch.10, boot/ID   see clock.py
#     time.name                  the random name of the last commit, see client.py
#     format                     the number of this layout, see stores/formats.py
#     time.wide, w/ID/NUMBER     a commit that is too large for one transaction, see transaction.py
#
# Keys are UTF-8, whose order is the order of code points.

SEQ_BITS = 10
COMMIT_EVENTS_MAX = 1 << SEQ_BITS  # how many events one commit may have


class Layout:
    def __init__(self, prefix: str) -> None:
        self.root = f"{prefix}//".encode()
        self.chapter = self.root + b"chapter"
        self.last = self.root + b"last"
        self.floor = self.root + b"floor"
        self.time = self.root + b"time"
        self.stopwatch = self.root + b"stopwatch.10"
        self.old_stopwatch = self.root + b"stopwatch"  # below format 10
        self.format = self.root + b"format"
        self.name = self.root + b"time.name"  # beside `time`: one range reads all three
        self.wide = self.root + b"time.wide"
        self.records = self.root + b"r/"
        self.live = self.root + b"l/"
        self.dues = self.root + b"d/"
        self.log = self.root + b"e/"
        self.jobs = self.root + b"h/"
        self.chapters = self.root + b"c/"

    def record(self, key: str) -> bytes:
        return self.records + utf8(key)

    def live_mark(self, key: str) -> bytes:
        return self.live + utf8(key)

    def due(self, due_ms: int, key: str) -> bytes:
        return b"%s%016d/%s" % (self.dues, max(0, due_ms), utf8(key))

    def log_of(self, chapter: int) -> bytes:
        return b"%s%012d/" % (self.log, chapter)

    def job(self, ns: str, name: str) -> bytes:
        return self.jobs + utf8(ns) + b"/" + utf8(name) + b"\0"

    def job_log(self, ns: str, name: str, chapter: int) -> bytes:
        return b"%s%012d/" % (self.job(ns, name), chapter)

    def chapter_mark(self, chapter: int) -> bytes:
        return b"%s%012d" % (self.chapters, chapter)

    def wide_part(self, wide_id: bytes, number: int) -> bytes:
        return b"%sw/%s/%06d" % (self.root, wide_id, number)

    def boot(self, boot_id: str) -> bytes:
        return self.root + b"boot/" + utf8(boot_id)


def seq_of(revision: int, index: int) -> int:
    """The number of an event, made from the revision of its commit and its position in it. It stays below 2**53
    for decades. The position after the last of COMMIT_EVENTS_MAX events is the first of the next revision."""
    return (revision << SEQ_BITS) + index


def revision_of(seq: int) -> int:
    return seq >> SEQ_BITS
