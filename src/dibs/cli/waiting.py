"""Waiting in line: `claim --wait` and `claim-all --wait`, with a server and without.

One long wait is asked for in slices. The first is short, so that the place in line is soon known and can be given up
when somebody presses Ctrl-C; at a terminal all are, so that what is shown is fresh. Asking again with the ticket keeps
the place, also when the server was gone for a moment.
"""

from __future__ import annotations

from dibs.cli import linerender
from dibs.cli.answer import no
from dibs.cli.live import Live
from dibs.cli.parse import UsageError
from dibs.cli.stopping import Stops
from dibs.cli.values import next_words, seconds
from dibs.cli.words import shell_line
from dibs.clock import steady_ms
from dibs.core.limits import TICKET_MS, TTL_MS_MAX
from dibs.wire.codes import NO
from dibs.wire.documents import Reply
from dibs.wire.tickets import secret_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.cli.answer import Answer
    from dibs.cli.call import Call
    from dibs.client.door import Door

    Document = dict[str, Any]
    Meanwhile = Callable[[Document | None], int]

SLICE_SECONDS = 20
SLICE_SECONDS_LIVE = 1
RETRY_MS = 500


def wait_in_line(
    call: Call, verb: str, name: str, document: Document, meanwhile: Meanwhile | None = None
) -> Reply:
    """The reply to a claim after waiting for it. One that says `queued` tells by its ticket that the place was kept.

    `meanwhile` is called before each time of asking, with the last answer if there was one, and says in how many ms it
    wants to be called again."""
    wait_seconds = seconds(call, "wait", TTL_MS_MAX) or 0
    ticket, keeps = call.values.get("ticket"), call.values.get("keep_place", False)
    if ticket is not None and not ticket.strip():
        raise UsageError("--ticket is empty. Did the wait before it keep its place?", call.command)
    if not wait_seconds and ticket is None:
        if keeps:
            raise UsageError("--keep-place needs --wait TIME: how long to wait at first.", call.command)
        return call.door().call(verb, name, document)
    place = Place(call.door(), verb, name, document, ticket, meanwhile)
    if not wait_seconds:  # somebody who asks now and then wants the place kept
        return place.ask(0)
    with Stops(), Live(call) as live:
        try:
            reply = place.wait(wait_seconds * 1000, live)
            if _status(reply) == "queued" and not keeps:
                reply = place.leave(reply)
        except KeyboardInterrupt:
            place.give_up()
            raise
    return reply


class Place:
    """A place in line, or on the way to one."""

    def __init__(
        self,
        door: Door,
        verb: str,
        name: str,
        document: Document,
        ticket: str | None,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        self._door = door
        self._verb = verb
        self._name = name
        self._names = document.get("names", [name])
        self._line_name = name
        self._document = document
        self._ticket = ticket
        self._meanwhile = meanwhile

    def ask(self, wait_seconds: int) -> Reply:
        document = dict(self._document)
        if self._ticket is not None:
            document["ticket"] = self._ticket
        if wait_seconds:
            document["wait_seconds"] = wait_seconds
        reply = self._door.call(self._verb, self._name, document)
        if _status(reply) == "queued" and reply.body:
            self._ticket, self._line_name = reply.body["ticket"], reply.body["name"]
        return reply

    def wait(self, wait_ms: int, live: Live) -> Reply:
        """The first reply that is not `queued`, or the last that is."""
        until_ms = steady_ms() + wait_ms
        heard_ms = steady_ms()
        queued: Document | None = None
        while True:
            left_ms = until_ms - steady_ms()
            most = SLICE_SECONDS if self._ticket is not None and not live.on else SLICE_SECONDS_LIVE
            if self._meanwhile is not None:
                most = min(most, self._meanwhile(queued) // 1000)
            reply = self.ask(max(1, min(most, round(left_ms / 1000))))
            now_ms = steady_ms()
            over = until_ms - now_ms < 500  # waits are whole seconds
            if _status(reply) == "queued":
                heard_ms, queued = now_ms, reply.body
                live.show(linerender.waiting(reply.body or {}, wait_ms - (until_ms - now_ms), wait_ms))
            elif not self._bears_with(reply, now_ms - heard_ms):
                return reply
            else:
                live.show(linerender.unheard(reply.body or {}))
                self._door.news(RETRY_MS)
            if over:
                return reply

    def _bears_with(self, reply: Reply, silence_ms: int) -> bool:
        """A server that is gone for a moment still has our place, for as long as one may be silent."""
        unavailable = (reply.body or {}).get("code") == "upstream_unavailable"
        return self._ticket is not None and unavailable and silence_ms < TICKET_MS

    def leave(self, reply: Reply) -> Reply:
        """The time is over: give the place up. If the job came in that very moment, it is ours after all."""
        for _ in range(2):
            left = self._door.call("leave", self._line_name, {"ticket": self._ticket})
            if left.status >= 300 or (left.body or {}).get("left"):
                break  # one that could not be given up is lost soon, by silence
            reply = self.ask(0)
            if _status(reply) != "queued":
                return reply
        body = {key: value for key, value in (reply.body or {}).items() if key != "ticket"}
        return Reply(status=reply.status, body=body)

    def give_up(self) -> None:
        """Somebody pressed Ctrl-C: out of the line, and whatever was got a moment ago is let go."""
        if self._ticket is None:
            return  # over HTTP hanging up leaves the line; a store of one's own has been told
        left = self._door.call("leave", self._line_name, {"ticket": self._ticket})
        if (left.body or {}).get("left") is False:
            for name in self._names:
                self._door.call("release", name, {"lease_id": secret_of(self._ticket)})


def _status(reply: Reply) -> str | None:
    status = reply.body.get("status") if reply.body else None
    return status if isinstance(status, str) else None


def time_is_over(call: Call, body: Document) -> Answer:
    """The answer to somebody who waited and did not get it."""
    ticket: str | None = body.get("ticket")
    command = None
    if ticket is not None:
        flags = next_words(call, ("url", "namespace", "session", "ttl", "owner"))
        names = call.values.get("name") or [call.values["job"]]
        wait = ["--wait", call.values.get("wait") or "5m", "--ticket", ticket]
        command = shell_line(["dibs", call.command, *flags, *wait, "--", *names])
    message = linerender.over_sentence(body)
    text = linerender.over(body, call.paint, command)
    return no(NO, body, text, code="queued", message=message, quiet=ticket or "")
