"""A real broker that lets in who proves who it is: a listener for each way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pipelines.local_broker.broker import Broker
from pipelines.local_server.server import HOST
from tests.support.certificates import LOOPBACK, Authority, Certificate
from tests.support.kafka_admin import admin_client
from tests.support.token_server import TokenServer
from tests.support.wait import DEADLINE_S

USER, PASSWORD = "alice", '"hidden from all" with \\ in it'
_SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Names of listeners, and what makes them special.
MTLS, OTHER_HOST, EXPIRED = "MTLS", "OTHER_HOST", "EXPIRED"
LISTENERS: Final = (*(name.replace("-", "_") for name in _SASL), MTLS, OTHER_HOST, EXPIRED)
_MODULES = "org.apache.kafka.common.security"


class SecureBroker(Broker):
    """A broker on loopback with a listener for each of `LISTENERS`, and its plain one.

    Input: `tokens`: the server of OAUTHBEARER's tokens; `reauth_ms`: how long a login counts.
    """

    PORTS = 2 + len(LISTENERS)

    def __init__(self, folder: Path, tokens: TokenServer, reauth_ms: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority()
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_text(self.authority.own.chain_pem(), encoding="utf-8")
        self._folder = folder
        self._tokens = tokens
        self._reauth_ms = reauth_ms
        super().__init__(folder / "broker", properties=self._security())

    def address(self, listener: str) -> str:
        """Returns where a listener is."""
        return f"{HOST}:{self._ports[2 + LISTENERS.index(listener)]}"

    def client(self, listener: str) -> dict[str, str]:
        """Returns [kafka.client] of a client that a listener lets in by a secret."""
        tls = {"security.protocol": "sasl_ssl", "ssl.ca.location": str(self.ca_file)}
        if listener == "OAUTHBEARER":
            return {**tls, **self._tokens.client()}
        return {
            **tls,
            "sasl.mechanisms": listener.replace("_", "-"),
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    def add_user(self, password: str = PASSWORD) -> None:
        """Makes the user known to the SCRAM listeners, or changes the password."""
        admin = admin_client(self.bootstrap_servers)
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        for kind in kinds:
            info = ScramCredentialInfo(kind, 4096)
            change = UserScramCredentialUpsertion(USER, info, password.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(DEADLINE_S)

    def _prepare(self, java_command: list[str]) -> list[str]:
        ours = [f"{name}://{self.address(name)}" for name in LISTENERS]
        plain = f"BROKER://{self.bootstrap_servers}"
        kinds = ["BROKER:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        kinds += [f"{name}:{'SASL_SSL' if _is_sasl(name) else 'SSL'}" for name in LISTENERS]

        self._properties |= {
            "listeners": ",".join([plain, *ours, f"CONTROLLER://{HOST}:{self._ports[1]}"]),
            "advertised.listeners": ",".join([plain, *ours]),
            "listener.security.protocol.map": ",".join(kinds),
        }

        java, *options = super()._prepare(java_command)
        return [
            java,
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.keys_url}",
            *options,
        ]

    def _security(self) -> dict[str, str | int]:
        good = self.authority.issue("broker", LOOPBACK)
        own = {
            OTHER_HOST: self.authority.issue("elsewhere", ("elsewhere.example",)),
            EXPIRED: self.authority.issue("broker of old", LOOPBACK, days=-1),
        }

        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        properties: dict[str, str | int] = {
            "connections.max.reauth.ms": self._reauth_ms,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.plain.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{escaped}";'
            ),
            "listener.name.oauthbearer.oauthbearer.sasl.jaas.config": (
                f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "listener.name.oauthbearer.oauthbearer.sasl.server.callback.handler.class": (
                f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._tokens.keys_url,
            "listener.name.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        }

        for name in LISTENERS:
            prefix = f"listener.name.{name.lower()}."
            file = self._written(name, own.get(name, good))
            properties[f"{prefix}ssl.keystore.type"] = "PEM"
            properties[f"{prefix}ssl.keystore.location"] = str(file)

            if _is_sasl(name):
                mechanism = name.replace("_", "-")
                properties[f"{prefix}sasl.enabled.mechanisms"] = mechanism
                if mechanism.startswith("SCRAM"):
                    properties[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = (
                        f"{_MODULES}.scram.ScramLoginModule required;"
                    )
        return properties

    def _written(self, name: str, certificate: Certificate) -> Path:
        return certificate.write(self._folder / f"{name.lower()}.pem")


@contextmanager
def secure_broker(folder: Path, reauth_ms: int = 0) -> Iterator[SecureBroker]:
    """Starts a broker that knows its user, and a server of tokens; ends both."""
    with TokenServer().running() as tokens, SecureBroker(folder, tokens, reauth_ms) as started:
        started.add_user()
        yield started


def _is_sasl(listener: str) -> bool:
    return listener.replace("_", "-") in _SASL
