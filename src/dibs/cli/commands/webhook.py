"""webhook add, list, show, remove, replay, test: where events are sent, on a store or through a server."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.base.ids import new_signing_secret
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import WIDE, Argument, Command, Option
from dibs.cli.text.listing import sheet
from dibs.cli.text.words import Paint, table
from dibs.client.embedded import EmbeddedTransport
from dibs.core.limits import WEBHOOK_SECRET_CHARS_MAX, WEBHOOKS_PER_PRINCIPAL_MAX
from dibs.core.names import is_resource
from dibs.wire.codes import NO

# What is said about webhooks. Pure.

_SHOWN_MAX = 10
_EVENT_NUMBER_MAX = 10**18 - 1


def shown(body: Document, paint: Paint) -> str:
    log = body["log"]
    counts = f"{body['delivered']} delivered, {body['failed']} failed tries, {body['dead']} dead letters"
    waits = f"{body['waiting']} jobs wait, {body['behind']} events not looked at yet"
    lines = [f"{plain(body['url'])}: {_what(body)}", f"{counts}, {waits}"]
    if not body["active"]:
        lines.append(paint.bad(f"Stopped: {plain(body['stopped'] or '')}"))
    if body["gaps"]:
        lines.append(f"History was pruned before it was sent {body['gaps']} times; the target was told.")
    for title, rows in (
        ("LAST TRIES", [_try(each) for each in log["deliveries"]]),
        ("WAITING", [_waiting(each) for each in log["waiting"]]),
        ("DEAD LETTERS", [_dead(each) for each in log["dead"]]),
    ):
        if rows:
            lines += ["", paint.faint(title), *table(rows[:_SHOWN_MAX])]
            if len(rows) > _SHOWN_MAX:
                lines.append(f"and {len(rows) - _SHOWN_MAX} more; --json shows all")
    return "\n".join(lines)


def _what(body: Document) -> str:
    events = "all events" if body["events"] == ["*"] else plain(", ".join(body["events"]))
    jobs = "all jobs" if body["lock_pattern"] == "*" else plain(body["lock_pattern"])
    return f"{events} of {jobs} in {plain(body['namespace'])}"


def _try(each: Document) -> tuple[str, ...]:
    said = plain(each["error"]) if each["error"] else f"answered {each['status']}"
    return f"#{each['id']}", plain(each["at"][:19]) + "Z", plain(each["name"]), plain(each["event"]), said


def _waiting(each: Document) -> tuple[str, ...]:
    at = f"next try {plain(each['next_try_at'][:19])}Z" if each["next_try_at"] else "at once"
    return plain(each["name"]) or "(a gap)", f"{each['tries']} tries", at, plain(each["error"] or "")


def _dead(each: Document) -> tuple[str, ...]:
    again = "is sent again" if each["again"] else f"{each['tries']} tries"
    return f"#{each['id']}", plain(each["name"]), plain(each["event"]), again, plain(each["error"] or "")


def add(call: Call) -> Answer:
    document: Document = {"url": call.values["target"]}
    if call.values.get("jobs") is not None:
        document["lock_pattern"] = _pattern(call, call.values["jobs"])
    if call.values.get("events") is not None:
        document["events"] = [each.strip() for each in call.values["events"].split(",")]
    made, secret = _secret(call)
    if secret:
        document["secret"] = secret
    body = call.body("webhook-create", "", document)
    lines = [f"Sends {_what(body)} to {plain(body['url'])}. Its id: {plain(body['id'])}"]
    if made:
        body["secret"] = secret
        lines += ["Its secret, shown this once:", plain(secret)]
    if isinstance(call.transport(), EmbeddedTransport):
        from dibs.client.store_admin import flags_to_send

        flags = " ".join(["dibs serve", *flags_to_send(body["url"])])
        lines.append(f"A server on this store delivers the events. If none runs, start one: {flags}")
        if flags != "dibs serve":
            lines[-1] = f"Servers send there only if they were started so: {flags}"
    return yes(body, "\n".join(lines), quiet=plain(body["id"]))


def _pattern(call: Call, jobs: str) -> str:
    """The one name of a job, as a claim of it has it. What stands for several, and a resource, is taken as it is."""
    from dibs.cli.framework.job_names import one_names

    return jobs if "*" in jobs or is_resource(jobs) else one_names(call, [jobs])[0]


def _secret(call: Call) -> tuple[bool, str]:
    """Tell whether the secret was made here, and the secret. It is never an argument: everybody can read those."""
    path = call.values.get("secret_file")
    if call.values.get("unsigned"):
        if path is not None:
            raise UsageError("Use --secret-file or --unsigned, not both.")
        return False, ""
    if path is None:
        return True, new_signing_secret()
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read(WEBHOOK_SECRET_CHARS_MAX + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"{plain(path)} cannot be read ({reason}).") from None
    if not secret:
        raise InvalidInput(f"{plain(path)} is empty. Put the secret into it, or leave --secret-file out.")
    return False, secret


def list_(call: Call) -> Answer:
    body = call.body("webhooks")
    if not body["webhooks"]:
        return yes(body, "There is no webhook. Make one with: dibs webhook add https://...")
    rows: list[tuple[str, ...]] = [("ID", "OWNER", "NAMESPACE", "JOBS", "EVENTS", "TARGET")]
    for each in body["webhooks"]:
        state = "" if each["active"] else " (stopped)"
        words = [plain(each[key]) for key in ("id", "user_id", "namespace", "lock_pattern")]
        rows.append((*words, plain(",".join(each["events"])), plain(each["url"]) + state))
    least, leaves = {"EVENTS": 8, "TARGET": 16, "JOBS": 8}, ("NAMESPACE", "OWNER", "EVENTS", "JOBS", "ID")
    lines = sheet(rows, call.paint, call.width, least, leaves)
    return yes(body, "\n".join(lines), quiet="\n".join([row[0] for row in rows[1:]]))


def show(call: Call) -> Answer:
    """One document of two requests: how it stands, and the log."""
    body = call.body("webhook-show", call.values["id"])
    body["log"] = call.body("webhook-deliveries", call.values["id"])
    return yes(body, shown(body, call.paint))


def remove(call: Call) -> Answer:
    call.body("webhook-remove", call.values["id"])
    return yes({"id": call.values["id"]}, "Removed the webhook. A delivery under way may still arrive.")


def replay(call: Call) -> Answer:
    after = count(call, "after", _EVENT_NUMBER_MAX, least=0)
    body = call.body("webhook-replay", call.values["id"], {} if after is None else {"after": after})
    what = "The dead letters are" if after is None else f"All events after {after} are"
    return yes(body, f"{what} sent again.")


def test(call: Call) -> Answer:
    body = call.body("webhook-test", call.values["id"])
    if body["delivered"]:
        return yes(body, f"Delivered: the target answered {body['status']} after {body['took_ms']} ms.")
    return Answer(NO, body, f"Not delivered: {plain(body['error'] or '')}.", code="not_delivered", is_error=True)


_ID = Argument("ID", "the webhook, as `webhook list` shows it")
_UNKNOWN = ((2, "there is no such webhook, or it is not yours"),)
_BAD = ((64, "the URL may not be used, or an invalid setting"),)
_NOT_ALLOWED = ((77, "over HTTP only: a viewer may not"),)

COMMANDS = {
    "webhook add": Command(
        add,
        Argument("TARGET", "where to send to: https://..."),
        Option("--jobs PATTERN", "a job, or the beginning of names with * after it (default: all jobs)"),
        Option(
            "--events KINDS",
            "which, with commas between: acquired, released, expired, failed, parked and others (default: all)",
        ),
        Option("--secret-file FILE", "the file with the secret (default: one is made)", completes="file"),
        Option("--unsigned", "sign nothing"),
        about=(
            "A server on the store delivers each event of the namespace at least once, in order for each "
            "job, with retries. Each delivery is signed with a secret, which is made and shown this once; "
            "--secret-file names your own. A server refuses private addresses and http:// unless it is "
            "started with --webhook-allow-private and --webhook-allow-http. You may have "
            f"{WEBHOOKS_PER_PRINCIPAL_MAX} webhooks."
        ),
        examples=(
            ("dibs webhook add https://hooks.example.com/dibs", "everything"),
            (
                "dibs webhook add https://hooks.example.com/dibs --jobs 'deploy/*' --events released,expired",
                "only what is over",
            ),
        ),
        exits=(
            (0, "made"),
            *_BAD,
            *_NOT_ALLOWED,
        ),
    ),
    "webhook list": Command(
        list_,
        WIDE,
        about="Agents see their own webhooks, operators and admins all of their namespaces.",
        examples=(("dibs webhook list", "all that you may see"),),
        exits=(
            (0, "listed"),
            *_NOT_ALLOWED,
        ),
    ),
    "webhook show": Command(
        show,
        _ID,
        about="Shows the last tries, the jobs that wait for one, and the dead letters.",
        examples=(("dibs webhook show 6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", "why nothing arrives"),),
        exits=(
            (0, "shown"),
            *_UNKNOWN,
            *_NOT_ALLOWED,
        ),
    ),
    "webhook remove": Command(
        remove,
        _ID,
        examples=(("dibs webhook remove 6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", "no more"),),
        exits=(
            (0, "removed"),
            *_UNKNOWN,
            *_NOT_ALLOWED,
        ),
    ),
    "webhook replay": Command(
        replay,
        _ID,
        Option("--after N", "the number of an event (default: only dead letters are sent again)"),
        about="A webhook that was stopped goes on.",
        examples=(
            ("dibs webhook replay 6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", "dead letters"),
            ("dibs webhook replay 6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d --after 1842", "all since an event"),
        ),
        exits=(
            (0, "asked for"),
            *_UNKNOWN,
            *_BAD,
            *_NOT_ALLOWED,
        ),
    ),
    "webhook test": Command(
        test,
        _ID,
        about="The server that is asked sends it, once, and says what the target answered. It needs a server.",
        examples=(("dibs webhook test 6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", "does it arrive"),),
        exits=(
            (0, "delivered"),
            (1, "not delivered"),
            *_UNKNOWN,
            (64, "there is no server"),
            *_NOT_ALLOWED,
        ),
    ),
}
