"""Chooses, once, the system whose own ways are used.

DIBS_PORTABLE=1 forces what every Unix has: tests show on Linux what remains of each promise without Linux's ways.
"""

from __future__ import annotations

import os
import sys

IS_PORTABLE: bool = os.environ.get("DIBS_PORTABLE") == "1"
IS_LINUX: bool = sys.platform == "linux" and not IS_PORTABLE
IS_MACOS: bool = sys.platform == "darwin" and not IS_PORTABLE
