"""The owners of one job share the room for their checkpoints, and for their metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import Transfer
from dibs.core.limits import (
    CHECKPOINT_BYTES_MAX,
    CHECKPOINTS_BYTES_MAX,
    METADATA_BYTES_MAX,
    METADATA_CHARS_MAX,
)
from dibs.core.records import SHARED
from tests.core.make import JOB, NS, acquire, decided, holder, lock, renew, written

if TYPE_CHECKING:
    from dibs.core.records import LockRecord

FULL = "x" * CHECKPOINT_BYTES_MAX
FIT = CHECKPOINTS_BYTES_MAX // CHECKPOINT_BYTES_MAX
OWNERS = FIT + 2
NOTE = "x" * METADATA_CHARS_MAX
NOTES = METADATA_BYTES_MAX // METADATA_CHARS_MAX


def crowd(noted: int, text: str = FULL) -> LockRecord:
    """A job with many owners, the first of whom noted something."""
    holders = [
        holder(lease_id=f"lease-{at}", token=at + 1, checkpoint=text if at < noted else None) for at in range(OWNERS)
    ]
    return lock(*holders, slots=OWNERS)


def test_checkpoints_of_one_job_fill_a_room_and_no_more() -> None:
    fits = decided(1, crowd(FIT - 1), renew(lease_id=f"lease-{OWNERS - 1}", checkpoint=FULL))
    assert isinstance(fits.outcome, lease_outcomes.Renewed)
    refused = decided(1, crowd(FIT), renew(lease_id=f"lease-{OWNERS - 1}", checkpoint="x"))
    assert refused.outcome == lease_outcomes.NoteTooLong(
        now_ms=1, name=JOB, what="checkpoints", owners=OWNERS, most=CHECKPOINTS_BYTES_MAX, room=0
    )
    assert not refused.writes
    assert not refused.events


def test_a_full_room_stops_no_heartbeat_and_no_note_that_is_not_longer_than_the_last() -> None:
    last = f"lease-{OWNERS - 1}"
    assert isinstance(decided(1, crowd(FIT), renew(lease_id=last)).outcome, lease_outcomes.Renewed)
    again = decided(1, crowd(FIT), renew(lease_id="lease-0", checkpoint="y" * CHECKPOINT_BYTES_MAX))
    assert isinstance(again.outcome, lease_outcomes.Renewed)


def test_notes_beyond_the_limit_are_kept_and_may_shrink() -> None:
    over = decided(1, crowd(OWNERS), renew(lease_id="lease-0", checkpoint="less"))
    assert isinstance(over.outcome, lease_outcomes.Renewed)
    assert [each.checkpoint for each in written(over).holders] == ["less", *[FULL] * (OWNERS - 1)]


def test_a_checkpoint_is_measured_in_bytes() -> None:
    refused = decided(1, crowd(FIT - 1), renew(lease_id=f"lease-{OWNERS - 1}", checkpoint="é" * 4_096))
    assert isinstance(refused.outcome, lease_outcomes.NoteTooLong)
    assert refused.outcome.room == CHECKPOINT_BYTES_MAX


@pytest.mark.fault("F-053")
def test_metadata_of_one_job_fills_a_room_and_a_heartbeat_that_brings_more_is_refused() -> None:
    full = [holder(lease_id=f"lease-{at}", token=at + 1, mode=SHARED, metadata=NOTE) for at in range(NOTES)]
    last = holder(lease_id="last", token=NOTES + 1, mode=SHARED)
    refused = decided(1, lock(*full, last), renew(lease_id="last", metadata="x"))
    assert refused.outcome == lease_outcomes.NoteTooLong(
        now_ms=1, name=JOB, what="metadata", owners=NOTES + 1, most=METADATA_BYTES_MAX, room=0
    )
    assert not refused.writes
    assert isinstance(decided(1, lock(*full, last), renew(lease_id="last")).outcome, lease_outcomes.Renewed)
    same = decided(1, lock(*full, last), renew(lease_id="lease-0", metadata="y" * len(NOTE)))
    assert isinstance(same.outcome, lease_outcomes.Renewed)


@pytest.mark.fault("F-053")
def test_a_claim_whose_metadata_does_not_fit_is_granted_without_it() -> None:
    full = [holder(lease_id=f"full-{at}", token=at + 1, mode=SHARED, metadata=NOTE) for at in range(NOTES)]
    without = decided(1, lock(*full), acquire(mode=SHARED, metadata="x"))
    assert isinstance(without.outcome, outcomes.Granted)
    assert without.outcome.lease.metadata is None
    fits = decided(1, lock(*full[1:]), acquire(mode=SHARED, metadata=NOTE))
    assert isinstance(fits.outcome, outcomes.Granted)
    assert fits.outcome.lease.metadata == NOTE


def test_one_owner_may_note_all_that_a_note_may_have() -> None:
    alone = decided(1, lock(), acquire(metadata="\U0001f680" * METADATA_CHARS_MAX))
    assert isinstance(alone.outcome, outcomes.Granted)
    assert alone.outcome.lease.metadata is not None


def test_handing_over_takes_no_more_room_than_there_is() -> None:
    command = Transfer(
        ns=NS, name=JOB, principal="team", fresh_lease_id="new", lease_id=f"lease-{OWNERS - 1}", to_owner="b1"
    )
    refused = decided(1, crowd(FIT), command.replace(checkpoint=FULL))
    assert isinstance(refused.outcome, lease_outcomes.NoteTooLong)
    assert isinstance(decided(1, crowd(FIT), command).outcome, lease_outcomes.Transferred)
