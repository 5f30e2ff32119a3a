"""The sender of checks can be made with every time-out that the settings allow."""

from __future__ import annotations

import pytest

from pipelines.epoch.checks import KafkaCheckSender
from pipelines.settings import parse


@pytest.mark.parametrize("timeout_ms", [1, 5, 6, 86_400_000])
def test_a_time_out_that_settings_allow_makes_a_sender(timeout_ms: int) -> None:
    values = {
        "lake": {"path": "l"},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "transaction": {"ask_timeout_ms": timeout_ms},
    }
    settings = parse(values, "test")
    kafka, transaction = settings.kafka, settings.transaction
    KafkaCheckSender(
        kafka.bootstrap_servers,
        {},
        kafka.check_topic_prefix,
        transaction.ask_timeout_ms,
        transaction.message_bytes_max,
    ).close()
