"""Kafka's Java client in Spark's source, kept from ending: as seen of it, but at a test's will."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


class _Reporter:
    """A reporter of the client's metrics whose end the client waits for. Kafka gives the names."""

    class Java:
        implements = ("org.apache.kafka.common.metrics.MetricsReporter",)

    def __init__(self, may_end: threading.Event) -> None:
        self._may_end = may_end

    def close(self) -> None:
        self._may_end.wait(600)

    def init(self, _metrics: Any) -> None: ...
    def metricChange(self, _metric: Any) -> None: ...  # noqa: N802
    def metricRemoval(self, _metric: Any) -> None: ...  # noqa: N802


class StuckClient:
    """The client that a running query asks for Kafka's offsets. It does not end until `release`."""

    def __init__(self, query: StreamingQuery) -> None:
        self._may_end = threading.Event()
        sources = _field(query._jsq.streamingQuery(), "sources")
        found = [sources.apply(n) for n in range(sources.length())]
        (kafka,) = (one for one in found if "Kafka" in one.getClass().getName())
        self._admin = _field(_field(kafka, "kafkaOffsetReader"), "_admin")
        _field(self._admin, "metrics").addReporter(_Reporter(self._may_end))

    def begin_to_close(self, jvm: Any) -> None:
        """Let the client take no more calls: Spark's next one fails, and it makes a new client."""
        self._admin.close(jvm.java.time.Duration.ofMillis(1))

    def release(self) -> None:
        """Let the client end."""
        self._may_end.set()


@contextmanager
def stuck(query: StreamingQuery) -> Iterator[StuckClient]:
    """Keep a query's client from ending for the length of a block."""
    client = StuckClient(query)
    try:
        yield client
    finally:
        client.release()


def _field(owner: Any, name: str) -> Any:
    """Return what a private field of a Java object has; Scala puts its class before some names."""
    of = owner.getClass()
    while of is not None:
        for field in of.getDeclaredFields():
            if field.getName().split("$")[-1] == name:
                field.setAccessible(True)
                return field.get(owner)
        of = of.getSuperclass()
    raise AssertionError(f"{owner.getClass().getName()} has no field {name}")
