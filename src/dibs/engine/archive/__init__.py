"""A whole store as text, to be moved to another one: `dibs export` and `dibs import`.

    lines.py    the format: JSON lines between a header and a trailer, and a reader that checks them, record by record
    export.py   from a store to lines, all as of one moment
    intake.py   from lines into a store, completely or not at all

It uses only the store port, so it works between any two stores.
"""
