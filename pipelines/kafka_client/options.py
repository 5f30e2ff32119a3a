"""The settings of [kafka.client], named as librdkafka names them, for Spark's source and for tasks.

Spark's source uses Kafka's Java client, which spells some settings differently and reads other
kinds of files. Tasks read by librdkafka, on machines that lack the files. So certificates and keys
are read here and handed over as PEM text.

    StartError    a file that cannot be read or has wrong content; it names the setting

`cryptography` is imported where a client has a key of its own: it would be a sixth of what a short
command takes to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.errors import StartError
from pipelines.settings import KafkaSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

# librdkafka's names of the settings that are translated below. The Java client has the others, too,
# or ignores them: then they tune librdkafka, and do not say who may connect.
_LOGIN: Final = (
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)
_CERTIFICATES: Final = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
)
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_JAAS: Final = "org.apache.kafka.common.security"
_PASSWORD_LOGINS: Final = {
    "PLAIN": f"{_JAAS}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAAS}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAAS}.scram.ScramLoginModule",
}


def to_java_config(client: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings for Java.

    A user or a client of OAUTHBEARER becomes a JAAS line; certificates and the key become PEM text.
    Errors: StartError.
    """
    if client.get(_VERIFICATION, "true") != "true":
        raise StartError(
            f"[kafka.client] {_VERIFICATION} = {client[_VERIFICATION]}: Spark's client always "
            "verifies; name who signed the broker's certificate in ssl.ca.location"
        )

    translated = (*_LOGIN, *_CERTIFICATES, _VERIFICATION)
    java = {key: value for key, value in client.items() if key not in translated}

    if "security.protocol" in java:
        java["security.protocol"] = java["security.protocol"].upper()
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""

    return {**java, **_login(client), **_truststore(client), **_own_certificate(client)}


def portable_config(client: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings for librdkafka on any machine: texts stand where files were named.

    Errors: StartError.
    """
    trusted = _truststore(client)
    own = _own_certificate(client)
    texts = {
        "ssl.ca.pem": trusted.get("ssl.truststore.certificates", ""),
        "ssl.certificate.pem": own.get("ssl.keystore.certificate.chain", ""),
        "ssl.key.pem": own.get("ssl.keystore.key", ""),
    }
    others = {key: value for key, value in client.items() if key not in _CERTIFICATES}
    return {**others, **{key: text for key, text in texts.items() if text}}


def _login(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))
    if not mechanism:
        return {}

    if mechanism == "OAUTHBEARER":
        if client.get("sasl.oauthbearer.method") != "oidc":
            raise StartError("[kafka.client] sasl.oauthbearer.method: 'oidc' is allowed")
        oauth = f"{_JAAS}.oauthbearer"
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": _jaas(
                f"{oauth}.OAuthBearerLoginModule",
                clientId=client.get("sasl.oauthbearer.client.id", ""),
                clientSecret=client.get("sasl.oauthbearer.client.secret", ""),
                scope=client.get("sasl.oauthbearer.scope", ""),
            ),
            "sasl.login.callback.handler.class": f"{oauth}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": client.get(
                "sasl.oauthbearer.token.endpoint.url", ""
            ),
        }

    if mechanism not in _PASSWORD_LOGINS or "sasl.username" not in client:
        return {"sasl.mechanism": mechanism}

    login = _PASSWORD_LOGINS[mechanism]
    password = client.get("sasl.password", "")
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _jaas(login, username=client["sasl.username"], password=password),
    }


def _jaas(module: str, **options: str) -> str:
    """Returns the line that configures a login; empty options are left out."""
    texts = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in options.items()}
    non_empty = " ".join(f'{key}="{text}"' for key, text in texts.items() if text)
    return f"{module} required {non_empty};"


def _truststore(client: Mapping[str, str]) -> dict[str, str]:
    """Returns the certificates to check brokers' against; if empty, Java has its own."""
    pem = client.get("ssl.ca.pem", "")
    if "ssl.ca.location" in client:
        location = Path(client["ssl.ca.location"])
        files = sorted(location.iterdir()) if location.is_dir() else [location]
        texts = [_read("ssl.ca.location", file).decode("utf-8", "replace") for file in files]
        pem = "\n".join(text for text in texts if "BEGIN CERTIFICATE" in text)
        if not pem:
            raise _config_error("ssl.ca.location", location, "it has no certificate in PEM")

    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem} if pem else {}


def _own_certificate(client: Mapping[str, str]) -> dict[str, str]:
    """Returns the certificate by which brokers know this client, and its key."""
    if "ssl.keystore.location" in client:
        chain, key = _from_pkcs12(client)
    else:
        chain = _pem(client, "ssl.certificate")
        key = _pem(client, "ssl.key")
        if not chain or not key:
            return {}
        key = _pkcs8(client, key)

    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
    }


def _pem(client: Mapping[str, str], name: str) -> str:
    """Returns the content of a file, or of the settings themselves; empty if there is neither."""
    setting = f"{name}.location"
    if setting in client:
        return _read(setting, Path(client[setting])).decode("utf-8", "replace")
    return client.get(f"{name}.pem", "")


def _pkcs8(client: Mapping[str, str], pem: str) -> str:
    """Returns a key in PKCS#8, the only form that Java reads, from any form of PEM."""
    from cryptography.hazmat.primitives import serialization

    password = client["ssl.key.password"].encode() if "ssl.key.password" in client else None
    try:
        loaded = serialization.load_pem_private_key(pem.encode(), password)
    except (ValueError, TypeError) as error:
        path = Path(client.get("ssl.key.location", "ssl.key.pem"))
        raise _config_error("ssl.key.location", path, f"{error}") from None
    return _as_pkcs8(loaded)


def _from_pkcs12(client: Mapping[str, str]) -> tuple[str, str]:
    """Returns the chain and the key of a PKCS#12 store."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    path = Path(client["ssl.keystore.location"])
    password = client.get("ssl.keystore.password", "").encode()
    data = _read("ssl.keystore.location", path)
    try:
        key, own, others = pkcs12.load_key_and_certificates(data, password)
    except ValueError as error:
        raise _config_error("ssl.keystore.location", path, f"{error}") from None

    if key is None or own is None:
        raise _config_error("ssl.keystore.location", path, "it has no key with a certificate")

    certificates = [certificate.public_bytes(Encoding.PEM) for certificate in (own, *others)]
    chain = b"".join(certificates).decode()
    return chain, _as_pkcs8(key)


def _as_pkcs8(key: PrivateKeyTypes) -> str:
    """Returns a key as PEM without a password."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _config_error(setting, path, error.strerror or "it cannot be read") from None


def _config_error(setting: str, path: Path, reason: str) -> StartError:
    return StartError(f"[kafka.client] {setting} = {str(path)!r}: {reason.rstrip('.')}")


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """Returns offsets of partitions as Spark's source takes them, as JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """Returns the options of Spark's Kafka source, which asks for offsets and reads no record.

    Time limits are short and retries few: the query survives a broker's restart, and ends within a
    minute if the broker stays away. The driver starts it again.
    Errors: StartError.
    """
    return {
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "10000",
        **{f"kafka.{key}": value for key, value in to_java_config(kafka.client).items()},
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafkaConsumer.pollTimeoutMs": "30000",
        "fetchOffset.numRetries": "4",
        "fetchOffset.retryIntervalMs": "500",
    }
