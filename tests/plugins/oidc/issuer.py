"""An issuer of signed tokens on loopback, as GitHub, GitLab or a Kubernetes API server is one: discovery, keys, tokens.

It can be down, slow, redirect, lie about its name, and change its keys.
"""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S_MAX = 30


@cache
def _rsa_keys(bits: int) -> Iterator[Any]:
    """A few in turn, because each takes a tenth of a second to make."""
    return cycle([rsa.generate_private_key(public_exponent=65537, key_size=bits) for _ in range(4)])


def new_key(algorithm: str, bits: int = 2048) -> Any:
    """Another key than the last ones."""
    if algorithm == "RS256":
        return next(_rsa_keys(bits))
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, algorithm: str, kid: str | None) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "use": "sig", "alg": algorithm, **({} if kid is None else {"kid": kid})}


def raw(header: dict[str, Any], claims: Any, signature: bytes = b"x") -> str:
    """A token as nobody would make it."""
    parts = [
        json.dumps(header).encode(),
        claims if isinstance(claims, bytes) else json.dumps(claims).encode(),
        signature,
    ]
    return ".".join([base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts])


def by_secret(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token that is signed with a secret, which may be somebody's public key."""
    head = raw(header, claims).rpartition(".")[0]
    signature = hmac.new(secret, head.encode(), "sha256").digest()
    return f"{head}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


class Issuer:
    def __init__(self, port: int, algorithm: str = "RS256") -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.algorithm, self.key, self.kid = algorithm, new_key(algorithm), "one"
        self.keys: Any = {"keys": [public_jwk(self.key, algorithm, self.kid)]}
        self.says: dict[str, Any] = {}  # of its discovery document
        self.asked: list[str] = []
        self.status, self.content = 200, b""
        self.hangs = threading.Event()  # set: it answers
        self.hangs.set()
        self.lasts_s: list[int] = []  # how long the tokens that it signs next are valid

    def claims(self, now_s: int, **more: Any) -> dict[str, Any]:
        """As GitHub's, from its documentation."""
        return {
            "iss": self.url,
            "aud": "dibs",
            "sub": "repo:acme/app:ref:refs/heads/main",
            "repository": "acme/app",
            "repository_owner": "acme",
            "ref": "refs/heads/main",
            "event_name": "push",
            "iat": now_s,
            "nbf": now_s,
            "exp": now_s + 300,
        } | more

    def token(self, now_s: int | None = None, headers: dict[str, Any] | None = None, **more: Any) -> str:
        claims = self.claims(int(time.time()) if now_s is None else now_s, **more)
        claims = {name: value for name, value in claims.items() if value is not None}
        head = {"kid": self.kid} if headers is None else headers
        return jwt.encode(claims, self.key, algorithm=self.algorithm, headers=head)

    def sign(self, text: bytes) -> str:
        signature = jwt.get_algorithm_by_name(self.algorithm).sign(text, self.key)
        return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

    def rotate(self, kid: str) -> None:
        self.key, self.kid = new_key(self.algorithm), kid
        self.keys = {"keys": [public_jwk(self.key, self.algorithm, kid)]}

    def answer(self, path: str) -> bytes:
        if path == "/.well-known/openid-configuration":
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.says).encode()
        if path.startswith("/sign?"):  # as GitHub does for its runs
            audience = parse_qs(path.partition("?")[2])["audience"][0]
            lasts_s = self.lasts_s.pop(0) if self.lasts_s else 300
            now = int(time.time())
            return json.dumps(
                {"value": self.token(now, aud=audience, exp=now + lasts_s, jti=str(len(self.asked)))}
            ).encode()
        return self.content or json.dumps(self.keys).encode()


@contextmanager
def issuing(algorithm: str = "RS256") -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            issuer.hangs.wait(WAIT_S_MAX)
            content = issuer.answer(self.path)
            self.send_response(issuer.status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Location", f"{issuer.url}/keys")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *words: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    issuer = Issuer(server.server_address[1], algorithm)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield issuer
    finally:
        issuer.hangs.set()
        server.shutdown()
        thread.join(WAIT_S_MAX)
        server.server_close()
