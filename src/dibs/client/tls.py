"""TLS of a client: whom it trusts, and its own certificate. It trusts the authorities of the system, or those in
SSL_CERT_FILE."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl


def client_context() -> ssl.SSLContext:
    """With DIBS_CLIENT_CERT it has a certificate to show, whose key is in DIBS_CLIENT_KEY or in the same file."""
    import ssl

    context = ssl.create_default_context()
    cert = os.environ.get("DIBS_CLIENT_CERT")
    if cert:
        key = os.environ.get("DIBS_CLIENT_KEY") or cert
        try:
            context.load_cert_chain(cert, key, _no_password)
        except OSError as error:  # SSLError is one
            reason = getattr(error, "reason", None) or error.strerror
            raise InvalidInput(
                f"The certificate in DIBS_CLIENT_CERT ({cert}) with the key in {key} cannot be used ({reason}). "
                "Both are in PEM form, and the key is not encrypted."
            ) from None
    return context


def _no_password() -> str:
    """Without this, OpenSSL would ask at the terminal."""
    return ""
