"""`txlake topic read` and `txlake sql`: messages by a topic's name, of committed epochs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.health import messages
from storage.lake.lake import Lake
from storage.lake.pruned import read_rows
from storage.schemas import TABLES
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said, txlake
from txlake.protocol import COMMIT, CREATE_TOPIC

HOSTILE = "=cmd\x1b[2J"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four messages of orders in two queues, one of another topic, and some that are too early."""
    job = InMemoryJob(tmp_path_factory.mktemp("read") / "lake", auto_create_topics=False)
    for name in ("orders", "half", "shop.bills-1", "none"):
        job.command(CREATE_TOPIC, f"topic:{name}:2")
    job.run()
    deliver(job, b'{"n": 1}', keys="order-1")
    deliver(job, b"two", keys="order-2 again")
    job.run()
    deliver(job, b"\xff\x00", keys="order-21", real_queue_id=1)
    deliver(job, HOSTILE.encode(), keys="order-2")
    deliver(job, b"a bill", real_topic="shop.bills-1")
    deliver(job, b"half a message", real_topic="half")
    deliver(job, b"nowhere", real_topic="closed")
    job.run()
    deliver(job, b"early", keys="order-2")
    job.run(commit=False)
    return job.lake.path


def deliver(job: InMemoryJob, body: bytes, **columns: Any) -> None:
    """Commit a message in the next epoch."""
    job.end(COMMIT, job.half(**{"real_queue_id": 0, "body": body, **columns}))


def told(*words: str) -> list[dict[str, Any]]:
    """Run a command. Return its rows."""
    result = txlake(*words, "-o", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def read(lake: str, *words: str) -> list[dict[str, Any]]:
    return told("topic", "read", *words, "--lake", lake)


def places(lake: str, *words: str) -> list[tuple[int, int]]:
    return [(row["queue_id"], row["queue_offset"]) for row in read(lake, *words)]


@pytest.mark.parametrize("is_tail", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_bodies_of_messages_that_are_not_shown_are_not_read(
    lake: str, monkeypatch: pytest.MonkeyPatch, limit: int, is_tail: bool
) -> None:
    bodies = 0

    def count_bodies(*args: Any) -> pa.Table:
        nonlocal bodies
        rows = read_rows(*args)
        bodies += rows.num_rows if "body" in rows.column_names else 0
        return rows

    monkeypatch.setattr(messages, "read_rows", count_bodies)
    found, has_more = messages.read_messages(
        Lake(lake), "orders", messages.Choice(limit, is_tail), ["queue_id", "queue_offset", "body"]
    )
    assert (found.num_rows, bodies, has_more) == (limit, limit, True)

    delivered = [(0, 0), (0, 1), (0, 2), (1, 0)]
    rows = [(row["queue_id"], row["queue_offset"]) for row in found.to_pylist()]
    assert rows == (delivered[-limit:] if is_tail else delivered[:limit])


def asked(lake: str, query: str) -> list[dict[str, Any]]:
    return told("sql", query, "--lake", lake)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [(0, 0), (0, 1), (0, 2), (1, 0)]),
        ("--limit 2", [(0, 0), (0, 1)]),
        ("--tail --limit 2", [(0, 2), (1, 0)]),
        ("--tail --limit 3", [(0, 1), (0, 2), (1, 0)]),
        ("--queue 1", [(1, 0)]),
        ("--queue 0 --tail --limit 1", [(0, 2)]),
        ("--from-offset 1", [(0, 1), (0, 2)]),
        ("--queue 0 --from-offset 1 --limit 1", [(0, 1)]),
        ("--from-offset 9", []),
        ("--keys order-2", [(0, 1), (0, 2)]),
        ("--keys order-2 --tail --limit 1", [(0, 2)]),
        ("--keys order", []),
    ],
)
def test_messages_are_chosen_in_the_order_of_their_delivery(
    lake: str, words: str, expected: list[tuple[int, int]]
) -> None:
    assert places(lake, "orders", *words.split()) == expected


def test_bodies_are_text_json_or_hex(lake: str) -> None:
    bodies = {
        form: [row["body"] for row in read(lake, "orders", "--body", form)]
        for form in ("text", "json", "hex")
    }
    assert bodies["text"] == ['{"n": 1}', "two", HOSTILE, "\\xff\x00"]
    assert bodies["json"] == [{"n": 1}, "two", HOSTILE, "\\xff\x00"]
    assert bodies["hex"] == [b'{"n": 1}'.hex(), b"two".hex(), HOSTILE.encode().hex(), "ff00"]


