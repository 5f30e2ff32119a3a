"""The network of a Java program, as Python has it: the same proxies, the same trust.

A Java runtime from a wheel brings its own list of certificates, without those that the machine's
owner added. With these options Java trusts exactly the certificates that Python trusts.
"""

from __future__ import annotations

import ssl
import urllib.parse
import urllib.request
import warnings
from pathlib import Path

# The store has public certificates only, but Java wants a password for every store.
TRUST_STORE_PASSWORD = "public"  # noqa: S105


def network_options(folder: Path) -> list[str]:
    """Returns the options for a Java program; writes its trust store into the folder."""
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
    """Writes the certificates that Python trusts for Java; returns whether there are any.

    If Python knows no certificate, Java keeps its own.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    entries = []

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old roots break rules of today; Python trusts them
        for number, der in enumerate(trusted_certificates()):
            try:
                certificate = x509.load_der_x509_certificate(der)
            except ValueError:
                continue  # OpenSSL takes it, this parser refuses it: left out
            entries.append(pkcs12.PKCS12Certificate(certificate, f"python-{number}".encode()))

        if not entries:
            return False

        encryption = BestAvailableEncryption(TRUST_STORE_PASSWORD.encode())
        path.write_bytes(pkcs12.serialize_java_truststore(entries, encryption))

    return True


def trusted_certificates() -> list[bytes]:
    """Returns the certificates that Python trusts by default, each once.

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
            options += [
                f"-D{scheme}.proxyHost={proxy.hostname}",
                f"-D{scheme}.proxyPort={proxy.port or 80}",
            ]
    return options
