"""The small tables of `src/dibs/wire/fields.py` and `parameter_texts.py`, made from the declared fields. Pure."""

from __future__ import annotations

from textwrap import wrap

from dibs.wire.answer_fields import ANSWERS
from dibs.wire.request_fields import CLAIM, REQUESTS, Field, parameter_texts

_HEAD = '''"""Kinds and bounds of fields, for checks at run time. Plain tables: every command reads them.

Written from `request_fields.py` and `answer_fields.py`. Change those, and write this again with
`DIBS_REWRITE=1 python -m pytest tests/wire/test_fields.py`.
"""

from __future__ import annotations

# fmt: off
'''

_TEXTS_HEAD = '''"""Sentences of `help()` about the SDK's parameters that are fields of a request, by verb.

Written from `request_fields.py`, which takes longer to import than a claim takes. Change that, and write this again
with `DIBS_REWRITE=1 python -m pytest tests/wire/test_fields.py`.
"""

from __future__ import annotations

# fmt: off
# ruff: noqa: E501
'''
_EXPLAINED = ("acquire", "acquire-any", "release", "transfer", "break", "close")


def texts_source() -> str:
    """The text of `parameter_texts.py`."""
    lines = []
    for verb in _EXPLAINED:
        lines += [
            f'    "{verb}": {{',
            *[f'        "{key}": {_quoted(text)},' for key, text in parameter_texts(verb).items()],
        ]
        lines.append("    },")
    return "\n".join([f"{_TEXTS_HEAD}PARAMETER_TEXTS: dict[str, dict[str, str]] = {{", *lines, "}\n"])


def _quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


def fields_source() -> str:
    """The text of `fields.py`."""
    declared = [(name, field) for fields in REQUESTS.values() for name, field in fields.items()]
    numbers: dict[str, object] = {}
    for name, field in declared:
        if field.numbers is not None:
            numbers.setdefault(name, field.numbers)  # a verb with other bounds checks them itself
    kinds = {verb: {name: _marked(field) for name, field in each.items()} for verb, each in REQUESTS.items()}
    tables = {
        "# Requests, by verb: the kind of each field. With a ! it is required, with a ? required and maybe null.\n"
        "REQUESTS: dict[str, dict[str, str]]": kinds,
        "# The bounds of numbers, both included.\nNUMBERS: dict[str, tuple[int, int]]": numbers,
        "# How many characters a text may have, or how many bytes.\nCHARACTERS: dict[str, int]": {
            name: field.chars for name, field in declared if field.chars
        },
        "BYTES: dict[str, int]": {name: field.bytes for name, field in declared if field.bytes},
        "# Fields of a claim that go into its command unchanged, under their own names.\n"
        "PLAIN_TERMS: tuple[str, ...]": tuple(name for name, field in CLAIM.items() if field.is_plain),
        "# The kinds of fields of answers. What is not listed is text.\nREPLY_KINDS: dict[str, str]": _reply_kinds(),
    }
    return _HEAD + "".join(f"{name} = {_literal(value)}\n" for name, value in tables.items())


def _marked(field: Field) -> str:
    return field.kind + ("?" if field.nullable else "!" if field.required else "")


def _reply_kinds() -> dict[str, str]:
    found: dict[str, str] = {}
    for answer, fields in ANSWERS.items():
        for name, field in fields.items():
            kind = field.kind.replace("texts", "list").replace("numbers", "list")
            if answer != "error":  # clients read those of an error as they come
                assert found.setdefault(name, kind) == kind, f"{name} has two kinds"
    return {name: kind for name, kind in found.items() if kind != "text"}


def _literal(value: object, indent: str = "") -> str:
    """Several entries in a line: nobody edits them."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"({', '.join(_literal(each) for each in value)})"
    if not isinstance(value, dict):
        return f"{value:_}"
    entries = [f'"{key}": {_literal(inner, indent + "    ")},' for key, inner in value.items()]
    if any(isinstance(inner, dict) for inner in value.values()):
        lines = entries
    else:
        # A space inside an entry is no place for a line to end.
        together = " ".join(each.replace(" ", "\0") for each in entries)
        lines = [line.replace("\0", " ") for line in wrap(together, 108, break_on_hyphens=False)]
    if len(lines) > 1 or lines is entries or sum(map(len, lines)) > 90:  # with its name it is too long
        return "\n".join(["{", *[f"{indent}    {line}" for line in lines], f"{indent}}}"])
    return f"{{{''.join(lines).rstrip(',')}}}"
