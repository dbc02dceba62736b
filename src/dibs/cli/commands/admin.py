"""For operators: migrate, name, break, free, close, open, gc, export, import, backup, restore, and pool set, list,
remove."""

from __future__ import annotations

import os

from dibs.base.cheap import Any
from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, InvalidInput
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count, next_words, number_for, until_ms
from dibs.cli.framework.job_names import each_job, names_here
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, yes
from dibs.cli.framework.spec import JOBS, MAYBE, STORE, Argument, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.claim import field, sentence
from dibs.cli.text.listing import sheet
from dibs.cli.text.words import job_command, plain, span
from dibs.client.embedded import EmbeddedTransport, default_store_url
from dibs.client.flow import all_pages, drive
from dibs.client.settings import servers_at
from dibs.core.limits import SLOTS_MAX
from dibs.core.names import check_name
from dibs.wire.parts import timestamp
from dibs.wire.sentences import few


def migrate(call: Call) -> Answer:
    from dibs.client.store_admin import migrate as bring_up_to_date

    if servers_at(call.settings.url):
        raise InvalidInput("migrate works on a store, not on a server. Name the store that the server stands on.")
    done = bring_up_to_date(call.settings.url)
    was, now = done["was"], done["version"]
    if now is None:
        says = f"A store of the kind {done['store']} is not brought up to date as a whole: there is nothing to do."
    elif was == now:
        says = f"The store is of format {now} already."
    else:
        says = f"The store is of format {now} now. It was {f'of format {was}' if was else 'made just now'}."
    return yes(done, says)


def name(call: Call) -> Answer:
    found = names_here(call).explained(call.values["job"])
    one = check_name(found.name)
    document = {"name": one, "given": found.given, "why": found.why}
    return yes(document, f"{plain(one)}\n  {plain(found.why)}", quiet=plain(one))


def _broken(call: Call, body: Document) -> Answer:
    name, lines = plain(body["name"]), []
    for hold in body["broken"]:
        lost = f"{call.paint.wait('Broken:')} {plain(hold['owner'])} has lost {name}."
        lines.append(f"{lost} Its next heartbeat is refused with your reason.")
        if hold.get("checkpoint"):
            lines.append(field("got to", plain(hold["checkpoint"])))
    ended = "That hold has ended." if call.values.get("fencing_token") else f"Nobody has {name}."
    return yes(body, "\n".join(lines) or f"{ended} Nothing was changed.")


def break_(call: Call) -> Answer:
    fields: Document = {"reason": call.values["reason"].strip()}
    token = number_for(call, "fencing_token", "fencing_token")
    if token is not None:
        fields["fencing_token"] = token
        if len(call.values["job"]) > 1:
            raise UsageError("--fencing-token is of one job: name only that one.")
    return each_job(call, "break", fields, _broken)


def _freed(call: Call, body: Document) -> Answer:
    name = plain(body["name"])
    if not body["freed"]:
        return yes(body, f"{name} is not parked. Nothing was changed.")
    return yes(body, f"{call.paint.good('Freed:')} {name} can be claimed again. Its failure count is 0.")


def close(call: Call) -> Answer:
    values = call.values
    if (values.get("until") is None) == (values.get("for") is None):
        raise UsageError("Say until when: --until 18:00 or --for 2h, one of the two.")
    fields: Document = {"reason": values["reason"].strip()}
    if values.get("for") is not None:
        fields["for_seconds"] = number_for(call, "for", "for_seconds")
    else:
        fields["until"] = timestamp(until_ms(values["until"], wall_ms()))
    return each_job(call, "close", fields, _closed)


def _closed(call: Call, body: Document) -> Answer:
    what = plain(body["name"]) + (", with all below it," if body["name"].endswith("/") else "")
    until = plain(body["until"][:16].replace("T", " "))
    first = f"{call.paint.wait('Closed:')} nobody is granted {what} for {span(body['remaining_ms'])}, until {until}Z."
    again = job_command(["open", *next_words(call, ("url", "namespace"))], [body["name"]])
    return yes(body, f"{first} Owners keep theirs.\nTo end it early:  {again}")


def _opened(call: Call, body: Document) -> Answer:
    name = plain(body["name"])
    text = f"{call.paint.good('Open:')} {name} is not closed any more."
    if not body["opened"]:
        text = f"{name} is not closed. Nothing was changed."
    if "closed" in body:
        begin = "Opened" if body["opened"] else "Nothing is closed under this name"
        text = f"{begin}, but {sentence({**body, 'status': 'closed'})}"
    return yes(body, text)


