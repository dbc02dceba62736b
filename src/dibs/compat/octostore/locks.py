"""OctoStore's locks on dibs' rules. Each answer is the outcome of one of dibs' commands, in OctoStore's words.

OctoStore takes all requests with one token for one owner. dibs asks every caller for a proof. So this layer shows the
proof on the caller's behalf: a claim of a lock that its owner has is a renewal, with the lease id on record.
"""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.compat.octostore import bodies
from dibs.compat.octostore.callers import Handlers, User, internal_id
from dibs.core import outcomes
from dibs.core.commands import Acquire, Inspect, InspectSession, Release, Renew, SetAcl
from dibs.core.holds.max_hold import capped_ms
from dibs.core.lease_outcomes import AclSet, NotFound, Released, Renewed
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.names import DEFAULT_NAMESPACE, ELECTION_PREFIX
from dibs.core.records import EXPIRED, META_KEY, Holder, LockRecord, Meta
from dibs.core.session_outcomes import SessionState
from dibs.engine.queries import claimed
from dibs.server.http.parse import parse_query
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import answer_document
from dibs.wire.documents import expected, failed
from dibs.wire.lease_documents import acl_document
from dibs.wire.parts import timestamp

# What OctoStore answers about locks, made from dibs' outcomes and records. Pure.

LOCKS_MAX = 100  # of one user


def own_end_ms(holder: Holder) -> int:
    """Return when a lease ends by its own TTL. The end of its session is not shown."""
    return capped_ms(holder.renewed_ms + holder.ttl_ms if holder.ttl_ms else holder.expires_ms, holder.ends_ms)


