"""The text form of a ticket: number, a checksum of the job, the secret that proves it, and which ask has the seat if
that is not the one that made the place. The checksum distinguishes a ticket of another job (an error) from one that
lost its place (which gets a new place)."""

from __future__ import annotations

from dibs.base.errors import InvalidInput


def ticket_text(ns: str, name: str, number: int, ticket_id: str, seat: str | None = None) -> str:
    made = f"{number}.{_check(ns, name)}.{ticket_id}"
    return made if seat is None else f"{made}.{seat}"


def parse_ticket(ns: str, name: str, text: str) -> tuple[int, str, str]:
    """Number, secret and seat, or InvalidInput if it is not a ticket, or one of another job."""
    number, _, rest = text.partition(".")
    check, _, rest = rest.partition(".")
    ticket_id, _, seat = rest.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) < 16 and ticket_id):
        raise InvalidInput("ticket is not one that dibs gave out.")
    if check != _check(ns, name):
        raise InvalidInput(f"This ticket is for another job than {name}.")
    return int(number), ticket_id, seat or ticket_id


def secret_of(ticket: str) -> str:
    """The secret in a ticket. It becomes the lease id when the job is handed over."""
    return ticket.split(".")[2]


def _check(ns: str, name: str) -> str:
    from binascii import crc32  # only lines need it

    return f"{crc32(f'{ns}/{name}'.encode()):08x}"
