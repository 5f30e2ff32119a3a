"""The broker that we start: it works, it comes back with its data, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic

from pipelines.local_broker.broker import Broker, BrokerError
from pipelines.local_server.ports import is_listening
from pipelines.local_server.server import HOST
from tests.support.kafka_admin import admin_client
from tests.support.wait import DEADLINE_S, wait_until


def create_topic(broker: Broker, topic: str) -> None:
    """Create a topic of one partition."""
    admin = admin_client(broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)


def produce(broker: Broker, topic: str, value: bytes, compression: str = "none") -> None:
    """Produce one record and wait until it is stored."""
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "acks": "all",
            "compression.type": compression,
        }
    )
    producer.produce(topic, value, timestamp=1, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None]


def consume(broker: Broker, topic: str, group: str) -> Message:
    """Consume the first record of a topic, as a member of a group."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"no record of {topic} within {DEADLINE_S} s"
        assert message.error() is None, message.error()
        return message
    finally:
        consumer.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be collected does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_record_comes_back_with_the_brokers_time(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic = unique("records")
    create_topic(broker, topic)
    before_ms = int(time.time() * 1000)
    produce(broker, topic, b"one")
    message = consume(broker, topic, unique("readers"))
    kind, stored_ms = message.timestamp()
    assert message.value() == b"one"
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= stored_ms <= int(time.time() * 1000)


def test_topic_is_not_created_by_asking_for_it(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    admin = admin_client(broker.bootstrap_servers)
    topic = unique("nobody-made-me")
    for _ in range(2):
        error = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].error
        assert error is not None
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_data_and_port_survive_restart_and_kill_and_are_released_at_the_end(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, message_bytes_max=2 << 20) as broker:
        servers = broker.bootstrap_servers
        create_topic(broker, "kept")
        produce(broker, "kept", b"one")
        broker.restart()
        assert broker.bootstrap_servers == servers
        assert consume(broker, "kept", "after-restart").value() == b"one"
        pid = broker.pid
        broker.kill()
        assert not is_alive(pid)
        assert not broker.is_running()
        broker.start()
        assert broker.bootstrap_servers == servers
        assert consume(broker, "kept", "after-kill").value() == b"one"
        pid = broker.pid
    assert not is_alive(pid)
    assert not is_listening(HOST, broker.port)
    with Broker(tmp_path / "other", port=broker.port) as other:
        assert other.bootstrap_servers == servers


def test_a_broker_that_is_killed_leaves_no_files_outside_its_folder(tmp_path: Path) -> None:
    own = tmp_path / "temp" / "of the user"
    own.mkdir(parents=True)
    with Broker(tmp_path) as broker:
        create_topic(broker, "compressed")
        produce(broker, "compressed", b"one" * 1_000, "lz4")  # Kafka unpacks a library for it
        broker.kill()
        left = set(broker.temp_folder.iterdir())
        assert [path for path in left if path.name.startswith("liblz4")]

        broker.start()
        assert consume(broker, "compressed", "after-kill").value() == b"one" * 1_000
        assert left.isdisjoint(broker.temp_folder.iterdir())
        assert broker.temp_folder.parent == tmp_path
    assert own.exists()


def test_a_data_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broker = Broker(tmp_path / "file" / "kafka")
    with pytest.raises(BrokerError, match=r"^the data folder .*kafka cannot be written \(Not a"):
        broker.start()
    assert not is_listening(HOST, broker.port)


def test_a_data_folder_that_another_broker_has_is_one_sentence(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        create_topic(first, "kept")
        settings = (tmp_path / "server.properties").read_text()
        with pytest.raises(BrokerError, match=f"another broker has the data folder {tmp_path}"):
            Broker(tmp_path).start()
        assert first.is_running()
        assert (tmp_path / "server.properties").read_text() == settings
    Broker(tmp_path).start().stop()


def test_taken_port_is_one_sentence(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=rf"^port {broker.port} on {HOST} cannot be used"):
        Broker(tmp_path, port=broker.port).start()


def test_broker_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    Broker(tmp_path).start().stop()
    failing = Broker(tmp_path, properties={"log.retention.ms": "soon"})
    with pytest.raises(BrokerError, match=r"(?s)ended with code 1; the end of .*soon.*"):
        failing.start()
    assert not is_listening(HOST, failing.port)


def test_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pipelines.local_broker.broker import Broker\n"
        "broker = Broker(sys.argv[1]).start()\nprint(broker.pid, flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), f"the end of the broker {pid}")