def acquired_answer(outcome: outcomes.Outcome) -> Reply:
    if isinstance(outcome, outcomes.Granted):
        end_ms = own_end_ms(outcome.lease)
        return answer_document(
            {
                "status": "acquired",
                "lease_id": outcome.lease.lease_id,
                "fencing_token": outcome.lease.token,
                "expires_at": timestamp(end_ms),
                "renew_after_ms": max(0, end_ms - outcome.now_ms) // 2,
                "metadata": outcome.lease.metadata,
            }
        )
    if isinstance(outcome, outcomes.Held) and outcome.blockers:
        holder = outcome.blockers[0].holder
        end_ms = own_end_ms(holder)
        return answer_document(
            {
                "status": "held",
                "holder_id": bodies.holder_id(internal_id(holder)),
                "expires_at": timestamp(end_ms),
                "retry_after_ms": max(0, end_ms - outcome.now_ms),
                "metadata": holder.metadata,
            }
        )
    if isinstance(outcome, outcomes.Closed):  # they have one word for a time in which nobody gets the lock
        until_ms, delay_ms = outcome.closure.until_ms, outcome.closure.until_ms - outcome.closure.at_ms
    elif isinstance(outcome, outcomes.Delayed):
        until_ms, delay_ms = outcome.until_ms, outcome.delay_ms
    else:
        raise refusal_of(outcome)
    document = {
        "status": "delayed",
        "available_at": timestamp(until_ms),
        "lock_delay_seconds": -(-delay_ms // 1000),
        "retry_after_ms": until_ms - outcome.now_ms,
    }
    return answer_document(document, 409)


def refusal_of(outcome: outcomes.Outcome) -> Exception:
    if isinstance(outcome, outcomes.QuotaExceeded):
        return bodies.OctoStoreRefusal("lock_limit_exceeded", f"Lock limit exceeded (max {LOCKS_MAX} per user)")
    if isinstance(outcome, outcomes.Forbidden):
        return bodies.refused("forbidden", "caller is not allowed to acquire this lock")
    if isinstance(outcome, outcomes.AclDiffers):
        return bodies.refused("conflict", "ACL changed while acquiring the lock")
    if isinstance(outcome, outcomes.SessionUnknown):
        return bodies.no_session()
    if isinstance(outcome, outcomes.SessionOver):
        return bodies.session_over()
    return failed(outcome)  # OctoStore has no word for it, such as a parked job: another client's routes made it


def lock_document(lock: LockRecord) -> Document:
    found: Document = dict.fromkeys(("name", "status", "holder_id", "fencing_token", "expires_at", "metadata"))
    found |= {"name": lock.name, "status": "free", "fencing_token": lock.token}
    for holder in lock.holders[:1]:
        found |= {
            "status": "held",
            "holder_id": bodies.holder_id(internal_id(holder)),
            "fencing_token": holder.token,
            "expires_at": timestamp(own_end_ms(holder)),
            "metadata": holder.metadata,
        }
    return found


TRIES_MAX = 8  # how often another owner may come between a look and a claim
# What the body of a request may have, by verb.
FIELDS = {
    "acquire": {
        "ttl_seconds": "number",
        "metadata": "text",
        "session_id": "id",
        "ephemeral": "flag",
        "lock_delay_seconds": "number",
        "acl": "acl",
    },
    "renew": {"lease_id": "id!", "ttl_seconds": "number"},
    "release": {"lease_id": "id!"},
    "acl": {"acl": "acl!"},
}
NULL = b"null"


class Locks(Handlers):
    async def acquire(self, call: HttpRequest) -> Reply:
        document, user, name = await self._asked("acquire", call)
        command = self._command(name, document, user)
        self._api.check_open()
        outcome = await self._claimed(command, user)
        for _ in range(TRIES_MAX):
            if not _is_overtaken(outcome, _holder_of(command, user)):
                break
            outcome = await self._claimed(command, user)
        return acquired_answer(outcome)

    def _command(self, name: str, document: Document, user: User) -> Acquire:
        ttl_ms, metadata = bodies.ttl_ms_of(document), bodies.metadata_of(document)
        delay_ms = bodies.delay_ms_of(document)
        ephemeral, session = document.get("ephemeral", False), document.get("session_id")
        if ephemeral and session is None:
            raise bodies.refused("invalid_input", "ephemeral locks require a session_id")
        return Acquire(
            ns=DEFAULT_NAMESPACE,
            name=name,
            principal=user.principal,
            owner=user.principal,
            ttl_ms=ttl_ms,
            fresh_lease_id=new_id(),
            metadata=metadata,
            session=session,
            ephemeral=ephemeral,
            delay_ms=delay_ms,
            policy=bodies.OCTOSTORE,
            acl=bodies.acl_of(document["acl"]) if "acl" in document else None,
            badges=user.badges,
            admin=user.is_admin,
            payer=f"/{user.principal}",
            held_max=LOCKS_MAX,
            max_hold_ms=user.max_hold_ms,
        )

    async def _claimed(self, command: Acquire, user: User) -> outcomes.Outcome:
        """The outcome of a claim. It may be that of a lock which changed between two commands (`_is_overtaken`)."""
        state = await self._look(command.name)
        lock, holder = state.lock, next(iter(state.lock.holders), None)
        _check_acl(lock, command)
        if holder is None and lock.delay_until_ms > state.now_ms:
            return await self._submit(command)
        if command.session is not None:
            await self._check_session(command.session, user)
        if holder is not None and internal_id(holder) == _holder_of(command, user):
            return await self._claimed_again(command, state, holder)
        if holder is None:
            return await self._submit(command)
        if self._api.engine.tally.live_of(user.principal) >= LOCKS_MAX:
            return outcomes.QuotaExceeded(now_ms=state.now_ms, name=lock.name, most=LOCKS_MAX)
        # Not asked of dibs' rules: to them, a session has what it holds, ephemeral or not.
        blocker = outcomes.Blocker(name=lock.name, holder=holder)
        return outcomes.Held(now_ms=state.now_ms, name=lock.name, blockers=(blocker,))

    async def _claimed_again(self, command: Acquire, state: outcomes.Status, holder: Holder) -> outcomes.Outcome:
        """The owner claims what it has: the same lease, never a shorter one."""
        renew = Renew(
            ns=command.ns,
            name=command.name,
            principal=command.principal,
            lease_id=holder.lease_id,
            ttl_ms=max(command.ttl_ms, own_end_ms(holder) - state.now_ms),
            audited=True,
        )
        outcome = await self._submit(renew)
        if command.acl is not None and not state.lock.acl and isinstance(outcome, Renewed):
            listing = SetAcl(ns=command.ns, name=command.name, principal=command.principal, acl=command.acl)
            expected(await self._submit(listing), AclSet)
        if isinstance(outcome, Renewed):
            return outcomes.Granted(now_ms=outcome.now_ms, name=command.name, lease=outcome.lease)
        return outcome

    async def _check_session(self, session: str, user: User) -> None:
        looked = await self._submit(InspectSession(session=session, principal=user.principal))
        found = expected(looked, SessionState, outcomes.SessionUnknown)
        if not isinstance(found, SessionState) or not user.has(found.session):
            raise bodies.no_session()
        if not found.live:
            raise bodies.session_over() if found.session.how in (EXPIRED, None, "") else bodies.no_session()

    async def renew(self, call: HttpRequest) -> Reply:
        document, user, name = await self._asked("renew", call)
        command = Renew(
            ns=DEFAULT_NAMESPACE,
            name=name,
            principal=user.principal,
            lease_id=document["lease_id"],
            ttl_ms=bodies.ttl_ms_of(document),
            audited=True,
        )
        outcome = await self._submit(command)
        if not isinstance(outcome, Renewed):
            raise await self._not_current(outcome, user)
        end_ms = own_end_ms(outcome.lease)
        return answer_document(
            {
                "lease_id": document["lease_id"],
                "expires_at": timestamp(end_ms),
                "renew_after_ms": (end_ms - outcome.now_ms) // 2,
            }
        )

    async def release(self, call: HttpRequest) -> Reply:
        document, user, name = await self._asked("release", call)
        command = Release(ns=DEFAULT_NAMESPACE, name=name, principal=user.principal, lease_id=document["lease_id"])
        outcome = await self._submit(command)
        if isinstance(outcome, Released) and not outcome.again:
            return Reply(200, content=NULL)
        if isinstance(outcome, Released):  # it was released before: who has the lock now?
            state = await self._look(name)
            outcome = outcomes.NotCurrent(now_ms=state.now_ms, name=name, holders=state.lock.holders)
        raise await self._not_current(outcome, user)

    async def _not_current(self, outcome: outcomes.Outcome, user: User) -> Exception:
        """Return why a lease cannot be used. A lock of somebody else's session is as unknown as the session."""
        if not isinstance(outcome, outcomes.NotCurrent):
            raise refusal_of(outcome)
        for holder in outcome.holders[:1]:
            if holder.session is not None and holder.ephemeral and holder.principal != user.principal:
                return bodies.no_session()
        return bodies.not_current(is_held=bool(outcome.holders))

    async def inspect(self, call: HttpRequest) -> Reply:
        if not call.raw_name:  # its router has no such address
            raise bodies.unsupported(404)
        user = self._callers.user("inspect", call)
        state = await self._look(self._callers.lock_name(call, user))
        document = lock_document(state.lock)
        if document["status"] == "free":  # the number that the next lease of the store gets
            meta = await self._api.in_reader(lambda: self._api.engine.store.read((META_KEY,)).records[META_KEY].record)
            document["fencing_token"] = (meta.token_floor if isinstance(meta, Meta) else 0) + 1
        if state.lock.acl:
            document["acl"] = acl_document(tuple(sorted(state.lock.acl)))
        return answer_document(document)

    async def listing(self, call: HttpRequest) -> Reply:
        user = self._callers.user("list", call)
        prefix = parse_query(call.query).get("prefix")
        if user.scope is not None:
            own = f"{user.scope}."
            if prefix is not None and not prefix.startswith(own):
                raise bodies.refused("forbidden", f"prefix '{prefix}' is outside namespace '{user.scope}'")
            prefix = own if prefix is None else prefix
        locks = await self._api.in_reader(lambda: self._held(prefix or ""))
        return answer_document({"locks": locks, "total": len(locks), "prefix": prefix})

    def _held(self, prefix: str) -> list[Document]:
        found: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = claimed(self._api.engine.store, DEFAULT_NAMESPACE, prefix, after, LIST_PAGE_MAX)
            found += [lock_document(lock) for lock in page.locks if not lock.name.startswith(ELECTION_PREFIX)]
            after = page.next_after
        return found

    async def acl(self, call: HttpRequest) -> Reply:
        document, user, name = await self._asked("acl", call, anywhere=True)
        entries = bodies.acl_of(document["acl"])
        state = await self._look(name)
        not_holder = bodies.refused("forbidden", "only current lock holder or admin can update ACL")
        missing = bodies.OctoStoreRefusal("not_found", f"Lock not found: {name}", title="Lock not found")
        if not user.is_admin and not state.lock.holders:
            raise missing
        if not user.is_admin and state.lock.holders[0].principal != user.principal:
            raise not_holder
        outcome = await self._submit(
            SetAcl(
                ns=DEFAULT_NAMESPACE,
                name=name,
                principal=user.principal,
                acl=entries,
                admin=user.is_admin,
                ahead=user.is_admin,
            )
        )
        if isinstance(outcome, outcomes.Forbidden):
            raise not_holder
        if isinstance(outcome, NotFound):
            raise missing
        expected(outcome, AclSet)
        return answer_document({"name": name, "acl": acl_document(entries)})

    async def _asked(self, verb: str, call: HttpRequest, *, anywhere: bool = False) -> tuple[Document, User, str]:
        document = await bodies.read_body(call, self._api.caller_of, FIELDS[verb])
        user = self._callers.user(verb, call)
        return document, user, self._callers.lock_name(call, user, anywhere=anywhere)

    async def _look(self, name: str) -> outcomes.Status:
        return expected(await self._submit(Inspect(ns=DEFAULT_NAMESPACE, name=name)), outcomes.Status)


def _holder_of(command: Acquire, user: User) -> str | None:
    """Return who holds the lock if the claim is granted."""
    return command.session if command.ephemeral else user.id


def _is_overtaken(outcome: outcomes.Outcome, holder: str | None) -> bool:
    """Tell whether the lock changed between look and claim: its lease is over, or the same owner has it."""
    if isinstance(outcome, outcomes.Held):
        return any(internal_id(each.holder) == holder for each in outcome.blockers)
    return isinstance(outcome, outcomes.NotCurrent)


def _check_acl(lock: LockRecord, command: Acquire) -> None:
    if lock.acl and command.acl is not None and set(lock.acl) != set(command.acl):
        raise bodies.refused("conflict", "ACL already exists; update with PUT /locks/{name}/acl")
    allowed = lock.acl or command.acl
    if allowed and not command.admin and not set(allowed).intersection(command.badges):
        raise bodies.refused("forbidden", "caller is not allowed to acquire this lock")
