"""Reads what a server must know of a certificate file before it uses it: when the certificate is valid.

Python's `ssl` tells this only of the other side's certificate, so the few bytes of DER are read here.
"""

from __future__ import annotations

import calendar
import ssl
import time

from dibs.base.errors import InvalidInput

FILE_BYTES_MAX = 1024 * 1024
_SEQUENCE, _VERSION, _UTC_TIME, _TIME = 0x30, 0xA0, 0x17, 0x18
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def certificate_text(path: str, what: str) -> str:
    """The text of a PEM file. Raises InvalidInput with what is wrong with the file."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(f"The file of the {what}, {path}, cannot be read: {error.strerror}.") from None
    return content.decode("latin-1")


def validity_of(path: str) -> tuple[str, str]:
    """From when to when the first certificate in a PEM file is valid, in UTC: `2026-11-16T01:50:00`."""
    begin, end = _first(certificate_text(path, "certificate"))
    if not end:
        raise InvalidInput(f"{path} holds no certificate in PEM form, which begins with {_BEGIN}.")
    try:
        der = ssl.PEM_cert_to_DER_cert(_BEGIN + begin + _END)
        return _validity(der)
    except (ValueError, IndexError):
        raise InvalidInput(f"The certificate in {path} is damaged.") from None


def ms_of(moment: str) -> int:
    """A moment as `validity_of` says it, in milliseconds since 1970."""
    return calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) * 1000


def _first(text: str) -> tuple[str, str]:
    inner, end, _ = text.partition(_BEGIN)[2].partition(_END)
    return inner, end


def _validity(der: bytes) -> tuple[str, str]:
    fields = _inside(_parts(_inside(der))[0])
    parts = _parts(fields)
    if parts[0][0] == _VERSION:
        parts = parts[1:]
    begins, ends = _parts(_inside(parts[3]))[:2]  # after the serial number, the algorithm and the issuer
    return _time(begins), _time(ends)


def _element(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends."""
    length = data[at + 1]
    begins = at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[begins : begins + count], "big")
        begins += count
    if begins + length > len(data):
        raise ValueError
    return begins, begins + length


def _inside(data: bytes) -> bytes:
    if data[0] != _SEQUENCE:
        raise ValueError
    begins, ends = _element(data, 0)
    return data[begins:ends]


def _parts(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        _, ends = _element(data, at)
        found.append(data[at:ends])
        at = ends
    return found


def _time(part: bytes) -> str:
    """`YYMMDDHHMMSSZ` means 1950 to 2049; the other form has the whole year."""
    begins, ends = _element(part, 0)
    text = part[begins:ends].decode("ascii")
    if part[0] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif part[0] != _TIME:
        raise ValueError
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}"
