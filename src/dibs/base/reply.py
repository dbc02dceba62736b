"""A reply: what is answered, from whoever decides it to whoever asked."""

from __future__ import annotations

from dibs.base.jsontext import Document

NO_HEADERS: dict[str, str] = {}  # shared: nobody adds to it


class Reply:
    """A status and a document; `body` None is JSON null. Over HTTP also headers, and the body as bytes, as it is sent
    and as it comes (`content`). Not `answered`: the client itself made it, because no server and no store answered. Not
    `sent`: the request reached nobody."""

    __slots__ = ("answered", "body", "content", "headers", "sent", "status")

    def __init__(
        self,
        status: int,
        body: Document | None = None,
        *,
        answered: bool = True,
        sent: bool = True,
        headers: dict[str, str] = NO_HEADERS,
        content: bytes = b"",
    ) -> None:
        self.status = status
        self.body = body
        self.answered = answered
        self.sent = sent
        self.headers = headers
        self.content = content

    @property
    def again(self) -> bool:
        """Tell whether its connection may carry another request."""
        return self.headers.get("connection", "").lower() != "close"
