"""The reference pages that are written by hand say what the code says: limits, stores, environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dibs.cli.commands.serve import OPTIONS as SERVE
from dibs.client.setting_sources import NEVER, SETTINGS
from dibs.core import limits
from dibs.core.durations import format_duration
from dibs.stores.codec import FORMS
from dibs.stores.git.location import ADDRESSES
from dibs.stores.postgres import PostgresLocation
from dibs.stores.registry import open_store
from dibs.stores.sqlite import sqlite_path
from tests.declared import CAPABILITIES
from tests.docs.pages import REFERENCE, ROOT, code_words, read, rows, section

SAID_BY = (ROOT / "src", ROOT / "scripts", ROOT / "tests" / "conftest.py")


def said(name: str, value: int) -> str:
    """How a page writes the value of a limit."""
    if "_MS" not in name:
        return f"{value:,}"
    return format_duration(value) if value < 1_000 or value % 1_000 == 0 else f"{value:,} ms"


# Nobody outside notices these: how much is done at a time, how often something is looked at.
INSIDE = {
    *("CHECKPOINT_PAGES COMMIT_BATCH_MAX CONFLICT_PAUSE_MS_MAX CREDENTIAL_CHANGES_KEPT CREDENTIAL_RELOAD_MS".split()),
    *("DRAIN_LOOK_MS ETCD_BATCH_MAX ETCD_READ_KEYS_MAX FEED_PAGE_MAX FREED_MAX GIT_TIDY_BATCH_MAX".split()),
    *("GIT_TORN_TRIES_MAX KEEP_BATCH_MAX LEAVE_AT_ONCE_MAX PARSE_BYTES_MAX PRUNE_INTERVAL_MS PULSE_KEPT_MS".split()),
    *("RECALL_PAUSE REREAD_KEYS_MAX SERVERS_INTERVAL_MS SWEEP_BATCH_MAX SWEEP_BATCH_MIN SWEEP_GRACE_MS".split()),
    *("SWEEP_INTERVAL_MS SWEEP_RETRY_MS TALLY_INTERVAL_MS TALLY_PAGE TICK_MS UNKNOWN_RETRIES_MAX".split()),
    *("USES_AT_ONCE_MAX WANTED_MAX WATCH_MS WEBHOOK_LOOK_MS CONNECTIONS_TURNED_AWAY_MAX TREE_PAGE_CLAIMS".split()),
    *("ETCD_HEARD_POLL_MS ETCD_POLL_MS ETCD_SILENCE_MS LOG_FLUSH_MS_MAX PUBLIC_CLIENTS_MAX STREAM_BYTES_MAX".split()),
    *("WEBHOOK_DOUBTED_IN_FLIGHT_MAX WEBHOOK_KEPT_MS WEBHOOK_LANES_MAX WEBHOOK_LANE_EVENTS_MAX".split()),
    *("REGRANT_MS", "WEBHOOK_IDLE_MS", "WEBHOOK_LOOKUPS_MAX"),
}

TESTS_OWN = {"WAIT_S_MAX"}


def test_every_limit_that_users_can_meet_is_on_its_page_with_its_value_and_what_it_bounds() -> None:
    code = [(name, said(name, value)) for name, value in vars(limits).items() if name.isupper() and name not in INSIDE]
    entries = re.findall(r"^- ((?:`[A-Z_]+` [^:`]+)+): \S", read(REFERENCE / "limits.md"), re.MULTILINE)
    page = [pair for entry in entries for pair in re.findall(r"`([A-Z_]+)` ([^`]+?)(?=, `|$)", entry)]
    assert sorted(page) == sorted(code)
    assert vars(limits).keys() >= INSIDE


@pytest.mark.fault("F-530")
def test_a_limit_that_a_page_names_is_there() -> None:
    pages = [*REFERENCE.parent.rglob("*.md"), *(REFERENCE.parents[1].glob("*.md"))]
    missing = [
        f"{page.name}: {name}"
        for page in pages
        if page.name not in ("CHANGELOG.md", "faults.md", "coming-from-octostore.md")
        for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)*_(?:MS|MS_MIN|MS_MAX|MAX|MIN|KEPT|DEFAULT))`", read(page))
        if name not in vars(limits) and name not in TESTS_OWN and not name.startswith("DIBS_")
    ]
    assert not missing


def test_the_table_of_stores_is_what_the_stores_declare() -> None:
    declared = [
        [
            f"`{store.name}`",
            store.clock,
            store.reach,
            store.watch,
            "yes" if store.durable else "no",
            "; ".join(store.cannot),
        ]
        for store in CAPABILITIES
    ]
    page = read(REFERENCE / "stores.md")
    assert [row for row in rows(page) if len(row) == len(declared[0])] == declared


def test_every_form_of_a_store_url_is_on_its_page_and_names_a_store() -> None:
    forms = [row[0].strip("`") for row in rows(section(read(REFERENCE / "stores.md"), "How to name one"))]
    kinds = {re.split(r"[\w.]", form.partition(":")[2])[0] for form in FORMS}
    assert {re.split(r"[\w.]", form.partition(":")[2])[0] for form in forms} == kinds
    for form in forms:
        if form.startswith("sqlite:"):
            assert Path(sqlite_path(form)).is_absolute()
        elif form.startswith("postgresql:"):  # nor is there a database to open
            assert PostgresLocation(form).schema == "dibs"
        elif form.startswith("git"):  # opening one would ask this very clone
            assert form.startswith(("git:", *ADDRESSES))
        else:
            open_store(form).close()


def test_the_table_of_who_may_say_what_is_the_one_that_the_code_asks() -> None:
    declared = [
        [
            f"`{setting.name}`",
            f"`{setting.flag}`" if setting.flag else "-",
            f"`{setting.variable}`" if setting.variable else "-",
            "yes" if setting.is_in_user_file else "-",
            "-" if setting.clone == NEVER else "yes",
            "-" if setting.clone == NEVER else setting.clone,
            "-" if setting.tracked == NEVER else setting.tracked,
        ]
        for setting in SETTINGS.values()
    ]
    assert rows(section(read(REFERENCE / "config.md"), "Who may say what")) == declared


def test_every_variable_that_dibs_reads_is_on_its_page_and_no_other() -> None:
    files = [file for place in SAID_BY for file in ([place] if place.is_file() else place.rglob("*"))]
    texts = [file.read_text(encoding="utf-8") for file in files if is_text(file)]
    read_somewhere = {name for text in texts for name in re.findall(r"\bDIBS_[A-Z]+(?:_[A-Z]+)*\b", text)}
    read_somewhere |= {option.env for option in SERVE if option.env}
    page = read(REFERENCE / "environment.md") + section(read(REFERENCE / "cli.md"), "dibs serve")
    assert {word for word in code_words(page) if word.startswith("DIBS_")} == read_somewhere


def is_text(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and file.suffix in ("", ".py", ".sh")


@pytest.mark.parametrize("page", sorted(REFERENCE.parent.rglob("*.md")), ids=lambda page: page.stem)
def test_a_heading_that_is_linked_to_is_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", read(page)):
        linked = read((page.parent / target).resolve() if target else page)
        headings = re.findall(r"^#+ (.*)$", linked, re.MULTILINE)
        assert anchor in {anchor_of(heading) for heading in headings}, f"{target}#{anchor}"


def anchor_of(heading: str) -> str:
    """As the usual renderers make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
