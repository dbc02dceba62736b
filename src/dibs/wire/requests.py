"""Turns a request document into a command. The checks and their order are the same over HTTP and embedded.

Two steps, because the contract puts the caller's credential between them: `values.shape` looks only at fields and types
(a wrong one is `Unprocessable`, HTTP 422), `command_for` at what the values mean (HTTP 400, each with its own code).
Unknown fields are refused, but for requests that OctoStore's clients make (`values.OF_OCTOSTORE`): there they are
ignored. `null` is the same as leaving a field out.
"""

from __future__ import annotations

from dibs.base.cheap import Callable
from dibs.base.errors import InvalidInput, InvalidTtl, NotAllowed
from dibs.base.ids import is_id, new_id
from dibs.base.jsontext import Document
from dibs.core import commands, limits
from dibs.core.caller_rights import ADMIN, NO_LIMITS, OPERATOR, Caller, require
from dibs.core.holds.max_hold import max_hold_ms
from dibs.core.names import DEFAULT_NAMESPACE, ELECTION_PREFIX, check_name, check_namespace, in_tree
from dibs.core.records import EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT, EXCLUSIVE
from dibs.wire import values
from dibs.wire.fields import PLAIN_TERMS
from dibs.wire.values import shape, token_badge

__all__ = ["command_for", "namespace_for", "shape", "token_badge", "wait_ms"]


def namespace_for(caller: Caller, asked: str | None) -> str:
    """The namespace of a request: the one named, if the caller's credential allows it."""
    if asked is not None:
        check_namespace(asked)
        if caller.namespace is not None and asked != caller.namespace:
            raise NotAllowed(f"This token is for the namespace {caller.namespace}, not for {asked}.")
        return asked
    return caller.namespace or DEFAULT_NAMESPACE


def command_for(verb: str, ns: str, name: str, document: Document, caller: Caller) -> commands.Command:
    """The command for a shaped document. Raises InvalidInput with a code that says which part is wrong.

    `name` is a job's, or for the verbs of sessions the session's id; the verbs for several jobs take none."""
    build = _BUILDERS.get(verb)
    if build is not None:
        name = check_name(name)
        require(caller, verb)
        return build(ns, name, document, caller)
    require(caller, verb)
    if verb.startswith("session-"):
        if verb == "session-open":
            return open_session(ns, document, caller)
        if verb == "session-keep":
            return _keep_session(name, document, caller)
        kind = commands.EndSession if verb == "session-end" else commands.InspectSession
        return kind(session=_session_id(name), principal=caller.principal, bound=caller.namespace)
    if verb == "withdraw":
        return _withdraw(ns, document, caller)
    return _acquire_many(verb, ns, document, caller)


def wait_ms(document: Document) -> int:
    """Return how long the caller is ready to wait for an answer. Fractions of a second are kept, to the millisecond."""
    waited: int = round(document.get("wait_seconds", 0) * 1000)
    if waited > limits.WAIT_MS_MAX:
        raise InvalidInput(f"wait_seconds may be {limits.WAIT_MS_MAX // 1000} at most; ask again with the ticket.")
    return waited


