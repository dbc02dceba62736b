"""export, import, thaw, backup, restore: moving a store, and having a copy."""

from __future__ import annotations

import os

from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import MAYBE, Argument, Command, Option
from dibs.errors import InvalidInput

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
    from dibs.client.store_archive import export_to_file, export_to_stream

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
    from dibs.client.store_archive import import_from

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
    history = (
        "History was left out, because the store has its own."
        if adds
        else f"{done['events']} events of history."
    )
    text = f"Imported {done['records']} records. {history}\nNew fencing tokens are above {done['floor']}."
    return yes(done, text, quiet=str(done["records"]))


def thaw(call: Call) -> Answer:
    from dibs.client.store_archive import thaw as thaw_store

    done = thaw_store(present_store(call))
    return yes(done, "The store can be used again." if done["was_frozen"] else "The store was not frozen.")


def present_store(call: Call) -> Any:
    """The store that was named, if it is there. A path with a typing error would be a new and empty store, and a copy
    of that would pass for a copy of the other."""
    url = call.settings.url or ""
    if url.startswith("sqlite:"):
        from dibs.client.store_backup import sqlite_path

        if not os.path.exists(sqlite_path(url)):
            raise InvalidInput(f"There is no store at {sqlite_path(url)}. Check how it is spelt.")
    return store_of(call)


def store_of(call: Call) -> Any:
    """The store that was named. A server's is asked for by its own URL."""
    from dibs.client.embedded import EmbeddedDoor

    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput(
            f"dibs {call.command} works on a store, not through a server. Name the store that the server stands on, "
            "such as sqlite:///var/lib/dibs/dibs.db."
        )
    return door.store()


def _counted(done: Document) -> str:
    counts = done["counts"]
    told = [f"{counts.get(kind, 0)} {one if counts.get(kind) == 1 else many}" for kind, one, many in _KINDS]
    return f"{', '.join(told)} and {done['events']} events"


def _frozen(done: Document) -> str:
    if done["frozen"]:
        return " The store is frozen; dibs thaw lets it be used again."
    return " The store goes on: what happens in it from now on is not in the copy."


def backup(call: Call) -> Answer:
    from dibs.client.store_backup import backup as back_up

    path = call.values["file"]
    done = back_up(present_store(call), path)
    return yes(done, f"Copied the store to {path} ({done['bytes']} bytes).", quiet=path)


def restore(call: Call) -> Answer:
    from dibs.client.embedded import default_store_url
    from dibs.client.store_backup import restore as put_back
    from dibs.client.store_backup import sqlite_path

    url = call.settings.url or default_store_url()
    if not url.startswith("sqlite:"):
        raise InvalidInput(
            "dibs restore puts SQLite files in place. Name the store with --url sqlite:///PATH, or use dibs import."
        )
    done = put_back(call.values["file"], sqlite_path(url))
    kept = f"\nThe old file is kept as {done['kept']}." if done["kept"] else ""
    text = f"Restored {done['path']}. New fencing tokens are above {done['token_floor']}.{kept}"
    return yes(done, text, quiet=str(done["token_floor"]))


STORE = Argument("URL", "the store; default: what --url or DIBS_URL name, or your own", takes=MAYBE)
COMMANDS = {
    "export": Command(
        "export",
        "copy a whole store as text, to be moved",
        export,
        about=(
            "Writes JSON lines: jobs with their leases, lines, done marks and access lists, sessions, history. All of "
            "it is of one moment. The text holds lease ids, which prove ownership: keep it private. With --freeze the "
            "store takes no more changes, so nothing can be claimed there after the copy."
        ),
        arguments=(STORE,),
        options=(
            Option("--freeze", "let nothing in the store change from now on"),
            Option("--to", "write to this new file instead of standard output", value="FILE", filled=True),
        ),
        examples=(
            (
                "move to PostgreSQL",
                "dibs export --freeze | dibs import postgresql://dibs@db.example.org/dibs",
            ),
            ("a copy to keep", "dibs export --to claims.jsonl"),
        ),
        exits=((0, "all was written"), (69, "the store cannot be read, or the copy not be written")),
    ),
    "import": Command(
        "import",
        "bring an exported copy into a store",
        import_,
        about=(
            "All of the copy or nothing. The whole copy is read and checked first. A lease has as much time left as it "
            "had when the copy was made, and at least its TTL (ten minutes at most) from now. The store must be empty. "
            "With --add it may have other namespaces than the copy. If the import is killed, the store refuses to be "
            "used until the same import is repeated. Unless the copy was made with --freeze, new fencing tokens begin "
            "at the present time in milliseconds, which is above all that the old store may have given out since."
        ),
        arguments=(STORE,),
        options=(
            Option("--add", "add the copy's namespaces to a store that has others"),
            Option("--from", "read this file instead of standard input", value="FILE", filled=True),
        ),
        examples=(("from a file", "dibs import sqlite:///var/lib/dibs/dibs.db --from claims.jsonl"),),
        exits=((0, "all was imported"), (64, "the copy or the store is not fit for it; nothing was changed")),
    ),
    "backup": Command(
        "backup",
        "copy an SQLite store to a file, while it is in use",
        backup,
        about=(
            "Uses SQLite's backup: the copy is of one moment, and nobody waits for it. Do not copy the file by other "
            "means while it is in use. The copy holds lease ids, and is readable for you alone."
        ),
        arguments=(Argument("FILE", "the copy; it must not be there yet"),),
        examples=(("every night, from cron", "dibs backup /var/backups/dibs-$(date +%F).db -q"),),
        exits=((0, "copied"), (64, "the file is there already, or the store is not SQLite"), (69, "no room")),
    ),
    "restore": Command(
        "restore",
        "put a backup in the place of an SQLite store",
        restore,
        about=(
            "Refused while any process has the store open: stop servers and workers first. New fencing tokens begin at "
            "the present time in milliseconds, which is above all that were given out since the backup. Leases in the "
            "backup count as if the time since then were an outage. Leases given out since then are not known any "
            "more: their owners are told so at their next heartbeat."
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
        "let a frozen store be used again",
        thaw,
        about=(
            "For a store that `dibs export --freeze` froze, when the move is called off. The time since then counts as "
            "an outage: whoever held a lease gets time to renew it. Do not thaw a store whose copy is in use."
        ),
        arguments=(STORE,),
        examples=(("the move is called off", "dibs thaw"),),
        exits=((0, "it can be used"), (64, "an import into it is not complete")),
    ),
}
