"""`dibs lock`: grite's commands, on any store, for people and scripts that know them.

Arguments, documents, error and exit codes are the same. The difference: these locks exclude. `agents/shell_actor.py`
decides who is the same caller, and keeps the lease ids that grite's recipes do not pass along.
"""

from __future__ import annotations

from dibs.agents.shell_actor import Actor, Entry, RememberedLeases, actor_of, may_end, may_keep, session_of, took_it
from dibs.base.cheap import Callable
from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, InvalidInput, RequestFailed
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import LEASE, SESSION, claim_document, put, session_id, ttl_seconds
from dibs.cli.framework.job_names import tree_locks
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, failure, is_failure, refusal_exit, yes
from dibs.cli.framework.spec import DATA_DIR, LOCK_ACTOR, MAYBE, NO_DAEMON, Argument, Command, Option
from dibs.client.flow import all_pages, drive
from dibs.client.urls import is_server
from dibs.compat.grite import documents
from dibs.compat.grite.documents import BAD_USAGE, CONFLICT, lock_code
from dibs.core.limits import LOCK_TTL_MS_DEFAULT
from dibs.core.names import DEFAULT_NAMESPACE, check_name, in_tree
from dibs.wire.codes import NOT_ANY_MORE, kind_of
from dibs.wire.documents import Reply, reply_for_error

TTL_SECONDS_DEFAULT = LOCK_TTL_MS_DEFAULT // 1000


def memory_of(call: Call) -> RememberedLeases:
    return RememberedLeases(call.env, call.settings.url, call.settings.namespace, wall_ms())


def acquire(call: Call) -> Answer:
    resource, shown = _resource(call)
    session = _session(call)
    if session is not None:
        asked = {**_asked(call, resource, shown), "session_id": session}
        return _acquired(call, shown, call.claim("acquire", resource, asked), asked, show_lease=False)
    actor, memory = actor_of(call), memory_of(call)
    known = next((entry for entry in memory.entries(resource) if took_it(entry, actor)), None)
    made = _entry(call, actor, known)
    begun = memory.remember(resource, made, replaces=False) if actor.marks else None
    entry = made if begun is None else begun
    asked = _asked(call, resource, shown) | {"owner": entry["owner"], "request_key": entry["request_key"]}
    put(asked, "session_id", _actors_session(call, actor, resource))
    is_old = known is not None or entry["request_key"] != made["request_key"]
    claim = call.ask if is_old else call.claim  # an interrupt must not release an older lease
    reply = claim("acquire", resource, asked)
    if is_old and (reply.body or {}).get("code") == "conflict":  # that lease has ended: ask for a new one
        entry.update(request_key=new_id(), lease_id=None, token=None)
        asked["request_key"] = entry["request_key"]
        memory.remember(resource, entry)
        reply = call.claim("acquire", resource, asked)
    inherited = _in_the_way(memory, actor, reply)
    if inherited is not None:
        asked["session_id"] = session_of(call, inherited["marks"][0], inherited["owner"]).opened(_ttl_ms(call))
        reply = call.claim("acquire", resource, asked)
    if begun is not None:
        _keep_or_forget(memory, resource, {**entry, "until_ms": made["until_ms"]}, reply)
    is_shell = begun is not None and not actor.named
    return _acquired(call, shown, reply, asked, show_lease=begun is None or is_shell, kept=is_shell)


def _asked(call: Call, resource: str, shown: str) -> Document:
    """The request. The default TTL is grite's, five minutes."""
    document = claim_document(call)
    document.pop("session_id", None)  # the caller of this function knows whose it is
    document.setdefault("ttl_seconds", TTL_SECONDS_DEFAULT)
    if shown != resource:  # for the list of locks
        document["metadata"] = f"{documents.SPELLED}{shown}"
    return document


def _ttl_ms(call: Call) -> int:
    return (ttl_seconds(call) or TTL_SECONDS_DEFAULT) * 1000


def _actors_session(call: Call, actor: Actor, resource: str) -> str | None:
    """The session of the actor, in which its own locks are not in its way. Of a shell only names of a tree can be, and
    where no session can be opened they are."""
    if not actor.marks or not (actor.named or in_tree(resource)):
        return None
    session = session_of(call, actor.marks[0], actor.owner or call.settings.owner)
    try:
        return session.opened(max(session.ttl_ms, _ttl_ms(call)))
    except (InvalidInput, RequestFailed):
        return None


