"""The notebooks run from top to bottom, and show what the tables of the lake have."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage.lake.lake import Lake
from storage.rows import instant, milliseconds
from storage.verify.run import verify
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lake import CHECK_MAX, START_AT, shop_rows, write_lake
from tests.support.notebook_runs import BUILT, KEPT, PATHS, Shown, difference, read, run

AT, AT_MS, AT_EPOCH = "14:05", START_AT + 15 * 60_000, 16
REPLAY = "4_replay_and_what_if"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return shop_rows()


@pytest.fixture(scope="module")
def lake(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return write_lake(rows, tmp_path_factory.mktemp("notebooks") / "lake")


@pytest.fixture(scope="module")
def few_rows() -> LakeRows:
    """Return a shorter history, for what runs it again."""
    return shop_rows(epochs=9, transactions=(3, 6))


@pytest.fixture(scope="module")
def temp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that kernels have for what is temporary."""
    return tmp_path_factory.mktemp("temp")


@pytest.fixture(scope="module")
def shown(
    lake: Lake, few_rows: LakeRows, temp: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Shown]]:
    """Run every notebook on a lake of the shop's, each in a kernel of its own."""
    few = write_lake(few_rows, tmp_path_factory.mktemp("notebook-4") / "lake")
    paths = dict.fromkeys((path.stem for path in PATHS), lake.path) | {REPLAY: few.path}
    shown = {
        path.stem: run(read(path), TXLAKE_LAKE=paths[path.stem], TXLAKE_AT=AT, TMPDIR=str(temp))
        for path in PATHS
    }
    BUILT.mkdir(parents=True, exist_ok=True)
    for stem, outputs in shown.items():
        for number, png in enumerate(pictures(outputs), 1):
            (BUILT / f"{stem}-{number}.png").write_bytes(png)
    return shown


def pictures(outputs: list[Shown]) -> list[bytes]:
    return [one.png for one in outputs if one.kind == "picture"]


def tables(outputs: list[Shown]) -> list[tuple[tuple[str, ...], ...]]:
    return [one.rows for one in outputs if one.kind == "table"]


def table_with(outputs: list[Shown], *names: str) -> list[dict[str, str]]:
    """Return the rows of the first table that has these columns."""
    found = next(table for table in tables(outputs) if set(names) <= set(table[0]))
    return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def pending_at(rows: LakeRows, at_ms: int) -> list[Row]:
    """Count by hand what waited at an instant: landed, and without an outcome or re-armed since."""
    plans = [row for row in rows.tables["epochs"] if row["state"] == "planned"]
    epoch = max(row["epoch"] for row in plans if row["epoch_at"] <= instant(at_ms))
    waiting = []
    for half in rows.tables["half"]:
        ends = [
            row
            for row in rows.tables["outcomes"]
            if (row["queue_id"], row["queue_offset"]) == (half["queue_id"], half["queue_offset"])
            and row["epoch"] <= epoch
        ]
        place = f"half:{half['queue_id']}-{half['queue_offset']}"
        rearms = [
            row for row in rows.tables["admin"] if row["target"] == place and row["epoch"] <= epoch
        ]
        is_landed = half["epoch"] <= epoch and half["error"] is None
        if is_landed and len(ends) == len(rearms):
            waiting.append(half)
    return waiting


def test_the_shops_lake_is_one_that_verify_finds_sound(lake: Lake) -> None:
    assert [one.invariant.name for one in verify(lake).findings if one.violations] == []


