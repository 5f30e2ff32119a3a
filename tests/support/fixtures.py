"""What all tests share: a broker and a Spark session a process, names that no other test uses.

PySpark, and what imports it, is imported by the tests that ask for a session: others begin sooner.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.wait import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.local_broker.broker import Broker

_NUMBERS = itertools.count(1)
_LEFT_BEHIND = set[str]()
# Mostly this broker waits, with two others, for a whole run: no record of metadata twice a second
# that changes nothing, and fewer threads that look for work.
_WAITING = {"metadata.max.idle.interval.ms": 0, "num.io.threads": 2, "num.network.threads": 1}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run one Kafka broker for all tests of a process; a test that kills one starts its own."""
    from pipelines.local_broker.broker import Broker

    with Broker(tmp_path_factory.mktemp("broker"), properties=_WAITING) as running:
        yield running
        require_no_default_topics(running.bootstrap_servers)


def require_no_default_topics(servers: str) -> None:
    """Check that tests which share a broker made topics of their own.

    Two that both took the default names would meet: the second finds the first one's topics.
    """

    from tests.support.kafka_admin import admin_client
    from txlake.protocol import ADMIN_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC

    topics = admin_client(servers).list_topics(timeout=DEADLINE_S).topics
    shared = topics.keys() & {ADMIN_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC}
    assert not shared, f"a test made {sorted(shared)} on the broker that tests share"


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Return names for topics and groups: tests that share a broker must not meet."""
    return lambda name: f"{name}-{next(_NUMBERS)}"


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what commands say of their progress: only a slow machine gets such lines."""
    monkeypatch.setattr("pipelines.progress._LINE_EVERY_S", math.inf)


@pytest.fixture
def patient_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first send of a producer wait for a busy broker, which it asks for 5 s otherwise."""
    monkeypatch.setattr("txlake._kafka._METADATA_TIMEOUT_S", DEADLINE_S)


@pytest.fixture(scope="module", autouse=True)
def no_query_is_left() -> Iterator[None]:
    """Stop the queries that a module's jobs left: one that was given up goes on in the JVM.

    Kafka's client may keep one from ending (pipelines/job/stream.py): it is tried once.
    """
    yield
    if "pyspark" not in sys.modules:
        return

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return
    for query in SparkSession.builder.getOrCreate().streams.active:
        if query.runId not in _LEFT_BEHIND:
            _LEFT_BEHIND.add(query.runId)
            try:
                query.stop()
            except Exception as error:
                print(f"the query {query.name} does not end: {error}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Run one Spark session for all tests of a process."""
    from pipelines.jvm.session import start_session
    from tests.support.class_archive import archive_options
    from tests.support.cluster import CLUSTER_VARIABLE

    # Most of a short run is compiling: without the second compiler it needs half the CPU.
    # With it alone the JVM keeps room for 48 MB of code, which a whole run fills.
    few_compilers = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    options = f"{archive_options()}{few_compilers}"
    quick = {"spark.driver.extraJavaOptions": options}
    quick |= json.loads(os.environ.get(CLUSTER_VARIABLE, "{}"))
    session = start_session("tests", quick)
    yield session
    session.stop()
