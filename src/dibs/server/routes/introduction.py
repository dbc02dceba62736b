"""Introduces a server to a program or an agent that was given nothing but its address: what this is, and where skill
and contract are. Nobody needs a token for it, and it says nothing about what is in the store.
"""

from __future__ import annotations

from typing import Any

from dibs.base.plugins import PARTS, plugin
from dibs.base.reply import Reply
from dibs.server.handlers import Api
from dibs.server.http.response import answer_text
from dibs.server.plugins import GROUP
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Handler, Table

_TEXT = """\
# dibs

> One owner per job, for distributed workers and agents. Claim a job by its name for a limited time, work, release it.
> If you stop, the claim ends by itself and somebody else takes over.

{skill}- [/openapi.json](/openapi.json): the contract. One operation of it, with what its fields mean:
  `/openapi.json?path=/locks/{{name}}/acquire`
{mcp}- `/` in a browser: who has which job
{command}
All you need (`Content-Type: application/json`, `Authorization: Bearer TOKEN`; whoever runs this server gives you one):

- `POST /locks/{{name}}/acquire` `{{"owner": "me", "ttl_seconds": 60}}`: `acquired` with a `lease_id`, or `held`
- `POST /locks/{{name}}/renew` `{{"lease_id": "..."}}`: before the TTL ends
- `POST /locks/{{name}}/release` `{{"lease_id": "..."}}`: at the end
- `GET /locks/{{name}}`, `GET /locks`: who has it, who has what
"""
_SKILL = "- [/SKILL.md](/SKILL.md): how an agent works with it, on one page. Read it first\n"
_COMMAND = "- `dibs --help`: the command, which does all of this; `dibs login URL` saves the address\n"
_IN_PLACE = "- This server has another program's rules: the `dibs` command and its skill may only look here\n"
_MCP = "- `POST /mcp`: the same as MCP tools\n"


def introduction(api: Api) -> Reply:
    skill = _SKILL if _files(api) is not None else ""
    mcp = _MCP if plugin(GROUP, "mcp") is not None else ""
    command = _COMMAND if api.settings.contract is None else _IN_PLACE
    return answer_text(_TEXT.format(skill=skill, mcp=mcp, command=command), "text/plain; charset=utf-8")


def _files(api: Api) -> Any:
    """Return what has the skill, which is of no use where another program's rules are in force."""
    return plugin(PARTS, "shipped-files") if api.settings.contract is None else None


def introduction_routes(api: Api) -> Table:
    text, files = introduction(api), _files(api)
    found: dict[str, Handler] = {"llms-txt": lambda _: text}
    if files is not None:
        skill = answer_text(files.skill_text(), "text/markdown; charset=utf-8")
        found["skill"] = lambda _: skill
    return routed(found)
