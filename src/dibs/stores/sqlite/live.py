"""Which records are live, as SQL: the same as `is_live()` of the records (a test holds them together).

It is asked of the text itself, in an index, and not kept in a column: a process of an older version that still has the
file open writes the index right as well. A quote inside a text is written with a backslash before it, so none of these
can be part of one.
"""

from __future__ import annotations

LIVE = (
    "CASE substr(key, 1, 5)"
    """ WHEN 'lock/' THEN instr(body, '"holders":[') + instr(body, '"line":[') + instr(body, '"parked":true') > 0"""
    """ WHEN 'sessi' THEN instr(body, '"ended_ms":') = 0"""
    " ELSE 0 END"
)
