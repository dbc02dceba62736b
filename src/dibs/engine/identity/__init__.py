"""Tokens that somebody else signed, for machines: CI jobs, pods. The rules about them are in `core/service/identity.py`.

- `rules_file.py` reads the operator's rules.
- `issuers.py` has the keys of the issuers, from their address or from a file.
- `tokens.py` checks tokens and remembers those that were accepted.
"""
