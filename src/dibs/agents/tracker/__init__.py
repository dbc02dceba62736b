"""Asks a tracker about an issue before its job is granted, and writes there who works on it. Opt-in, per repository."""
