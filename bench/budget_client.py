"""What the client does for one `with client.claim()` block, without a server's part.

    python bench/budget_client.py COUNT

Under `valgrind --tool=callgrind --dump-before=getsid` callgrind writes the instructions of COUNT blocks between two
marks (`budget.py` starts it so). The answers come from another process, which is not counted: it sends what a server
would.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys

import dibs

WARM = 40
_LEASE = "11111111-2222-4333-8444-555555555555"
_HEAD = (
    "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\ncontent-type: application/json\r\n"
    "content-length: {}\r\nx-request-id: req_{}\r\n\r\n"
)


def answer_to(request: bytes) -> bytes:
    name, verb = request.split(b" ", 2)[1].decode().removeprefix("/locks/").split("/")
    body = '{"released":true}'
    if verb == "acquire":
        body = (
            f'{{"status":"acquired","name":"{name}","lease_id":"{_LEASE}","fencing_token":1,"owner":"bench",'
            '"expires_at":"2024-01-01T00:01:00.000Z","remaining_ms":60000,"renew_after_ms":30000,"metadata":null,'
            '"attempt":1}'
        )
    return (_HEAD.format(len(body), "0" * 32) + body).encode()


def answer_requests() -> None:
    """Answer one connection until it ends. Every request here comes in one piece."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
        with connection:
            while request := connection.recv(65536):
                connection.sendall(answer_to(request))


def main() -> None:
    if sys.argv[1] == "answers":
        answer_requests()
        return
    count = int(sys.argv[1])
    argv = [sys.executable, __file__, "answers"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with dibs.Client(f"http://127.0.0.1:{int(server.stdout.readline())}", "token", "bench") as client:
            for number in range(WARM + count):
                if number == WARM:
                    gc.collect()
                    os.getsid(0)
                with client.claim(f"job-{number:08}", ttl=60):
                    pass
            os.getsid(0)
    print(count)


if __name__ == "__main__":
    main()
