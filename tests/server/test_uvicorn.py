"""The server's protocol subclasses uvicorn's and uses its internals, so uvicorn is capped to known versions."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the server extra is not installed")

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# What server/http/protocol.py and server/http/fast_lane.py take from it, beside the names imported above.
METHODS = (
    "connection_made connection_lost data_received on_message_begin on_url on_header on_headers_complete on_body "
    "on_message_complete on_response_complete shutdown"
).split()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def test_uvicorn_is_capped_and_the_installed_one_is_within_the_cap() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (stated,) = [each for each in extras["server"] if each.startswith("uvicorn")]
    least, below = stated.removeprefix("uvicorn>=").split(",<")
    assert _numbers(least) <= _numbers(version("uvicorn")) < _numbers(below)


def test_uvicorn_still_has_the_internals_that_the_protocol_builds_on() -> None:
    assert not [name for name in METHODS if not callable(getattr(HttpToolsProtocol, name, None))]
    assert callable(FlowControl.resume_reading)
    assert HIGH_WATER_LIMIT > 0
    assert STATUS_LINE[200].startswith(b"HTTP/1.1 200")
