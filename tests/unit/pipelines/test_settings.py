"""Settings: every mistake stops the start with file, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.settings import SettingsError, load, parse

GOOD: dict[str, Any] = {"lake": {"path": "l"}, "kafka": {"bootstrap_servers": "h:1"}}


def with_(section: str, **values: Any) -> dict[str, Any]:
    return {**GOOD, section: {**GOOD.get(section, {}), **values}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lake": {}}, "f: [lake] path is missing; text that is not empty is needed"),
        (with_("lake", path=""), "f: [lake] path = '': text that is not empty is allowed"),
        (with_("lake", colour=1), "f: [lake] colour is unknown; the keys are"),
        ({**GOOD, "lakes": {}}, "f: [lakes] is unknown; the sections are"),
        ({**GOOD, "lakes": {}}, "; did you mean lake?"),
        (with_("kafka", bootstrap_server="h:1"), "; did you mean bootstrap_servers?"),
        (with_("security", operator={}), "; did you mean operators?"),
        ({**GOOD, "lake": "s3cret"}, "f: lake has a value: [lake] is a section"),
        (with_("transaction", check_max=1001), "check_max = 1001: a whole number 0 .. 1000"),
        (with_("transaction", check_max=True), "check_max = True: a whole number 0 .. 1000"),
        (with_("transaction", check_max="3"), "check_max = '3': a whole number 0 .. 1000"),
        (with_("transaction", late_end_policy="x"), "late_end_policy = 'x': 'apply' or 'reject'"),
        (
            with_("transaction", half_retention_ms=5),
            "half_retention_ms = 5 is below transaction_timeout_ms = 6000: a half would",
        ),
        (
            with_("lake", retention_ms=5),
            "[lake] retention_ms = 5 is below [transaction] half_retention_ms = 259200000: a half",
        ),
        (
            with_("maintenance", file_retention_ms=60_000),
            "[maintenance] file_retention_ms = 60000 is below log_retention_ms = 600000: versions",
        ),
        (
            with_("topics", retention_ms=5),
            "[topics] retention_ms = 5 is below [maintenance] stream_retention_ms = 604800000",
        ),
        (with_("topics", retention_ms=0), "retention_ms = 0: a whole number 1 .. 10^15, or -1"),
        (with_("kafka", op_topic="RMQ_SYS_TRANS_HALF_TOPIC"), "names two topics"),
        (with_("kafka", half_topic=".."), "'..': Kafka allows no topic of that name"),
        (with_("kafka", half_topic="TRANS_CHECK_x"), "begins with check_topic_prefix"),
        (with_("kafka", half_topic="TRANS.CHECK.x"), "differs from check_topic_prefix"),
        (with_("kafka", half_topic="__transaction_state"), "Kafka allows no topic of that name"),
        (with_("kafka", check_topic_prefix="."), "Kafka's own topic '__consumer_offsets'"),
        (with_("kafka", half_topic="a.b", op_topic="a_b"), "'a.b' and 'a_b' differ by '.'"),
        (with_("kafka", bootstrap_servers="here"), "'here': host:port, comma separated, is"),
        (with_("kafka", bootstrap_servers="a:1,b:99999"), "host:port, comma separated, is"),
        (with_("kafka", half_topic="a b"), "half_topic = 'a b': text like"),
        (with_("topics", auto_create_topics=1), "auto_create_topics = 1: true or false"),
        (with_("delay", levels="1s 5x"), "levels = '1s 5x': spans like"),
        (with_("kafka", client={"sasl.password": "s3cret"}), "use sasl.password_env"),
        (with_("kafka", client={"ssl.key.pem": "s3cret"}), "use ssl.key.pem_env"),
        (with_("kafka", client={"sasl.password_env": "s3cret"}), "no such environment variable"),
        (with_("kafka", client={"sasl.password_file": "s3cret"}), "sasl.password_file: No such"),
        (with_("kafka", client="s3cret"), "f: [kafka.client] has a value: [kafka.client] is a"),
        (with_("kafka", **{"sasl.password": "s3cret"}), "[kafka] sasl.password is unknown"),
        (with_("lake", store={"master_key": "s3cret"}), "use master_key_env"),
        (with_("lake", store={"azure_storage_access_key": "s3cret"}), "a secret does not stand"),
        (with_("lake", store={"password": "s3cret"}), "a secret does not stand"),
        (with_("lake", store={"AWS_SECRET_ACCESS_KEY": "s3cret"}), "a secret does not stand"),
        (with_("kafka", client={"sasl.oauthbearer.config": "s3cret"}), "a secret does not stand"),
        (with_("kafka", client={"ssl.keystore.key": "s3cret"}), "a secret does not stand"),
        (with_("spark", spark={"ssl": {"keyPassword": "s3cret"}}), "use spark.ssl.keyPassword_env"),
        (
            with_("spark", **{"spark.hadoop.fs.s3a.encryption.key": "s3cret"}),
            "use spark.hadoop.fs.s3a.encryption.key_env",
        ),
        (with_("spark", **{"spark.sql.catalog.c.password": "s3cret"}), "a secret does not stand"),
        (with_("kafka", client={"acks": "0"}), "[kafka.client] acks is set by txlake"),
        (with_("kafka", client={"acks_env": "PATH"}), "acks_env is set by txlake"),
        (with_("kafka", client={"request.required.acks": 0}), "is set by txlake"),
        (with_("kafka", client={"group.id_file": "x"}), "group.id_file is set by txlake"),
        (with_("kafka", client={"delivery.report.only.error": "true"}), "is set by txlake"),
        (with_("kafka", client={"stats_cb": "print"}), "stats_cb is set by txlake"),
        (with_("lake", store={"allow_unsafe_rename_env": "PATH"}), "is set by txlake"),
        (with_("lake", store={"AWS_CONDITIONAL_PUT": "disabled"}), "is set by txlake"),
        (
            with_("kafka", client={"ssl.key.pem_env": "PATH", "ssl.key.pem_file": "/etc/hosts"}),
            "[kafka.client] ssl.key.pem stands twice",
        ),
        (
            with_("security", colour={}),
            "[security] colour is unknown; the keys are keys, operators, require_transaction_id",
        ),
        (
            with_("security", require_transaction_id="no"),
            "[security] require_transaction_id = 'no': true or false is allowed",
        ),
        (with_("security", keys={"a b": {"k_file": "f"}}), "[security.keys.a b]: a group's name"),
        (with_("security", keys={"shop": {}}), "[security.keys.shop] is empty: one key is needed"),
        (with_("security", keys={"shop": "s3cret"}), "[security.keys.shop] has a value: "),
        (with_("security", keys={"shop": {"k1": "s3cret"}}), "k1: a secret does not stand in a"),
        (with_("security", keys={"shop": {"k1_env": 3}}), "k1_env: text is allowed"),
        (with_("security", keys={"shop": {"k1_env": "NO_SUCH"}}), "no such environment variable"),
        (with_("security", operators={"k1_file": "nowhere"}), "k1_file: No such file"),
        (with_("security", operators={"a:b_env": "PATH"}), "key id 'a:b'"),
        (with_("spark", master="local"), "settings that begin with spark. are allowed"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse(values, "f")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["k1_env", "k1_file"], "[security.keys.shop] k1 stands twice"),
        (["k1_env", "k2_env", "k3_env"], "[security.keys.shop]: 3 keys of a producer group"),
        (["short_env"], "short_env: key short: a secret of at least 32 bytes is allowed"),
    ],
)
def test_keys_that_cannot_be_used_are_named_and_not_printed(
    names: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("s3cret" * 6)
    monkeypatch.setenv("KEY", "s3cret" * 6)
    monkeypatch.setenv("SHORT", "s3cret")
    where = {"env": "KEY", "file": str(tmp_path / "key")}
    values = {name: where[name.rpartition("_")[2]] for name in names}
    values |= {"short_env": "SHORT"} if "short_env" in names else {}
    with pytest.raises(SettingsError) as error:
        parse(with_("security", keys={"shop": values}), "f")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


def test_the_keys_of_groups_and_operators_are_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("o" * 32 + "\n")
    monkeypatch.setenv("KEY", "s3cret" * 6)
    keys = {"shop": {"old_file": str(tmp_path / "key"), "new_env": "KEY"}}
    security = parse(with_("security", keys=keys, operators={"anna_env": "KEY"}), "f").security
    assert [(key.id, key.secret) for key in security.keys["shop"]] == [
        ("old", b"o" * 32),
        ("new", b"s3cret" * 6),
    ]
    assert security.operators["anna"].secret == b"s3cret" * 6
    assert "s3cret" not in repr(security)


@pytest.mark.parametrize(
    ("value", "is_fine"), [(0, True), (1000, True), (-1, False), (1001, False)]
)
def test_the_bounds_of_a_setting_are_allowed_and_what_is_beyond_is_not(
    value: int, is_fine: bool
) -> None:
    values = with_("transaction", check_max=value)
    if is_fine:
        assert parse(values, "f").transaction.check_max == value
    else:
        with pytest.raises(SettingsError):
            parse(values, "f")


def test_a_secret_comes_from_the_environment_and_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "s3cret")
    secret = tmp_path / "user"
    secret.write_text("alice\n")
    client = {"sasl.password_env": "MY_PASSWORD", "sasl.username_file": str(secret)}
    settings = parse(with_("kafka", client=client), "f")
    assert settings.kafka.client == {"sasl.password": "s3cret", "sasl.username": "alice"}
    assert "s3cret" not in repr(settings)


def test_a_file_that_is_missing_or_is_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: cannot be read"):
        load(tmp_path / "nowhere.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[lake")
    with pytest.raises(SettingsError, match=r"bad\.toml: not TOML"):
        load(bad)
