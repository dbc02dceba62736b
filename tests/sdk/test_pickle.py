"""What crosses a process: every exception of dibs, and every value. A handle does not, and says so."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.base import errors
from dibs.sdk.answers import not_claimed
from tests.programs import WAIT_S_MAX
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.client import Client

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in PROTOCOLS),
]
# What a class takes, where it is not the sentence alone. A new class with other parameters fails the walk below.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "LeaseLost": ("job", 7, "it was broken."),
    "EventsGone": (3, 9),
    "StaleToken": ("job", 7, 8),
    "RequestRefused": ("refused", "a_code"),
    "HttpError": ("no", 418),
    "RateLimited": ("no", 500),
    "OctoStoreRefusal": ("conflict", "no"),
}
IN_ONE_PROCESS = {"RequestFailed"}  # ends a request, and has its reply


def every_kind() -> list[type[errors.DibsError]]:
    """Every class below the root, in any module that can be imported here."""
    import dibs as package

    for module in pkgutil.walk_packages(package.__path__, "dibs."):
        if "__main__" not in module.name:
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    found: list[type[errors.DibsError]] = []
    look = [errors.DibsError]
    while look:
        kind = look.pop()
        found.append(kind)
        look += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("dibs.") and kind.__name__ not in IN_ONE_PROCESS]


def made(kind: type[errors.DibsError]) -> errors.DibsError:
    sample = SAMPLES.get(kind.__name__, ("a sentence",))
    taken = inspect.signature(kind).parameters.values()
    needed = [each.name for each in taken if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    make: Callable[..., errors.DibsError] = kind
    error = make(*sample, **dict.fromkeys(needed, True))
    error.add_note("a note")
    error.__cause__ = OSError(2, "no such file", "name")
    error.__cause__.__cause__ = ValueError("not carried: nobody asks Python's own for theirs")
    return error


def shown(error: errors.DibsError) -> dict[str, str]:
    """All that a program can read of it."""
    fields = [name for name in dir(type(error)) if not hasattr(Exception, name) and not name.startswith("_")]
    values = {name: getattr(error, name) for name in ("args", "__cause__", *fields, *error.__dict__)}
    return {name: repr(value) for name, value in values.items()}


@pytest.mark.fault("F-340")
def test_every_exception_of_dibs_survives_pickle_and_copy_with_all_it_has() -> None:
    kinds = every_kind()
    public = {getattr(dibs, name) for name in dibs.__all__ if isinstance(getattr(dibs, name), type)}
    assert {kind for kind in public if issubclass(kind, BaseException)} <= set(kinds)
    assert set(SAMPLES) <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        error = made(kind)
        for way in WAYS:
            found = way(error)
            assert (type(found), str(found), shown(found)) == (kind, str(error), shown(error))


@pytest.mark.fault("F-340")
def test_a_refusal_keeps_the_answer_and_the_refusals_of_each_job() -> None:
    each = [{"name": "a", "code": "held", "owner": "bob", "retry_after_ms": 500}, {"name": "b", "code": "done"}]
    error = not_claimed({"code": "held", "refused": each, "retry_after_ms": 500})
    error.__cause__ = dibs.LeaseLost("job", 7, "it was broken.")
    for way in WAYS:
        found = way(error)
        assert isinstance(found, dibs.NoneFree)
        assert (found.retry_after, found.answer) == (0.5, error.answer)
        assert [(type(one), one.name, one.owner) for one in found.refusals] == [
            (dibs.JobHeld, "a", "bob"),
            (dibs.JobDone, "b", None),
        ]
        assert isinstance(found.__cause__, dibs.LeaseLost)
        assert found.__cause__.fencing_token == 7


@pytest.mark.fault("F-340")
def test_a_cause_that_might_not_survive_stays_behind_and_the_error_goes() -> None:
    class Local(Exception):
        pass

    class Text(str):
        __slots__ = ()

    for cause in (Local(), OSError(object()), OSError(Text()), ExceptionGroup("several", [Local()])):
        error = dibs.LeaseLost("job", 7, "it was broken.")
        error.__cause__ = cause
        assert pickle.loads(pickle.dumps(error)).__cause__ is None
    circle = dibs.LeaseLost("job", 7, "it was broken.")
    circle.__cause__ = circle
    found = pickle.loads(pickle.dumps(circle))
    assert found.__cause__ is found


class Refined(dibs.LeaseLost):
    """A program's own, with parameters of its own."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"shard-{shard}", 1, "it was broken.")
        self.shard = shard


@pytest.mark.fault("F-340")
def test_a_class_that_a_program_derives_survives_too() -> None:
    for way in WAYS:
        assert (way(Refined(4)).shard, way(Refined(4)).name) == (4, "shard-4")


def _loses(number: int) -> int:
    if number == 1:
        raise dibs.LeaseLost("job", 7, "it was broken.")
    return number


@pytest.mark.fault("F-340")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_is_told_of_a_loss_in_its_worker(method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        with pytest.raises(dibs.LeaseLost) as lost:
            pool.map_async(_loses, range(3)).get(WAIT_S_MAX)
        assert (lost.value.name, lost.value.fencing_token, lost.value.why) == ("job", 7, "it was broken.")
        assert pool.apply_async(_loses, [2]).get(WAIT_S_MAX) == 2


@pytest.mark.fault("F-340")
def test_an_executor_of_processes_is_told_of_a_loss_and_goes_on() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(dibs.LeaseLost, match="job is not ours any more"):
            pool.submit(_loses, 1).result(WAIT_S_MAX)
        assert pool.submit(_loses, 2).result(WAIT_S_MAX) == 2


@over("memory")
def test_values_cross_and_handles_refuse_in_words(client: Client) -> None:
    async def handles_of_loops() -> list[object]:
        other = dibs.AsyncClient("memory://")
        async with other, other.claim("job") as claim, other.session() as session:
            return [other, claim, session, other.events(), dibs.AsyncLock("a")]

    with client.claim("job") as claim, client.session() as session, client.leader("e") as leader:
        for value in (claim.leases[0], client.owner("job"), *client.history("job"), client.overdue("job")):
            for way in WAYS:
                assert way(value) == value
        handles: list[object] = [client, claim, session, leader, client.events(), client.claim("x"), dibs.claim("x")]
        handles += [dibs.Lock("a"), dibs.RLock("a"), *asyncio.run(handles_of_loops())]
        for handle in handles:
            for way in WAYS:
                with pytest.raises(TypeError, match=f"{type(handle).__name__} cannot be pickled or copied"):
                    way(handle)
        claim.check()