def test_there_are_notebooks() -> None:
    assert [path.stem[:2] for path in PATHS] == ["1_", "2_", "3_", "4_", "5_", "6_"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_cell_runs_in_order_and_shows_something(
    path: Path, shown: dict[str, list[Shown]]
) -> None:
    outputs = shown[path.stem]
    assert [one.text for one in outputs if one.kind == "error"] == []
    cells = [number for number, cell in enumerate(read(path).cells) if cell.cell_type == "code"]
    assert [one.cell for one in outputs] == cells
    assert all(len(one.png) > 5_000 for one in outputs if one.kind == "picture")


def test_a_notebook_that_has_ended_leaves_no_files(
    shown: dict[str, list[Shown]], temp: Path
) -> None:
    assert shown and list(temp.iterdir()) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_picture_in_the_documents_is_what_the_notebook_draws(
    path: Path, shown: dict[str, list[Shown]]
) -> None:
    (kept,) = KEPT.glob(f"{path.stem}-*.png")
    drawn = pictures(shown[path.stem])[int(kept.stem[-1]) - 1]
    assert difference(drawn, kept.read_bytes()) < 0.01, f"copy {BUILT / kept.name} to {KEPT}"
    assert f"]({KEPT.name}/{kept.name})" in (KEPT.parent / "notebooks.md").read_text("utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    kept = [cell.id for cell in cells if cell.outputs or cell.execution_count is not None]
    assert kept == [], "clear the outputs before committing (Edit, Clear Outputs of All Cells)"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_have_no_logic_of_their_own(path: Path) -> None:
    """They call, name what came back, and show it: what can be wrong stands in tested modules."""
    for cell in read(path).cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            kinds = {type(statement) for statement in tree.body}
            assert kinds <= {ast.Import, ast.ImportFrom, ast.Assign, ast.Expr}, cell.source
            logic = (
                ast.Lambda,
                ast.IfExp,
                ast.ListComp,
                ast.DictComp,
                ast.SetComp,
                ast.GeneratorExp,
                ast.BinOp,
            )
            assert not any(isinstance(node, logic) for node in ast.walk(tree)), cell.source


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_cell_is_explained(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith(f"# {path.stem[0]}. ")
    words = [len(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]
    assert sum(words) > 100


def test_notebook_1_shows_the_tables_and_their_numbers(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["1_a_transactions_life"]
    listed = {row["table"]: int(row["rows"]) for row in table_with(outputs, "one row is")}
    for table in ("half", "op", "outcomes", "checks", "conflicts", "epochs"):
        assert listed[table] == len(rows.tables[table]), table
    counted = Counter((row["outcome"], row["cause"]) for row in rows.tables["outcomes"])
    by_polars = [t for t in tables(outputs) if t[0] == ("outcome", "cause", "halves")]
    by_sql = table_with(outputs, "the first one")
    assert {(o, c): int(n) for o, c, n in by_polars[0][1:]} == counted
    assert {(r["outcome"], r["cause"]): int(r["halves"]) for r in by_sql} == counted
    somewhere = sum(int(row["halves"]) for row in table_with(outputs, "where"))
    assert somewhere == sum(n for (outcome, _), n in counted.items() if outcome == "COMMITTED")
    queues = table_with(outputs, "messages", "next_offset")
    assert sum(int(row["messages"]) for row in queues) == sum(map(len, rows.messages.values()))
    assert all(row["messages"] == row["next_offset"] for row in queues)


def test_notebook_1_tells_one_life_from_its_half_to_its_message(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["1_a_transactions_life"]
    (verdict,) = [one.text for one in outputs if one.text.startswith("transaction ")]
    transaction = verdict.split()[1].rstrip(",")
    ends = [row for row in rows.tables["outcomes"] if row["transaction_id"] == transaction]
    assert {row["cause"] for row in ends} == {"check_answer"}
    kinds = [row["kind"] for row in table_with(outputs, "kind", "what")]
    assert kinds[0] == "half"
    assert {"check", "operation", "outcome"} < set(kinds)
    decided = table_with(outputs, "op_queue_offset")
    assert [int(row["queue_offset"]) for row in decided] == [row["queue_offset"] for row in ends]
    delivered = table_with(outputs, "topic", "body_bytes")
    assert len(delivered) == len(ends)


def test_notebook_2_counts_what_waits_and_what_was_answered(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["2_health"]
    numbers = {row["what"]: int(row["number"]) for row in table_with(outputs, "what", "number")}
    checks = rows.tables["checks"]
    last_at = max(row["epoch_at"] for row in rows.tables["epochs"])
    waiting = pending_at(rows, milliseconds(last_at))
    assert numbers["pending"] == len(waiting) > 5
    assert numbers["attempts to ask"] == len(checks)
    answers = table_with(outputs, "producer_group", "no answer")
    asked = Counter(row["producer_group"] for row in checks)
    assert {row["producer_group"]: int(row["checks"]) for row in answers} == asked
    by_group = {row["producer_group"]: row for row in answers}
    assert by_group["nobody"]["not acknowledged"] == by_group["nobody"]["checks"]
    assert by_group["legacy"]["no answer"] == by_group["legacy"]["checks"]
    assert int(by_group["billing"]["UNKNOWN"]) > int(by_group["billing"]["COMMIT"]) > 0
    conflicts = table_with(outputs, "reason", "is_harmless")
    assert sum(int(row["conflicts"]) for row in conflicts) == len(rows.tables["conflicts"])
    assert [row["conflicts"] for row in conflicts if row["producer_group"] == "shopp"] == [
        str(sum(row["reason"] == "wrong_producer_group" for row in rows.tables["conflicts"]))
    ]
    assert len(pictures(outputs)) == 5


def test_notebook_3_shows_what_was_pending_at_five_past_two(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["3_time_travel"]
    (when,) = [one.text for one in outputs if one.text.startswith("2026-03-02")]
    assert when.startswith(f"2026-03-02 14:05:00 UTC: epoch {AT_EPOCH},")
    by_hand = {f"{half['queue_id']}-{half['queue_offset']}" for half in pending_at(rows, AT_MS)}
    pending = table_with(outputs, "half", "next")
    assert {row["half"] for row in pending} == by_hand
    assert len(by_hand) > 5
    asked = {row["next"] for row in pending}
    assert f"check {CHECK_MAX} of {CHECK_MAX}" in asked
    fates = {row["half"]: row["fate"] for row in table_with(outputs, "half", "fate")}
    assert set(fates) == by_hand
    for half, fate in fates.items():
        queue, offset = map(int, half.split("-"))
        later = [
            row["outcome"]
            for row in rows.tables["outcomes"]
            if row["epoch"] > AT_EPOCH and (row["queue_id"], row["queue_offset"]) == (queue, offset)
        ]
        assert fate == (later[0] if later else "still pending")
    assert [one.text for one in outputs].count("True") == 1
    (outcomes, *_) = table_with(outputs, "rows of that version")
    assert outcomes["rows of that version"] == outcomes["rows of epochs up to then"] != "null"


def test_notebook_4_runs_history_again_and_asks_what_if(
    shown: dict[str, list[Shown]], few_rows: LakeRows
) -> None:
    outputs = shown[REPLAY]
    counts = {table: len(rows) for table, rows in few_rows.tables.items()}
    (verdict,) = [one.text for one in outputs if "run again" in one.text]
    assert verdict.startswith(f"{counts['half']} transactions of epochs 1 to 9, run again in ")
    assert verdict.endswith(": every row is there, bit for bit, and no other\n")
    compared = {row["table"]: row for row in table_with(outputs, "table", "differences")}
    for table in ("half", "op", "outcomes", "checks", "conflicts"):
        assert compared[table] == {"table": table, "rows": str(counts[table]), "differences": "0"}
    assert table_with(outputs, "kind", "there", "replayed") == []
    in_force = {row["parameter"]: row["in force"] for row in table_with(outputs, "in force")}
    assert in_force["check_max"] == str(CHECK_MAX)
    numbers = {row["measure"]: row for row in table_with(outputs, "measure", "history")}
    discards = [row for row in few_rows.tables["outcomes"] if row["outcome"] == "DISCARDED"]
    assert int(numbers["checks"]["history"]) == counts["checks"]
    assert int(numbers["discards"]["history"]) == len(discards) > 0
    for row in numbers.values():
        assert int(row["difference"]) == int(row["what_if"]) - int(row["history"])
    otherwise = table_with(outputs, "what_if_outcome")
    assert len(otherwise) > 0
    assert len(pictures(outputs)) == 1


def test_notebook_5_reads_with_spark_what_the_tables_have(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["5_spark"]
    assert int(outputs[0].text) == max(row["epoch"] for row in rows.tables["epochs"])
    counted = Counter(row["outcome"] for row in rows.tables["outcomes"])
    by_sql: Counter[str] = Counter()
    for row in table_with(outputs, "outcome", "waited_s"):
        by_sql[row["outcome"]] += int(row["halves"])
    assert by_sql == counted
    queues = table_with(outputs, "messages", "next_offset")
    assert sum(int(row["messages"]) for row in queues) == sum(map(len, rows.messages.values()))
    orders = {row["queue_id"]: int(row["messages"]) for row in queues if row["topic"] == "orders"}
    copied = table_with(outputs, "count(1)")
    assert {row["queue_id"]: int(row["count(1)"]) for row in copied} == orders
    assert len(pictures(outputs)) == 1
    again = table_with(outputs, "min(queue_offset)")
    first = {row["queue_id"]: int(row["min(queue_offset)"]) for row in again}
    assert first == {queue: 10 * (queue == "0") for queue in orders}


def test_notebook_6_appends_a_micro_batch_once_that_runs_twice(
    shown: dict[str, list[Shown]], rows: LakeRows
) -> None:
    outputs = shown["6_exactly_once"]
    count = sum(row["topic"] == "orders" for row in rows.tables["catalog"]) and len(
        rows.messages["orders"]
    )
    copies = {row["copy"]: row for row in table_with(outputs, "copy", "identities")}

    assert {row["identities"] for row in copies.values()} == {str(count)}
    assert copies["in the lake"]["messages"] == copies["append_once"]["messages"] == str(count)
    assert int(copies["a plain append"]["messages"]) > count > 0
    assert len(pictures(outputs)) == 1
