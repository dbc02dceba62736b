"""Certificates for tests, made by openssl."""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


class Authority:
    """An authority with its own folder."""

    def __init__(self, folder: Path, openssl: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._openssl = openssl
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        self._run(
            f"req -x509 {_NEW_KEY} -days 2 -subj /CN=authority",
            *("-addext", "keyUsage=critical,keyCertSign", "-keyout", str(self._key), "-out", str(self.cert)),
        )
        (folder / "index").touch()
        self._config = folder / "ca.cnf"
        self._config.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index\nnew_certs_dir={folder}\nrand_serial=yes\n"
            "default_md=sha256\npolicy=p\ncopy_extensions=copy\nunique_subject=no\n[p]\ncommonName=supplied\n"
        )

    def _run(self, words: str, *more: str) -> None:
        subprocess.run([self._openssl, *words.split(), *more], check=True, timeout=60, capture_output=True)

    def issue(self, name: str, *, until: str = "20991231235959Z") -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and localhost, and its key."""
        cert, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self._run(f"req {_NEW_KEY}", *names, "-keyout", str(key), "-out", str(request))
        self._run(
            "ca -batch -notext -startdate 20200101000000Z",
            *("-enddate", until, "-config", str(self._config), "-cert", str(self.cert)),
            *("-keyfile", str(self._key), "-in", str(request), "-out", str(cert)),
        )
        return cert, key

    def trusted(self, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if cert is not None:
            context.load_cert_chain(cert, key)
        return context

    def encrypted(self, key: Path) -> Path:
        made = key.with_suffix(".locked")
        self._run("pkey -aes128 -passout pass:secret", "-in", str(key), "-out", str(made))
        return made
