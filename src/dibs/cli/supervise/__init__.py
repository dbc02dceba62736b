"""Processes that dibs starts or stays behind for: guards of a command, keepers of a claim, signals."""
