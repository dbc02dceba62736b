"""Signs deliveries. A receiver checks one of the two headers with the webhook's secret."""

from __future__ import annotations

import hmac

OCTOSTORE_HEADER = "X-OctoStore-Signature"
HEADER = "X-Dibs-Signature"


def signatures(secret: str, body: bytes, at_s: int) -> dict[str, str]:
    """OctoStore's signature is over the body alone, so a copied delivery stays valid for ever. Ours is over the time,
    too: a receiver refuses one that is old."""
    if not secret:
        return {}
    key = secret.encode()
    return {
        OCTOSTORE_HEADER: f"sha256={hmac.new(key, body, 'sha256').hexdigest()}",
        HEADER: f"t={at_s},v1={hmac.new(key, b'%d.' % at_s + body, 'sha256').hexdigest()}",
    }
