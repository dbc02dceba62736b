"""The tools: names and descriptions. What they do is in `calls.py`.

Over stdio the server renews claims while the connection lives, and the lease id may be left out. Over HTTP nothing
watches the client: each call with the lease id renews the claim. Both have the same tool names and answers; the
differences are in the `loose` texts and arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dibs.agents import answers, arguments, calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dibs.agents.backend import ToolBackend

    Do = Callable[[ToolBackend, Any], Awaitable[answers.ToolAnswer]]

_KEPT = "Your claims are renewed while this connection lives, and released when it ends."
_LOOSE = (
    "Keep the lease_id: it proves the claim. The job stays yours for ttl_seconds (default 15 minutes) after "
    "your last call with the lease_id; heartbeat_job and get_job_owner with it renew the claim."
)


@dataclass(frozen=True)
class Tool:
    """`destructive`: it ends something that others see. `idempotent`: a repeated call changes nothing."""

    name: str
    title: str
    about: str
    takes: type[arguments.ToolArguments]
    takes_loose: type[arguments.ToolArguments]
    gives: type[answers.ToolAnswer]
    do: Do
    reads: bool = False
    renews_loose: bool = False  # it only reads, but over HTTP a call with the lease id renews the lease
    destructive: bool = False
    idempotent: bool = True
    about_kept: str = ""
    about_loose: str = ""

    def description(self, *, kept: bool) -> str:
        return " ".join(part for part in (self.about, self.about_kept if kept else self.about_loose) if part)

    def arguments_class(self, *, kept: bool) -> type[arguments.ToolArguments]:
        return self.takes if kept else self.takes_loose


TOOLS = (
    Tool(
        "claim_job",
        "Claim a job",
        "Claim a job before you begin work that only one agent may do at a time. If somebody has it, the "
        "answer is claimed=false, status=held, with the owner, since when and its last sign of life: skip it, or "
        "call again with wait_seconds to wait in line, first come first served. status=done: it was finished, and "
        "the answer has the result: skip it. If you take over from an owner that was lost, previous has its last "
        "checkpoint.",
        arguments.ClaimJob,
        arguments.LooseClaimJob,
        answers.ClaimAnswer,
        calls.claim_job,
        about_kept=f"{_KEPT} Claiming a job that you have is answered with the same claim.",
        about_loose=f"{_LOOSE} A repeated call is a second claim, and is refused, unless it has the same request_key.",
    ),
    Tool(
        "claim_any_job",
        "Claim the first free job of several",
        "Claim the first free one of several jobs, in one atomic step. Use it to pick work from a backlog "
        "that other agents share. The answer says which job is yours. If none is free, the answer is "
        "claimed=false with one entry in refused for each job. status=held: others have those that are not done; "
        "wait_seconds tries again, or stop and say so. status=done: all are done.",
        arguments.ClaimAnyJob,
        arguments.LooseClaimAnyJob,
        answers.ClaimAnswer,
        calls.claim_any_job,
        idempotent=False,
        about_kept=f"{_KEPT} Jobs that you have are skipped.",
        about_loose="Keep the lease_id and renew the claim, as with claim_job.",
    ),
    Tool(
        "claim_all_jobs",
        "Claim several jobs together",
        "Claim all of several jobs or none, in one atomic step, such as the files of one change. With "
        "wait_seconds it waits in line for all of them and holds none meanwhile, so it cannot deadlock. Release each.",
        arguments.ClaimAllJobs,
        arguments.LooseClaimAllJobs,
        answers.ClaimAnswer,
        calls.claim_all_jobs,
        idempotent=False,
        about_kept=_KEPT,
        about_loose="One lease_id proves them all. Otherwise as claim_job.",
    ),
    Tool(
        "heartbeat_job",
        "Record your progress",
        "Store a checkpoint for the next owner, and check that the job is still yours. If yours=false, stop "
        "the work at once: somebody else may have begun it.",
        arguments.HeartbeatJob,
        arguments.LooseHeartbeatJob,
        answers.HeartbeatAnswer,
        calls.heartbeat_job,
        about_kept="You need it only to store progress: the claim is renewed without it.",
        about_loose="It renews the lease: call it well before expires_in_seconds is over.",
    ),
    Tool(
        "release_job",
        "Release a job",
        "Release a job when you are finished with it. With done=true it is marked as done for a day "
        "(done_seconds): later claims get your result instead of the job. If the work failed, use failed=true"
        " with the reason: the next agent sees it, and nobody gets the job for retry_after_seconds. With "
        "neither, the next agent can have it at once. released=false means that the job was not yours any "
        "more.",
        arguments.ReleaseJob,
        arguments.LooseReleaseJob,
        answers.ReleaseAnswer,
        calls.release_job,
        destructive=True,
    ),
    Tool(
        "get_job_owner",
        "Who has a job",
        "The state of a job: its owner, since when, for how long, the checkpoint; or that it is free, or "
        "done, with the result. This claims nothing: somebody else may claim it before you act. To work on "
        "it, claim it.",
        arguments.GetJobOwner,
        arguments.LooseGetJobOwner,
        answers.JobAnswer,
        calls.get_job_owner,
        reads=True,
        renews_loose=True,
        about_loose="With your lease_id it also renews your lease.",
    ),
    Tool(
        "list_claimed_jobs",
        "List claimed jobs",
        "All jobs that are held now, with owner, time and checkpoint. Jobs that are free or done are not "
        "listed.",
        arguments.ListClaimedJobs,
        arguments.ListClaimedJobs,
        answers.JobsAnswer,
        calls.list_claimed_jobs,
        reads=True,
    ),
    Tool(
        "wait_for_job",
        "Wait until nobody has a job",
        "Wait until nobody has a job, for instance because your work needs its result. Claims nothing and "
        "takes no place in line: to get the job itself, use claim_job with wait_seconds. After wait_seconds "
        "it returns status held if somebody still has the job; call it again to continue.",
        arguments.WaitForJob,
        arguments.WaitForJob,
        answers.JobAnswer,
        calls.wait_for_job,
        reads=True,
    ),
    Tool(
        "hand_over_job",
        "Hand over a job",
        "Give a job you hold to another agent, in one atomic step. The answer has a new lease_id: pass it to "
        "that agent as proof of its claim. Stop working on the job. If anybody may take it, use release_job "
        "instead. handed_over=false: the job was not yours.",
        arguments.HandOverJob,
        arguments.LooseHandOverJob,
        answers.HandOverAnswer,
        calls.hand_over_job,
        destructive=True,
        idempotent=False,
    ),
)
