"""`dibs serve` over TLS, asked by the command and by the SDK, through a new certificate and to its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

import dibs
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, wait_until
from tests.server.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.e2e
def test_the_command_and_the_sdk_ask_over_tls_with_a_certificate_of_their_own(
    tmp_path: Path, need_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca", need_program("openssl"))
    cert, key = authority.issue("server")
    worker = authority.issue("worker")
    files = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.cert))
    with ServerProcess(tmp_path, flags=("--log-level", "info", *files)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        env = {**server.env, "DIBS_URL": server.url, "SSL_CERT_FILE": str(authority.cert)}

        def claim(job: str) -> subprocess.CompletedProcess[str]:
            words = [*DIBS, "claim", job, "--timeout", "5s"]
            return subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)

        refused = claim("a")
        assert refused.returncode == 77, refused
        assert "wants a client certificate" in refused.stderr
        env["DIBS_CLIENT_CERT"], env["DIBS_CLIENT_KEY"] = str(worker[0]), str(worker[1])
        assert claim("a").returncode == 0

        for name in ("SSL_CERT_FILE", "DIBS_CLIENT_CERT", "DIBS_CLIENT_KEY"):
            monkeypatch.setenv(name, env[name])
        asyncio.run(_claim(server.url, server.token))

        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate reloaded" in server.log.read_text(), "the certificate is read again")
        assert claim("b").returncode == 0
        assert server.stop() == 0


async def _claim(url: str, token: str) -> None:
    async with dibs.AsyncClient(url, token=token) as client, client.claim("sdk") as claim:
        assert claim.fencing_token >= 1
