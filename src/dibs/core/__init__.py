"""The rules of dibs, pure: no clock, no randomness, no I/O, no logging, no async.

`decide(view, command)` is the only way in. Start reading at `decide.py`.
"""
