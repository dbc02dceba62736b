"""export, import, thaw, backup, restore: commands that move or copy a store."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import STORE, Argument, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

_KINDS = (
    ("lock", "job", "jobs"),
    ("session", "session", "sessions"),
    ("ticket", "place in line", "places in line"),
)


def export(call: Call) -> Answer:
    from dibs.client.store_admin import export_to_file, export_to_stream

    freeze, path = bool(call.values.get("freeze")), call.values.get("to")
    if path is not None:
        done = export_to_file(present_store(call), path, freeze=freeze)
        return yes(done, f"Wrote {_counted(done)} to {path}.{_frozen(done)}")
    if call.stdout is None:
        raise InvalidInput("dibs export writes to standard output, which is closed. Name a file with --to.")
    done = export_to_stream(present_store(call), call.stdout, freeze=freeze)
    if call.stderr is not None and not call.values.get("quiet"):
        call.stderr.write(f"dibs: wrote {_counted(done)}.{_frozen(done)}\n")
    return Answer(0, done, "", is_said=True)


def import_(call: Call) -> Answer:
    from dibs.client.store_admin import import_from

    adds, path = bool(call.values.get("add")), call.values.get("from")
    if path is not None:
        try:
            with open(path, "rb") as file:
                done = import_from(store_of(call), file, adds=adds)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    elif call.stdin is None:
        raise InvalidInput("dibs import reads standard input, which is closed. Name a file with --from.")
    else:
        done = import_from(store_of(call), call.stdin, adds=adds)
    history = "History was left out, because the store has its own." if adds else f"{done['events']} events of history."
    text = f"Imported {done['records']} records. {history}\nNew fencing tokens are above {done['floor']}."
    return yes(done, text, quiet=str(done["records"]))


def thaw(call: Call) -> Answer:
    from dibs.client.store_admin import thaw as thaw_store

    done = thaw_store(present_store(call))
    return yes(done, "The store can be used again." if done["was_frozen"] else "The store was not frozen.")


def present_store(call: Call) -> Any:
    """The named store, which must exist. A mistyped path would create an empty store, and its copy would look like a
    copy of the right one."""
    url = call.settings.url or ""
    if url.startswith("sqlite:"):
        from dibs.client.store_admin import sqlite_path

        if not os.path.exists(sqlite_path(url)):
            raise InvalidInput(f"There is no store at {sqlite_path(url)}. Check the path.")
    return store_of(call)


def store_of(call: Call) -> Any:
    """The named store. A server is refused: the user must name its store."""
    from dibs.client.embedded import EmbeddedDoor

    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput(
            f"dibs {call.command} works on a store, not through a server. Name the server's store, "
            "such as sqlite:///var/lib/dibs/dibs.db."
        )
    return door.store()


def _counted(done: Document) -> str:
    counts = done["counts"]
    told = [f"{counts.get(kind, 0)} {one if counts.get(kind) == 1 else many}" for kind, one, many in _KINDS]
    return f"{', '.join(told)} and {done['events']} events"


def _frozen(done: Document) -> str:
    if done["frozen"]:
        return " The store is frozen; dibs thaw unfreezes it."
    return " The store stays in use; the copy does not get later changes."


def backup(call: Call) -> Answer:
    from dibs.client.store_admin import backup as back_up

    path = call.values["file"]
    done = back_up(present_store(call), path)
    return yes(done, f"Copied the store to {path} ({done['bytes']} bytes).", quiet=path)


def restore(call: Call) -> Answer:
    from dibs.client.embedded import default_store_url
    from dibs.client.store_admin import restore as put_back
    from dibs.client.store_admin import sqlite_path

    url = call.settings.url or default_store_url()
    if not url.startswith("sqlite:"):
        raise InvalidInput(
            "dibs restore works on SQLite files only. Name the store with --url sqlite:///PATH, or use dibs import."
        )
    done = put_back(call.values["file"], sqlite_path(url))
    kept = f"\nThe old file is kept as {done['kept']}." if done["kept"] else ""
    text = f"Restored {done['path']}. New fencing tokens are above {done['token_floor']}.{kept}"
    return yes(done, text, quiet=str(done["token_floor"]))


COMMANDS = {
    "export": Command(
        "export",
        export,
        about=(
            "Writes JSON lines: jobs with their leases, queues, done marks and access lists, sessions, history, "
            "webhooks. The copy shows one moment. It has lease ids, which prove ownership, and the secrets of "
            "webhooks: keep it private. --freeze stops all changes in the store, so nothing can be claimed "
            "there after the copy."
        ),
        arguments=(STORE,),
        options=(
            Option("--freeze", "refuse all changes in the store from now on"),
            Option("--to", "write to this new file instead of standard output", value="FILE", filled=True),
        ),
        examples=(
            (
                "move to PostgreSQL",
                "dibs export --freeze | dibs import --url postgresql://dibs@db.example.org/dibs",
            ),
            ("a copy to keep", "dibs export --to claims.jsonl"),
        ),
        exits=((0, "all was written"), (69, "the store cannot be read, or the copy cannot be written")),
    ),
    "import": Command(
        "import",
        import_,
        about=(
            "Imports the whole copy or nothing: it checks all of it first. A lease keeps the time that it had left "
            "when the copy was made, and gets at least its TTL (ten minutes at most) from now. The store must be "
            "empty. With --add it may have other namespaces than the copy. If the import is killed, the store refuses "
            "all use until you repeat the same import. New fencing tokens begin at the present time in milliseconds, "
            "which is above every token that was given since the copy. Bearer tokens keep their dates."
        ),
        arguments=(STORE,),
        options=(
            Option("--add", "add the copy's namespaces to a store that has others"),
            Option("--from", "read this file instead of standard input", value="FILE", filled=True),
        ),
        examples=(("from a file", "dibs import --url sqlite:///var/lib/dibs/dibs.db --from claims.jsonl"),),
        exits=((0, "all was imported"), (64, "the copy or the store is unsuitable; nothing was changed")),
    ),
    "backup": Command(
        "backup",
        backup,
        about=(
            "Uses SQLite's backup: the copy shows one moment, and blocks nobody. Do not copy the file by other means "
            "while it is in use. The copy has lease ids and the secrets of webhooks; only you can read it."
        ),
        arguments=(Argument("FILE", "the copy; the file must not exist"),),
        examples=(("every night, from cron", "dibs backup /var/backups/dibs-$(date +%F).db -q"),),
        exits=((0, "copied"), (64, "the file exists, or the store is not SQLite"), (69, "no room")),
    ),
    "restore": Command(
        "restore",
        restore,
        about=(
            "Refused while any process has the store open: stop servers and workers first. New fencing tokens begin at "
            "the present time in milliseconds, which is above every token given since the backup. For leases in the "
            "backup, the time since then counts as an outage. Leases granted since then are lost: their owners are "
            "told so at their next heartbeat."
        ),
        arguments=(Argument("FILE", "a copy that dibs backup made"),),
        examples=(
            (
                "after a disk failed",
                "dibs restore /var/backups/dibs-2026-11-14.db --url sqlite:///var/lib/dibs/dibs.db",
            ),
        ),
        exits=((0, "restored"), (64, "not a backup"), (69, "the store is in use; nothing was changed")),
    ),
    "thaw": Command(
        "thaw",
        thaw,
        about=(
            "Use it to cancel a move, after `dibs export --freeze`. The time since then counts as an outage: owners "
            "get time to renew their leases. Do not thaw a store whose copy is in use."
        ),
        arguments=(STORE,),
        examples=(("the move is called off", "dibs thaw"),),
        exits=((0, "the store can be used"), (64, "an import into the store is not complete")),
    ),
}
