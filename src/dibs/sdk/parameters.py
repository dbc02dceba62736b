"""The meanings of the SDK's parameters. `explained` adds them to a function's help."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.errors import InvalidInput, InvalidName
from dibs.wire.request_fields import parameter_texts

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

MEANINGS = {
    # What is also a field of a request. Where a claim and another request have the same, it is said of the claim.
    **parameter_texts("transfer"),
    **parameter_texts("acquire"),
    **parameter_texts("release"),
    # What only the SDK has.
    "name": "the job: any printable text, up to 512 bytes",
    "names": "several jobs",
    "job_id": "the job: any printable text, up to 512 bytes",
    "on_lost": "called once with the LeaseLost, in the thread that notices it first",
    "fail_on_error": "a block that raises counts as failed, which counts as an attempt; False: it releases the job",
    "prefix": "only jobs whose names begin with this",
    "limit": "how many at most",
    "since": "only events after that `seq`",
    "url": "of a server or a store; without it DIBS_URL, else your own store on this machine",
    "token": "the server's token; without it DIBS_TOKEN or DIBS_TOKEN_FILE",
    "namespace": "jobs of another namespace are other jobs; without it DIBS_NAMESPACE",
    "exact": "take names as they are written, byte for byte",
    "timeout": "how long one call may take, in addition to waiting in line",
    "skip": "return None instead of raising JobHeld or JobDone",
    "client": "the client to use; without it the one that the environment names",
    "handle": "the open connection, the session, or the key-value store",
    "table": "where a database keeps the tokens; `create()` makes it",
    "blocking": "whether to wait at all",
}
_FENCED = {
    "claim": "gives names and tokens",
    "name": "which job of a claim on several; without a claim, the job",
    "token": "without a claim: the fencing token",
}
# Parameters that mean something else in a few functions.
_OTHERWISE = {
    "acquire": {"timeout": "how long to wait in line, in seconds; -1 is for ever"},
    **dict.fromkeys(("admit", "transaction"), _FENCED),
    "break_claim": parameter_texts("break"),
    "exclusive": {"name": "the job, or a function of the arguments that gives it"},
}


def name_given(name: object) -> str:
    """A job's name as a program gives it. Whether it is text is asked here, because compiled functions refuse the rest
    with a TypeError of their own. What the text may be is checked where it is used."""
    if not isinstance(name, str):
        raise InvalidName(f"A job name is text; this is {name!r:.80}.")
    return name


def prefix_given(prefix: object) -> str:
    if not isinstance(prefix, str | None):
        raise InvalidInput(f"prefix is text; this is {prefix!r:.80}.")
    return prefix or ""


def explained(function: F) -> F:
    """Add the meanings of its parameters to a function's docstring, so that `help()` shows them."""
    names = inspect.signature(function).parameters
    words = {**MEANINGS, **_OTHERWISE.get(function.__name__, {})}
    known = [name for name in names if name in words]
    width = max((len(name) for name in known), default=0)
    lines = "\n".join(f"    {name:<{width}}  {words[name]}" for name in known)
    about = f"{function.__doc__}\n\n" if function.__doc__ else ""
    function.__doc__ = f"{about}{lines}\n"
    return function
