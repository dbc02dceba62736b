"""Sentences of refusals: what happened and what to do next."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core import lease_outcomes, outcomes
from dibs.core.claims import effects
from dibs.core.durations import format_duration
from dibs.core.limits import EFFECTS_MAX
from dibs.core.outcomes import Outcome
from dibs.core.records import MAX_HOLD
from dibs.wire.sentences import cycle_path, not_a_job

# The beginning of the sentence for a request key whose lease has ended. Clients that wait recognise it.
KEY_SPENT = "This request key's lease"

FROZEN = "The store is frozen: it is being moved to another place. Nothing was changed. Ask there, or try again later."
INCOMPLETE = "An import into this store is not complete. Nothing was changed. Repeat the import until it is."

_SENTENCES: dict[type[Record], str] = {
    outcomes.Forbidden: "The job's access list, or one that overlaps it, does not allow this.",
    outcomes.AclDiffers: "The job has another access list. Leave the list out of the claim, or change it first.",
    lease_outcomes.NotFound: "There is no such job on record.",
    outcomes.QuotaExceeded: "This token holds as many jobs as it may. Release some, or ask the operator for more.",
    outcomes.SessionUnknown: "There is no such session under this token. Open a new one.",
}


_EFFECT_REFUSALS = {
    effects.IS_RUNNING: (
        "{owner} began the step {key} {ago} ago and has not said how it ended. One try at a time: note how that one "
        "ended first (done, failed or in_doubt)."
    ),
    effects.TOO_MANY: (
        "The job has notes of {most} steps, which is the most. Use fewer keys: one for each step, not for each try."
    ),
    effects.NOT_BEGUN: "This try of the step {key} is not on record under this lease. Note that it begins first.",
    effects.SEVERAL_OWNERS: "A job with several owners at once has no notes of steps. Claim a job of its own for them.",
    effects.OF_RESOURCE: "{name} is a resource and no work: it has no steps. Claim the job that writes it.",
}


def effect_refused(outcome: lease_outcomes.EffectRefused) -> str:
    known = outcome.known
    return _EFFECT_REFUSALS[outcome.why].format(
        name=outcome.name,
        key=outcome.key,
        most=EFFECTS_MAX,
        owner=known.owner if known is not None else "",
        ago=format_duration(outcome.now_ms - known.at_ms) if known is not None else "",
    )


def refusal(outcome: Outcome, status: int) -> tuple[int, str]:
    """HTTP status and sentence for an outcome that is sent as an error."""
    if isinstance(outcome, outcomes.NotCurrent):
        # The contract distinguishes "somebody else has it" (400) from "nobody has it" (404).
        return (400 if outcome.holders else 404), _why_not_current(outcome)
    if isinstance(outcome, outcomes.KeySpent):
        if outcome.ending is None:
            return status, "The claim of this request key was withdrawn. Use a new request key for a new claim."
        how, ago = outcome.ending.how, format_duration(outcome.now_ms - outcome.ending.at_ms)
        return status, (
            f"{KEY_SPENT} {how if how in ('failed', 'expired') else 'was ' + how} {ago} ago. "
            "Repeating it cannot claim the job again; use a new request key for a new claim."
        )
    if isinstance(outcome, outcomes.TooMany):
        return (status, f"This token has {outcome.most} {outcome.what}, which is its limit. Try again later.")
    if isinstance(outcome, outcomes.QuotaExceeded) and outcome.most:
        return status, (
            f"This token may hold {outcome.most} jobs, places in line counted, and this would be more. Release some, "
            "or ask an admin for more."
        )
    if isinstance(outcome, lease_outcomes.NotAJob):
        return status, not_a_job(outcome.name, outcome.what)
    if isinstance(outcome, lease_outcomes.EffectRefused):
        return status, effect_refused(outcome)
    if isinstance(outcome, lease_outcomes.NoteTooLong):
        return status, (
            f"The {outcome.what} of this job's {outcome.owners} owners may take {outcome.most} bytes together. "
            f"Yours may have {outcome.room}: store less."
        )
    if isinstance(outcome, lease_outcomes.NotClosed):
        return status, outcome.why
    if isinstance(outcome, lease_outcomes.NumberTaken):
        taken = outcome.taken
        ago = "" if taken is None else f", since {format_duration(outcome.now_ms - taken.at_ms)}"
        who = "It is not known who has it" if taken is None else f"{taken.owner} has it{ago}"
        return status, f"Number {outcome.number} is taken. {who}. The next one that is free is {outcome.following}."
    if isinstance(outcome, outcomes.Differs) and outcome.slots:
        return status, _never_fits(outcome)
    if isinstance(outcome, outcomes.Differs):
        return status, (
            f"The job is held with {outcome.what} {outcome.has}, and {outcome.what} {outcome.asked} was asked for."
        )
    if isinstance(outcome, outcomes.Deadlock):
        return (status, f"Waiting would never end: {cycle_path(outcome.cycle)}. Release something and try again later.")
    if isinstance(outcome, lease_outcomes.Frozen):
        return status, INCOMPLETE if outcome.mark.incomplete else FROZEN
    if isinstance(outcome, outcomes.SessionOver):
        ago = format_duration(max(0, outcome.now_ms - (outcome.session.ended_ms or outcome.session.expires_ms)))
        return status, f"This session ended {ago} ago, and its jobs were released. Open a new one."
    return status, _SENTENCES[type(outcome)]


def _never_fits(outcome: outcomes.Differs) -> str:
    slots = "1 slot" if outcome.slots == 1 else f"{outcome.slots} slots"
    if outcome.what == "units":
        return f"The job has {slots}, and {outcome.asked} units were asked for. Ask for fewer."
    if outcome.what == "mode":
        return f"The job is a pool of {slots}: a claim of it has a slot, and cannot be shared."
    return f"The job is a pool of {slots}, and slots {outcome.asked} was asked for. Leave slots out."


def _who_has(owners: list[str]) -> str:
    """Of slots, several have the job."""
    others = len(set(owners)) - 1
    if others < 1:
        return f"{owners[0]} has" if owners else "Nobody has"
    return f"{owners[0]} and {others} {'other' if others == 1 else 'others'} have"


def _why_not_current(outcome: outcomes.NotCurrent) -> str:
    ending = outcome.ending
    now = f" {_who_has([holder.owner for holder in outcome.holders])} the job now."
    if ending is None:
        return "This lease does not hold the job." + now
    ago = format_duration(outcome.now_ms - ending.at_ms)
    if ending.how == "broken":
        return f"This lease was broken {ago} ago by {ending.by}: {ending.reason}." + now
    if ending.how == "expired" and ending.reason == MAX_HOLD:
        return f"This lease ended {ago} ago: it reached the longest time that it may last. Stop the work." + now
    if ending.how == "expired":
        return f"This lease expired {ago} ago: no heartbeat came in time. Stop the work." + now
    if ending.how == "failed":
        why = f" ({ending.reason})" if ending.reason else ""
        return f"This lease was released as failed {ago} ago{why}." + now
    if ending.how == "transferred":
        return f"This lease was handed to {ending.by} {ago} ago." + now
    return f"This lease was {ending.how} {ago} ago." + now


def taken_number(outcome: Outcome) -> dict[str, object]:
    """The fields of a number that is taken: whose it is, if that is known, and the next one."""
    if not isinstance(outcome, lease_outcomes.NumberTaken):
        return {}
    owner = {} if outcome.taken is None else {"owner": outcome.taken.owner}
    return {"number": outcome.number, "next": outcome.following, **owner}