def gc(call: Call) -> Answer:
    from dibs.client.store_admin import sweep

    refusal = "gc works on a store; a server sweeps by itself. Leave out --url and DIBS_URL."
    swept = sweep(store_of(call, refusal))
    lines = ["Nothing was due."]
    if swept["jobs"]:
        expired, forgotten = swept["expired"], swept["forgotten"]
        claims = f"{expired} {'claim' if expired == 1 else 'claims'} that had expired"
        records = f"{forgotten} idle {'job' if forgotten == 1 else 'jobs'}"
        lines = [f"Ended {claims}, forgot {records}."]
    if swept.get("removed"):
        lines.append(f"Deleted {swept['removed']} old {'ref' if swept['removed'] == 1 else 'refs'}.")
    if swept.get("recounted"):
        lines.append(f"Counted anew what {', '.join(swept['recounted'])} may have.")
    lines += [f"Not changed: {name}, because {why}." for name, why in swept.get("broken", {}).items()]
    return yes(swept, "\n".join(lines))


# Commands that move or copy a store.

_KINDS = (("lock", "job", "jobs"), ("session", "session", "sessions"), ("ticket", "place in line", "places in line"))


def export(call: Call) -> Answer:
    from dibs.client.store_admin import export_to_file, export_to_stream, thaw

    freeze, path = bool(call.values.get("freeze")), call.values.get("to")
    if call.values.get("unfreeze"):
        if freeze or path is not None:
            raise UsageError("--unfreeze makes no copy. Give it without --freeze and --to.", "export")
        done = thaw(present_store(call))
        return yes(done, "The store can be used again." if done["was_frozen"] else "The store was not frozen.")
    if path is None and call.stdout is not None and call.stdout.isatty():
        raise UsageError(
            "A copy has lease ids and secrets, which a terminal should not show. Give --to FILE or a pipe; `--to -` "
            "shows them."
        )
    store = present_store(call)
    undoing = job_command(["export", "--unfreeze", *next_words(call, ("url",))], [])
    try:
        with StopSignals():
            if path not in (None, "-"):
                done = export_to_file(store, path, freeze=freeze)
                after = _frozen(done, undoing) + _left_out(done, "left out")
                return yes(done, f"Wrote {_counted(done)} to {path}.{after}")
            if call.stdout is None:
                raise InvalidInput("dibs export writes to standard output, which is closed. Name a file with --to.")
            done = export_to_stream(store, call.stdout, freeze=freeze)
    except DibsError as error:
        if freeze:
            error.details += f" {_left_frozen(store, undoing)}"
        raise
    except KeyboardInterrupt:
        if freeze:
            call.complain(_left_frozen(store, undoing))
        raise
    if call.stderr is not None and not call.values.get("quiet"):
        call.stderr.write(f"dibs: wrote {_counted(done)}.{_frozen(done, undoing)}{_left_out(done, 'left out')}\n")
    return Answer(0, done, "", is_said=True)


def import_(call: Call) -> Answer:
    from dibs.client.store_admin import AlreadyImported, import_from

    adds, path = bool(call.values.get("add")), call.values.get("from")

    given = call.values.get("url")
    if path is None and given and ":" not in given and os.path.isfile(given):
        raise UsageError(f"{given} is a file. To import it: --from {given}; URL is the store that gets it.", "import")
    if path is None and given and ":" not in given and not os.path.exists(given):
        raise UsageError(
            f"There is no file {given}. To import one: --from FILE; URL is the store that gets it.", "import"
        )

    made: str | None = None

    def opens() -> Any:
        nonlocal made
        store = store_of(call)
        made = store.expect_new()
        return store

    if path is not None:
        try:
            with open(path, "rb") as file:
                done = import_from(opens, file, path, adds=adds)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    elif call.stdin is None:
        raise InvalidInput("dibs import reads standard input, which is closed. Name a file with --from.")
    else:
        try:
            done = import_from(opens, call.stdin, None, adds=adds)
        except AlreadyImported:
            raise
        except DibsError as error:
            error.details += (
                " If it is from `export --freeze`, and in use nowhere, `dibs export --unfreeze` lets its store be used "
                "again."
            )
            raise
    if "octostore" in done:
        return yes(done, _from_octostore(done), quiet=str(done["records"]))
    history = f"{_some(done['events'], 'event')} of history."
    if adds:
        history = "History was left out, because the store has its own."
    above = f"\nNew fencing tokens are above {done['floor']}." if done["floor"] else ""
    where = "" if made is None else f" into a new store, {plain(made)}"
    said = f"Imported {_some(done['records'], 'record')}{where}."
    return yes(done, f"{said} {history}{above}", quiet=str(done["records"]))


