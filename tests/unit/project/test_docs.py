"""The pages of the protocol say what the code says: columns, headers, settings, reasons."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import pyarrow as pa
import pytest

from checker import frames
from checker.frames import COMMITTED, DISCARDED, ROLLED_BACK
from pipelines import settings
from pipelines.epoch.batch import Batch
from pipelines.epoch.counts import landed_counts
from storage import schemas
from storage.lake import epochs
from storage.wire import record_kinds as kafka_rows
from tests.support.protocol_pages import PROTOCOL, ROOT, section, table_rows
from txlake import _consumer_offsets, _dead_letters, _members, _retries, protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = {
    **schemas.TABLES,
    "topics/<table_id>": schemas.TOPIC,
    "consumer_offsets": _consumer_offsets.SCHEMA,
    "consumer_members": _members.SCHEMA,
    "consumer_retries": _retries.SCHEMA,
    "consumer_dead_letters": _dead_letters.SCHEMA,
}
SECTIONS = {
    item.name: {field.name: field for field in dataclasses.fields(kind)}
    for item, kind in zip(
        dataclasses.fields(settings.Settings),
        (
            settings.LakeSettings,
            settings.KafkaSettings,
            settings.TransactionSettings,
            settings.TopicSettings,
            settings.DelaySettings,
            settings.StreamSettings,
            settings.MaintenanceSettings,
            settings.SecuritySettings,
            settings.MetricsSettings,
            settings.HealthSettings,
            settings.LogSettings,
        ),
        strict=False,
    )
}

# What rows may hold, by hand: a new one is written down here and in the protocol.
HALF_ERRORS = [
    "bad_timestamp",
    "newer_version",
    "bad_producer_group",
    "bad_transaction_id",
    "bad_real_topic",
    "bad_set",
    "too_large",
]
OPERATION_ERRORS = [
    "bad_timestamp",
    "newer_version",
    "bad_tran_type",
    "bad_producer_group",
    "bad_offsets",
    "bad_transaction_id",
]
ADMIN_ERRORS = ["bad_timestamp", "newer_version", "unknown_command"]
CAUSES = [
    "operation",
    "check_answer",
    "operator",
    "late_end",
    "duplicate_in_set",
    "check_max",
    "expired",
]
CONFLICTS = [
    "unreadable_operation",
    "unknown_half",
    "below_floor",
    "unreadable_half",
    "wrong_producer_group",
    "bad_signature",
    "no_transaction_id",
    "wrong_transaction_id",
    "after_immunity",
    "duplicate_end",
    "conflicting_end",
    "end_after_discard",
    "orphan_expired",
]
RESULTS = [
    "rearmed",
    "not_discarded",
    "resent",
    "not_pending",
    "resumed",
    "not_undeliverable",
    "cancelled",
    "not_delayed",
    "created",
    "grown",
    "unchanged",
    "altered",
    "no_such_topic",
    "accepted",
    "bad_target",
    "noted",
    "still_undeliverable",
]
ACTIONS = ["DELIVERED", "UNDELIVERABLE", "CANCELLED"]
UNDELIVERABLE_REASONS = ["topic_not_allowed", "group_topics_max", "queue_out_of_range"]
ALL_REASONS = sorted(
    {
        *HALF_ERRORS,
        *OPERATION_ERRORS,
        *ADMIN_ERRORS,
        *CAUSES,
        *CONFLICTS,
        *RESULTS,
        *ACTIONS,
        *UNDELIVERABLE_REASONS,
        COMMITTED,
        ROLLED_BACK,
        DISCARDED,
    }
)
# Words that stand in the code where a reason could, and are none.
NO_REASONS = {
    "valid",
    "waits",
    "wins",
    "due",
    "COMMIT",
    "ROLLBACK",
    "UNKNOWN",
    "UNREADABLE",
    "headers",
}
REASON_FILES = [
    *sorted((ROOT / "checker" / "rules").glob("*.py")),
    ROOT / "checker" / "decide.py",
    ROOT / "storage" / "wire" / "decode.py",
]


def type_text(kind: pa.DataType) -> str:
    """Name a type as the protocol does."""
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        members = ", ".join(f"{member.name} {type_text(member.type)}" for member in kind)
        return f"struct<{members}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {"int32": "int", "int64": "long", "bool": "boolean"}.get(str(kind), str(kind))


def documented_tables() -> dict[str, list[tuple[str, str]]]:
    """Read the columns and types of every table's section."""
    tables = {}
    for title in re.findall(r"^### (.*)$", section("Tables"), re.MULTILINE):
        columns = [(cells[0], cells[1]) for cells in table_rows(section(title, section("Tables")))]
        tables |= dict.fromkeys(re.findall(r"`([^`]+)`", title), columns)
    return tables


def test_every_table_is_documented_with_its_columns_and_types() -> None:
    expected = {
        name: [(field.name, type_text(field.type)) for field in schema]
        for name, schema in TABLES.items()
    }
    assert documented_tables() == expected


def test_every_table_says_what_a_row_is() -> None:
    for title in re.findall(r"^### (.*)$", section("Tables"), re.MULTILINE):
        assert section(title).lstrip().startswith("One row is "), title


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("The half message", protocol.HALF_HEADERS),
        ("The operation", protocol.OP_HEADERS),
        ("The check", protocol.CHECK_HEADERS),
        ("The admin record", protocol.ADMIN_HEADERS),
        ("Published records", protocol.PUBLISHED_HEADERS),
    ],
)
def test_headers_are_documented_in_their_order(kind: str, headers: tuple[str, ...]) -> None:
    named = [
        name
        for cells in table_rows(section(kind))
        for name in cells[0].split(", ")
        if name != "any other name"
    ]
    assert tuple(named) == headers


