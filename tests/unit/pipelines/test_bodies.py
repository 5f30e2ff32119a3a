"""Bodies as columns by the settings: in `txlake sql`, in notebooks, in Polars."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from pipelines.bodies import read_body_schemas
from pipelines.cli.main import main
from pipelines.job.startable import require_startable
from pipelines.lake_sql import select
from pipelines.notebooks.open_lake import open_lake
from pipelines.settings import SettingsError, load, redacted_settings
from tests.support.in_memory_job import InMemoryJob
from txlake import read_schema
from txlake.protocol import COMMIT

SCHEMA = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "keys": {"type": "string"},
    },
}
BODIES = [
    b'{"order_id": "o-1", "amount": 5, "at": "2026-01-31T08:00:00Z", "keys": "k"}',
    b'{"order_id": "o-2", "amount": "many"}',
    b"no JSON",
]
SECTION = '[topics.orders]\nbody = "json"\nschema = "orders.schema.json"\n'


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    job = InMemoryJob(tmp_path / "lake", default_queue_count=1)
    for topic in ("orders", "plans", "half", "a.b-c"):
        for body in BODIES:
            transaction_id = f"{topic}-{body!r}"
            job.end(COMMIT, job.half(transaction_id, real_topic=topic, body=body))
    job.run()
    (tmp_path / "orders.schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    return job


def write_conf(folder: Path, more: str = SECTION) -> str:
    path = folder / "job.toml"
    path.write_text(
        f'[lake]\npath = "{folder}/lake"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n{more}',
        "utf-8",
    )
    return str(path)


QUERY = "SELECT order_id, amount, body_keys, body_error IS NULL AS fits FROM orders ORDER BY 1"


@pytest.mark.usefixtures("job")
def test_sql_sees_the_fields_of_bodies_as_columns(tmp_path: Path) -> None:
    conf = write_conf(tmp_path)
    result = CliRunner().invoke(main, ["sql", QUERY, "--conf", conf, "-o", "json"])

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [
        {"order_id": "o-1", "amount": 5, "body_keys": "k", "fits": True},
        {"order_id": "o-2", "amount": None, "body_keys": None, "fits": False},
        {"order_id": None, "amount": None, "body_keys": None, "fits": False},
    ]


def test_the_raw_body_and_all_other_columns_stay(job: InMemoryJob, tmp_path: Path) -> None:
    schemas = {"orders": read_schema("json", tmp_path / "orders.schema.json")}
    raw, _ = select(job.lake, "SELECT * FROM orders ORDER BY queue_offset", 10)
    rows, _ = select(job.lake, "SELECT * FROM orders ORDER BY queue_offset", 10, schemas)

    assert rows.select(raw.column_names).equals(raw)
    assert rows.column_names == [*raw.column_names, *schemas["orders"].columns.names]
    assert rows["body"].to_pylist() == BODIES
    assert [error and error[:27] for error in rows["body_error"].to_pylist()] == [
        None,
        "amount: a whole number is e",
        "not JSON: Expecting value: ",
    ]


def test_a_notebook_sees_topics_with_columns_by_their_names(
    job: InMemoryJob, tmp_path: Path
) -> None:
    schema = read_schema("json", tmp_path / "orders.schema.json")
    # "plans" and "half" are names of other views: these topics are left out.
    bodies = dict.fromkeys(("orders", "a.b-c", "plans", "half", "to_come"), schema)
    lake = open_lake(job.lake.path, bodies=bodies)

    for view in ("orders", '"a.b-c"'):
        found = lake.sql(f'SELECT amount, "at" FROM {view} WHERE amount IS NOT NULL')
        at = dt.datetime(2026, 1, 31, 8, tzinfo=dt.timezone.utc)
        assert found.rows() == [(5, at)]
    assert "order_id" not in lake.sql("FROM plans").columns
    assert "order_id" not in lake.sql("FROM half").columns


def test_polars_reads_typed_columns(job: InMemoryJob, tmp_path: Path) -> None:
    schema = read_schema("json", tmp_path / "orders.schema.json")
    number = {row["topic"]: row["table_id"] for row in job.lake.read("catalog").to_pylist()}
    frame = pl.DataFrame(schema.with_columns(job.lake.read(f"topics/{number['orders']}")))

    assert frame["amount"].to_list() == [5, None, None]
    assert frame.schema["at"] == pl.Datetime("us", "UTC")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[topics.orders]\n", "[topics.orders] body is missing; 'json' or 'avro' or 'protobuf'"),
        ('[topics.orders]\nbody = "json"\n', "[topics.orders] schema is missing; the file of a"),
        (SECTION.replace("json", "xml", 1), "body = 'xml': 'json' or 'avro' or 'protobuf' is"),
        (SECTION.replace("orders.schema", "gone"), "schema = 'gone.json': "),
        (SECTION.replace("orders.schema", "x" * 300), "cannot be read (File name too long)"),
        (f"{SECTION}colour = 1\n", "colour is unknown; the keys are body, message, schema, skip"),
        (f"{SECTION}skip_bytes = -1\n", "skip_bytes = -1: a whole number 0 .. 1000 is allowed"),
        (f'{SECTION}skip_bytes = "5"\n', "skip_bytes = '5': a whole number"),
        (f'{SECTION}message = "a.B"\n', "message = 'a.B': of protobuf the message's full name"),
        (SECTION.replace("json", "protobuf", 1), "message is missing; of protobuf the message's"),
        (SECTION.replace("orders]", '"a b"]'), "[topics.a b]: a topic's name like"),
        ("[topics.topics_max]\nbody = 1\n", "[topics] topics_max = {'body': 1}: a whole number"),
    ],
)
def test_a_wrong_section_of_a_topic_is_one_sentence(
    tmp_path: Path, section: str, said: str
) -> None:
    (tmp_path / "orders.schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    conf = write_conf(tmp_path, section)
    with pytest.raises(SettingsError) as refused:
        load(conf)
    assert str(refused.value).startswith(f"{conf}: ")
    assert said in str(refused.value)


def test_a_wrong_schema_stops_a_start_a_validation_and_a_query_in_one_sentence(
    tmp_path: Path, job: InMemoryJob
) -> None:
    (tmp_path / "orders.schema.json").write_text('{"properties": {}}', "utf-8")
    conf = write_conf(tmp_path)
    said = (
        f"{conf}: [topics.orders] schema: {tmp_path}/orders.schema.json: it has no fields: no "
        "columns"
    )

    with pytest.raises(SettingsError) as refused:
        require_startable(load(conf))
    assert str(refused.value) == said
    for words in (["config", "validate"], ["sql", QUERY]):
        result = CliRunner().invoke(main, [*words, "--conf", conf])
        assert result.exit_code != 0
        assert said in str(result.exception) + result.output


def test_a_library_that_is_missing_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    real = builtins.__import__

    def without_fastavro(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "fastavro":
            raise ModuleNotFoundError("no", name="fastavro")
        return real(name, *arguments, **more)

    monkeypatch.delitem(__import__("sys").modules, "txlake._body_avro", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_fastavro)
    (tmp_path / "orders.schema.json").write_text("{}", "utf-8")
    settings = load(write_conf(tmp_path, SECTION.replace("json", "avro", 1)))

    with pytest.raises(SettingsError, match=r"bodies of format avro need fastavro: install txlake"):
        read_body_schemas(settings.bodies)


@pytest.mark.usefixtures("job")
def test_the_settings_are_shown(tmp_path: Path) -> None:
    shown = redacted_settings(write_conf(tmp_path))
    rows = {row["key"]: row["value"] for row in shown if row["section"] == "topics.orders"}
    assert rows == {
        "body": "json",
        "schema": str(tmp_path / "orders.schema.json"),
        "message": "",
        "skip_bytes": 0,
    }
