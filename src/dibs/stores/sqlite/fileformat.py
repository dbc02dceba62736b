"""How the file says whose it is, and which version of the format it has."""

from __future__ import annotations

VERSION = 4  # of the file's format: how many steps schema.py has
APPLICATION_ID = 0x64696273  # "dibs": how the file says whose it is
BLOCK = 256  # how many events a row of event_blocks is about
