"""`txlake verify`: what it prints, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipelines.cli.main import main
from storage.lake.lake import Lake
from storage.verify.run import INVARIANTS, RECORDED
from tests.support.lake_rows import LakeRows
from tests.support.sound_lake import sound_rows


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return sound_rows()


@pytest.fixture(scope="module")
def base(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "lake"
    rows.write(path)
    return path


@pytest.fixture
def violated(rows: LakeRows, base: Path, tmp_path: Path) -> Lake:
    """A lake with one message body changed."""
    mutated = rows.copy()
    mutated.find("topics/orders", transaction_id="commit")["body"] = b"another"
    return mutated.write_changed(tmp_path / "lake", base, rows)


def txlake(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


def test_a_sound_lake_gives_a_table_of_numbers_and_exit_code_0(base: Path) -> None:
    result = txlake("--lake", str(base))
    assert result.exit_code == 0, result.output
    assert [i.name for i in (*INVARIANTS, *RECORDED) if i.name not in result.output] == []
    assert "all invariants hold" in result.output
    assert "29 halves = 15 committed + 7 rolled back + 6 pending + 1 unreadable" in result.output


def test_a_violation_exits_with_3_and_names_the_row(violated: Lake) -> None:
    result = txlake("--lake", violated.path)
    assert result.exit_code == 3
    assert "violated: messages_equal_their_record" in result.output
    assert (
        "topic=orders queue_id=0 queue_offset=1 source=half half_queue_id=0 half_queue_offset=0: "
        "body of the record differ"
    ) in result.output


def test_json_has_every_invariant_with_its_numbers(violated: Lake) -> None:
    result = txlake("--lake", violated.path, "--output", "json")
    assert result.exit_code == 3
    report = json.loads(result.output)
    assert report["lake_id"] == violated.lake_id()
    assert (report["is_sound"], report["epochs"]) == (False, [1, 12])
    assert [i["name"] for i in report["invariants"]] == [i.name for i in (*INVARIANTS, *RECORDED)]
    (found,) = [i for i in report["invariants"] if i["violations"]]
    assert (found["rows_checked"], found["violations"]) == (21, 1)
    assert found["rows"][0]["queue_offset"] == 1


def test_only_the_asked_epochs_are_looked_at(violated: Lake) -> None:
    assert txlake("--lake", violated.path, "--epochs", "2-9").exit_code == 0
    assert txlake("--lake", violated.path, "--epochs", "1-1").exit_code == 3
    beyond = txlake("--lake", violated.path, "--epochs", "100-200")
    assert beyond.exit_code == 1
    assert "there is none from 100 on" in beyond.output


@pytest.mark.parametrize("text", ["5", "7-5", "0-3", "a-b", "-", "1-99999999999999999999"])
def test_epochs_that_are_none_are_refused(text: str, base: Path) -> None:
    result = txlake("--lake", str(base), "--epochs", text)
    assert result.exit_code == 2
    assert "two epochs as in 5-70 are allowed" in result.output


def test_no_lake_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    result = txlake("--lake", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and "is not a lake" in result.output
    assert len(result.output.splitlines()) == 1


def test_what_is_not_looked_at_is_told(rows: LakeRows, base: Path, tmp_path: Path) -> None:
    planned = rows.copy()
    planned.take("epochs", epoch=12, state="committed")
    lake = planned.write_changed(tmp_path / "lake", base, rows)
    result = txlake("--lake", lake.path)
    assert result.exit_code == 0, result.output
    assert "not looked at, since their epoch is not committed" in result.output


def test_too_little_memory_is_one_sentence(base: Path) -> None:
    result = txlake("--lake", str(base), "--memory-mb", "10")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "does not fit into 10 MB of memory: give it more, --memory-mb N" in result.output
