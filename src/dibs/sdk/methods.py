"""Methods of both faces, whose parameters are written once: where the question is asked (`operations.py`), or where
what they ask for is made (`claims.py`, `claim_state.py`). Type checkers follow them through
`ParamSpec`; `help()` and `inspect.signature` get them from here."""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, ParamSpec, TypeVar
from dibs.base.errors import InvalidInput, InvalidName
from dibs.client.flow import Flow, Work, name_in_use
from dibs.wire.issue_names import is_plain
from dibs.wire.parameter_texts import PARAMETER_TEXTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import Signature
    from typing import Concatenate

# The meanings of the SDK's parameters. `explained` adds them to a function's help.

F = TypeVar("F", bound="Callable[..., Any]")

MEANINGS = {
    # What is also a field of a request. Where a claim and another request have the same, it is said of the claim.
    **PARAMETER_TEXTS["transfer"],
    **PARAMETER_TEXTS["acquire"],
    **PARAMETER_TEXTS["release"],
    "count": PARAMETER_TEXTS["acquire-any"]["count"],
    # What only the SDK has.
    "name": "the job: any printable text, up to 512 bytes",
    "names": "several jobs",
    "job_id": "the job: any printable text, up to 512 bytes",
    "on_lost": "called once with the LeaseLost, in the thread that notices it first",
    "fail_on_error": "a block that raises counts as failed, which counts as an attempt; False: it releases the job",
    "nested": "inside a block of this thread or task that has the job: the same lease, until the last of them ends",
    "prefix": "only jobs whose names begin with this",
    "limit": "how many at most",
    "within": "how long ago the last success may be; a day by default",
    "since": "only events after that `seq`",
    "url": "of a server or a store; without it DIBS_URL, else your own store on this machine",
    "context": "a server that `dibs login` saved under this name, with its token; without it DIBS_CONTEXT",
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
    "break_claim": PARAMETER_TEXTS["break"],
    "close_job": {
        **PARAMETER_TEXTS["close"],
        "duration": 'for how long: seconds, text such as "2m" or a timedelta; or',
        "until": "when it ends: a datetime with a time zone",
    },
    "exclusive": {"name": "the job, or a function of the arguments that gives it"},
}


class Handle:
    """An object that belongs to the process that made it: connections, deadlines, heartbeats. A copy would believe that
    it has the job, too."""

    _instead = "Make another one where it is needed."

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied. {self._instead}")


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
    return _explained(function, _parameters(function))


def _explained(function: F, names: tuple[str, ...]) -> F:
    words = {**MEANINGS, **_OTHERWISE.get(function.__name__, {})}
    known = [name for name in names if name in words]
    width = max([len(name) for name in known], default=0)
    lines = "\n".join([f"    {name:<{width}}  {words[name]}" for name in known])
    about = f"{function.__doc__}\n\n" if function.__doc__ else ""
    function.__doc__ = f"{about}{lines}\n"
    return function


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of its parameters, without `inspect`, which takes as long to import as Python takes to start."""
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names


G = TypeVar("G")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Wrapped:
    """The end of a function that takes the parameters of another one: `inspect` asks it for the signature. `self_first`
    is whether its own first parameter is `self`: True adds one, False leaves the other's out."""

    def __init__(self, other: Callable[..., Any], *, self_first: bool | None = None) -> None:
        self.__wrapped__ = other  # whose source it is
        self._self_first = self_first

    @property
    def __signature__(self) -> Signature:
        from inspect import Parameter, Signature, signature

        found = signature(self.__wrapped__)
        if self._self_first is None:
            return found
        parameters = list(found.parameters.values())
        first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        return Signature([first, *parameters] if self._self_first else parameters[1:])


def named(flow: Callable[..., Flow[T]]) -> Callable[..., Flow[T]]:
    """The flow of a client, with the job under its one name, or as it was written if it is in use so."""
    is_of_job = _parameters(flow)[:1] == ("name",)

    def named_flow(client: Any, *args: Any, **named: Any) -> Flow[T]:
        written = args[0] if args else named.get("name")
        if is_of_job and (args or "name" in named):
            name_given(written)
        if not is_of_job or is_plain(written):
            return flow(*args, **named)
        rest = {key: value for key, value in named.items() if key != "name"}

        def spelled() -> Flow[T]:
            one = yield Work(lambda: client._one_name(written))
            name = yield from name_in_use(one, written)
            return (yield from flow(name, *args[1:], **rest))

        return spelled()

    return named_flow


def asks(name: str, flow: Callable[P, Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method of `Client`."""
    named_flow = named(flow)

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._run(named_flow(self, *args, **kwargs))
        return answer

    return described_as(method, name, flow)


def given(
    made: Callable[Concatenate[Any, P], G],
) -> Callable[[Callable[[Any, G], R]], Callable[Concatenate[Any, P], R]]:
    """A decorator: the method takes what `made` takes, by its name without the underscore, and is given its result."""

    def described(method: Callable[[Any, G], R]) -> Callable[Concatenate[Any, P], R]:
        def bound(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, made(self, *args, **kwargs))

        return _documented(bound, made.__name__.removeprefix("_"), Wrapped(made))

    return described


def takes_like(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A decorator: the function takes what `method` takes, and is given it by name. `method` has one parameter that
    may be given by its place and that must be given, the first."""
    _, first, *others = _parameters(method)
    known = {first, *others}

    def described(function: Callable[..., R]) -> Callable[P, R]:
        wrapped = Wrapped(method, self_first=False)

        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = {first: args[0], **kwargs} if args else kwargs
            if len(args) > 1 or (args and first in kwargs) or first not in given or not given.keys() <= known:
                wrapped.__signature__.bind(*args, **kwargs)  # raises what Python says of such a call
            return function(**given)

        bound.__module__ = function.__module__
        bound.__doc__ = function.__doc__
        return _documented(bound, function.__name__, wrapped)

    return described


def described_as(method: F, name: str, flow: Callable[..., Any]) -> F:
    return _documented(method, name, Wrapped(flow, self_first=True))


def _documented(function: F, name: str, wrapped: Wrapped) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = function.__doc__ or wrapped.__wrapped__.__doc__ or ""
    function.__wrapped__ = wrapped  # type: ignore[attr-defined]  # what inspect looks for
    return _explained(function, _parameters(wrapped.__wrapped__))
