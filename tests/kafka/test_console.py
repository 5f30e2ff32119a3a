"""The console against a real broker and the real job: the walk of docs/operator.md."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pyspark.sql import SparkSession
from starlette.testclient import TestClient

from pipelines.local_broker.broker import Broker
from tests.support.console_client import TOKEN, client
from tests.support.job import running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of
from tests.support.wait import wait_until
from txlake.protocol import COMMIT, CREATE_TOPIC

NAME = "console"


def page(console: TestClient, path: str) -> str:
    """Return a page's text, wherever it leads."""
    answer = console.get(path, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


def test_an_order_is_missing(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    settings = settings_for(broker, tmp_path / "lake", NAME, topics={"auto_create_topics": False})
    wire, conf = KafkaWriter(settings), conf_of(settings, tmp_path)
    with running(settings, verifies=False) as job:
        half = wire.half("4711", topic="bills", group="shop", KEYS="order-1001")
        wire.end(COMMIT, half, group="shop")
        console = client(settings.lake.path, conf, asks_kafka=True, token=TOKEN, allow_writes=True)
        # The first look names what is wrong.
        seen = lambda: page(console, "/")  # noqa: E731
        facts = lambda: re.findall("<dd>.*</dd>", seen())  # noqa: E731
        wait_until(lambda: ">Undeliverable</strong>" in seen(), "the problem", seen=facts)
        assert "active: " in seen() and f"{NAME}-half: 0" in seen()
        assert "order-1001" in page(console, "/dead")
        # The order's number finds its story, and that says what helps.
        story = page(console, "/find?q=order-1001")
        assert "undeliverable (topic_not_allowed)" in story
        (found,) = re.findall(r'href="(/resume\?target=[^"]+)"', story)
        assert "still_undeliverable" in page(console, found)
        wire.command(CREATE_TOPIC, "topic:bills:1")
        wait_until(lambda: "not made yet" not in page(console, "/topic?name=bills"), "the topic")
        console.post("/login", data={"actor": "ada", "token": TOKEN})
        tried = page(console, found)
        assert "delivered to topic bills, queue 0" in tried
        form = re.findall(r'name="form" value="(\w+)"', tried)[-1]
        answer = console.post("/resume", data={
            "form": form, "target": "undeliverable:0", "reason": "ticket 4711", "confirmed": "yes",
        })  # fmt: skip
        assert answer.status_code == 303, answer.text
        written = lambda: page(console, answer.headers["location"])  # noqa: E731
        wait_until(lambda: "Written, and landed" in written(), "the result", seen=written)
        assert "resumed: " in written()
        (message,) = job.wait_for(lambda: job.messages("bills"), "the order") or [None]
        assert message["keys"] == "order-1001"
        assert "delivered to topic bills, queue 0, offset 0" in page(console, "/story?of=4711")
        assert "resumed" in page(console, "/story?of=4711") and "ada" in page(
            console, "/story?of=4711"
        )
        assert "No dead messages." in page(console, "/dead")
        assert "<h1>no problems" in seen()