IMPROPER = (
    rb'{"name": "cut \ud83d"}',
    rb'{"\udc00": 1}',
    b'{"x": NaN}',
    b'["-Infinity", -Infinity]',
    b'{"x": 1e999}',
    b"[" * 100_000,
    b"[" * 500 + b"]" * 500,
)


@pytest.mark.parametrize("output", ["json", "jsonl", "csv", "table"])
def test_a_body_that_is_no_proper_json_is_text(output: str, tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for body in (*IMPROPER, b'{"x": [1.5, {}]}'):
        deliver(job, body)
    job.run()
    words = ("topic", "read", "orders", "--body", "json", "-o", output, "--lake", job.lake.path)
    text = said(*words)
    text.encode()
    if output in ("json", "jsonl"):
        lines = [text] if output == "json" else text.splitlines()
        parsed = [json.loads(line, parse_constant=pytest.fail) for line in lines]
        rows = parsed[0] if output == "json" else parsed
        assert [row["body"] for row in rows[:-1]] == [body.decode() for body in IMPROPER]
        assert rows[-1]["body"] == {"x": [1.5, {}]}


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_json_is_json_whatever_characters_are_in_it(output: str, tmp_path: Path) -> None:
    flag = "\U0001f3f4\U000e0067\U000e007f"
    job = InMemoryJob(tmp_path / "lake")
    deliver(job, b"", keys=flag + HOSTILE)
    job.run()
    for words in (("topic", "read", "orders"), ("tx", "list", "--since", "9999d")):
        text = said(*words, "-o", output, "--lake", job.lake.path)
        parsed = json.loads(text)
        assert (parsed[0] if output == "json" else parsed)["keys"] == flag + HOSTILE
        assert "\U000e0067" not in text and "\x1b" not in text


def test_properties_are_an_object_also_where_there_are_none(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    deliver(job, b"", properties=[])
    deliver(job, b"", properties=[("colour", "red")])
    job.run()
    rows = told("topic", "read", "orders", "--lake", job.lake.path)
    assert [row["properties"] for row in rows] == [{}, {"colour": "red"}]
    nested = "SELECT {'inner': [properties]} AS nested FROM orders ORDER BY queue_offset"
    rows = told("sql", nested, "--lake", job.lake.path)
    assert rows[0] == {"nested": {"inner": [{}]}}


def test_people_get_a_table_that_says_what_is_left_out(lake: str) -> None:
    text = said("topic", "read", "orders", "--lake", lake, "--limit", "3")
    heading, *rows, more = text.splitlines()
    assert heading.split() == [
        "queue_id",
        "queue_offset",
        "stored_at",
        "producer_group",
        "transaction_id",
        "keys",
        "body",
    ]
    assert len(rows) == 3 and rows[2].endswith("=cmd\\u001b[2J")
    assert more == "there are more messages: --limit shows more"
    assert said("topic", "read", "none", "--lake", lake) == "no matching messages\n"
    undeliverable = said("topic", "read", "TRANS_UNDELIVERABLE_TOPIC", "--lake", lake)
    assert "topic_not_allowed" in undeliverable and "closed" in undeliverable
    assert "'=cmd\\u001b[2J" in said("topic", "read", "orders", "--lake", lake, "-o", "csv")


def test_what_is_not_there_is_one_sentence(lake: str) -> None:
    assert said("topic", "read", "order", "--lake", lake, code=1) == (
        f"Error: there is no topic 'order' in the lake {lake}; `txlake topic list` names all; did "
        "you mean orders?\n"
    )
    assert said("topic", "read", "orders", "--queue", "2", "--lake", lake, code=1) == (
        "Error: topic orders has no queue 2: it has 2, 0 to 1\n"
    )


def test_sql_knows_tables_and_topics_by_their_names(lake: str) -> None:
    assert asked(lake, "SELECT count(*) AS n FROM orders") == [{"n": 4}]
    assert asked(lake, 'SELECT body FROM "shop.bills-1"') == [{"body": "a bill"}]
    assert asked(lake, "SELECT max(epoch) AS epoch, count(*) AS n FROM outcomes") == [
        {"epoch": 3, "n": 7}
    ]
    assert asked(
        lake,
        "SELECT topic, count(*) n FROM messages WHERE reason IS NULL GROUP BY ALL"
        " ORDER BY n DESC, topic",
    ) == [
        {"topic": "orders", "n": 4},
        {"topic": "half", "n": 1},
        {"topic": "shop.bills-1", "n": 1},
    ]
    # A table's name stays its own.
    assert asked(lake, "SELECT count(*) n FROM half") == [{"n": 7}]


def test_sql_shows_the_tables_and_topics_of_the_lake_and_no_other_name(lake: str) -> None:
    shown = {row["name"] for row in asked(lake, "SHOW TABLES")}
    topics = {row["topic"]: row["table_id"] for row in asked(lake, "FROM catalog")}
    assert {"orders", "half"} <= topics.keys()
    numbered = {f"topics/{table_id}" for table_id in topics.values()}
    assert shown == {*TABLES, *numbered, *topics, "messages"}


def test_sql_prints_any_value_in_every_form(lake: str) -> None:
    query = (
        "SELECT 1 AS a, 2 AS a, sum(queue_offset) AS n, 'x'::BLOB AS b, [1, NULL] AS l,"
        " {'k': DATE '2026-01-01'} AS s, 'nan'::FLOAT AS f, 0.5::DECIMAL(3, 1) AS d,"
        " min(stored_at) AS first_at, min(stored_at) AS first, 1500 AS took_ms FROM orders"
    )
    (row,) = asked(lake, query)
    assert row == {
        "a": 1,
        "a_2": 2,
        "n": 3,
        "b": "x",
        "l": [1, None],
        "s": {"k": "2026-01-01"},
        "f": "nan",
        "d": 0.5,
        "first_at": "2026-01-01T00:00:02.000Z",
        "first": "2026-01-01T00:00:02.000Z",
        "took_ms": 1500,
    }
    heading, shown = said("sql", query, "--lake", lake).splitlines()
    assert heading.endswith("took_time") and " ago " in shown and shown.endswith("1.5 s")
    assert "[1, null]" in said("sql", query, "--lake", lake, "-o", "csv")


def test_sql_shows_at_most_so_many_rows(lake: str) -> None:
    query = "SELECT * FROM range(1000) r(n) ORDER BY n"
    text = said("sql", query, "--limit", "2", "--lake", lake)
    assert text.split("\n") == ["n", "0", "1", "there are more rows: --limit shows more", ""]
    assert "more" not in said("sql", query, "--limit", "1000", "--lake", lake)
    assert said("sql", "FROM orders WHERE false", "--lake", lake) == "no rows\n"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("FROM ordrs", "Table with name ordrs does not exist!; did you mean orders?"),
        ("FROM zzz", "`txlake topic list` names the topics"),
        ("INSERT INTO half VALUES (1)", "INSERT: a lake is only read; one SELECT is allowed"),
        ("COPY (SELECT 1) TO '{lake}/x.csv'", "COPY: a lake is only read"),
        ("SELECT 1; DROP VIEW half", "2 statements: one SELECT is allowed"),
        ("", "0 statements: one SELECT is allowed"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM read_text('{lake}/_driver.lock')", "operations are disabled"),
        ("FROM '{lake}/half/*.parquet'", "operations are disabled"),
        ("FROM parquet_scan('{lake}/half/*.parquet')", "operations are disabled"),
        ("SELECT TIMESTAMP 'infinity' AS never", "column never: no calendar has this instant"),
    ],
)
def test_sql_reads_the_lake_and_nothing_else(lake: str, query: str, expected: str) -> None:
    before = sorted(Path(lake).rglob("*"))
    text = said("sql", query.replace("{lake}", lake), "--lake", lake, code=1)
    assert text.startswith("Error: ") and text.count("\n") == 1
    assert expected in text
    assert sorted(Path(lake).rglob("*")) == before


def test_rows_of_an_epoch_that_is_not_committed_are_hidden(lake: str) -> None:
    job_rows = asked(lake, "SELECT state, max(epoch) AS epoch FROM epochs GROUP BY ALL")
    assert {row["epoch"] for row in job_rows} == {3}
    assert "early" not in [row["body"] for row in read(lake, "orders", "--tail")]
    for table in ("orders", "messages", "half", "outcomes"):
        assert asked(lake, f"SELECT count(*) AS n FROM {table} WHERE epoch > 3") == [{"n": 0}]


def test_a_lake_without_a_committed_epoch_says_so(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    assert "no committed epoch yet" in said("sql", "SELECT 1", "--lake", job.lake.path, code=1)
    assert "there is no topic" in said("topic", "read", "a", "--lake", job.lake.path, code=1)
