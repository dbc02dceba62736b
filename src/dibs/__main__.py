"""`python -m dibs` is `dibs`."""

from __future__ import annotations

import sys

from dibs.cli.main import entry

sys.exit(entry())
