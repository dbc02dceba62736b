"""The admission of connections without connections: guests that come, show a token, and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.server.http.admission import Admission

if TYPE_CHECKING:
    from dibs.server.http.response import HttpError


class HallGuest:
    client = ""
    was_turned_out = False
    refusal: HttpError | None = None

    def turn_out(self) -> None:
        self.was_turned_out = True


class Hall:
    def __init__(self, **bounds: Any) -> None:
        self.now_ms = 0
        self._admission = Admission(steady=lambda: self.now_ms, **bounds)

    def enter(self, client: str, *, shows_token: bool = False) -> HallGuest:
        guest = HallGuest()
        guest.refusal = self._admission.enter(guest, client)
        if shows_token:
            self._admission.prove(guest)
        return guest

    def prove(self, guest: HallGuest) -> None:
        self._admission.prove(guest)

    def leave(self, guest: HallGuest) -> None:
        self._admission.leave(guest)
