"""One of many processes that race. Told by lines of JSON what to do, it waits at the gate and answers in one line.

python -m tests.processes.racer NUMBER GATE ANSWERS

The last two are file descriptors; a byte read from GATE is the starting shot.

An order: {"url", "token", "verb", "name", "document", "late_ms": start that much after the shot, "while_owner": ask
again as long as that one has it, or null}.
It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from tests.programs import pass_by
from tests.transports import connect

if TYPE_CHECKING:
    from dibs.client.transport import Transport
    from dibs.wire.documents import Reply

TIMEOUT_MS = 20_000


def main(number: int, gate: int, answers: int) -> None:
    transports: dict[str, Transport] = {}
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        url = order["url"]
        if url not in transports:
            transports[url] = connect(url, namespace=None, token=order["token"], timeout_ms=TIMEOUT_MS)
            transports[url].ask(Ask("inspect", order["name"]))  # open it before the race, not in it
        os.read(gate, 1)
        pass_by(steady_ms() + order["late_ms"])
        reply = obey(transports[url], order)
        said = {"racer": number, "status": reply.status, "body": reply.body}
        os.write(answers, json.dumps(said).encode() + b"\n")  # shorter than PIPE_BUF: it arrives in one piece


def obey(transport: Transport, order: dict[str, Any]) -> Reply:
    give_up_ms = steady_ms() + TIMEOUT_MS
    while True:
        reply = transport.ask(Ask(order["verb"], order["name"], order["document"]))
        body = reply.body or {}
        waits = body.get("status") == "held" and body["owner"] == order["while_owner"]
        if not waits or steady_ms() > give_up_ms:
            return reply


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
