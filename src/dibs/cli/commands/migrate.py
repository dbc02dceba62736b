"""migrate: bring a store's format up to date, by hand."""

from __future__ import annotations

from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import MAYBE, Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer


def migrate(call: Call) -> Answer:
    from dibs.base.errors import InvalidInput
    from dibs.client.connect import servers_at
    from dibs.client.store_admin import migrate as bring_up_to_date

    if servers_at(call.settings.url):
        raise InvalidInput(
            "migrate works on a store, not on a server. Name the store that the server stands on."
        )
    done = bring_up_to_date(call.settings.url)
    was, now = done["was"], done["version"]
    if now is None:
        says = f"Stores of the kind {done['store']} have no versions: there is nothing to do."
    elif was == now:
        says = f"The store is at version {now} already."
    else:
        says = f"The store is at version {now} now. It was {f'at version {was}' if was else 'made just now'}."
    return yes(done, says)


COMMANDS = {
    "migrate": Command(
        "migrate",
        migrate,
        about=(
            "Nothing needs this where a server may change its own store: it does so when it starts. It is for a "
            "PostgreSQL store with migrate=off in its URL, whose servers have no right to change the schema: run it as "
            "a role that has, before the new servers start. Servers of the version before go on meanwhile."
        ),
        arguments=(Argument("URL", "the store; default: what --url or DIBS_URL name", takes=MAYBE),),
        examples=(("before an upgrade", "dibs migrate postgresql://owner@db.example.org/dibs"),),
        exits=((0, "up to date"), (69, "the store cannot be reached, or is of a newer dibs")),
    ),
}
