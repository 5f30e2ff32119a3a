"""Who proves who they are works through each kind of listener; who does not is told why.

A real broker, with certificates of the tests' own and a server of tokens.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat
from pyspark.sql import SparkSession

from pipelines.errors import KafkaRefusedError, StartError
from pipelines.kafka_client.connection import Cluster
from pipelines.operate.records import command, write
from pipelines.settings import Settings
from storage.lake.lake import Lake
from tests.kafka.test_cli import ROOT, TXLAKE
from tests.support.certificates import Authority, Certificate
from tests.support.job import running, settings_for
from tests.support.producers import CommitsWhenAsked, options_of
from tests.support.secure_broker import (
    EXPIRED,
    MTLS,
    OTHER_HOST,
    PASSWORD,
    SecureBroker,
    secure_broker,
)
from tests.support.wait import DEADLINE_S
from txlake import (
    LocalTransactionState,
    Message,
    SendError,
    TransactionProducer,
)
from txlake.protocol import MAINTAIN

Client = dict[str, str]
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as started:
        yield started


def of_files(secure: SecureBroker, own: Certificate, folder: Path, **key: Any) -> Client:
    """Return a client that shows a certificate, both in PEM files."""
    (folder / "own.crt").write_text(own.chain_pem())
    (folder / "own.key").write_text(own.key_pem(**key))
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(secure.ca_file)}
    files = {"ssl.certificate.location": "own.crt", "ssl.key.location": "own.key"}
    return {**tls, **{setting: str(folder / name) for setting, name in files.items()}}


def of_encrypted_key(secure: SecureBroker, own: Certificate, folder: Path) -> Client:
    form = PrivateFormat.TraditionalOpenSSL
    client = of_files(secure, own, folder, form=form, password="of the key")
    return {**client, "ssl.key.password": "of the key"}


def of_store(secure: SecureBroker, own: Certificate, folder: Path) -> Client:
    (folder / "own.p12").write_bytes(own.store("of the store"))
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(secure.ca_file),
        "ssl.keystore.location": str(folder / "own.p12"),
        "ssl.keystore.password": "of the store",
    }


def with_secrets_in_files(client: Client, folder: Path) -> Client:
    """Return [kafka.client] as a file of settings may have it."""
    given = {}
    for setting, value in client.items():
        if setting.endswith((".password", ".secret")):
            (folder / setting).write_text(value)
            given[f"{setting}_file"] = str(folder / setting)
        else:
            given[setting] = value
    return given


def ways(secure: SecureBroker, folder: Path) -> dict[str, tuple[str, Client]]:
    """Return the ways in: a listener, and a client that it lets in."""
    own = secure.authority.issue("alice")
    files, key, store = (folder / name for name in ("files", "key", "store"))
    for one in (files, key, store):
        one.mkdir()
    passwords = ("PLAIN", "SCRAM_SHA_256", "SCRAM_SHA_512", "OAUTHBEARER")
    return {
        **{name: (name, secure.client(name)) for name in passwords},
        "certificate": (MTLS, of_files(secure, own, files)),
        "encrypted key": (MTLS, of_encrypted_key(secure, own, key)),
        "PKCS#12": (MTLS, of_store(secure, own, store)),
    }


def settings_of(secure: SecureBroker, way: tuple[str, Client], folder: Path, name: str) -> Settings:
    listener, client = way
    kafka = {
        "bootstrap_servers": secure.address(listener),
        "client": with_secrets_in_files(client, folder),
    }
    return settings_for(secure, folder / "lake", name, kafka=kafka)


@pytest.mark.parametrize(
    "name",
    [
        "PLAIN",
        "SCRAM_SHA_256",
        "SCRAM_SHA_512",
        "OAUTHBEARER",
        "certificate",
        "encrypted key",
        "PKCS#12",
    ],
)
def test_job_producer_checks_and_operator_all_get_in(
    secure: SecureBroker, tmp_path: Path, unique: Unique, spark: SparkSession, name: str
) -> None:
    way = ways(secure, tmp_path)[name]
    settings = settings_of(secure, way, tmp_path, unique("secure"))
    kafka = settings.kafka
    assert kafka.client == way[1]
    with (
        running(settings, verifies=False) as job,
        TransactionProducer(
            kafka.bootstrap_servers,
            "shop",
            CommitsWhenAsked(),
            options=options_of(settings),
            client=kafka.client,
        ) as producer,
    ):
        producer.send_message_in_transaction(Message("orders", b"one"), None)
        job.wait_for(lambda: len(job.messages("orders")) == 1, "the committed message")
        write(kafka, command(MAINTAIN, None, "ada", "to see"), job.plans[-1].cluster_id)
        job.wait_for_rows("admin", 1)
    assert [row["cause"] for row in job.rows("outcomes")] == ["check_answer"]


def refused(secure: SecureBroker, folder: Path) -> dict[str, tuple[str, Client, tuple[str, ...]]]:
    """Return clients that are not let in: listener, client, the words that say why."""
    known = secure.authority
    good, old, strange = (
        known.issue("alice"),
        known.issue("alice", days=-1),
        Authority("another").issue("alice"),
    )
    other_ca = folder / "other.pem"
    other_ca.write_text(Authority("another").own.chain_pem())
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(secure.ca_file)}
    wrong = {"sasl.password": "a wrong one"}
    secret = {"sasl.oauthbearer.client.secret": "a wrong one"}
    folders = [folder / name for name in ("old", "strange")]
    for one in folders:
        one.mkdir()
    plain = secure.client("PLAIN")
    not_trusted = "the broker's certificate is not trusted:"
    return {
        "a wrong password": ("PLAIN", {**plain, **wrong}, ("Invalid username or password",)),
        "a wrong password, SCRAM": (
            "SCRAM_SHA_512",
            {**secure.client("SCRAM_SHA_512"), **wrong},
            ("invalid credentials",),
        ),
        "a wrong secret": (
            "OAUTHBEARER",
            {**secure.client("OAUTHBEARER"), **secret},
            ("invalid_client",),
        ),
        "another mechanism": (
            "PLAIN",
            {**plain, "sasl.mechanisms": "SCRAM-SHA-256"},
            ("Unsupported SASL mechanism", "supported mechanisms: PLAIN"),
        ),
        "no certificate": (MTLS, tls, ("the broker wants a certificate of this client's",)),
        "an expired one": (
            MTLS,
            of_files(secure, old, folders[0]),
            ("this client's certificate has expired on",),
        ),
        "a stranger's": (
            MTLS,
            of_files(secure, strange, folders[1]),
            ("the broker does not trust this client's certificate",),
        ),
        "a broker of another authority": (
            "PLAIN",
            {**plain, "ssl.ca.location": str(other_ca)},
            (not_trusted, "issuer"),
        ),
        "a broker of another name": (OTHER_HOST, tls, (not_trusted, "not valid for '127.0.0.1'")),
        "a broker whose certificate has expired": (EXPIRED, tls, (not_trusted, "has expired")),
        "no TLS where there is": ("PLAIN", {}, ("the listener speaks TLS", "plaintext")),
        "TLS where there is none": ("", tls, ("PLAINTEXT broker listener",)),
        "a login where there is none": (
            "",
            {**plain, "security.protocol": "sasl_plaintext"},
            ("handshake failed",),
        ),
        "a setting that does not exist": (MTLS, {"no.such": "x"}, ("no.such",)),
        "a file that is not there": (
            MTLS,
            {**tls, "ssl.ca.location": str(folder / "none.pem")},
            ("none.pem",),
        ),
        "a key of another certificate": (
            MTLS,
            {**of_files(secure, good, folder), "ssl.key.location": str(folders[0] / "own.key")},
            ("key values mismatch",),
        ),
    }


@pytest.mark.parametrize(
    "why",
    [
        "a wrong password",
        "a wrong password, SCRAM",
        "a wrong secret",
        "another mechanism",
        "no certificate",
        "an expired one",
        "a stranger's",
        "a broker of another authority",
        "a broker of another name",
        "a broker whose certificate has expired",
        "no TLS where there is",
        "TLS where there is none",
        "a login where there is none",
        "a setting that does not exist",
        "a file that is not there",
        "a key of another certificate",
    ],
)
def test_who_is_not_let_in_is_told_why(secure: SecureBroker, tmp_path: Path, why: str) -> None:
    listener, client, words = refused(secure, tmp_path)[why]
    servers = secure.address(listener) if listener else secure.bootstrap_servers
    with pytest.raises((KafkaRefusedError, StartError)) as refusal:
        Cluster(servers, client).topics()
    text = str(refusal.value)
    assert [word for word in words if word not in text] == [], text
    assert "\n" not in text
    assert PASSWORD not in text
    assert "a wrong one" not in text


def test_a_producer_with_a_wrong_password_is_told_so(secure: SecureBroker) -> None:
    client = {**secure.client("PLAIN"), "sasl.password": "a wrong one"}
    with (
        TransactionProducer(secure.address("PLAIN"), "shop", client=client) as producer,
        pytest.raises(SendError, match="Invalid username or password") as refusal,
    ):
        producer.send_message_in_transaction(
            Message("orders", b"one"), execute=lambda half: LocalTransactionState.COMMIT_MESSAGE
        )
    assert "a wrong one" not in str(refusal.value)


def test_a_job_with_a_wrong_password_ends_with_one_sentence(
    secure: SecureBroker, tmp_path: Path
) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(
        f"""
[lake]
path = "{tmp_path / "lake"}"
[kafka]
bootstrap_servers = "{secure.address("PLAIN")}"
[kafka.client]
"security.protocol" = "sasl_ssl"
"sasl.mechanisms" = "PLAIN"
"sasl.username" = "alice"
"sasl.password_env" = "THE_PASSWORD"
"ssl.ca.location" = "{secure.ca_file}"
"""
    )
    done = subprocess.run(
        [*TXLAKE, "run", "--conf", str(conf)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "THE_PASSWORD": "a wrong one"},
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert said.count("Invalid username or password") == 1, said
    assert "Traceback" not in said, said
    assert "a wrong one" not in said
    assert not Lake(str(tmp_path / "lake")).exists()
