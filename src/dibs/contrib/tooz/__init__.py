"""A coordination driver for tooz: locks, groups and leaders as claims. docs/how-to/one-owner-elsewhere.md has the URLs
and options."""

from __future__ import annotations

from dibs.contrib.tooz.driver import DibsDriver

__all__ = ["DibsDriver"]