def _ask(ns: str, document: Document, caller: Caller) -> Document:
    """The checked fields that all claims have, without those at their default: most requests give few."""
    session = document.get("session_id")
    ephemeral = document.get("ephemeral", True)
    if session is None and ephemeral and "ephemeral" in document:
        raise InvalidInput("ephemeral needs a session_id: an ephemeral lease lives as long as its session.")
    asked: Document = {"ns": ns, "principal": caller.principal}
    if "mode" in document or "slots" in document:
        asked["mode"], asked["slots"] = values.mode_and_slots(document)
    asked["owner"] = values.text_of(document, "owner") or ("" if session is not None else caller.principal)
    # In a session a lease needs no TTL of its own; otherwise it always has one.
    asked["ttl_ms"] = values.ttl_ms_of(document, 0 if session is not None and ephemeral else limits.TTL_MS_DEFAULT)
    asked["fresh_lease_id"] = new_id()
    for field in PLAIN_TERMS:
        if field in document:
            asked[field] = values.plain_of(document, field)
    if "replaces" in document:
        asked["replaces"] = values.text_of(document, "replaces")
        if not asked["replaces"]:
            raise InvalidInput("replaces may not be empty: it names a group of which only the newest waits.")
    if "request_key" in document:
        asked["request_key"] = values.request_key_of(document)
    if session is not None:
        asked["session"] = session
    if not ephemeral:
        asked["ephemeral"] = False
    if "lock_delay_seconds" in document:
        asked["delay_ms"] = values.number_of(document, "lock_delay_seconds", 0) * 1000
    asked["badges"] = caller.badges
    if caller.max_hold_ms or caller.limits.hold_seconds or "max_hold_seconds" in document:
        asked["max_hold_ms"] = max_hold_ms(caller, values.number_of(document, "max_hold_seconds", 0) * 1000)
    if caller.role == ADMIN:
        asked["admin"] = True
    if caller.over_quota:
        asked["over_quota"] = True
    if caller.limits is not NO_LIMITS:
        asked["payer"] = caller.payer
        asked["held_max"] = caller.limits.held
        asked["waiting_max"] = caller.limits.waiting
    if caller.audited:
        asked["audited"] = True
    if caller.namespace is not None:
        asked["bound"] = caller.namespace
    return asked


# What most claims give. They are made by plain keywords, because a compiled call with `**` is a slow one.
_USUAL = frozenset(("ttl_seconds", "ttl_ms", "owner", "metadata", "request_key", "wait_seconds"))


def _acquire(ns: str, name: str, document: Document, caller: Caller) -> commands.Acquire:
    if caller.limits is NO_LIMITS and _USUAL.issuperset(document):
        wait = "wait_seconds" in document and wait_ms(document) > 0
        return commands.Acquire(
            ns=ns,
            name=name,
            principal=caller.principal,
            owner=values.text_of(document, "owner") or caller.principal,
            ttl_ms=values.ttl_ms_of(document, limits.TTL_MS_DEFAULT),
            fresh_lease_id=new_id(),
            metadata=values.text_of(document, "metadata") if "metadata" in document else None,
            request_key=values.request_key_of(document) if "request_key" in document else None,
            badges=caller.badges,
            admin=caller.role == ADMIN,
            over_quota=caller.over_quota,
            audited=caller.audited,
            bound=caller.namespace,
            max_hold_ms=caller.max_hold_ms,
            wait=wait,
        )
    return _acquire_on_terms(ns, name, document, caller)


def _acquire_on_terms(ns: str, name: str, document: Document, caller: Caller) -> commands.Acquire:
    acl = document.get("acl")
    number, ticket_id = values.ticket_of(ns, name, document)
    entries = None if acl is None else values.acl_of(acl)
    wait = "wait_seconds" in document and wait_ms(document) > 0
    asked = _ask(ns, document, caller)
    asked["name"] = name
    if ticket_id is not None:
        asked["ticket"], asked["ticket_id"] = number, ticket_id
    if entries is not None:
        asked["acl"] = entries
    if wait:
        asked["wait"] = True
    if "lease_id" in document:
        asked["lease_id"] = document["lease_id"]
    return commands.Acquire(**asked)


def _names_of(document: Document, most: int) -> tuple[str, ...]:
    names = document["names"]
    if not 1 <= len(names) <= most:
        raise InvalidInput(f"names is a list of 1 to {most} jobs; this one has {len(names)}.")
    checked = tuple([check_name(name) for name in names])
    if len(set(checked)) != len(checked):
        twice = next(name for index, name in enumerate(checked) if name in checked[:index])
        raise InvalidInput(f"names holds {twice} twice.")
    return checked


def _withdraw(ns: str, document: Document, caller: Caller) -> commands.Withdraw:
    names = _names_of(document, limits.NAMES_MAX)
    number, ticket_id = values.ticket_of(ns, min(names), document)
    key = values.request_key_of(document) if "request_key" in document else None
    return commands.Withdraw(
        ns=ns, principal=caller.principal, names=names, request_key=key, ticket_id=ticket_id, ticket=number
    )


