"""Makes an owner: the lease, its fencing token, and its entries in the session and the tree."""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import AcquireTerms, ClaimPolicy
from dibs.core.draft import Draft
from dibs.core.holds.access import note_list
from dibs.core.holds.capacity import note_owner, owners_of
from dibs.core.holds.expiry import shown
from dibs.core.holds.max_hold import capped_ms, ends_at_ms
from dibs.core.holds.quota import HELD, take_quota
from dibs.core.limits import CHECKPOINTS_BYTES_MAX, METADATA_BYTES_MAX, WANTED_MAX
from dibs.core.names import in_tree
from dibs.core.outcomes import Granted
from dibs.core.records import EXCLUSIVE, Holder, LockRecord, Ticket, lock_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.lease_outcomes import NoteTooLong


# The space for checkpoints and metadata of one job's owners.
#
# Each owner may have a checkpoint of CHECKPOINT_BYTES_MAX and metadata of METADATA_CHARS_MAX. All owners of a job are
# in one record, which every claim and heartbeat reads and writes, so all checkpoints together may have
# CHECKPOINTS_BYTES_MAX and all metadata METADATA_BYTES_MAX. What is stored stays. A heartbeat that brings too much is
# refused. A claim is not, because a waiter could not be asked again: its metadata is left out.


def check_room(
    draft: Draft, lock: LockRecord, mine: Holder, checkpoint: str | None, metadata: str | None = None
) -> NoteTooLong | None:
    """None if both fit beside those of the job's other owners, or are not longer than what they replace."""
    if len(lock.holders) == 1 or (checkpoint is None and metadata is None):
        return None
    others = [each for each in lock.holders if each.lease_id != mine.lease_id]
    checkpoints, notes = [each.checkpoint for each in others], [each.metadata for each in others]
    for what, most, new, old, used in (
        ("checkpoints", CHECKPOINTS_BYTES_MAX, checkpoint, mine.checkpoint, checkpoints),
        ("metadata", METADATA_BYTES_MAX, metadata, mine.metadata, notes),
    ):
        if new is None:
            continue
        room = max(most - sum([_size(text) for text in used]), _size(old))
        if _size(new) > room:
            from dibs.core.lease_outcomes import NoteTooLong  # a claim needs none of them

            return NoteTooLong(
                now_ms=draft.now_ms, name=lock.name, what=what, owners=len(lock.holders), most=most, room=room
            )
    return None


def _fitting(lock: LockRecord, metadata: str) -> str | None:
    used = sum([_size(each.metadata) for each in lock.holders])
    return metadata if used + _size(metadata) <= METADATA_BYTES_MAX else None


def _size(text: str | None) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if text else 0


def grant(draft: Draft, ask: AcquireTerms | Ticket, lock: LockRecord, lease_id: str, number: int = 0) -> Granted:
    """Make `ask` an owner of the job. The only place where a holder is made, but for a transfer between owners."""
    name = lock.name
    place = ask if number and isinstance(ask, Ticket) else None  # that it had in line
    token = max(lock.token, draft.meta().token_floor) + 1
    session = draft.session(ask.session) if ask.session is not None else None
    expires_ms = draft.now_ms + ask.ttl_ms if ask.ttl_ms or session is None else session.expires_ms
    ends_ms = ends_at_ms(ask.max_hold_ms, draft.now_ms)
    slots = lock.slots if lock.holders or lock.pooled else ask.slots or 1
    has_slot = (slots > 1 or lock.pooled) and ask.mode == EXCLUSIVE
    lease = Holder(
        lease_id=lease_id,
        owner=ask.owner or (session.owner if session is not None else ""),
        principal=ask.principal,
        token=token,
        since_ms=draft.now_ms,
        renewed_ms=draft.now_ms,
        ttl_ms=ask.ttl_ms,
        expires_ms=capped_ms(expires_ms, ends_ms),
        mode=ask.mode,
        session=ask.session,
        ephemeral=ask.ephemeral,
        metadata=ask.metadata if not lock.holders or ask.metadata is None else _fitting(lock, ask.metadata),
        request_key=ask.request_key,
        delay_ms=ask.delay_ms,
        attempt=lock.failures + 1,
        used=place is not None and place.used,
        charge=take_quota(draft, ask.payer, HELD) if ask.payer is not None else None,
        wanted=in_tree(name) and draft.tree_queue(ask.ns).first(name, EXCLUSIVE) is not None,
        ends_ms=ends_ms,
        slot_numbers=owners_of(draft, lock).free_numbers(ask.units) if has_slot else (),
    )
    previous = lock.endings[0] if lock.endings else None
    others = lock.holders
    lock = lock.replace(token=token, holders=(*others, lease), slots=slots)
    if ask.max_attempts or lock.done is not None or lock.delay_until_ms:
        max_attempts = ask.max_attempts or lock.max_attempts
        lock = lock.replace(max_attempts=max_attempts, done=None, delay_until_ms=0)
    if lock.effects and not others and previous is not None and previous.done:  # those of finished work are over
        lock = lock.replace(effects=())
    put_hold(draft, lock, lease, number, place.since_ms if place is not None else None)
    if others:
        note_owner(draft, lock, others, lease)
    if lease.session is not None:
        lease = shown(draft, lease)  # without a session it has its own deadline, and no credit yet
    return Granted(now_ms=draft.now_ms, name=name, lease=lease, previous=previous, effects=lock.effects)


