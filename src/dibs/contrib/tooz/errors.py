"""Errors of dibs as errors of tooz."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tooz import ToozError
from tooz.coordination import ToozConnectionError

from dibs.base.errors import BadReply, DibsError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def as_tooz_errors() -> Iterator[None]:
    try:
        yield
    except (Unavailable, BadReply) as error:
        raise ToozConnectionError(error.details) from error
    except DibsError as error:
        raise ToozError(error.details) from error
