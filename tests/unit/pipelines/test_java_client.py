"""[kafka.client], in librdkafka's names, as settings of Kafka's Java client."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat

from pipelines.errors import StartError
from pipelines.kafka_client.options import portable_config, to_java_config
from tests.support.certificates import Authority, Certificate

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"security.protocol": "sasl_ssl"}, {"security.protocol": "SASL_SSL"}),
        ({"enable.ssl.certificate.verification": "true"}, {}),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            {"ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": 'b"\\'},
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN} required username="a" password="b\\"\\\\";',
            },
        ),
        (
            {"ssl.ca.pem": "PEM"},
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "PEM"},
        ),
    ],
)
def test_settings_get_the_java_clients_names(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert to_java_config(given) == expected


@pytest.fixture(scope="module")
def own() -> Certificate:
    return Authority().issue("alice")


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", ["", "of the key"])
def test_a_key_of_any_kind_becomes_one_that_java_reads(
    own: Certificate, form: PrivateFormat, password: str
) -> None:
    given = {"ssl.certificate.pem": own.chain_pem(), "ssl.key.pem": own.key_pem(form, password)}
    given |= {"ssl.key.password": password} if password else {}
    assert to_java_config(given) == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": own.chain_pem(),
        "ssl.keystore.key": own.key_pem(),
    }


def test_tasks_on_any_machine_get_texts_in_place_of_files(own: Certificate, tmp_path: Path) -> None:
    """A key without its password: the password would be of no use to anybody else."""
    (tmp_path / "ca.pem").write_text(own.chain_pem())
    (tmp_path / "own.p12").write_bytes(own.store("of the store"))
    (tmp_path / "own.key").write_text(own.key_pem(password="of the key"))
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    texts = {"ssl.certificate.pem": own.chain_pem(), "ssl.key.pem": own.key_pem()}
    key = {"ssl.key.location": str(tmp_path / "own.key"), "ssl.key.password": "of the key"}
    store = {
        "ssl.keystore.location": str(tmp_path / "own.p12"),
        "ssl.keystore.password": "of the store",
    }
    trusted = {"ssl.ca.location": str(tmp_path / "ca.pem")}

    assert portable_config(login) == login
    assert portable_config({**login, **trusted}) == {**login, "ssl.ca.pem": own.chain_pem()}
    assert portable_config({**key, "ssl.certificate.pem": own.chain_pem()}) == texts
    assert portable_config(store) == texts


def test_a_folder_of_authorities_is_trusted_whole(tmp_path: Path) -> None:
    texts = [Authority(name).own.chain_pem() for name in ("one", "two")]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.pem").write_text(text)
    (tmp_path / "README").write_text("not a certificate")
    trusted = to_java_config({"ssl.ca.location": str(tmp_path)})["ssl.truststore.certificates"]
    assert [text in trusted for text in texts] == [True, True]
    assert "not a" not in trusted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "Spark's client always verifies"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.method: 'oidc' is allowed"),
        ({"ssl.ca.location": "/no/such/file"}, "ssl.ca.location = '/no/such/file': No such file"),
        ({"ssl.ca.location": "/dev/null"}, "it has no certificate in PEM"),
        ({"ssl.keystore.location": "/dev/null"}, "ssl.keystore.location = '/dev/null': "),
        ({"ssl.certificate.pem": "x", "ssl.key.pem": "s3cret"}, "[kafka.client] ssl.key"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(StartError) as error:
        to_java_config(given)
    assert said in str(error.value)
    assert "s3cret" not in str(error.value)


def test_a_wrong_password_of_a_key_or_a_store_is_named_and_not_shown(
    own: Certificate, tmp_path: Path
) -> None:
    (tmp_path / "own.p12").write_bytes(own.store("the right one"))
    (tmp_path / "own.key").write_text(own.key_pem(password="the right one"))
    (tmp_path / "own.crt").write_text(own.chain_pem())
    store = {"ssl.keystore.location": "own.p12", "ssl.keystore.password": "s3cret"}
    files = {
        "ssl.certificate.location": "own.crt",
        "ssl.key.location": "own.key",
        "ssl.key.password": "s3cret",
    }
    for given, name in ((store, "own.p12"), (files, "own.key")):
        placed = {k: str(tmp_path / v) if k.endswith("location") else v for k, v in given.items()}
        with pytest.raises(StartError, match=name) as error:
            to_java_config(placed)
        assert "s3cret" not in str(error.value)
        assert "\n" not in str(error.value)
