"""Webhooks: where one may lead, and the requests that make, show, replay and remove them, for a server's routes and for
the command on a store of this machine. `dispatcher` delivers to them, `sender` sends.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from dibs.base.cheap import Iterable
from dibs.base.errors import InvalidInput, NotOnRecord
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.core.caller_rights import AGENT, Caller, require
from dibs.core.commands import PlainCommand
from dibs.core.limits import WEBHOOK_URL_CHARS_MAX
from dibs.core.records import WEBHOOK_REGISTER_KEY, dead_letters_key, progress_key, webhook_key
from dibs.core.service import webhooks as rules
from dibs.engine.coordinator import run_one
from dibs.engine.queries import begun
from dibs.stores.port import Store
from dibs.wire.documents import Reply, expected
from dibs.wire.requests import shape
from dibs.wire.webhooks import deliveries_document, standing_document, webhook_document, webhook_of

# Where a webhook may lead: not to what only the server can reach, unless the operator allows it (`webhook:private`).
#
# A URL's name is looked up for every connection, all its addresses are checked, and the connection goes to the address
# that was checked. So a name whose address changes between two lookups gains nothing.

# The registries of special addresses (RFC 6890 and later), and multicast. Python's `is_global` differs by version.
_REFUSED_V4 = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# Only this part is given out to networks. All else is refused, also addresses with an IPv4 address in them.
_GIVEN_V6 = ip_network("2000::/3")
_REFUSED_V6 = tuple(ip_network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class TargetRefused(InvalidInput):
    """The URL of a webhook, or an address behind it, is not allowed."""


class TargetPolicy(Record):
    """The targets that an operator allows, in addition to public ones over HTTPS."""

    private: bool = False
    http: bool = False
    ca: str | None = None  # a file with authorities that are trusted besides the system's


class Target(Record):
    """A parsed URL. `host` is a name or an address, without brackets."""

    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == (443 if self.is_tls else 80) else f"{shown}:{self.port}"


def parse_target(url: str, policy: TargetPolicy) -> Target:
    """The parts of a webhook's URL. Raises TargetRefused, without the URL: it may hold a secret."""
    if len(url) > WEBHOOK_URL_CHARS_MAX:
        raise TargetRefused(f"url has {WEBHOOK_URL_CHARS_MAX} characters at most.")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise TargetRefused(
            "url has characters that a URL cannot have. Percent-encode them, and write a host's name as xn--..."
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").removesuffix(".")
    except ValueError:
        raise TargetRefused("url is not a URL.") from None
    if parts.scheme not in ("https", "http"):
        raise TargetRefused("url must begin with https://.")
    if parts.scheme == "http" and not policy.http:
        raise TargetRefused(
            "url must begin with https://. A server allows http:// only if it runs with --webhook-allow-http."
        )
    if "@" in parts.netloc:
        raise TargetRefused("url must not hold a user name or password. Use a secret, which signs each delivery.")
    if port == 0 or not _is_host(host):
        raise TargetRefused("url names no host that can be reached.")
    query = f"?{parts.query}" if parts.query else ""
    is_tls = parts.scheme == "https"
    return Target(is_tls=is_tls, host=host, port=port or (443 if is_tls else 80), path=(parts.path or "/") + query)


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return "%" not in host and bool(IPv6Address(host))
        except ValueError:
            return False
    return 0 < len(host) <= 253 and _HOST_CHARACTERS.issuperset(host) and not host.startswith((".", "-"))


def check_addresses(addresses: Iterable[str], policy: TargetPolicy) -> list[str]:
    """Return the addresses. Raises TargetRefused if one is refused: a name could change over to it at any time."""
    found = list(addresses)
    if not found:
        raise TargetRefused("The host in url has no address.")
    if not policy.private and any(is_refused(each) for each in found):
        raise TargetRefused(
            "url leads to a private, local or reserved address. "
            "A server allows those only if it runs with --webhook-allow-private."
        )
    return found


def is_refused(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:  # with a zone, for instance: link-local
        return True
    if isinstance(found, IPv4Address):
        return any(found in network for network in _REFUSED_V4)
    return found not in _GIVEN_V6 or any(found in network for network in _REFUSED_V6)


ANY_TARGET = TargetPolicy(private=True, http=True)


def registered(store: Store) -> rules.WebhookRegister:
    found = store.read((WEBHOOK_REGISTER_KEY,)).records[WEBHOOK_REGISTER_KEY].record
    return found if isinstance(found, rules.WebhookRegister) else rules.WebhookRegister()


class WebhookAdmin:
    """One caller's requests about webhooks of a namespace. Without a server only the form of a URL is checked."""

    def __init__(
        self, store: Store, caller: Caller, ns: str, policy: TargetPolicy = ANY_TARGET, *, own: bool = False
    ) -> None:
        if not store.capabilities.serves:
            raise InvalidInput(
                "A server delivers to webhooks, and no server stands on this store. Use SQLite, PostgreSQL or etcd."
            )
        self._store = store
        self._caller = caller
        self._ns = ns
        self._policy = policy
        self._own = own

    def ask(self, verb: str, webhook_id: str, document: object) -> Reply:
        require(self._caller, verb)
        if verb == "webhooks":
            return Reply(status=200, body={"webhooks": [webhook_document(each) for each in self.mine()]})
        if verb == "webhook-create":
            return self._create(shape(verb, document))
        webhook = self.find(webhook_id)
        if verb == "webhook-remove":
            return self._run(rules.RemoveWebhook(webhook_id=webhook.id, by=self._caller.principal))
        if verb == "webhook-replay":
            after = shape(verb, document).get("after", -1)
            if after > (last := self._store.newest_seq()):
                raise InvalidInput(f"after is higher than {last}, the number of the last event.")
            return self._run(rules.ReplayWebhook(webhook_id=webhook.id, by=self._caller.principal, after=after))
        if verb == "webhook-test":
            raise InvalidInput("Only a server delivers. Ask one: --url http://...")
        return self._shown(verb, webhook)

    def find(self, webhook_id: str) -> rules.Webhook:
        begun(self._store)
        key = webhook_key(webhook_id)
        found = self._store.read((key,)).records[key].record
        if not isinstance(found, rules.Webhook) or not self._is_mine(found):
            raise NotOnRecord("There is no webhook with this id, or it is not yours.")
        return found

    def mine(self) -> list[rules.Webhook]:
        """Agents see their own webhooks; other roles all in the token's namespaces."""
        begun(self._store)
        keys = [webhook_key(each.id) for each in registered(self._store).entries]
        records = self._store.read(keys).records
        found = [records[key].record for key in keys]
        return [each for each in found if isinstance(each, rules.Webhook) and self._is_mine(each)]

    def _is_mine(self, webhook: rules.Webhook) -> bool:
        caller = self._caller
        if (webhook.principal, webhook.bound) == (caller.principal, caller.namespace):
            return True
        return caller.role != AGENT and caller.namespace in (None, webhook.ns)

    def _create(self, document: Document) -> Reply:
        parse_target(document["url"], self._policy)
        webhook = webhook_of(document, self._ns, self._caller, new_id(), own=self._own)
        return self._run(rules.CreateWebhook(webhook=webhook, at=self._store.newest_seq()), status=201)

    def _shown(self, verb: str, webhook: rules.Webhook) -> Reply:
        keys = (progress_key(webhook.id), dead_letters_key(webhook.id))
        records = self._store.read(keys).records
        progress, dead = records[keys[0]].record, records[keys[1]].record
        if not isinstance(progress, rules.WebhookProgress):
            raise NotOnRecord("The webhook was removed just now.")
        letters = dead.letters if isinstance(dead, rules.DeadLetters) else ()
        if verb == "webhook-deliveries":
            return Reply(status=200, body=deliveries_document(progress, letters))
        following = self._store.events(progress.at, 1)
        behind = max(self._store.newest_seq() - following[0].seq + 1, 0) if following else 0
        return Reply(status=200, body=standing_document(webhook, progress, len(letters), behind))

    def _run(self, command: PlainCommand, *, status: int = 200) -> Reply:
        outcome = expected(run_one(self._store, command), rules.WebhookState)
        if outcome.full:
            raise InvalidInput(outcome.full)
        if outcome.webhook is None:
            raise NotOnRecord("The webhook was removed just now.")
        return Reply(status=status, body=webhook_document(outcome.webhook))