def test_every_name_of_the_wire_form_is_documented() -> None:
    texts = [
        value
        for name, value in vars(protocol).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch("[A-Z_]{3,}", value)
    ]
    words = set(re.findall(r"[A-Z_]{3,}", PROTOCOL))
    assert len(texts) > 30
    assert [text for text in texts if text not in words] == []


def parameter_rows() -> dict[str, list[str]]:
    """Read the table of parameters by key."""
    return {cells[0].strip("`"): cells[1:] for cells in table_rows(section("Parameters"))}


def test_every_parameter_is_documented_and_no_other() -> None:
    assert set(parameter_rows()) == {
        f"{name}.{key}" for name, keys in SECTIONS.items() for key in keys
    }


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in SECTIONS.items() for key in keys]
)
def test_parameters_have_the_documented_default_and_limits(name: str, key: str) -> None:
    default, valid = parameter_rows()[f"{name}.{key}"][:2]
    field = SECTIONS[name][key]
    if default == "required":
        assert field.default is dataclasses.MISSING
        assert field.default_factory is dataclasses.MISSING
    else:
        assert tomllib.loads(f"value = {default.strip('`')}")["value"] == default_of(field)
    if field.type == "bool":
        assert valid == "true or false"
    else:
        assert valid.startswith(field.metadata.get("allowed", ""))


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def test_sample_settings_are_the_defaults() -> None:
    path = ROOT / "conf" / "local.toml"
    assert settings.load(path) == settings.Settings(
        lake=settings.LakeSettings(path="lake"),
        kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:9092"),
    )
    written = tomllib.loads(path.read_text("utf-8"))
    assert {name: set(keys) for name, keys in written.items() if name != "spark"} == {
        name: set(keys) for name, keys in SECTIONS.items()
    }


@pytest.mark.parametrize("reason", ALL_REASONS)
def test_every_reason_is_documented(reason: str) -> None:
    rows = [cells for cells in table_rows(PROTOCOL) if f"`{reason}`" in " ".join(cells)]
    assert rows, f"no table of the protocol has `{reason}`"


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [(kafka_rows.HALF, HALF_ERRORS), (kafka_rows.OP, OPERATION_ERRORS),
     (kafka_rows.SCHEDULE, [r for r in HALF_ERRORS if r != "bad_set"]),
     (kafka_rows.ADMIN, ADMIN_ERRORS)],
)  # fmt: skip
def test_every_error_is_documented_for_its_kind_of_record(kind: str, reasons: list[str]) -> None:
    named = [
        reason
        for cells in table_rows(section("What can be read"))
        if cells[0] == kind
        for reason in re.findall("`([a-z_]+)`", cells[1])
    ]
    assert sorted(named) == sorted(reasons)


@pytest.mark.parametrize(
    ("title", "names"), [("Outcomes", [COMMITTED, ROLLED_BACK, DISCARDED]), ("Causes", CAUSES),
                         ("Conflicts", CONFLICTS)]
)  # fmt: skip
def test_outcomes_causes_and_conflicts_are_those_of_the_code(title: str, names: list[str]) -> None:
    assert [cells[0].strip("`") for cells in table_rows(section(title))] == names


def test_no_reason_of_the_code_is_missing_here() -> None:
    texts = [path.read_text("utf-8") for path in REASON_FILES]
    in_sql, in_python = r"(?:THEN|ELSE) '(\w+)'", r'(?:, |return | else )"(\w+)"\)?,?$'
    written = {word for text in texts for word in re.findall(in_sql, text)}
    written |= {word for text in texts for word in re.findall(in_python, text, re.MULTILINE)}
    written |= set(re.findall(r'\(\s*"(\w+_\w+)",', texts[-1]))
    shapes = [shape for shape in vars(frames).values() if isinstance(shape, pa.Schema)]
    columns = {name for shape in (*shapes, schemas.ADMIN) for name in shape.names}
    assert len(written - columns) >= 30
    assert sorted(written - columns - set(ALL_REASONS) - NO_REASONS) == []


def named_in(title: str, heading: str) -> list[str]:
    """Return the names in the first column of the table with this heading."""
    table = section(title).partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    return re.findall("`([a-z_]+)`", " ".join(cells))


def test_the_parameters_of_a_plan_are_documented() -> None:
    names = {item.name for item in dataclasses.fields(frames.Parameters)}
    shell = {"wire", "snapshot_epochs", "retention_ms", "floor", "snapshot", "losses"}
    assert sorted(named_in("What an epoch records", "parameter")) == sorted(names | shell)

    limits = dataclasses.fields(kafka_rows.WireLimits)
    (wire,) = [row for row in table_rows(section("What an epoch records")) if row[0] == "`wire`"]
    assert [name.name for name in limits] == re.findall("`([a-z_]+)`", wire[2])


def test_the_counts_of_an_epoch_are_documented() -> None:
    landed = set(landed_counts(Batch()))
    outcomes = {name.lower() for name in (COMMITTED, ROLLED_BACK, DISCARDED)}
    written = {"op", "admin", "outcomes", "conflicts", "checks", "deliveries"}
    rest = {"placed", "due", schemas.SNAPSHOT, *schemas.STATE_TABLES}
    assert sorted(named_in("What an epoch records", "name")) == sorted(
        landed | outcomes | written | rest
    )


def test_states_of_an_epoch_are_documented() -> None:
    rows = {cells[0]: cells[2] for cells in table_rows(section("`epochs`"))}
    assert rows["state"] == f"{epochs.PLANNED}, {epochs.COMMITTED}"


def test_commands_are_documented() -> None:
    rows = [cells[0] for cells in table_rows(section("Operator commands").split("| result")[0])]
    assert sorted(set(rows)) == sorted(protocol.COMMANDS)
