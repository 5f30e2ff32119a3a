"""Publishers of other Kafkas than a plain one: by TLS and SASL, and a cluster of two brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.local_broker.broker import Broker
from pipelines.publish.status import find_publishers
from pipelines.settings import Settings
from tests.support.kafka_admin import admin_client
from tests.support.publishers import PublishedLake, PublisherThread, publish_all
from tests.support.secure_broker import secure_broker
from tests.support.two_brokers import two_brokers
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]


def orders(count: int, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    return [
        {"body": b"body-%d" % number, "real_queue_id": number % 4, **columns}
        for number in range(first, first + count)
    ]


def test_a_publisher_gets_into_a_destination_with_tls_and_sasl(
    broker: Broker, tmp_path: Path
) -> None:
    with secure_broker(tmp_path / "secure") as secure:
        password = tmp_path / "password"
        client = secure.client("SCRAM_SHA_512")
        password.write_text(client.pop("sasl.password"))
        lake = PublishedLake(
            tmp_path / "lake",
            broker.bootstrap_servers,
            "secure",
            bootstrap_servers=secure.address("SCRAM_SHA_512"),
            client={**client, "sasl.password_file": str(password)},
        )
        lake.send(*orders(4))
        assert publish_all(lake.settings()) == 4
        lake.send(*orders(3, first=4))
        assert publish_all(lake.settings()) == 3

        (status,) = find_publishers(lake.settings())
        assert (status.lag, status.unknown_reason) == (0, None)
        lake.servers = secure.bootstrap_servers
        lake.require_published()

        password.write_text("a wrong one")
        (status,) = find_publishers(lake.settings())
        assert "does not let this client in" in str(status.unknown_reason)


def test_another_cluster_of_two_brokers_is_published_to_and_waited_for(
    broker: Broker, tmp_path: Path
) -> None:
    with two_brokers(tmp_path) as (first, second):
        servers = f"{first.bootstrap_servers},{second.bootstrap_servers}"
        lake = PublishedLake(
            tmp_path / "lake", broker.bootstrap_servers, "far", bootstrap_servers=servers
        )
        settings = lake.settings()
        admin = admin_client(servers)
        wait_until(lambda: len(admin.list_topics().brokers) == 2, "both brokers are known")
        lake.send(*orders(4))
        lake.servers = servers
        with PublisherThread(settings) as publisher:
            publisher.wait_until(lambda: count(lake) == 4, "four are published")
            topics = admin.list_topics(timeout=DEADLINE_S).topics
            leaders = {one.leader for one in topics[lake.destination()].partitions.values()}
            assert leaders == {1, 2}

            second.kill()
            lake.send(*orders(3, first=4))
            second.start()
            publisher.wait_until(lambda: count(lake) == 7, "the others are published")
            # The second one may lead the publisher's group, which is elected anew then.
            publisher.wait_until(lambda: is_well(settings), "it is active, and nothing waits")
        lake.require_published()


def is_well(settings: Settings) -> bool:
    (status,) = find_publishers(settings)
    return (status.lag, status.unknown_reason) == (0, None) and status.active is not None


def count(lake: PublishedLake) -> int:
    try:
        return len(lake.consume())
    except KeyError:  # the topic is not there yet
        return -1
