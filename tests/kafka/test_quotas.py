"""A producer group that floods is held by the quota that `txlake acl print` prints, and no other.

A real broker, and Kafka's own tool for quotas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from pipelines.cli.main import main
from tests.support.kafka_admin import admin_client
from tests.support.rights_broker import RightsBroker
from tests.support.wait import DEADLINE_S

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
QUOTA_BYTES = 10_000


def printed(broker: RightsBroker, folder: Path) -> list[str]:
    """Return the lines that `txlake acl print` prints for the group."""
    conf = folder / "acl.toml"
    servers = broker.roles_server
    conf.write_text(f'[lake]\npath = "lake"\n[kafka]\nbootstrap_servers = "{servers}"\n')
    words = ["acl", "print", "--conf", str(conf), "--role", "producer", "--group", "flood"]
    words += ["--producer-bytes", str(QUOTA_BYTES)]
    return CliRunner().invoke(main, words, catch_exceptions=False).output.splitlines()


def waits_of(broker: RightsBroker, user: str) -> list[float]:
    """Write up to 60 s of the quota's bytes. Output: the waits that Kafka asked for."""
    waits: list[float] = []
    config: dict[str, Any] = {
        "bootstrap.servers": broker.roles_server,
        **broker.client(user),
        "log_level": 0,
        "throttle_cb": lambda event: waits.append(event.throttle_time),
    }
    producer = Producer(config)
    for _ in range(60):
        producer.produce(HALF_TOPIC, bytes(QUOTA_BYTES), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        if waits:
            break
    return waits


def test_a_group_that_floods_is_held_by_its_quota_and_no_other(tmp_path: Path) -> None:
    with RightsBroker(tmp_path / "broker", ("flood", "calm")) as broker:
        admin = admin_client(broker.bootstrap_servers)
        for made in admin.create_topics([NewTopic(HALF_TOPIC, 1)]).values():
            made.result(DEADLINE_S)
        broker.give(
            {
                "kind": "topic",
                "name": HALF_TOPIC,
                "is_prefix": False,
                "principal": f"User:{user}",
                "operations": ["WRITE"],
            }
            for user in ("flood", "calm")
        )
        broker.configure(printed(broker, tmp_path)[-1])
        assert waits_of(broker, "calm") == []
        assert waits_of(broker, "flood") != []
