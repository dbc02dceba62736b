"""Which records are live, as SQL over their text: the same as `is_live()` of the records (a test holds them together).

It fills the column `live` of a file that had none. A quote inside a text is written with a backslash before it, so none
of these can be part of one.
"""

from __future__ import annotations

LIVE = (
    "CASE substr(key, 1, 5)"
    """ WHEN 'lock/' THEN instr(body, '"holders":[') + instr(body, '"line":[') + instr(body, '"parked":true') > 0"""
    """ WHEN 'sessi' THEN instr(body, '"ended_ms":') = 0"""
    " ELSE 0 END"
)
