"""What the tests of compatible surfaces share with those of the server and the command line."""

from __future__ import annotations

from tests.cli.conftest import terminal
from tests.server.conftest import fast, name, open_it, serve, server, slow

__all__ = ["fast", "name", "open_it", "serve", "server", "slow", "terminal"]
