"""The links that the fault rig puts between clients, servers and stores."""

from __future__ import annotations

import gc
import socket
import threading

from tests.faults.several.link import Links
from tests.programs import WAIT_S_MAX


def test_a_connection_that_comes_while_the_links_end_is_closed() -> None:
    goes_on = threading.Event()
    with socket.socket() as client:
        client.settimeout(WAIT_S_MAX)
        with Links() as links:
            link = links.link(lambda: ("127.0.0.1", 1))
            links._loop.call_soon_threadsafe(goes_on.wait, WAIT_S_MAX)  # it is accepted when the end is under way
            client.connect(("127.0.0.1", link.port))
            threading.Timer(0.2, goes_on.set).start()
    gc.collect()  # a socket that nobody closed would be told here
