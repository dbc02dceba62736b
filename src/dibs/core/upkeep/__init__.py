"""Upkeep: what time brings without a caller, and how a record goes to another store."""