def _acquire_many(verb: str, ns: str, document: Document, caller: Caller) -> commands.AcquireAny | commands.AcquireAll:
    checked = _names_of(document, limits.NAMES_MAX if verb == "acquire-any" else limits.ALL_NAMES_MAX)
    if verb == "acquire-any":
        if document.get("wait_seconds"):
            raise InvalidInput("Claiming any of several does not wait; ask again, or wait for one of them.")
        count = values.number_of(document, "count", 0) if "count" in document else 0
        if count > len(checked):
            raise InvalidInput(f"count is {count}, and names has only {len(checked)}.")
        return commands.AcquireAny(names=checked, count=count, **_ask(ns, document, caller))
    ordered = tuple(sorted(checked))
    ask = _ask(ns, document, caller)
    from dibs.core.claims.several import overlapping_pair

    pair = overlapping_pair(ordered, ask.get("mode", EXCLUSIVE))
    if pair is not None:
        raise InvalidInput(f"{pair[0]} and {pair[1]} overlap: nobody can claim both. Claim the outer one.")
    ask["ticket"], ask["ticket_id"] = values.ticket_of(ns, ordered[0], document)
    return commands.AcquireAll(names=ordered, wait=wait_ms(document) > 0, **ask)


def _leave(ns: str, name: str, document: Document, caller: Caller) -> commands.Leave:
    number, ticket_id = values.parse_ticket(ns, name, document["ticket"])
    return commands.Leave(ns=ns, name=name, principal=caller.principal, ticket=number, ticket_id=ticket_id)


def _renew(ns: str, name: str, document: Document, caller: Caller) -> commands.Renew:
    return commands.Renew(
        ns=ns,
        name=name,
        principal=_prover(caller),
        lease_id=document.get("lease_id"),
        session=document.get("session_id"),
        ttl_ms=values.ttl_ms_of(document, None),
        metadata=values.text_of(document, "metadata") if "metadata" in document else None,
        checkpoint=values.text_of(document, "checkpoint") if "checkpoint" in document else None,
        mode=values.mode_and_slots(document)[0] if "mode" in document else None,
        audited=caller.audited,
        payer=caller.payer,
        effect=_effect_note(document) if "effect_key" in document else None,
    )


def _effect_note(document: Document) -> commands.EffectNote:
    state = document.get("effect_status", EFFECT_BEGUN)
    if state not in (EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT):
        raise InvalidInput(f"effect_status is begun, done, failed or in_doubt, not {state!r}.")
    if "effect_id" not in document and state == EFFECT_BEGUN:
        raise InvalidInput("A step begins with effect_id: a random id (UUID) of this try, so that a repeat is known.")
    if "effect_result" in document and state != EFFECT_DONE:
        raise InvalidInput("effect_result is for effect_status done.")
    if "effect_reason" in document and state not in (EFFECT_FAILED, EFFECT_IN_DOUBT):
        raise InvalidInput("effect_reason is for effect_status failed or in_doubt.")
    key = values.text_of(document, "effect_key")
    if not key:
        raise InvalidInput("effect_key may not be empty: it names a step.")
    return commands.EffectNote(
        key=key,
        id=document.get("effect_id"),
        state=state,
        result=values.text_of(document, "effect_result"),
        reason=values.text_of(document, "effect_reason"),
    )


