"""Steps that change something outside: what is noted of them, who is told, and how long it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import events
from dibs.core.claims import effects
from dibs.core.claims.effects import before, status_of
from dibs.core.commands import Acquire, Break, EffectNote, OpenSession, Release, Renew, Transfer, Withdraw
from dibs.core.lease_outcomes import EffectRefused, Renewed
from dibs.core.limits import EFFECT_TRIES_MAX, EFFECTS_MAX, FAILING_RECORD_MS, IDLE_RECORD_MS
from dibs.core.outcomes import Differs, Granted, NotCurrent
from dibs.core.records import EffectState, LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.wire.parts import effect_document, effects_document

pytestmark = pytest.mark.promise("effect:once")

TTL_MS = 60_000


class Store:
    """One job and its owners: `own("a")` is granted the lease "a"."""

    def __init__(self, name: str = "j") -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.rules = Coordinator(self.store)
        self.name = name

    def own(self, owner: str, **terms: Any) -> Granted:
        asked = Acquire(ns="default", name=self.name, principal="p", owner=owner, ttl_ms=TTL_MS, fresh_lease_id=owner)
        granted = self.rules.one(asked.replace(**terms))
        assert isinstance(granted, Granted)
        return granted

    def note(self, owner: str, state: str, key: str = "k", **more: Any) -> Any:
        """The note of one try: `more` may name another try of the same owner by its id."""
        made = EffectNote(key=key, id=more.pop("id", f"try-of-{owner}"), state=state, **more)
        return self.rules.one(Renew(ns="default", name=self.name, principal="p", lease_id=owner, effect=made))

    def begun(self, owner: str, **more: Any) -> str:
        """What the owner is told of the step when it begins it."""
        return before(self.effect(self.note(owner, "begun", **more)))

    @staticmethod
    def effect(outcome: Any) -> EffectState:
        assert isinstance(outcome, Renewed)
        assert outcome.effect is not None
        return outcome.effect

    def release(self, owner: str, **how: Any) -> None:
        self.rules.one(Release(ns="default", name=self.name, principal="p", lease_id=owner, **how))

    def dies(self, owner: str) -> None:
        self.clock.advance(TTL_MS + 1)

    def kept(self) -> LockRecord:
        key = lock_key("default", self.name)
        found = self.store.read((key,)).records[key].record
        assert isinstance(found, LockRecord)
        return found

    def statuses(self) -> dict[str, str]:
        lock = self.kept()
        return {each.key: status_of(each, lock.holders) for each in lock.effects}

    def kinds(self) -> list[str]:
        return [each.kind for each in self.store.events(0, 100) if each.effect_key is not None]


ENDS: dict[str, Any] = {
    "it dies": lambda store: store.dies("a"),
    "it fails": lambda store: store.release("a", failed=True),
    "it is given back": lambda store: store.release("a", uncounted=True),
    "it is broken": lambda store: store.rules.one(Break(ns="default", name="j", principal="op", reason="r")),
}


@pytest.mark.promise("effect:doubt-told")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("noted", "told"),
    [
        ((), "new"),
        (("begun",), "in_doubt"),
        (("begun", "done"), "done"),
        (("begun", "failed"), "failed"),
        (("begun", "in_doubt"), "in_doubt"),
    ],
)
def test_the_next_owner_is_told_how_a_step_stands(end: str, noted: tuple[str, ...], told: str) -> None:
    store = Store()
    store.own("a")
    for state in noted:
        store.note("a", state)
    ENDS[end](store)
    granted = store.own("b")
    assert [status_of(each, (granted.lease,)) for each in granted.effects] == [told] * bool(noted)
    assert store.begun("b") == told


@pytest.mark.promise("effect:doubt-told")
def test_a_step_in_doubt_names_the_first_owner_that_did_not_say_how_it_ended() -> None:
    store = Store()
    store.own("a")
    begun_ms = store.clock.wall_ms()
    store.note("a", "begun")
    store.dies("a")
    store.own("b")
    store.begun("b")
    store.dies("b")
    token = store.own("c").lease.token
    effect = store.effect(store.note("c", "begun"))
    assert (before(effect), effect.doubt_owner, effect.doubt_token) == ("in_doubt", "a", token - 2)
    assert abs(effect.doubt_ms - begun_ms) < 1_000


@pytest.mark.promise("effect:doubt-told")
def test_the_failure_of_a_later_try_does_not_end_the_doubt() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.dies("a")
    store.own("b")
    assert store.begun("b") == "in_doubt"
    store.note("b", "failed", reason="no network")
    assert store.statuses() == {"k": "in_doubt"}
    assert store.begun("b", id="again") == "in_doubt"
    store.note("b", "done", id="again", result="7")
    assert store.statuses() == {"k": "done"}


def test_a_step_that_is_done_is_not_begun_again() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "done", result="url")
    told = store.effect(store.note("a", "begun", id="another"))
    assert (before(told), told.result, told.owner) == ("done", "url", "a")
    assert isinstance(store.note("a", "failed", id="another"), EffectRefused)
    assert store.statuses() == {"k": "done"}
    assert store.kinds() == [events.EFFECT_BEGUN, events.EFFECT_DONE]


def test_a_note_that_is_repeated_is_answered_as_before_and_written_once() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "failed", reason="why")
    for _ in range(2):
        assert store.begun("a", id="second") == "failed"
    for _ in range(2):
        assert store.effect(store.note("a", "done", id="second", result="r")).result == "r"
    assert store.effect(store.note("a", "failed", id="second")).state == "done"  # the first word counts
    assert store.kinds() == [*[events.EFFECT_BEGUN, events.EFFECT_FAILED], *[events.EFFECT_BEGUN, events.EFFECT_DONE]]


def test_a_lost_owner_writes_nothing() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.dies("a")
    store.own("b")
    for state in ("begun", "done", "failed", "in_doubt"):
        assert isinstance(store.note("a", state), NotCurrent)
    assert store.statuses() == {"k": "in_doubt"}


REFUSED: dict[str, tuple[Any, str]] = {
    "two tries at once": (lambda store: (store.note("a", "begun"), store.note("a", "begun", id="other"))[1], "running"),
    "an end without a beginning": (lambda store: store.note("a", "done"), "not_begun"),
    "the end of another try": (
        lambda store: (store.note("a", "begun"), store.note("a", "done", id="x"))[1],
        "not_begun",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_and_renews_nothing(case: str) -> None:
    store = Store()
    store.own("a")
    act, why = REFUSED[case]
    refused = act(store)
    assert isinstance(refused, EffectRefused)
    assert refused.why == why


def test_a_step_may_be_begun_within_another() -> None:
    store = Store()
    store.own("a")
    assert store.begun("a", key="outer") == store.begun("a", key="inner") == "new"
    store.note("a", "done", key="inner")
    assert store.statuses() == {"outer": "running", "inner": "done"}


def test_a_job_has_so_many_steps_and_those_it_has_go_on() -> None:
    store = Store()
    store.own("a")
    for number in range(EFFECTS_MAX):
        store.begun("a", key=f"k{number}")
    refused = store.note("a", "begun", key="one more")
    assert isinstance(refused, EffectRefused)
    assert refused.why == effects.TOO_MANY
    assert before(store.effect(store.note("a", "done", key="k0"))) == "done"


@pytest.mark.parametrize(
    ("name", "terms", "why"),
    [("j", {"mode": "shared"}, "shared"), ("j", {"slots": 2}, "shared"), ("path:a", {}, "resource")],
)
def test_only_a_job_with_one_owner_has_steps(name: str, terms: dict[str, Any], why: str) -> None:
    store = Store(name)
    store.own("a", **terms)
    refused = store.note("a", "begun")
    assert isinstance(refused, EffectRefused)
    assert refused.why == why


def test_a_release_ends_the_notes_and_a_done_mark_keeps_them_for_its_time() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "done")
    store.release("a", done_ms=5_000)
    assert store.statuses() == {"k": "done"}
    assert store.own("b", again=True).effects == ()
    assert store.begun("b") == "new"
    store.release("b")
    assert store.statuses() == {}
    assert store.own("c").effects == ()


def test_a_transfer_hands_the_notes_on_and_puts_a_running_step_in_doubt() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun", key="first")
    store.note("a", "done", key="first")
    store.note("a", "begun", key="second")
    store.rules.one(Transfer(ns="default", name="j", principal="p", lease_id="a", fresh_lease_id="b", to_owner="b"))
    assert store.begun("b", key="first") == "done"
    assert store.begun("b", key="second") == "in_doubt"


def test_a_claim_that_was_withdrawn_leaves_the_notes_of_others() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.release("a", failed=True)
    store.own("b", request_key="key-b")
    store.rules.one(Withdraw(ns="default", principal="p", names=("j",), request_key="key-b"))
    assert store.statuses() == {"k": "in_doubt"}


def test_a_claim_with_notes_is_not_withdrawn() -> None:
    store = Store()
    store.own("a", request_key="key-a")
    store.note("a", "begun")
    outcome = store.rules.one(Withdraw(ns="default", principal="p", names=("j",), request_key="key-a"))
    assert getattr(outcome, "kept", None) == ("j",)


def test_notes_are_remembered_as_long_as_a_failing_job() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.release("a", failed=True)
    assert store.kept().due_ms() == store.clock.wall_ms() + FAILING_RECORD_MS


@pytest.mark.fault("F-504")
def test_a_heartbeat_that_is_refused_for_another_field_notes_nothing() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    asked = Renew(ns="default", name="j", principal="p", lease_id="a")
    store.rules.one(asked.replace(mode="shared"))
    done = EffectNote(key="k", id="try-of-a", state="done")
    assert isinstance(store.rules.one(asked.replace(mode="exclusive", effect=done)), Differs)
    assert (store.statuses(), store.kinds()) == ({"k": "running"}, [events.EFFECT_BEGUN])


@pytest.mark.fault("F-576")
@pytest.mark.parametrize("how", [{}, {"done_ms": 5_000}])
def test_the_release_of_another_owner_does_not_end_the_notes_of_one_that_goes_on(how: dict[str, Any]) -> None:
    """It joined when the job was shared; a child's claim beside its parent's is the same."""
    store = Store()
    store.own("a")
    store.note("a", "begun", key="first")
    store.note("a", "done", key="first")
    store.note("a", "begun", key="second")
    store.rules.one(Renew(ns="default", name="j", principal="p", lease_id="a", mode="shared"))
    for other in ("b", "c"):  # the second is granted after a done mark, while the job is still worked on
        store.own(other, mode="shared", again=True)
        store.release(other, **how)
    assert store.statuses() == {"first": "done", "second": "running"}
    assert before(store.effect(store.note("a", "done", key="second"))) == "done"
    store.release("a")
    assert store.statuses() == {}


@pytest.mark.fault("F-576")
def test_notes_end_when_the_last_owner_has_released_the_work() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "done")
    store.rules.one(Renew(ns="default", name="j", principal="p", lease_id="a", mode="shared"))
    store.own("b", mode="shared")
    store.release("a")
    assert store.statuses() == {"k": "done"}
    store.release("b")
    assert store.statuses() == {}


@pytest.mark.fault("F-632")
@pytest.mark.promise("effect:doubt-told")
def test_the_reason_of_a_doubt_is_what_the_owner_said_that_left_it() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "failed", reason="no network")
    store.note("a", "begun", id="second")
    store.note("a", "in_doubt", id="second", reason="exit 137")
    for later, state, reason in (("3", "failed", "not run"), ("4", "in_doubt", "raised TimeoutError")):
        assert store.begun("a", id=later) == "in_doubt"
        told = store.effect(store.note("a", state, id=later, reason=reason))
        assert effect_document(told, before(told))["reason"] == "exit 137"


@pytest.mark.fault("F-632")
@pytest.mark.promise("effect:doubt-told")
def test_a_doubt_after_a_failure_has_not_the_reason_of_the_failure() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.note("a", "failed", reason="no network")
    assert store.begun("a", id="second") == "failed"
    store.dies("a")
    granted = store.own("b")
    (told,) = effects_document(granted.effects, (granted.lease,))
    assert (told["status"], told.get("reason")) == ("in_doubt", None)
    told = effect_document(store.effect(store.note("b", "begun")), "in_doubt")
    assert (told["owner"], told.get("reason")) == ("a", None)


@pytest.mark.fault("F-634")
def test_an_owner_that_lost_the_id_of_its_try_can_say_how_it_ended() -> None:
    """Its program was killed, and the lease lives on: without an id the note is about the try under this lease."""
    store = Store()
    store.own("a")
    assert store.note("a", "in_doubt", id=None).why == "not_begun"
    store.note("a", "begun")
    assert store.note("a", "begun", id="other").why == "running"
    store.note("a", "in_doubt", id=None)
    assert store.begun("a", id="other") == "in_doubt"
    store.dies("a")
    store.own("b")
    assert store.note("b", "done", id=None).why == "not_begun"  # it is not the try of this lease


def test_the_notes_of_done_work_last_as_long_as_its_record() -> None:
    store = Store()
    store.own("a")
    store.note("a", "begun")
    store.release("a", done_ms=5_000)
    assert store.kept().due_ms() == store.clock.wall_ms() + IDLE_RECORD_MS


@pytest.mark.fault("F-574")
@pytest.mark.parametrize("end", ["failed", "in_doubt"])
def test_a_late_copy_of_a_beginning_does_not_begin_the_step_again(end: str) -> None:
    store = Store()
    store.own("a")
    store.begun("a", id="one")
    store.note("a", end, id="one")
    assert store.begun("a", id="one") == end
    assert store.statuses() == {"k": end}
    assert store.begun("a", id="two") == end  # nobody is in the way of the next try


@pytest.mark.fault("F-713")
@pytest.mark.parametrize("end", ["failed", "in_doubt"])
def test_a_copy_of_a_beginning_that_comes_after_the_next_tries_begins_nothing(end: str) -> None:
    store = Store()
    store.own("a")
    for number in range(1 + EFFECT_TRIES_MAX):
        store.begun("a", id=f"try {number}")
        store.note("a", end, id=f"try {number}")
    assert store.begun("a", id="try 0") == end
    assert store.statuses() == {"k": end}


@pytest.mark.fault("F-575")
@pytest.mark.promise("effect:doubt-told")
def test_the_id_of_a_try_under_another_lease_is_another_try() -> None:
    store = Store()
    store.own("a")
    assert store.begun("a", id="fixed") == "new"
    store.dies("a")
    store.own("b")
    assert store.begun("b", id="fixed") == "in_doubt"
    store.effect(store.note("b", "done", id="fixed"))


@pytest.mark.fault("F-576")
@pytest.mark.parametrize("how", [{}, {"done_ms": 60_000}], ids=["released", "done"])
def test_a_child_that_releases_what_its_parent_has_ends_no_notes(how: dict[str, Any]) -> None:
    """The parent has begun a step alone. Its children come and go meanwhile."""
    store = Store()
    for child, parent in (("parent", None), ("child", "parent"), ("other", "parent")):
        opened = OpenSession(ns="default", fresh_id=child, principal="p", owner=child, ttl_ms=TTL_MS, parent=parent)
        store.rules.one(opened)
    store.own("parent", session="parent")
    store.begun("parent")
    store.own("child", session="child")
    store.release("child", **how)
    store.own("other", session="other", again=True)
    assert store.statuses() == {"k": "running"}
    store.release("other")
    store.effect(store.note("parent", "done"))
    assert store.statuses() == {"k": "done"}
    store.release("parent")
    assert store.statuses() == {}
