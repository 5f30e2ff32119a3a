"""The reason why TLS fails between a client and its broker, in words.

librdkafka has one sentence for every certificate that it does not trust, and none for its own one
that the broker refuses. So a connection that failed is tried once more here, by Python's ssl, which
names the reason.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.kafka_client.options import to_java_config

_TIMEOUT_S: Final = 3.0
# What a broker says against the certificate of its client: words of OpenSSL's, and ours.
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "the broker wants a certificate of this client's",
    "BAD_CERTIFICATE": "the broker wants a certificate of this client's, or does not trust it",
    "CERTIFICATE_UNKNOWN": "the broker does not trust this client's certificate",
    "UNKNOWN_CA": "the broker does not know who signed this client's certificate",
}


def tls_error(bootstrap_servers: str, client: Mapping[str, str]) -> str:
    """Returns why a listener and these settings cannot speak TLS; empty for another reason.

    Errors: StartError for certificate files that cannot be used.
    """
    host, _, port = bootstrap_servers.split(",")[0].strip().rpartition(":")
    protocol = client.get("security.protocol", "plaintext").lower()
    is_tls = protocol in ("ssl", "sasl_ssl")
    context = _context(client) if is_tls else _trusting_context()

    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as connection,
        ):
            if not is_tls:
                return f"the listener speaks TLS, and security.protocol is {protocol}"
            connection.settimeout(_TIMEOUT_S)
            connection.recv(1)  # a refusal comes after the handshake; else nothing comes

    except ssl.SSLCertVerificationError as error:
        return f"the broker's certificate is not trusted: {error.verify_message}"
    except ssl.SSLError as error:
        alerts = [words for sign, words in _ALERTS.items() if sign in (error.reason or "")]
        return _expiry_text(client) or alerts[0] if is_tls and alerts else ""
    except (OSError, ValueError):
        return ""
    return ""


def _expiry_text(client: Mapping[str, str]) -> str:
    """Returns that this client's certificate has expired; empty if it has not."""
    own = to_java_config(client).get("ssl.keystore.certificate.chain", "")
    if not own:
        return ""

    from cryptography import x509

    until = x509.load_pem_x509_certificate(own.encode()).not_valid_after_utc
    if until > dt.datetime.now(dt.timezone.utc):
        return ""

    return f"this client's certificate has expired on {until:%Y-%m-%d %H:%M} UTC"


def _trusting_context() -> ssl.SSLContext:
    """Returns a context that trusts every broker: it only finds out whether one speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(client: Mapping[str, str]) -> ssl.SSLContext:
    java = to_java_config(client)
    trusted = java.get("ssl.truststore.certificates")
    context = ssl.create_default_context(cadata=trusted)
    if java.get("ssl.endpoint.identification.algorithm") == "":
        context.check_hostname = False

    if "ssl.keystore.key" in java:
        with tempfile.TemporaryDirectory(prefix="txlake-tls-") as folder:  # mode 700
            file = Path(folder) / "own.pem"
            chain = java["ssl.keystore.certificate.chain"]
            file.write_text(java["ssl.keystore.key"] + chain, encoding="utf-8")
            context.load_cert_chain(file)

    return context
