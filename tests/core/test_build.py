"""That the tests run on the build they claim to run on."""

from __future__ import annotations

import pytest

from dibs.base import ids
from dibs.client import exchange
from dibs.core import decide, records
from dibs.core.claims import acquire
from dibs.engine import coordinator, tally
from dibs.stores import codec
from dibs.wire import documents, requests
from tests.build import COMPILED

MODULES = [acquire, codec, coordinator, decide, documents, exchange, ids, records, requests, tally]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_is_compiled_exactly_if_the_compiled_build_is_tested(module: object) -> None:
    path = str(getattr(module, "__file__", ""))
    assert path.endswith(".so" if COMPILED else ".py")