def for_session(draft: Draft, ask: AcquireTerms | Ticket, mine: Holder) -> Holder:
    """The session's hold, as the answer to `ask`. It lasts as long as the session if the ask wants that: such a caller
    renews the session only, and the TTL of an earlier claim would run out meanwhile. A hold that outlives its session
    keeps its TTL for the time after."""
    if not mine.ttl_ms or ask.ttl_ms or mine.session != ask.session:
        return mine
    if not mine.ephemeral:
        return mine.replace(relied=True)
    session = draft.session(mine.session) if mine.session is not None else None
    if session is None:
        return mine
    return mine.replace(ttl_ms=0, renewed_ms=draft.now_ms, expires_ms=capped_ms(session.expires_ms, mine.ends_ms))


def apply_policy(draft: Draft, policy: ClaimPolicy, ns: str, granted: Granted) -> None:
    """Apply what a compatibility layer wants of the lease. For a token above all others of the store, the store's floor
    is the counter."""
    if policy.one_counter:
        draft.put(draft.meta().replace(token_floor=granted.lease.token))
    if not policy.delays_release:
        return
    lock = draft.lock(ns, granted.name)
    held = [each for each in lock.holders if each.lease_id == granted.lease.lease_id and each.delay_ms]
    for lease in held:
        draft.put(swap(lock, lease.replace(delays_release=True)))


def put_hold(draft: Draft, lock: LockRecord, lease: Holder, number: int = 0, began_ms: int | None = None) -> None:
    """Write down a job's new owner, also in session and tree. `number`: its place in the queue since `began_ms`."""
    draft.put(lock)
    draft.emit_for_hold(
        events.ACQUIRED,
        lock,
        lease,
        metadata=lease.metadata,
        checkpoint=lease.checkpoint,
        ttl_ms=lease.ttl_ms,
        ticket=number,
        began_ms=began_ms,
        until_ms=None if lease.ttl_ms and not lease.ends_ms else lease.expires_ms,
    )
    if lease.session is not None:
        session = draft.session(lease.session)
        if session is not None:
            key = lock_key(lock.ns, lock.name)
            holds = session.holds if key in session.holds else (*session.holds, key)
            wanted = session.wanted
            if (lock.line or lease.wanted) and key not in wanted and len(wanted) < WANTED_MAX:
                wanted = (*wanted, key)
            draft.put(session.replace(holds=holds, want=None, wanted=wanted))
    if in_tree(lock.name):
        from dibs.core.holds.path_claims import note_claims  # most jobs are in no tree

        note_claims(draft, lock)
        note_list(draft, lock)


def swap(lock: LockRecord, kept: Holder) -> LockRecord:
    return lock.replace(holders=tuple([kept if each.lease_id == kept.lease_id else each for each in lock.holders]))