def _in_the_way(memory: RememberedLeases, actor: Actor, reply: Reply) -> Entry | None:
    """The actor's own lock that a refusal names, of a subshell that has ended: it was taken in another session."""
    name = (reply.body or {}).get("conflict")
    entries = memory.entries(name) if name else []
    return next((entry for entry in entries if took_it(entry, actor) and entry["marks"][0] != actor.marks[0]), None)


def _entry(call: Call, actor: Actor, known: Entry | None) -> Entry:
    """The entry to remember for this acquire. `known` is the same actor's earlier entry, if any."""
    before = known or {"request_key": new_id(), "lease_id": None, "token": None}
    owner = actor.owner or call.settings.owner
    entry = actor.entry(owner, before["request_key"], before["lease_id"], before["token"])
    return {**entry, "until_ms": wall_ms() + _ttl_ms(call)}


def _keep_or_forget(memory: RememberedLeases, resource: str, entry: Entry, reply: Reply) -> None:
    """Remember a granted lease, forget a refused request. The request key was stored before the request: after a kill
    or a lost answer, the next acquire sends the same key and gets the same lease."""
    body = reply.body or {}
    if body.get("status") == "acquired":
        entry.update(lease_id=body["lease_id"], token=body["fencing_token"])
        memory.remember(resource, entry)
    elif refusal_exit(reply) is not None:  # after a failure the lease may exist
        memory.forget(resource, entry["request_key"])


def _acquired(call: Call, shown: str, reply: Reply, asked: Document, *, show_lease: bool, kept: bool = False) -> Answer:
    body: Document = reply.body or {}
    if is_failure(reply):
        return _failed(call, failure(reply))
    if refusal_exit(reply) is not None:
        return _conflict(documents.refused(shown, body))
    document = documents.lease_document(shown, body["owner"], body, asked["ttl_seconds"])
    return yes(document, documents.lease_text("acquired", shown, body, show_lease=show_lease, kept=kept))


def renew(call: Call) -> Answer:
    resource, shown = _resource(call)
    _go_back(call, resource)
    memory = memory_of(call)
    proof, entry = _proof(call, memory, resource, lambda each, actor: may_keep(each, actor) or may_end(each, actor))
    if proof is None:
        return _conflict(documents.not_yours("renew", shown, _state(call, resource)))
    length_s = ttl_seconds(call)
    if length_s is not None:
        proof["ttl_seconds"] = length_s
    if entry is not None:  # the lock ends with the session that it was taken in
        taker = session_of(call, entry["marks"][0], entry["owner"])
        if taker.known() is not None:
            taker.kept((length_s or 0) * 1000)
    reply = call.ask("renew", resource, proof)
    if is_failure(reply):
        return _lost(call, "renew", resource, shown, reply)
    body: Document = reply.body or {}
    if entry is not None:
        memory.remember(resource, {**entry, "until_ms": wall_ms() + body["remaining_ms"]})
    # It is renewed, also if nobody answers a second question.
    owner = entry["owner"] if entry is not None else (call.ask("inspect", resource, {}).body or {}).get("owner")
    echoed_s = length_s or (body["remaining_ms"] + 500) // 1000
    document = documents.lease_document(shown, str(owner), body, echoed_s)
    return yes(document, documents.lease_text("renewed", shown, body, show_lease=False))


def release(call: Call) -> Answer:
    resource, shown = _resource(call)
    _go_back(call, resource)
    memory = memory_of(call)
    proof, entry = _proof(call, memory, resource, may_end)
    reply = call.ask("release", resource, proof) if proof is not None else None
    is_gone = reply is not None and (reply.body or {}).get("code") == "lease_not_current"
    if reply is not None and is_failure(reply) and not (entry is not None and is_gone):
        return _lost(call, "release", resource, shown, reply)
    if entry is not None:
        memory.forget(resource, entry["request_key"])
    if proof is not None and not is_gone:
        return yes(*documents.released(shown, (entry or {}).get("owner"), proof.get("lease_id"), was_held=True))
    state = _state(call, resource)  # somebody else's lock is left alone
    if state.get("owner") is not None:
        return _conflict(documents.not_yours("release", shown, state))
    return yes(*documents.released(shown, None, None, was_held=False))


def status(call: Call) -> Answer:
    wanted, _ = _resource(call, needed=False)
    locks = _live(call)
    if isinstance(locks, Answer):
        return locks
    document = documents.status_document([lock for lock in locks if wanted in ("", lock["name"])])
    return yes(document, documents.status_text(document))


