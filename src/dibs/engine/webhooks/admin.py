"""Makes, shows, replays and removes webhooks, for a server's routes and for the command on a store of this machine."""

from __future__ import annotations

from dibs.base.errors import InvalidInput, UnknownWebhook
from dibs.base.ids import new_id
from dibs.core.identity import AGENT, require
from dibs.core.keys import WEBHOOK_REGISTER_KEY, dead_letters_key, progress_key, webhook_key
from dibs.core.webhooks import (
    CreateWebhook,
    DeadLetters,
    RemoveWebhook,
    ReplayWebhook,
    Webhook,
    WebhookProgress,
    WebhookRegister,
    WebhookState,
)
from dibs.engine.coordinator import Coordinator
from dibs.engine.webhooks.target import TargetPolicy, parse_target
from dibs.wire.documents import Reply, reply_for
from dibs.wire.requests import shape
from dibs.wire.webhooks import deliveries_document, standing_document, webhook_document, webhook_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.commands import PlainCommand
    from dibs.core.identity import Caller
    from dibs.stores.port import Store

    Document = dict[str, Any]

VERBS = (
    *("webhooks", "webhook-create", "webhook-show", "webhook-remove"),
    *("webhook-deliveries", "webhook-replay", "webhook-test"),
)
ANY_TARGET = TargetPolicy(private=True, http=True)


def registered(store: Store) -> WebhookRegister:
    found = store.read((WEBHOOK_REGISTER_KEY,)).records[WEBHOOK_REGISTER_KEY].record
    return found if isinstance(found, WebhookRegister) else WebhookRegister()


class WebhookAdmin:
    """The requests of one caller about webhooks of one namespace. Without a server (`policy` is the default), only the
    form of a URL is checked: the server that delivers decides where it may lead."""

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
        """The reply to one of VERBS, except `webhook-test`."""
        require(self._caller, verb)
        if verb == "webhooks":
            return Reply(status=200, body={"webhooks": [webhook_document(each) for each in self.mine()]})
        if verb == "webhook-create":
            return self._create(shape(verb, document))
        webhook = self.find(webhook_id)
        if verb == "webhook-remove":
            return self._run(RemoveWebhook(webhook_id=webhook.id, by=self._caller.principal))
        if verb == "webhook-replay":
            after = shape(verb, document).get("after", -1)
            if after > (last := self._store.newest_seq()):
                raise InvalidInput(f"after is higher than {last}, the number of the last event.")
            return self._run(ReplayWebhook(webhook_id=webhook.id, by=self._caller.principal, after=after))
        if verb == "webhook-test":
            raise InvalidInput("Only a server delivers. Ask one: --url http://...")
        return self._shown(verb, webhook)

    def find(self, webhook_id: str) -> Webhook:
        """One of the webhooks that the caller may see."""
        key = webhook_key(webhook_id)
        found = self._store.read((key,)).records[key].record
        if not isinstance(found, Webhook) or not self._is_mine(found):
            raise UnknownWebhook("There is no webhook with this id, or it is not yours.")
        return found

    def mine(self) -> list[Webhook]:
        """Agents see their own webhooks; other roles all in the token's namespaces."""
        keys = [webhook_key(each.id) for each in registered(self._store).entries]
        records = self._store.read(keys).records
        found = [records[key].record for key in keys]
        return [each for each in found if isinstance(each, Webhook) and self._is_mine(each)]

    def _is_mine(self, webhook: Webhook) -> bool:
        caller = self._caller
        if (webhook.principal, webhook.bound) == (caller.principal, caller.namespace):
            return True
        return caller.role != AGENT and caller.namespace in (None, webhook.ns)

    def _create(self, document: Document) -> Reply:
        parse_target(document["url"], self._policy)
        webhook = webhook_of(document, self._ns, self._caller, new_id(), own=self._own)
        reply = self._run(CreateWebhook(webhook=webhook, at=self._store.newest_seq()))
        return reply.replace(status=201) if reply.status == 200 else reply

    def _shown(self, verb: str, webhook: Webhook) -> Reply:
        keys = (progress_key(webhook.id), dead_letters_key(webhook.id))
        records = self._store.read(keys).records
        progress, dead = records[keys[0]].record, records[keys[1]].record
        if not isinstance(progress, WebhookProgress):
            raise UnknownWebhook("The webhook was removed just now.")
        letters = dead.letters if isinstance(dead, DeadLetters) else ()
        if verb == "webhook-deliveries":
            return Reply(status=200, body=deliveries_document(progress, letters))
        behind = max(self._store.newest_seq() - progress.at, 0)
        return Reply(status=200, body=standing_document(webhook, progress, len(letters), behind))

    def _run(self, command: PlainCommand) -> Reply:
        outcome = Coordinator(self._store).one(command)
        if not isinstance(outcome, WebhookState):  # the store is being moved to another one
            return reply_for(outcome)
        if outcome.full:
            raise InvalidInput(outcome.full)
        if outcome.webhook is None:
            raise UnknownWebhook("The webhook was removed just now.")
        return Reply(status=200, body=webhook_document(outcome.webhook))
