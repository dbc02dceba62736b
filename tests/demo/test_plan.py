from __future__ import annotations

import pytest

from dibs.core.names import check_name
from dibs.demo.plan import STEPS, checkpoint_of, plan_of, steps_in


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    assert plan_of(8, 5, seed=3) == plan_of(8, 5, seed=3)
    assert plan_of(8, 5, seed=3).jobs != plan_of(8, 5, seed=4).jobs


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("jobs", "workers"), [(1, 2), (8, 5), (50, 20)])
def test_jobs_are_distinct_and_the_one_that_kills_is_claimed_in_the_first_round(
    seed: int, jobs: int, workers: int
) -> None:
    plan = plan_of(jobs, workers, seed, "dibs-demo-x/")
    assert len({job.name for job in plan.jobs}) == len({job.label for job in plan.jobs}) == jobs
    assert 0 <= plan.fatal < min(jobs, workers)
    for job in plan.jobs:
        check_name(job.name)
        assert job.name.startswith("dibs-demo-x/github://acme/app/issues/")
        assert len(job.paces_ms) == len(STEPS)


def test_a_checkpoint_says_how_many_steps_are_done() -> None:
    assert [steps_in(checkpoint_of(step)) for step in range(1, len(STEPS) + 1)] == [1, 2, 3, 4, 5]
    assert steps_in(None) == 0