def gc(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedTransport
    from dibs.client.store_admin import sweep

    memory_of(call).tidy()
    transport = call.transport()
    swept = sweep(transport.store()) if isinstance(transport, EmbeddedTransport) else None
    locks = _live(call)
    if isinstance(locks, Answer):
        return locks
    removed, kept = swept["expired"] if swept else 0, len(locks)
    text = f"Removed {removed} expired, kept {kept}."
    if swept is None:
        text = f"Nothing to remove: a server removes expired locks by itself. Kept {kept}."
    return yes({"removed": removed, "kept": kept, "expired_pruned": removed}, text)


def _live(call: Call) -> list[Document] | Answer:
    reply = drive(call.transport(), all_pages(""))
    if is_failure(reply):
        return _failed(call, failure(reply))
    return [*(reply.body or {})["locks"], *tree_locks(call)]


def _session(call: Call) -> str | None:
    """The session that applies. A folder on the command line is an identity of its own, like an actor."""
    if call.values.get("data_dir") is not None and call.values.get("session") is None:
        return None
    return session_id(call)


def _resource(call: Call, *, needed: bool = True) -> tuple[str, str]:
    """The resource, from the argument or the flag: `path:src` in the store, and `path:src/` as it was typed."""
    flag, word = call.values.get("resource_flag"), call.values.get("resource")
    if flag is not None and word is not None and flag != word:
        raise UsageError("The resource was given twice: as an argument and with --resource.", call.command)
    given = flag if flag is not None else word
    if given is None:
        if needed:
            raise UsageError(f"{call.command} needs a resource: --resource issue:8057324b.", call.command)
        return "", ""
    return check_name(given), given


def _proof(
    call: Call, memory: RememberedLeases, resource: str, mine: Callable[[Entry, Actor], bool]
) -> tuple[Document | None, Entry | None]:
    """The caller's proof for the lock, and the remembered entry it comes from. The order: --lease, the session, the
    actor's remembered lease, a named actor's session, and last DIBS_LEASE, which may belong to another job."""
    lease = call.values.get("lease")
    if lease is not None:
        if not lease.strip():
            raise UsageError("--lease is empty. Did the acquire before it succeed?", call.command)
        return {"lease_id": lease.strip()}, None
    session = _session(call)
    if session is not None:
        return {"session_id": session}, None
    actor = actor_of(call)
    for entry in memory.entries(resource):
        if entry["lease_id"] is not None and mine(entry, actor):
            return {"lease_id": entry["lease_id"]}, entry
    session = _holding(call, actor, resource)
    if session is not None:
        return {"session_id": session}, None
    lease = call.env.get("DIBS_LEASE", "").strip()
    return ({"lease_id": lease} if lease else None), None


def _holding(call: Call, actor: Actor, resource: str) -> str | None:
    """The session of a named actor, if it holds the resource: by `dibs claim`, say, or remembered nowhere else."""
    session, places = _places(call, actor, resource) if actor.named else (None, [])
    here = call.settings.namespace
    return session if places and (here is None or here in places) else None


def _places(call: Call, actor: Actor, resource: str) -> tuple[str | None, list[str]]:
    """The session that an earlier lock of the actor opened, and the namespaces in which it holds the resource."""
    session = session_of(call, actor.marks[0], "").known() if actor.marks else None
    if session is None:
        return None, []
    reply = call.ask("session-show", session, {})
    holds = [] if kind_of(reply) == NOT_ANY_MORE else body_of(reply).get("holds", [])
    return session, [hold["namespace"] for hold in holds if hold["name"] == resource]


def _go_back(call: Call, resource: str) -> None:
    """Use the namespace of the repository in which the actor took this lock, if it has left the repository since."""
    is_elsewhere = call.said("namespace") is None and call.repository_namespace is None
    if not (is_elsewhere and in_tree(resource)) or _session(call) is not None or call.values.get("lease") is not None:
        return
    _, places = _places(call, actor_of(call), resource)
    call.close_transport()
    if len(places) == 1 and places[0] != DEFAULT_NAMESPACE:
        call.fall_back_on({"namespace": places[0]})


def _state(call: Call, resource: str) -> Document:
    return body_of(call.ask("inspect", resource, {}))


def _lost(call: Call, verb: str, resource: str, shown: str, reply: Reply) -> Answer:
    """A refused proof is a conflict in grite's codes. Other failures keep their meaning."""
    answer = failure(reply)
    if answer.code != "lease_not_current":
        return _failed(call, answer)
    return _conflict(documents.not_yours(verb, shown, _state(call, resource)))


def _conflict(shown: tuple[str, Document, str]) -> Answer:
    message, details, text = shown
    code, exit_code = CONFLICT
    return Answer(exit_code, details, text, code=code, message=message, is_error=True, lead="")


def _failed(call: Call, answer: Answer) -> Answer:
    """The same answer with grite's code and exit code."""
    url = call.settings.url
    answer.code, answer.exit = lock_code(answer.code, server=bool(url) and is_server(str(url)))
    answer.lead, answer.text = "", f"error: {answer.text}"
    answer.message = f"{answer.code}: {answer.message}"
    return answer


def command(
    run: Callable[[Call], Answer],
    *parts: Argument | Option,
    summary: str,
    about: str,
    examples: tuple[tuple[str, str], ...],
    exits: tuple[tuple[int, str], ...],
) -> Command:
    """Report errors of `run` with grite's codes. The parser of flags reports usage errors."""

    def explain(call: Call) -> Answer:
        try:
            return run(call)
        except UsageError:
            raise
        except DibsError as error:
            return _failed(call, failure(reply_for_error(error)))

    return Command(
        explain,
        *parts,
        NO_DAEMON,
        summary=summary,
        about=about,
        examples=examples,
        exits=exits,
        usage_exit=BAD_USAGE,
    )


# The arguments of the commands.

_WHAT = "what to lock, such as issue:8057324b, path:src/auth.rs, repo:deploy"
_ARGUMENT = Argument("RESOURCE", _WHAT, takes=MAYBE, completes="job")
_RESOURCE = Option("--resource RESOURCE", "the resource, instead of the argument", key="resource_flag")
_TTL = Option("--ttl TIME", "how long it lasts: 30m, 2h, or seconds (default 5m)")
_NEW_TTL = Option("--ttl TIME", "a new TTL (default: the present one)")
_WHO = (LOCK_ACTOR, DATA_DIR, SESSION)
_EXITS = (
    (1, "internal error"),
    (2, "invalid flag, TTL or resource"),
    (5, "the store cannot be reached, or is busy"),
    (6, "the server cannot be reached"),
)
_CONFLICT = ((4, "conflict: somebody else holds it"),)
_REMEMBERS = (
    "dibs remembers the lease for the shell that ran the command, or for the --actor you name. So renew and "
    "release need no lease id. Two shells are two holders."
)

COMMANDS = {
    "lock acquire": command(
        acquire,
        _ARGUMENT,
        _RESOURCE,
        _TTL,
        *_WHO,
        summary="lock a resource, as grite does",
        about=f"{_REMEMBERS} Acquiring a lock that you hold gives the same lease, never a shorter one.",
        examples=(
            ("dibs lock acquire --resource issue:8057324b --ttl 30m", "for half an hour"),
            (
                "dibs lock acquire issue:1 --actor agent-7",
                "as an agent whose commands each run in a shell of their own",
            ),
        ),
        exits=(
            (0, "it is yours"),
            *_CONFLICT,
            *_EXITS,
        ),
    ),
    "lock renew": command(
        renew,
        _ARGUMENT,
        _RESOURCE,
        _NEW_TTL,
        LEASE,
        *_WHO,
        summary="extend a lock you hold",
        about="An expired lock cannot be renewed: acquire it again.",
        examples=(("dibs lock renew --resource repo:migration --ttl 2h", "half way through"),),
        exits=(
            (0, "still yours"),
            (4, "conflict: somebody else holds it, or it has expired"),
            *_EXITS,
        ),
    ),
    "lock release": command(
        release,
        _ARGUMENT,
        _RESOURCE,
        LEASE,
        *_WHO,
        summary="release a lock you hold",
        about="Succeeds if nobody holds the resource. A lock that somebody else holds is left alone.",
        examples=(
            ("dibs lock release --resource issue:8057324b", "when done"),
            ("trap 'dibs lock release --resource \"issue:$ID\"' EXIT", "whatever happens"),
        ),
        exits=(
            (0, "nobody holds it now"),
            *_CONFLICT,
            *_EXITS,
        ),
    ),
    "lock status": command(
        status,
        _ARGUMENT,
        _RESOURCE,
        LOCK_ACTOR,
        DATA_DIR,
        summary="list all held locks",
        about="Expired locks are not listed: they can be acquired.",
        examples=(("dibs lock status --json", "everything"),),
        exits=(
            (0, "the list, which may be empty"),
            *_EXITS,
        ),
    ),
    "lock gc": command(
        gc,
        LOCK_ACTOR,
        DATA_DIR,
        summary="delete expired locks",
        about=("You never need this: an expired lock is free before it is deleted. A server deletes them by itself."),
        examples=(("dibs lock gc", "now and then"),),
        exits=(
            (0, "swept"),
            *_EXITS,
        ),
    ),
}
