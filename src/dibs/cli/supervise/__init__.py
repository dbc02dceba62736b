"""Processes around a command: guards of `dibs run`, the keeper of `claim --keep`."""
