"""agents: who is at work, where, on what."""

from __future__ import annotations

from dibs.base.cheap import Any
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import count
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import WIDE, Command, Option
from dibs.cli.text.listing import sheet
from dibs.cli.text.words import Paint, ago, plain, shell_line, short, span
from dibs.core.limits import AGENTS_PAGE_MAX
from dibs.wire.sentences import few

_ALIVE, _GONE = "alive", "gone"
_CELL_CHARS_MAX = 60
_LEAST = {"WORK TREE": 8, "FILES": 10, "WAITS FOR": 10, "LAST": 8, "AGENT": 12}
_LEAVES = ("SINCE", "BRANCH", "CLIENT", "WAITS FOR", "WORK TREE")


def agents(call: Call) -> Answer:
    if call.values.get("watch"):
        from dibs.cli.commands.list import look_again

        before: dict[str, list[object]] = {}
        return look_again(call, lambda: _read(call), lambda found: _say_changes(call, found, before))
    found = _read(call)
    quiet = "\n".join([plain(each["name"]) for each in found["agents"]])
    text = agents_text(found, call.paint, call.width, is_wide=bool(call.values.get("wide")))
    return yes(found, text, quiet=quiet)


def _say_changes(call: Call, found: Document, before: dict[str, list[object]]) -> bool:
    """A row for each agent that is new or has changed, but for the times. False if nobody reads it."""
    new = []
    for agent in found["agents"]:
        seen = [value for name, value in agent.items() if name not in ("idle_ms", "open_ms")]
        if before.get(agent["session"]) != seen:
            before[agent["session"]] = seen
            new.append(agent)
    if not new:
        return True
    lines = agents_text({**found, "agents": new, "next": None}, Paint(), None, is_wide=True).split("\n")[1:]
    if call.values.get("quiet"):
        lines = [plain(agent["name"]) for agent in new]
    return call.say(lines, new)


def _read(call: Call) -> Document:
    """The page that was asked for; without --limit, all of them as one."""
    wanted = count(call, "limit", AGENTS_PAGE_MAX)
    asked: Document = {"limit": wanted or AGENTS_PAGE_MAX, "after": call.values.get("after") or ""}
    if call.values.get("all"):
        asked["ended"] = "true"
    body = call.body("agents", "", asked)
    while wanted is None and body["next"]:
        more = call.body("agents", "", {**asked, "after": body["next"]})
        body = {**more, "agents": [*body["agents"], *more["agents"]]}
    return body


def agents_text(document: Document, paint: Paint, width: int | None, *, is_wide: bool) -> str:
    found: list[Document] = document["agents"]
    if not found:
        return "No agent is at work."
    several = len({each["host"] for each in found}) > 1
    heads = ("AGENT", "CLIENT", "STATE", "WORK TREE", "BRANCH", "ISSUE", "FILES", "WAITS FOR", "LAST", "SINCE")
    names = {each["name"] for each in found}
    rows = [heads, *[_row(each, several=several, is_below=each["parent"] in names) for each in found]]
    kept = [at for at, head in enumerate(heads) if is_wide or at == 0 or any(row[at] != "-" for row in rows[1:])]
    lines = sheet([tuple([row[at] for at in kept]) for row in rows], paint, width, _LEAST, _LEAVES)
    painted = [
        line if each["state"] == _ALIVE else paint.faint(line) for line, each in zip(lines[1:], found, strict=True)
    ]
    lines = [lines[0], *painted]
    if document["next"]:
        lines.append(paint.faint(f"More follow: {shell_line(('--after', document['next']))}"))
    return "\n".join(lines)


def _row(agent: Document, *, several: bool, is_below: bool) -> tuple[str, ...]:
    """The cells of one agent. `is_below`: it is a subagent whose agent is shown."""
    host = f"{agent['host']}:" if several and agent["host"] else ""
    name = agent["name"]
    if is_below and name.startswith(f"{agent['parent']}/"):
        name = f"  {name[len(agent['parent']) :]}"
    state = plain(agent["state"])
    if agent["waiting"]:
        state += f", {agent['waiting']} wait"
    action = agent["action"] or ""
    last = f"{action}, {ago(agent['idle_ms'])}" if action else ago(agent["idle_ms"])
    return (
        plain(name),
        _cell(agent["client"]),
        state,
        _cell(f"{host}{agent['work_tree']}" if agent["work_tree"] else None),
        _cell(agent["branch"]),
        _names([*agent["jobs"], *agent["holds"]], 2),
        _files(agent),
        _names(agent["waits"], 2),
        short(plain(last), _CELL_CHARS_MAX),
        span(agent["open_ms"]) if agent["open_ms"] >= 1000 else "0s",
    )


def _files(agent: Document) -> str:
    left = agent["file_count"] - len(agent["files"])
    return _names([*agent["files"], *[""] * left], 2)


def _names(names: list[str], most: int) -> str:
    return short(few([plain(name) for name in names], most), _CELL_CHARS_MAX) or "-"


def _cell(value: Any) -> str:
    return short(plain(value), _CELL_CHARS_MAX) if value else "-"


COMMANDS = {
    "agents": Command(
        agents,
        Option("--all", "also those that have ended properly"),
        WIDE,
        Option("--watch", "go on, and show each agent anew that changes"),
        Option("--for TIME", "with --watch: stop after this long"),
        Option("--limit N", "one page of this many"),
        Option("--after PLACE", "go on where the last page ended"),
        about=(
            "One row for each coding agent: its client, whether it is alive, its work tree and branch, the issue "
            "and the files that it has, what it waits for, what it did last, and for how long it has been there. A "
            "subagent is below its agent. `gone`: its process ended, or it was not heard of in time. Agents are "
            "known by their hooks (`dibs agent install`), their MCP server, or --actor. On a server, it lists those "
            "of your token; an operator sees all."
        ),
        examples=(
            ("dibs agents", "who is at work"),
            ("dibs agents --json", "for a program"),
        ),
        exits=((0, "the list, which may be empty"),),
    ),
}
