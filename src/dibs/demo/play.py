"""The demo from its first to its last moment: start the workers, let them race, kill one, listen until all is done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import dibs
from dibs.clock import steady_ms
from dibs.demo import ledger
from dibs.demo.outcome import outcome_of
from dibs.demo.plan import TTL_SECONDS
from dibs.demo.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.demo.outcome import DemoResult
    from dibs.demo.plan import DemoPlan
    from dibs.demo.screen import Screen
    from dibs.demo.show import Show
    from dibs.demo.story import Story

    Document = dict[str, Any]

FRAME_MS = 100
# Time between a worker's last checkpoint and its kill, so that viewers see it in the middle of a step.
KILL_AFTER_MS = 700
# More than start, kill and takeover need on a busy machine. The work itself comes on top.
PATIENCE_MS = 40_000


class Play:
    """One run. `folder` holds the ledger and the workers' standard error."""

    def __init__(self, story: Story, screen: Screen, show: Show, folder: str) -> None:
        self._story = story
        self._screen = screen
        self._show = show
        self._folder = folder
        self._ledger = os.path.join(folder, "ledger")
        self._began_ms = self._shot_ms = steady_ms()
        self._kill_ms: int | None = None
        self._drawn_ms = 0

    def run(self, env: Mapping[str, str]) -> DemoResult:
        """Start, race, end. The outcome names what went wrong."""
        plan = self._story.plan
        give_up_ms = self._began_ms + PATIENCE_MS + plan.work_ms
        troubles = []
        with Stage(plan.workers, env, self._folder) as stage, self._show:
            if self._gathered(stage, give_up_ms):
                self._shot_ms = steady_ms()
                stage.go(orders_of(plan, self._ledger))
                while not self._story.over and steady_ms() < give_up_ms:
                    self._listen(stage)
                    self._perhaps_kill(stage)
            if not self._story.over:
                troubles.append("It took too long and was ended.")
            elapsed_ms = steady_ms() - self._shot_ms
        return outcome_of(self._story, ledger.read(self._ledger), elapsed_ms, troubles)

    def _gathered(self, stage: Stage, give_up_ms: int) -> bool:
        """Wait until all workers are ready, so that they start together. False: a worker did not start."""
        while not self._story.all_ready:
            self._listen(stage)
            if self._story.troubles or steady_ms() >= give_up_ms:
                return False
        return True

    def _listen(self, stage: Stage) -> None:
        """Shows each event at once. Without events, redraws the board as often as eyes can follow."""
        lines: list[str] = []
        for name, event in stage.listen(FRAME_MS):
            entry = self._story.hear(name, event, event["at_ms"] - self._shot_ms)
            lines += self._screen.entry(entry) if entry is not None else []
        self._tell(lines)

    def _tell(self, lines: list[str]) -> None:
        now_ms = self._now_ms()
        if lines or now_ms - self._drawn_ms >= FRAME_MS:
            self._drawn_ms = now_ms
            self._show.put(lines, self._screen.board(now_ms))

    def _now_ms(self) -> int:
        """Milliseconds since the starting shot."""
        return steady_ms() - self._shot_ms

    def _perhaps_kill(self, stage: Stage) -> None:
        name = self._story.ripe
        if name is None:
            return
        if self._kill_ms is None:
            self._kill_ms = self._now_ms() + KILL_AFTER_MS
        if self._now_ms() >= self._kill_ms:
            self._tell(self._screen.entry(self._story.kill(name, stage.kill(name), self._now_ms())))


def orders_of(plan: DemoPlan, ledger_path: str) -> Document:
    """The order that every worker gets."""
    jobs = [
        {"name": job.name, "paces_ms": job.paces_ms, "fatal": index == plan.fatal}
        for index, job in enumerate(plan.jobs)
    ]
    return {"jobs": jobs, "ttl": TTL_SECONDS, "ledger": ledger_path}


def tidied(client: dibs.Client, plan: DemoPlan) -> bool:
    """Remove the done marks. False if something is left: a claim that is left ends with its TTL."""
    clean = True
    for job in plan.jobs:
        try:
            with client.claim(job.name, ttl=TTL_SECONDS, again=True):
                pass
        except dibs.NotClaimed:
            clean = False
        except dibs.DibsError:  # the server does not answer: do not ask for the other jobs
            return False
    return clean
