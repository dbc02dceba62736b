"""References that differ from a good one in one part: most are none, and none may be the name of something else.

`scripts/dev/compare` shows which of them mean another thing than in another commit.
"""

from __future__ import annotations

import re
from zlib import crc32

from dibs.base.errors import DibsError
from dibs.wire.issue_names import HostedRepository, IssueHosts, has_secret, job_name, needs, reference_of
from tests.walks.step import Step

TEAM = IssueHosts(
    github=["ghe.example.com"],
    gitlab=["git.example.com"],
    jira={"jira.example.com": ["PROJ", "BOTH"]},
    linear={"acme": ["ENG", "BOTH"]},
)
HUB = HostedRepository("github", "github.com", "acme/app")
ENTERPRISE = HostedRepository("github", "ghe.example.com", "acme/app")
LAB = HostedRepository("gitlab", "gitlab.com", "acme/tools/app")

FORMS = [
    "https://github.com/acme/app/issues/42",
    "https://github.com/acme/app/pull/42/files",
    "https://api.github.com/repos/acme/app/pulls/42",
    "https://ghe.example.com/acme/app/issues/42",
    "https://gitlab.com/acme/tools/app/-/issues/42",
    "https://gitlab.com/acme/app/merge_requests/42/diffs",
    "https://git.example.com/acme/app/-/work_items/42",
    "https://linear.app/acme/issue/ENG-42/title",
    "https://acme.atlassian.net/jira/projects/PROJ/issues/PROJ-42",
    "https://jira.example.com/browse/PROJ-42",
    "https://jira.example.com/board?selectedIssue=PROJ-42",
    "github://acme/app/pull/42",
    "github://ghe.example.com/acme/app/issues/42",
    "gitlab://acme/app/issues/42",
    "gitlab://git.example.com/acme/app/merge_requests/42",
    "linear://acme/ENG-42",
    "jira://jira.example.com/PROJ-42",
    "acme/app#42",
    "acme/tools/app!42",
    "#42",
    "!42",
    "GH-42",
    "PROJ-42",
]
INSTEAD = ("", "-", ".", "..", "x y", "issues", "07", "9" * 20)


def near(form: str) -> list[str]:
    """The form with one of its parts left out, doubled, or replaced; and with more around it."""
    parts = re.split(r"([:/#!?=-]+)", form)
    found = [form, f"{form}/", f"{form}/more", f"{form}?q=1", f"{form}#1", f"{form}!1", form.upper(), f" {form}"]
    for at, part in enumerate(parts):
        head, rest = "".join(parts[:at]), "".join(parts[at + 1 :])
        found += [head + rest, head + part + part + rest]
        if at % 2 == 0:
            found += [f"{head}{new}{rest}" for new in INSTEAD]
            found += [f"{head}{part}:{port}{rest}" for port in (80, 443)] + [f"{head}u:p@{part}{rest}"]
        else:
            found += [f"{head}/x{part}{rest}", f"{head}{part}x/{rest}"]
    return list(dict.fromkeys(found))


def means(name: str) -> tuple[str, str]:
    """Its one name, alone or in a clone; and all that there is to say about it."""
    found = [reference_of(name, TEAM, each) for each in (None, HUB, LAB)]
    try:
        job = job_name(name, TEAM, HUB)
        called = f"{job.name} {job.why}"
    except DibsError as error:
        called = type(error).__name__
    told = [f"{each.name} {each.form}" if each is not None else "" for each in found]
    return ", ".join(
        dict.fromkeys([each.name for each in found if each])
    ), f"{told} {called} {needs(name)} {has_secret(name)}"


def walked(form: str) -> list[Step]:
    """What each of them means."""
    meant = [(each, *means(each)) for each in near(form)]
    return [Step(f"{each} = {name or 'no reference'} {crc32(told.encode()):08x}", told) for each, name, told in meant]


WALKS = FORMS
