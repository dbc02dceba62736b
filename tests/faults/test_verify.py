"""`dibs verify` on real stores: it finds nothing where nothing is wrong, and a rule that is wrong on purpose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, Inspect, Release, Renew
from dibs.core.outcomes import Status
from dibs.testing.judge import Families, lives_of, read_calls
from dibs.testing.racers import race_terms
from dibs.wire.codes import UNPROVED
from tests.faults.liars import PLANTS, gives_no_lease_id, grants_nothing
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env, dibs_here, wait_until
from tests.rules import put_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import LockRecord, Ticket
    from tests.faults.liars import Plant
    from tests.faults.proxy import Proxy
    from tests.rules import Rule


def verify(folder: Path, *words: str) -> dict[str, Any]:
    return verify_at(f"sqlite://{folder}/store.db", folder, *words)


def verify_at(url: str, folder: Path, *words: str, token: str | None = None) -> dict[str, Any]:
    """What it says. In a short race some things never happen."""
    env = clean_env(folder) | ({} if token is None else {"DIBS_TOKEN": token})
    done = dibs_here(env, folder, "verify", url, "--record", "run.jsonl", "--json", *words)
    assert done.returncode in (0, 1, UNPROVED), done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    data: dict[str, Any] = answer["data"]
    is_proved = all(data["exercised"].values()) and not data["violations"]
    assert answer["ok"] is (done.returncode == 0) is is_proved
    return data


def test_clients_that_race_on_a_sound_store_are_answered_as_promised(tmp_path: Path) -> None:
    found = verify(tmp_path, "--for", "2s", "--seed", "1")
    assert found["violations"] == []
    assert found["operations"] > 20


@pytest.mark.parametrize("way", ["sdk", "cli"])
def test_clients_race_through_every_surface(way: str, tmp_path: Path) -> None:
    found = verify(tmp_path, "--for", "1s", "--clients", "2", "--through", way)
    assert found["violations"] == []
    calls = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert "internal_error" not in {call.get("code") for call in calls}
    assert ("held" in {call["call"] for call in calls}) is (way == "sdk")


@pytest.mark.fault("F-727")
def test_claims_of_the_sdk_are_renewed_wait_in_line_and_lose_answers(server: ServerProcess, tmp_path: Path) -> None:
    words = ("--for", "8s", "--clients", "12", "--through", "sdk", "--seed", "1")
    found = verify_at(server.url, tmp_path, *words, token=server.token)
    assert found["violations"] == []
    assert all(found["exercised"].values()), found["exercised"]
    with open(tmp_path / "run.jsonl") as file:
        assert {"renew", "held", "release", "leave"} <= {each.call for each in read_calls(file)}


@pytest.mark.fault("F-725")
@pytest.mark.fault("F-729")
def test_owners_are_sure_of_what_they_have_whatever_is_raced(server: ServerProcess, tmp_path: Path) -> None:
    """A judge that thinks every lease may have been broken finds nothing."""
    seeds = (f"sure-{number}" for number in range(1_000))
    seed = next(each for each in seeds if {"share", "nested-sessions"} <= race_terms(each, operates=True).features)
    verify_at(server.url, tmp_path, "--for", "5s", "--seed", seed, token=server.token)
    with open(tmp_path / "run.jsonl") as file:
        run = read_calls(file)
    lives = lives_of(run, Families(run), []).values()
    assert sum(any(life.sure()) for life in lives) > 0.8 * len(lives) > 16
    assert max(call.ttl for call in run if call.session) <= 3  # who died in a session is in nobody's way for longer


@pytest.mark.fault("F-728")
def test_a_disk_that_gets_full_ends_the_race_and_leaves_a_record(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 900_000)
    url = f"sqlite://{tmp_path}/store.db"
    record = str(small_disk / "run.jsonl")
    done = dibs_here(clean_env(tmp_path), tmp_path, "verify", url, "--for", "60s", "--record", record)
    assert (done.returncode, "cannot be written (No space left" in done.stderr) == (64, True), done
    assert "Traceback" not in done.stderr
    assert '"call": "claim"' in (small_disk / "run.jsonl").read_text()
    judged = dibs_here(clean_env(tmp_path), tmp_path, "verify", "--judge", record)
    assert ", 0 violations" in judged.stdout


@pytest.mark.fault("F-728")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_race_that_is_interrupted_leaves_a_record_and_says_so(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    words = ("verify", f"sqlite://{tmp_path}/store.db", "--record", str(record))
    with subprocess.Popen([*DIBS, *words], env=clean_env(tmp_path), stderr=subprocess.PIPE, text=True) as race:
        wait_until(lambda: record.exists() and record.stat().st_size > 20_000, "there is something in the record")
        race.send_signal(number)
        said = race.communicate(timeout=WAIT_S_MAX)[1]
    assert race.returncode == code
    assert f"dibs verify --judge {record}" in said
    judged = dibs_here(clean_env(tmp_path), tmp_path, "verify", "--judge", str(record))
    assert ", 0 violations" in judged.stdout


def test_a_server_is_paused_and_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        found = verify(tmp_path, "--for", "6s", "--clients", "1", "--pause", str(server.pid), "--seed", "1")
        server.communicate(b"\n", timeout=WAIT_S_MAX)
    assert server.returncode == 0
    assert found["faults"] >= 1


def test_a_server_is_killed_and_started_again(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as server:
        words = ("--kill", str(server.pid), "--restart", f"echo $$ >> {tmp_path}/restarts; exec sleep 60")
        found = verify(tmp_path, "--for", "6s", "--clients", "1", *words, "--seed", "1")
        assert server.wait(WAIT_S_MAX) == -signal.SIGKILL
    started = [int(line) for line in (tmp_path / "restarts").read_text().split()]
    os.kill(started[-1], signal.SIGKILL)
    assert len(started) == found["faults"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--through", "pigeon"), "http, sdk, cli"),
        (("--seed", "a b"), "A namespace is"),
        (("--pause", "1"), "1 is not the id of a process"),
        (("--pause", "x,12"), "x is not the id of a process"),
        (("--kill", "999999999", "--restart", "true"), "Process 999999999 cannot be"),
        (("--restart", "true"), "--kill PID and --restart COMMAND go together"),
    ],
)
def test_what_cannot_be_is_reported_before_anybody_races(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = dibs_here(clean_env(tmp_path), tmp_path, "verify", f"sqlite://{tmp_path}/store.db", *words)
    assert done.returncode == 64
    assert says in done.stderr
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_record_is_judged_again(tmp_path: Path) -> None:
    verify(tmp_path, "--for", "1s")
    done = dibs_here(clean_env(tmp_path), tmp_path, "verify", "--judge", "run.jsonl")
    assert done.returncode in (0, UNPROVED)
    assert ", 0 violations\n  grants " in done.stdout
    assert "The record is run.jsonl.\n" in done.stdout


def test_a_record_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("")
    url = f"sqlite://{tmp_path}/store.db"
    done = dibs_here(clean_env(tmp_path), tmp_path, "verify", url, "--record", "run.jsonl")
    assert done.returncode == 64
    assert "--record" in done.stderr


# Servers with one wrong rule each.


def before(change: Callable[[LockRecord, Any], LockRecord]) -> Callable[[Rule], Rule]:
    """The rule, with a job that was changed under it."""

    def make(rule: Rule) -> Rule:
        def wrong(draft: Draft, command: Any) -> Outcome | Ticket:
            lock = draft.lock(command.ns, command.name)
            changed = change(lock, command)
            if changed is not lock:
                draft.put(changed)
            return rule(draft, command)

        return wrong

    return make


def in_vain(rule: Rule) -> Rule:
    def wrong(draft: Draft, command: Any) -> Outcome | Ticket:
        outcome = rule(draft, command)
        draft.discard()
        return outcome

    return wrong


def sees_nobody(rule: Rule) -> Rule:
    def wrong(draft: Draft, command: Any) -> Outcome | Ticket:
        outcome = rule(draft, command)
        return outcome.replace(lock=outcome.lock.replace(holders=())) if isinstance(outcome, Status) else outcome

    return wrong


def hurried(lock: LockRecord, command: object) -> LockRecord:
    early = [
        each.replace(renewed_ms=each.renewed_ms - 1500, expires_ms=each.expires_ms - 1500) for each in lock.holders
    ]
    return lock.replace(holders=tuple(early)) if early else lock


def anybody(lock: LockRecord, command: Any) -> LockRecord:
    if command.lease_id is None:  # it names its session instead
        return lock
    taken = [each.replace(lease_id=command.lease_id) for each in lock.holders]
    return lock.replace(holders=tuple(taken)) if taken else lock


WRONG: dict[str, tuple[type[Any], Callable[[Rule], Rule]]] = {
    "a claim does not see who has the job": (Acquire, before(lambda lock, _: lock.replace(holders=()))),
    "fencing tokens begin again": (Acquire, before(lambda lock, _: lock.replace(token=0) if lock.token > 3 else lock)),
    "a claim forgets the keys of those before": (Acquire, before(lambda lock, _: lock.replace(endings=()))),
    "a claim forgets who waits": (Acquire, before(lambda lock, _: lock.replace(line=(), marks=""))),
    "leases end early": (Acquire, before(hurried)),
    "a renewal takes any lease id": (Renew, before(anybody)),
    "a renewal is not written": (Renew, in_vain),
    "a release is not written": (Release, in_vain),
    "a look sees nobody": (Inspect, sees_nobody),
}


# These need a lease that runs out, or a claim that comes again, and so more time.
RARE = ("fencing", "a claim forgets", "a renewal")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith(RARE) else []) for name in WRONG]
)
def test_a_rule_that_is_wrong_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, make = WRONG[name]
    put_rule(monkeypatch, kind, make)
    for turn in range(10):
        folder = tmp_path / str(turn)
        folder.mkdir()
        length = "8s" if name.startswith(RARE) else "2s"
        if verify(folder, "--for", length, "--seed", str(turn))["violations"]:
            return
    pytest.fail("it was not found in ten runs")


# Servers that lie, behind a proxy.


def seeds_for(plant: Plant, *, alone: bool = False) -> Iterator[str]:
    """Seeds whose races have what the lie is about. `alone`: no job has several owners."""
    several = {"share", "shared", "slots", "pools", "smaller-pools", "nested-sessions"}
    for number in range(10_000):
        features = race_terms(f"lie-{number}", operates=True).features
        if plant.features <= features and not (alone and features & several):
            yield f"lie-{number}"


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.fault("F-706") if "waiter" in name else ()) for name in PLANTS]
)
def test_a_server_that_lies_is_found(name: str, server: ServerProcess, proxy: Proxy, tmp_path: Path) -> None:
    plant = PLANTS[name]
    proxy.lie = plant.lie(Random(name))
    said: set[str] = set()
    for turn, seed in zip(range(10), seeds_for(plant), strict=False):
        folder = tmp_path / str(turn)
        folder.mkdir()
        found = verify_at(proxy.url, folder, "--for", "8s", "--seed", seed, token=server.token)
        said = {wrong["promise"] for wrong in found["violations"]}
        if said & set(plant.promises):
            return
    pytest.fail(f"it was not found in ten runs; the last said {said}")


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in PLANTS if PLANTS[name].is_seen_alone])
def test_porcupine_finds_it_too(name: str, server: ServerProcess, proxy: Proxy, porcupine: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    proxy.lie = plant.lie(Random(name))
    said = b""
    for turn, seed in zip(range(5), seeds_for(plant, alone=True), strict=False):
        folder = tmp_path / str(turn)
        folder.mkdir()
        verify_at(proxy.url, folder, "--for", "8s", "--seed", seed, token=server.token)
        judged = subprocess.run([porcupine, folder / "run.jsonl"], capture_output=True, timeout=WAIT_S_MAX, check=False)
        said = judged.stdout
        if judged.returncode == 1:
            return
    pytest.fail(f"it was not found in ten runs; the last said {said.decode()}")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_porcupine_does_not_blame_a_sound_server(
    seed: int, server: ServerProcess, porcupine: str, tmp_path: Path
) -> None:
    verify_at(server.url, tmp_path, "--for", "5s", "--seed", f"porcupine-{seed}", token=server.token)
    judged = subprocess.run([porcupine, tmp_path / "run.jsonl"], capture_output=True, timeout=WAIT_S_MAX, check=False)
    assert judged.returncode in (0, 2), judged.stdout


def test_a_server_whose_grants_nobody_can_use_is_named(server: ServerProcess, proxy: Proxy, tmp_path: Path) -> None:
    proxy.lie = gives_no_lease_id(Random(1))
    env = clean_env(tmp_path) | {"DIBS_TOKEN": server.token}
    done = dibs_here(env, tmp_path, "verify", proxy.url, "--for", "1s", "--record", "run.jsonl")
    assert done.returncode == UNPROVED, done.stdout + done.stderr
    assert f"times: {proxy.url} answered with JSON that is not from dibs" in done.stdout


@pytest.mark.parametrize(("times", "says"), [(1, "told once: away"), (2, "told 2 times: away")])
def test_how_often_clients_were_told_is_a_sentence(times: int, says: str, tmp_path: Path) -> None:
    call = {"client": "c", "call": "acquire", "job": "j", "began": 0, "ended": 1, "outcome": "refused", "says": "away"}
    lines = [json.dumps({"number": number, **call}) for number in range(times)]
    (tmp_path / "run.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    done = dibs_here(clean_env(tmp_path), tmp_path, "verify", "--judge", "run.jsonl")
    assert (done.returncode, says in done.stdout) == (UNPROVED, True), done.stdout + done.stderr


@pytest.mark.fault("F-705")
def test_a_server_that_grants_nothing_proves_nothing(server: ServerProcess, proxy: Proxy, tmp_path: Path) -> None:
    proxy.lie = grants_nothing(Random(1))
    env = clean_env(tmp_path) | {"DIBS_TOKEN": server.token}
    done = dibs_here(env, tmp_path, "verify", proxy.url, "--for", "1s", "--record", "run.jsonl")
    assert done.returncode == UNPROVED, done.stdout + done.stderr
    assert "0 violations" in done.stdout
    assert "It proves nothing about what never happened: grants, renewals" in done.stdout
    assert "times: It is away." in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_whatever_features_are_raced_a_sound_server_is_not_blamed(
    seed: int, server: ServerProcess, tmp_path: Path
) -> None:
    found = verify_at(server.url, tmp_path, "--for", "5s", "--seed", f"sound-{seed}", token=server.token)
    assert found["violations"] == []
    assert found["exercised"]["grants"] > 20
