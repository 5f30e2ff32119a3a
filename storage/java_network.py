"""Let a Java program reach the network as Python does: the same proxies, the same trust.

A Java runtime from a wheel brings its own list of certificates, which lacks one that the machine's
owner added. Java shall trust exactly what Python trusts.
"""

from __future__ import annotations

import ssl
import urllib.parse
import urllib.request
import warnings
from pathlib import Path

# Not a secret: the store keeps public certificates. Java wants every store to have a password.
TRUST_STORE_PASSWORD = "public"  # noqa: S105


def network_options(folder: Path) -> list[str]:
    """Return the options for a Java program; what they name is written into the folder."""
    options = _proxy_options()
    trusted = folder / "trusted.p12"
    if write_trust_store(trusted):
        options += [
            f"-Djavax.net.ssl.trustStore={trusted}",
            "-Djavax.net.ssl.trustStoreType=PKCS12",
            f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
        ]
    return options


def write_trust_store(path: Path) -> bool:
    """Write the certificates that Python trusts as a store that Java reads; say if there are any.

    Where Python knows of none, Java keeps its own.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    entries = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old roots break rules of today; they are trusted still
        for number, der in enumerate(trusted_certificates()):
            try:
                certificate = x509.load_der_x509_certificate(der)
            except ValueError:
                continue  # OpenSSL took it, this parser does not; the others will do
            entries.append(pkcs12.PKCS12Certificate(certificate, f"python-{number}".encode()))
        if not entries:
            return False
        encryption = BestAvailableEncryption(TRUST_STORE_PASSWORD.encode())
        path.write_bytes(pkcs12.serialize_java_truststore(entries, encryption))
    return True


def trusted_certificates() -> list[bytes]:
    """List the certificates that Python trusts by default, each once.

    OpenSSL reads a file of certificates at once, but those of a folder only when it needs one.
    """
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    if not context.get_ca_certs() and folder:
        for path in sorted(Path(folder).glob("*.[0-9]")):
            context.load_verify_locations(cafile=path)
    return list(dict.fromkeys(context.get_ca_certs(binary_form=True)))


def _proxy_options() -> list[str]:
    options = []
    for scheme in ("http", "https"):
        proxy = urllib.parse.urlsplit(urllib.request.getproxies().get(scheme, ""))
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}"]
            options += [f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options
