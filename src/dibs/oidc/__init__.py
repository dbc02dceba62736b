"""Tokens that somebody else signed, for machines: CI jobs, pods. `core/service/signed_identity.py` has the rules.

- `rules_file.py` reads the operator's rules.
- `issuers.py` has the keys of the issuers, from their address or from a file.
- `tokens.py` checks tokens and remembers those that were accepted.
- `commands.py`: `dibs identity check` says what the rules make of a token.
"""
