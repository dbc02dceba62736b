"""Commands take each job by its one name, and paths in the repository's namespace (`client/naming.py`)."""

from __future__ import annotations

import os

from dibs.base.cheap import Callable, Iterable
from dibs.base.checkout import current_folder
from dibs.base.errors import InvalidInput
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import session_of
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, combined, failure, is_failure
from dibs.client import naming as repositories
from dibs.client.flow import all_pages, drive, name_in_use
from dibs.client.transport import Ask, Transport
from dibs.core.names import DEFAULT_NAMESPACE, RESOURCES
from dibs.core.records import FREE, HELD, UNUSED
from dibs.wire.sentences import few

_KEYS = ("job", "name", "resource", "resource_flag", "prefix", "pattern")
# Commands that take job names: one, or each of several by itself; several in one step.
_ONE = frozenset(
    {
        "run",
        "claim",
        "hold",
        "heartbeat",
        "release",
        "transfer",
        "wait",
        "owner",
        "history",
        "overdue",
        "break",
        "free",
        "close",
        "open",
    }
)
_ONE |= {"pool set", "pool remove"}
_OF_WHAT_IS_THERE = frozenset(("owner", "history", "wait", "heartbeat", "release", "transfer", "break"))
_SEVERAL = frozenset(("claim-any", "claim-all"))
_PROVING = frozenset(("heartbeat", "once", "release", "transfer", "lock renew", "lock release"))
_FORKING = frozenset(("run", "hold"))  # these fork before they open their store


def settle(call: Call, names: Iterable[str] | None = None) -> None:
    """Use the repository's namespace for this call, if it names paths of a repository."""
    if call.said("namespace") is None:
        asked = _names(call) if names is None else list(names)
        found = _naming(call).namespace(asked)
        inside = {name for name in asked if name.startswith(RESOURCES)}
        of_run = inside == {call.env.get(repositories.RUN_JOB)}
        if inside and (found is None or (call.command in _PROVING and not of_run)):
            found = _held_in(call, inside, found, of_run=of_run, alone=len(inside) == len(set(asked)))
        if found is not None:
            call.fall_back_on({"namespace": found})


def _held_in(call: Call, names: set[str], here: str | None, *, of_run: bool, alone: bool) -> str | None:
    """The namespace in which the caller's session holds these names of a repository, else `here`. A claim stays what it
    is when its owner goes to another folder. But in another repository only a command that proves a claim can mean it:
    who claims or looks at a path there means a file that is there. `of_run`: the run around is meant, whoever asks."""
    try:
        session = call.env.get("DIBS_SESSION") if of_run else session_of(call)
        shown = call.ask("session-show", session, {}) if session else None
    finally:
        call.close_transport()  # its namespace is not settled yet, and a command may fork before the next
    holds = () if shown is None else (shown.body or {}).get("holds") or ()
    found = list(dict.fromkeys([hold["namespace"] for hold in holds if hold["name"] in names]))
    if not found or (here or DEFAULT_NAMESPACE) in found:
        return here
    if len(found) > 1 or not alone:
        raise UsageError(
            f"You hold {', '.join(sorted(names))} in namespace {' and '.join(found)}. Name one: --namespace."
        )
    return str(found[0])


def here(call: Call) -> str | None:
    """The namespace of the repository around the current folder; None outside of one."""
    return _naming(call).repository()


def _naming(call: Call) -> repositories.Namespaces:
    """The naming of a command without --namespace and DIBS_NAMESPACE. The user's file must not name a repository's
    namespace."""
    return repositories.Namespaces(None, None, call.env, current_folder(), "--namespace")


def tree_locks(call: Call, states: tuple[str, ...] = (HELD,)) -> list[Document]:
    """The live claims on resources of the repository around; none if this call names its namespace, or is in it."""
    is_settled = call.said("namespace") is not None or call.repository_namespace is not None
    namespace = None if is_settled else here(call)
    if namespace is None:
        return []
    transport = call.another_transport(namespace=namespace)
    try:
        return [
            {**lock, "namespace": namespace}
            for prefix in RESOURCES
            for lock in (drive(transport, all_pages(prefix, states)).body or {}).get("locks", ())
        ]
    finally:
        transport.close()