def _release(ns: str, name: str, document: Document, caller: Caller) -> commands.Release:
    done_ms = values.done_ms_of(document)
    result = values.text_of(document, "result")
    if result is not None and not done_ms:
        raise InvalidInput("A result needs done or done_seconds: it is shown for as long as the job counts as done.")
    failed = document.get("failed", False)
    for field in ("reason", "retry_after_seconds"):
        if field in document and not failed:
            raise InvalidInput(f"{field} is for a failure: send failed true with it, or leave it out.")
    if failed and done_ms:
        raise InvalidInput("A job that failed is not done: send failed or done_seconds, not both.")
    if document.get("uncounted") and (failed or done_ms):
        raise InvalidInput("uncounted is for a job that neither failed nor is done.")
    return commands.Release(
        ns=ns,
        name=name,
        principal=_prover(caller),
        lease_id=document.get("lease_id"),
        session=document.get("session_id"),
        done_ms=done_ms,
        result=result,
        checkpoint=values.text_of(document, "checkpoint"),
        failed=failed,
        reason=values.text_of(document, "reason"),
        retry_ms=values.number_of(document, "retry_after_seconds", 0) * 1000,
        uncounted=document.get("uncounted", False),
    )


def _transfer(ns: str, name: str, document: Document, caller: Caller) -> commands.Transfer:
    to_owner = values.text_of(document, "to_owner")
    if not to_owner and "to_session" not in document:
        raise InvalidInput("Say to whom: to_session (an open session) or to_owner (a name to show).")
    return commands.Transfer(
        ns=ns,
        name=name,
        principal=_prover(caller),
        fresh_lease_id=values.fresh_id_of(document, "fresh_lease_id", caller, ns, name),
        lease_id=document.get("lease_id"),
        session=document.get("session_id"),
        to_owner=to_owner,
        to_session=document.get("to_session"),
        ttl_ms=values.ttl_ms_of(document, None),
        checkpoint=values.text_of(document, "checkpoint"),
    )


def _break(ns: str, name: str, document: Document, caller: Caller) -> commands.Break:
    reason = values.text_of(document, "reason")
    if not reason or not reason.strip():
        raise InvalidInput("Breaking a claim needs a reason: the old owner is told.")
    token = values.number_of(document, "fencing_token", 1) if "fencing_token" in document else None
    return commands.Break(ns=ns, name=name, principal=caller.principal, reason=reason, token=token)


def _close(ns: str, name: str, document: Document, caller: Caller) -> commands.Close:
    reason, most = values.text_of(document, "reason"), limits.CLOSURE_REASON_CHARS_MAX
    if not reason or not reason.strip() or len(reason) > most:
        raise InvalidInput(f"Closing a job needs a reason of {most} characters at most: who asks for it is told.")
    if ("until" in document) == ("for_seconds" in document):
        raise InvalidInput("Say until when: send until or for_seconds, one of the two.")
    until_ms = 0
    if "until" in document:
        from dibs.wire.parts import moment_ms

        try:
            until_ms = max(1, moment_ms(document["until"]))
        except ValueError:
            raise InvalidInput("until is a time such as 2026-11-17T18:00:00Z.") from None
    length_ms = 0 if until_ms else values.number_of(document, "for_seconds", 0) * 1000
    return commands.Close(
        ns=ns, name=name, principal=caller.principal, reason=reason, until_ms=until_ms, length_ms=length_ms
    )


def _set_acl(ns: str, name: str, document: Document, caller: Caller) -> commands.SetAcl:
    acl = values.acl_of(document["acl"], 0) if "acl" in document else ()
    return commands.SetAcl(ns=ns, name=name, principal=caller.principal, acl=acl, admin=caller.role == ADMIN)


def _set_pool(ns: str, name: str, document: Document, caller: Caller) -> commands.SetPool:
    slots = document.get("slots")
    if slots is not None and not slots <= limits.SLOTS_MAX:
        raise InvalidInput(f"slots is a number from 0 to {limits.SLOTS_MAX}; this one is {slots}.")
    if in_tree(name) or name.startswith(ELECTION_PREFIX):
        raise InvalidInput("A path:, a repo: and an election have no pool: claims of them may overlap, or one leads.")
    return commands.SetPool(ns=ns, name=name, principal=caller.principal, slots=slots)


