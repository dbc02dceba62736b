"""How the file says whose it is, and which version of the format it has."""

from __future__ import annotations

VERSION = 2  # of the file's format: how many steps schema.py has
APPLICATION_ID = 0x64696273  # "dibs": how the file says whose it is