def _names(call: Call) -> list[str]:
    if call.command not in _ONE | _SEVERAL | {"list"} and not call.command.startswith("lock "):
        return []
    found: list[str] = []
    for key in _KEYS:
        value = call.values.get(key)
        found += [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return found


def shown(call: Call, answer: Answer) -> Answer:
    """The answer. It names the repository's namespace if that was used."""
    namespace = call.repository_namespace
    if namespace is None or answer.is_said:
        return answer
    answer.document = {**answer.document, "namespace": namespace}
    if answer.code == "forbidden" and namespace in answer.text:
        answer.text = answer.message = f"{answer.text} {repositories.BOUND_HINT.format(namespace)}"
    elif answer.text and not answer.is_error:
        label = "Namespace: " if call.command.startswith("lock ") else "namespace      "
        answer.text += f"\n  {label}{namespace}"
    return answer


def names_here(call: Call) -> repositories.Naming:
    return repositories.Naming(call.env, current_folder(), exact=bool(call.values.get("exact")))


def _use_files(call: Call) -> None:
    """Take `src/a.py` for the file, where a command is about what exists: somebody has the file, and no job of that
    name; or only the file is on record. If there are both, the job is meant, and the other one is named."""
    given = call.values.get("job")
    names: list[str] = [given] if isinstance(given, str) else list(given or ())
    maybe = [name for name in names if ":" not in name and ("/" in name or "." in name or os.path.lexists(name))]
    maybe = [name for name in maybe if name != call.env.get(repositories.RUN_JOB)]
    if not maybe or call.values.get("exact") or call.values.get("lease"):
        return
    try:
        place = call.said("namespace") or here(call)
        files = {name: names_here(call).of(f"path:./{name}") for name in maybe}
    except InvalidInput:  # of a repository whose settings are wrong: a job needs none
        return
    found = {} if place is None else _files_in_use(call, place, files)
    if found and len(found) == len(names):
        call.values = {**call.values, "job": found[given] if isinstance(given, str) else list(found.values())}
    elif found:
        call.complain(f"Files are named apart from jobs: {plain(few(list(found.values())))}.")


def _files_in_use(call: Call, place: str, files: dict[str, str]) -> dict[str, str]:
    """Those of the names that mean a file, with its name."""
    found: dict[str, str] = {}
    in_tree, jobs = call.another_transport(namespace=place), call.another_transport()
    try:
        for name, file in files.items():
            use, owner = _use_of(in_tree, file, call.command)
            of_job = _use_of(jobs, name, call.command)[0] if use else _UNKNOWN
            if use > of_job:
                found[name] = file
            elif use:
                call.complain(f"{plain(file)} is another one: {plain(owner)}. Write it so to mean the file.")
    finally:
        in_tree.close()
        jobs.close()
    return found


_UNKNOWN, _PAST, _IN_USE = range(3)


def _use_of(transport: Transport, name: str, command: str) -> tuple[int, str]:
    """Return whether a name is in use or was, and by whom. History asks no more than whether it is on record."""
    body = transport.ask(Ask("inspect", name)).body or {}
    last = body.get("previous") or body.get("done") or {}
    owner = str(body.get("owner") or last.get("owner") or "nobody")
    is_unused = body.get("status", FREE) in UNUSED
    if "code" in body or (is_unused and not last):
        return _UNKNOWN, owner
    return (_PAST if is_unused or command == "history" else _IN_USE), owner


def use_one_names(call: Call) -> None:
    """Put the one names into the place of those that were written, and settle the namespace. `call.written` keeps how
    they were written: a name that is in use as it was written is meant as it was written. Several jobs in one step are
    taken by their one names: looking each of them up first would be more than one step."""
    if call.command in _OF_WHAT_IS_THERE:
        _use_files(call)
    if call.command in _ONE | _SEVERAL | {"git push"}:
        for key in ("job", "name"):
            given = call.values.get(key)
            if isinstance(given, str):
                call.values = {**call.values, key: one_names(call, [given])[0]}
            elif isinstance(given, list):
                call.values = {**call.values, key: one_names(call, given)}
    settle(call)
    if not call.written or call.command not in _ONE:
        return
    job = call.values["job"]
    names = job if isinstance(job, list) else [job]
    transport = call.another_transport() if call.command in _FORKING else call.transport()
    try:
        used = [drive(transport, name_in_use(name, call.written.get(name))) for name in names]
    finally:
        if call.command in _FORKING:
            transport.close()
    call.values = {**call.values, "job": used if isinstance(job, list) else used[0]}


def one_names(call: Call, given: Iterable[str]) -> list[str]:
    names = names_here(call)
    found = [(names.of(written), written) for written in given]
    call.written |= {name: written for name, written in found if name != written}
    return [name for name, _ in found]


def or_in_checkout(call: Call, body: Document, ask: Callable[[str], Document]) -> Document:
    """The state of a job. A file that nobody has for everybody may be an agent's in this work tree, because an agent in
    another one had it first: then its state is that. `ask` gives the state of a name."""
    name = str(body.get("name"))
    if not name.startswith("path:") or body.get("status") == HELD or body.get("overlapping"):
        return body
    around = names_here(call).around()
    twin = None if around is None else around.in_checkout(name)
    found = {} if twin is None else ask(twin)
    return found if found.get("status") == HELD or found.get("overlapping") else body


def each_job(call: Call, verb: str, document: Document, said: Callable[[Call, Document], Answer]) -> Answer:
    """Ask the same of each job of the command. `said` is what a reply becomes that is no error."""
    answers = []
    for name in call.values["job"]:
        reply = call.ask(verb, name, document)
        answers.append((name, failure(reply) if is_failure(reply) else said(call, reply.body or {})))
    return combined(answers)
