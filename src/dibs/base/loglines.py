"""Lines of a log on standard error. Texts of strangers may stand in them, in a traceback most of all."""

from __future__ import annotations

import logging

from dibs.base.terminal import harmless


class LogLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))
