"""The page about the gateway and the code agree: routes, exit codes, words of the errors."""

from __future__ import annotations

import re
from typing import Any, cast
from unittest.mock import MagicMock

from dibs.compat.action_llama import protocol as gateway
from dibs.compat.action_llama.protocol import UNREACHABLE
from dibs.compat.action_llama.rlock import EXITS, OTHER_EXIT, USAGE_EXIT
from dibs.compat.action_llama.routes import Gateway
from tests.docs.pages import REFERENCE, code_words, read, section, tables

PAGE = read(REFERENCE / "gateway.md")


def test_every_route_is_on_the_page_and_no_other() -> None:
    routes = Gateway(cast("Any", MagicMock()), 1_800_000).routes()
    served = {(operation.method, operation.path) for operation, _ in routes if operation.is_listed}
    listed = [row[0].strip("`").split(" ") for row in tables(section(PAGE, "Routes"))[0].rows]
    assert {(method, path) for method, path in listed} == served


def test_every_exit_code_is_on_the_page_with_its_status() -> None:
    said = {str(code): str(status) for status, code in EXITS.items() if status != UNREACHABLE}
    said |= {str(EXITS[UNREACHABLE]): "none", str(USAGE_EXIT): "none", str(OTHER_EXIT): "other"}
    [listed] = [table for table in tables(PAGE) if table.header[0] == "exit"]
    assert {row[0]: row[1] for row in listed.rows} == said


def test_every_word_for_a_wrong_request_is_on_the_page() -> None:
    source = read(REFERENCE.parents[1] / "src" / "dibs" / "compat" / "action_llama" / "protocol.py")
    errors = set(re.findall(r'Rejected\(\s*"([^"]+)"', source))
    assert len(errors) >= 6
    assert errors <= code_words(PAGE), gateway.__name__
