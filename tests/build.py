"""Which build is tested: the source, or the compiled one (scripts/compile)."""

from __future__ import annotations

import os

COMPILED = os.environ.get("DIBS_TEST_COMPILED") == "1"