def _take_number(ns: str, name: str, document: Document, caller: Caller) -> commands.TakeNumber:
    return commands.TakeNumber(
        ns=ns,
        name=_series(name),
        principal=caller.principal,
        owner=values.text_of(document, "owner") or caller.principal,
        request_key=values.request_key_of(document) or new_id(),
        at_least=values.number_of(document, "at_least", 0),
        number=values.number_of(document, "number", 0) if "number" in document else 0,
        badges=caller.badges,
        admin=caller.role == ADMIN,
    )


def _return_number(ns: str, name: str, document: Document, caller: Caller) -> commands.ReturnNumber:
    may_all = caller.role in (OPERATOR, ADMIN)
    return commands.ReturnNumber(
        ns=ns,
        name=_series(name),
        principal=caller.principal,
        number=document["number"],
        admin=may_all,
        request_key=values.request_key_of(document),
    )


def _series(name: str) -> str:
    if in_tree(name) or name.startswith(ELECTION_PREFIX):
        raise InvalidInput("A path:, a repo: and an election have no numbers. Name a job, such as migrations.")
    return name


_BUILDERS: dict[str, Callable[[str, str, Document, Caller], commands.Command]] = {
    "acquire": _acquire,
    "leave": _leave,
    "renew": _renew,
    "release": _release,
    "transfer": _transfer,
    "break": _break,
    "free": lambda ns, name, _, caller: commands.Free(ns=ns, name=name, principal=caller.principal),
    "acl": _set_acl,
    "close": _close,
    "open": lambda ns, name, _, caller: commands.Open(ns=ns, name=name, principal=caller.principal),
    "pool": _set_pool,
    "next": _take_number,
    "give-back": _return_number,
    "inspect": lambda ns, name, *_: commands.Inspect(ns=ns, name=name),
}


def _prover(caller: Caller) -> str | None:
    """The principal that the lease must belong to. For an admin the lease id is enough: so a lease that was claimed
    directly on the store can be renewed through a server, and the other way round."""
    return None if caller.role == ADMIN else caller.principal


def open_session(ns: str, document: Document, caller: Caller) -> commands.OpenSession:
    return commands.OpenSession(
        fresh_id=values.fresh_id_of(document, "fresh_session_id", caller),
        principal=caller.principal,
        owner=values.text_of(document, "owner") or caller.principal,
        ttl_ms=_session_ttl_ms(document),
        process=values.text_of(document, "process"),
        metadata=values.text_of(document, "metadata"),
        ns=ns,
        payer=caller.payer,
        sessions_max=caller.limits.sessions,
        parent=document.get("parent_id"),
        bound=caller.namespace,
    )


def _session_ttl_ms(document: Document) -> int:
    """`ttl_ms` as given; raises if it is out of bounds. `ttl_seconds` is clamped, as in OctoStore's contract."""
    if "ttl_ms" not in document:
        asked_ms: int = document.get("ttl_seconds", limits.SESSION_TTL_MS_DEFAULT // 1000) * 1000
        return min(max(asked_ms, limits.SESSION_TTL_MS_MIN), limits.SESSION_TTL_MS_MAX)
    ttl_ms: int = document["ttl_ms"]
    if "ttl_seconds" in document:
        raise InvalidInput("ttl_ms or ttl_seconds, not both.")
    least_ms, most_ms = limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX
    if not least_ms <= ttl_ms <= most_ms:
        raise InvalidTtl(f"ttl_ms is from {least_ms} to {most_ms}; {ttl_ms} was asked for.")
    return ttl_ms


def _keep_session(session_id: str, document: Document, caller: Caller) -> commands.KeepSession:
    ttl_ms = _session_ttl_ms(document) if "ttl_ms" in document else None
    return commands.KeepSession(
        session=_session_id(session_id),
        principal=caller.principal,
        ttl_ms=ttl_ms,
        process=values.text_of(document, "process"),
        metadata=values.text_of(document, "metadata"),
        bound=caller.namespace,
        payer=caller.payer,
        active=document.get("active", False),
    )


def _session_id(text: str) -> str:
    if not is_id(text):
        raise InvalidInput("A session id is the UUID that opening the session gave.")
    return text.lower()