def _some(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"


def _from_octostore(done: Document) -> str:
    words = {"users": "users", "tokens": "tokens", "locks": "locks that are held", "access_lists": "access lists"}
    counts = done["octostore"]
    had = [f"{counts[kind]} {words.get(kind, kind)}" for kind in counts]
    lines = [f"Imported OctoStore's database: {', '.join(had)}."]
    lines += [f"Left behind: {plain(each)}." for each in done["left"]]
    lines += [f"New fencing tokens are above {done['floor']}.", "Start a server on it: dibs serve --octostore"]
    return "\n".join(lines)


def present_store(call: Call) -> Any:
    """The named store, which must exist. A mistyped path would make an empty one, and a copy of that."""
    url = call.settings.url or ""
    if url.startswith("sqlite:"):
        from dibs.client.store_admin import sqlite_path

        if not os.path.exists(sqlite_path(url)):
            raise InvalidInput(f"There is no store at {sqlite_path(url)}. Check the path.")
    return store_of(call)


def store_of(call: Call, refusal: str = "") -> Any:
    """The named store. A server is refused: the user must name its store."""
    transport = call.transport()
    if not isinstance(transport, EmbeddedTransport):
        raise InvalidInput(
            refusal
            or f"dibs {call.command} works on a store, not through a server. Name the server's store, "
            "such as sqlite:///var/lib/dibs/dibs.db."
        )
    return transport.store()


def _counted(done: Document) -> str:
    counts = done["counts"]
    parts = [f"{counts.get(kind, 0)} {one if counts.get(kind) == 1 else many}" for kind, one, many in _KINDS]
    return f"{', '.join(parts)} and {_some(done['events'], 'event')}"


def _frozen(done: Document, undoing: str) -> str:
    if done["frozen"]:
        return f" The store is frozen. If the copy does not arrive, use it again: {undoing}"
    return " The store stays in use; the copy does not get later changes."


def _left_frozen(store: Any, undoing: str) -> str:
    """A sentence about the store after an export that froze it first, and failed."""
    from dibs.client.store_admin import facts

    try:
        if facts(store)["frozen"] is None:
            return "The store is not frozen."
    except DibsError:
        return f"The store may be frozen; to use it again: {undoing}"
    return f"The store is frozen; to use it again: {undoing}"


def backup(call: Call) -> Answer:
    from dibs.client.store_admin import backup as back_up

    path = call.values["file"]
    try:
        with StopSignals():  # so that no part of a copy stays
            done = back_up(present_store(call), path, takes_damage=bool(call.values.get("damaged")))
    except KeyboardInterrupt:
        if not os.path.lexists(path):
            call.complain(f"The backup was stopped: there is no {path}.")
        raise
    return yes(done, f"Copied the store to {path} ({done['bytes']} bytes).{_left_out(done, 'damaged')}", quiet=path)


def _left_out(done: Document, what: str) -> str:
    """A sentence about records that were not copied, because they cannot be read."""
    keys = done.get("damaged")
    if not keys:
        return ""
    return f"\n{len(keys)} record(s) cannot be read, and are {what}: {plain(few(list(keys), 5))}. See `dibs doctor`."


_TOKENS_SHOWN = 3


def restore(call: Call) -> Answer:
    from dibs.client.store_admin import restore as put_back
    from dibs.client.store_admin import sqlite_path

    url, source = call.settings.url or default_store_url(), call.values["file"]
    if source.startswith("sqlite:"):
        raise InvalidInput(f"{source} is a store, not a backup. Name the file: dibs restore FILE --url {source}")
    if not url.startswith("sqlite:"):
        raise InvalidInput(
            "dibs restore works on SQLite files only. Name the store with --url sqlite:///PATH, or use dibs import."
        )
    path = sqlite_path(url)
    before = _file_at(path)
    try:
        with StopSignals():
            done = put_back(source, path)
    except KeyboardInterrupt:
        is_done = _file_at(path) != before
        call.complain(f"The restore was stopped: {path} is {'the backup' if is_done else 'as it was'}.")
        raise
    kept = f"\nThe old file is kept as {done['kept']}." if done["kept"] else ""
    text = f"Restored {done['path']}. New fencing tokens are above {done['token_floor']}.{kept}{_tokens_back(done)}"
    text += _left_out(done, "damaged in the store")
    return yes(done, text, quiet=str(done["token_floor"]))


def _file_at(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _tokens_back(done: Document) -> str:
    """A sentence about the bearer tokens that the backup brought back."""
    back = [f"{plain(each['principal'])} ({each['id']})" for each in done["tokens_back"]]
    if not back:
        return ""
    shown = ", ".join(back[:_TOKENS_SHOWN]) + (
        f" and {len(back) - _TOKENS_SHOWN} others" if len(back) > _TOKENS_SHOWN else ""
    )
    known = "the old file does not have" if done["tokens_kept"] else "may have been revoked since the backup"
    return f"\nValid again: bearer tokens that {known}: {shown}. Look at `dibs token list`."


# Pools: jobs whose slots an operator sets.


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def _pool_set(call: Call, body: Document) -> Answer:
    name, slots, was, taken = plain(body["name"]), body["slots"], body["was"], body["slots_taken"]
    before = "" if was in (None, slots) else f" It had {_slots(was)}." if was else " It was paused."
    lines = [f"{call.paint.good('Set:')} {name} is a pool of {_slots(slots)}.{before}"]
    if not slots:
        lines = [f"{call.paint.wait('Paused:')} nobody new gets {name}; the line keeps its order.{before}"]
    if taken > slots:
        lines.append(f"Owners keep what they have: {_slots(taken)} until they leave.")
    return yes(body, "\n".join(lines))


def _pool_removed(call: Call, body: Document) -> Answer:
    name = plain(body["name"])
    if body["was"] is None:
        return yes(body, f"{name} is no pool. Nothing was changed.")
    alone = " Its next owner is alone, once these have left." if body["slots_taken"] > 1 else ""
    return yes(
        body, f"{call.paint.good('Removed:')} {name} is no pool any more. Its claims say how many slots it has.{alone}"
    )


def list_pools(call: Call) -> Answer:
    pools: list[Document] = body_of(drive(call.transport(), all_pages(call.values.get("prefix") or "", pools=True)))[
        "locks"
    ]
    rows = [("POOL", "SLOTS", "TAKEN", "WAITING")]
    for pool in pools:
        slots = str(pool["slots"]) if pool["slots"] else "paused"
        rows.append((plain(pool["name"]), slots, str(pool["slots_taken"]), str(pool.get("waiting", 0))))
    text = "\n".join(sheet(rows, call.paint, call.width, {"POOL": 16}))
    names = "\n".join([plain(pool["name"]) for pool in pools])
    return yes({"pools": pools}, text if pools else "There are no pools.", quiet=names)


_NEEDS = "On a server this needs the role operator or admin."
_ROLE = ((77, "this token may not do that"),)
COMMANDS = {
    "migrate": Command(
        migrate,
        STORE,
        about=(
            "A server that may change its store does this when it starts. It is for a PostgreSQL store with "
            "migrate=off in its URL, whose servers may not change the schema: run it as a role that may, "
            "before the new servers start. Servers of the version before go on meanwhile."
        ),
        examples=(("dibs migrate --url postgresql://owner@db.example.org/dibs", "before an upgrade"),),
        exits=(
            (0, "up to date"),
            (69, "the store cannot be reached, or is of a newer dibs"),
        ),
    ),
    "name": Command(
        name,
        Argument("JOB", "the job, as you would write it in a claim", completes="job"),
        about=(
            "An issue or a file can be written in several ways: as an address, as acme/app#42, as #42 "
            "inside the clone, as a relative path. All commands take it by one name, which this command "
            "prints. A name in no known form stays as it is. Asks no store and no network."
        ),
        examples=(
            ("dibs name https://github.com/Acme/App/issues/42", "an issue by its address"),
            ("dibs name '#42'", "an issue of this clone"),
            ("dibs name ./auth.rs", "a file"),
        ),
        exits=((0, "the name is printed"),),
    ),
    "break": Command(
        break_,
        JOBS,
        Option(
            "--reason TEXT",
            "why you take the job; shown to the old owner and in history",
            filled=True,
            required="reason",
        ),
        Option("--fencing-token N", field="break.fencing_token"),
        about=(
            "For a worker that hangs, or that claimed the wrong job. Its next heartbeat fails and says who "
            "took the job and why. The next claim gets a higher fencing token. On a server this needs the "
            "role operator or admin. Several jobs are broken one by one."
        ),
        examples=(
            ('dibs break issue-1842 --reason "agent-7 hangs since noon"', "a worker hangs"),
            ("dibs break gpu --fencing-token 17 --reason hangs", "one of several owners"),
        ),
        exits=(
            (0, "nobody has it any more, or not the owner of that token"),
            (77, "this token may not do that"),
        ),
    ),
    "free": Command(
        lambda call: each_job(call, "free", {}, _freed),
        JOBS,
        about=(
            "A job claimed with --max-attempts is parked after that many failures or losses in a row. On a "
            "server this needs the role operator or admin. Several jobs are freed one by one."
        ),
        examples=(
            ("dibs free issue-1842", "after the cause was fixed"),
            ("dibs free $(dibs list --parked -o name)", "all that are parked"),
        ),
        exits=(
            (0, "the job can be claimed, or was not parked"),
            (77, "this token may not do that"),
        ),
    ),
    "close": Command(
        close,
        JOBS,
        Option("--until TIME", "when it ends: 18:00 on this machine's clock, or 2026-11-17T18:00 in UTC"),
        Option("--for TIME", "how long it lasts, such as 2h; 30d at most"),
        Option("--reason TEXT", field="close.reason", filled=True, required="reason"),
        about=(
            "Owners keep, renew and release theirs. Whoever asks gets the reason and the end, and may wait "
            "in line; lines keep their order and go on at the end. A name that ends in / stands for all "
            "names that begin with it. Of path: and repo: names, all that overlap it are closed. Closing it "
            "again changes end and reason. On a server this needs the role operator or admin."
        ),
        examples=(
            ('dibs close deploy/ --until 18:00 --reason "migration"', "a migration"),
            ('dibs close nightly-report --for 2h --reason "its database moves"', "one job"),
        ),
        exits=(
            (0, "closed"),
            (64, "the end is over already, or too far away"),
            (77, "this token may not do that"),
        ),
    ),
    "open": Command(
        lambda call: each_job(call, "open", {}, _opened),
        JOBS,
        about=(
            "Give the name that was closed. Lines go on at once. On a server this needs the role operator or admin."
        ),
        examples=(("dibs open deploy/", "the migration is finished"),),
        exits=(
            (0, "the job is open, or was not closed"),
            (77, "this token may not do that"),
        ),
    ),
    "gc": Command(
        gc,
        STORE,
        about=(
            "You need not run this: an expired claim is free without it, and a server sweeps by itself. It "
            "writes expiries into history and deletes the records of jobs that were idle for a day; their "
            "fencing tokens still rise. On a git store it also deletes refs of records that were deleted a "
            "week ago."
        ),
        examples=(
            ("dibs gc -q", "now and then, from cron"),
            ("dibs gc --url git:origin", "for all clones of a remote"),
        ),
        exits=((0, "swept"),),
    ),
    "export": Command(
        export,
        STORE,
        Option("--freeze", "refuse all changes in the store from now on"),
        Option("--unfreeze", "make no copy; let a store that --freeze froze be used again: the move is called off"),
        Option(
            "--to FILE", "write to this new file instead of standard output; - writes even to a terminal", filled=True
        ),
        about=(
            "Writes JSON lines. The copy shows one moment. It has lease ids, which prove ownership, and the "
            "secrets of webhooks: keep it private. --freeze stops all changes in the store, so nothing can "
            "be claimed there after the copy. --unfreeze cancels the move: the time since the freeze counts as "
            "an outage, so owners get time to renew, and the store has another id. Never unfreeze a store whose "
            "copy is in use: both would give out the same jobs."
        ),
        examples=(
            ("dibs export --freeze | dibs import --url postgresql://dibs@db.example.org/dibs", "move to PostgreSQL"),
            ("dibs export --to claims.jsonl", "a copy to keep"),
            ("dibs export --unfreeze", "the move is called off"),
        ),
        exits=(
            (0, "all was written, or the store can be used"),
            (64, "an import into the store is not complete"),
            (69, "the store cannot be read, or the copy cannot be written"),
        ),
    ),
    "import": Command(
        import_,
        STORE,
        Option("--add", "add the copy's namespaces to a store that has others"),
        Option("--from FILE", "read this file instead of standard input; may be OctoStore's database", filled=True),
        about=(
            "Imports the whole copy or nothing: it checks all of it first. A lease keeps the time that it "
            "had left in the copy, and gets at least its TTL (ten minutes at most) from now. The store must "
            "be empty; with --add it may have other namespaces. If the import is killed, the store refuses "
            "all use until you repeat the same import. New fencing tokens begin at the present time in "
            "milliseconds, and numbers of events in microseconds: above all that were given since the copy. "
            "Bearer tokens keep their dates. The file may also be the database of an OctoStore server that was "
            "stopped: its users, tokens, locks, access lists, sessions and webhooks."
        ),
        examples=(
            ("dibs import --url sqlite:///var/lib/dibs/dibs.db --from claims.jsonl", "from a file"),
            ("dibs import --from octostore.db", "from OctoStore"),
        ),
        exits=(
            (0, "all was imported"),
            (64, "the copy or the store is unsuitable; nothing was changed"),
        ),
    ),
    "backup": Command(
        backup,
        Argument("FILE", "the copy; the file must not exist"),
        STORE,
        Option("--damaged", "copy also a store with damaged records"),
        about=(
            "Uses SQLite's backup: the copy shows one moment, and blocks nobody. Do not copy the file by "
            "other means while it is in use. The copy has lease ids and the secrets of webhooks; only you "
            "can read it. A store with a damaged record is not copied: the copy might take the place of an "
            "older one that has it."
        ),
        examples=(("dibs backup /var/backups/dibs-$(date +%F).db -q", "every night, from cron"),),
        exits=(
            (0, "copied"),
            (64, "the file exists, or the store is not SQLite"),
            (69, "no room, or a damaged record"),
        ),
    ),
    "restore": Command(
        restore,
        Argument("FILE", "a copy that dibs backup made"),
        STORE,
        about=(
            "Refused while any process has the store open: stop servers and workers first. New fencing "
            "tokens begin at the present time in milliseconds, and numbers of events in microseconds: above "
            "all that were given since the backup. For leases in the backup, the time since then counts as "
            "an outage. Leases granted since then are lost: their owners are told so at their next "
            "heartbeat. Bearer tokens are those of the replaced file; without it, those that were revoked "
            "since are valid again, and are named."
        ),
        examples=(
            (
                "dibs restore /var/backups/dibs-2026-11-14.db --url sqlite:///var/lib/dibs/dibs.db",
                "after a disk failed",
            ),
        ),
        exits=(
            (0, "restored"),
            (64, "not a backup"),
            (69, "the store is in use; nothing was changed"),
        ),
    ),
    "pool set": Command(
        lambda call: each_job(call, "pool", {"slots": count(call, "slots", SLOTS_MAX, least=0)}, _pool_set),
        JOBS,
        Option("--slots N", f"how many slots, up to {SLOTS_MAX}; 0 pauses the pool", required="slots"),
        about=(
            "Claims of a pool need not name its slots; one that names another number is refused. A change "
            "takes nothing from anybody: with fewer slots the next one comes in when enough owners have "
            f"left, with more the line is served at once. {_NEEDS} A path:, a repo: and an election have no "
            "pool."
        ),
        examples=(
            ("dibs pool set gpu --slots 4", "four at a time"),
            ("dibs pool set gpu --slots 0", "nobody new for now"),
        ),
        exits=(
            (0, "the pool is as you say"),
            (64, "not a number of slots, or a name that has no pool"),
            *_ROLE,
        ),
    ),
    "pool list": Command(
        list_pools,
        Argument("PREFIX", "only pools whose names begin with this", takes=MAYBE),
        about="Shows all pools of the namespace: slots, how many are taken, how many wait.",
        examples=(("dibs pool list", "all pools"),),
        exits=((0, "listed, even if there are none"),),
    ),
    "pool remove": Command(
        lambda call: each_job(call, "pool", {"slots": None}, _pool_removed),
        JOBS,
        about=f"Owners keep what they have; whoever comes next waits until all of them have left. {_NEEDS}",
        examples=(("dibs pool remove gpu", "it is an ordinary job again"),),
        exits=(
            (0, "it is no pool"),
            *_ROLE,
        ),
    ),
}
