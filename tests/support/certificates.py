"""Certificates for tests, made by the machine itself: an authority, servers, clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    own: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def chain_pem(self) -> str:
        """Returns the certificate as PEM."""
        return self.own.public_bytes(Encoding.PEM).decode()

    def key_pem(self, form: PrivateFormat = PrivateFormat.PKCS8, password: str = "") -> str:
        """Returns the key as PEM, encrypted if there is a password."""
        return self.key.private_bytes(Encoding.PEM, form, _encryption(password)).decode()

    def store(self, password: str) -> bytes:
        """Returns both as a PKCS#12 store."""
        secret = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"own", self.key, self.own, None, secret)

    def write(self, file: Path) -> Path:
        """Writes key and certificate into one PEM file, as Kafka's broker reads them."""
        file.write_text(self.key_pem() + self.chain_pem(), encoding="utf-8")
        return file


def _encryption(password: str) -> KeySerializationEncryption:
    return BestAvailableEncryption(password.encode()) if password else NoEncryption()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """An authority that signs certificates; `own` is its own one."""

    def __init__(self, name: str = "tests' authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        own = self._begun(self._name, self._key.public_key(), 3_650).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.own = Certificate(own.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, name: str, hosts: tuple[str, ...] = (), days: int = 30) -> Certificate:
        """Returns a new certificate. Input: `days` it is valid for; below 0 it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        begun = self._begun(_name(name), key.public_key(), days)
        if hosts:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            begun = begun.add_extension(names, critical=False)
        return Certificate(begun.sign(self._key, hashes.SHA256()), key)

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 60 * _DAY)
            .not_valid_after(now + days * _DAY)
        )
