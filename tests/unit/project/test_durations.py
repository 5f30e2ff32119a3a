"""How long tests take is recorded from what pytest writes of a run."""

from __future__ import annotations

from pathlib import Path

from tests.support.durations import (
    OTHERS,
    read_junit,
    read_record,
    seconds_of_files,
    tables,
    write_record,
)

ROOT = Path(__file__).parents[3]
RUN = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_long[one case]" time="0.75" />
<testcase classname="tests.unit.test_a" name="test_long[another]" time="120.5" />
<testcase classname="tests.unit.test_a" name="test_short" time="0.5" />
<testcase classname="tests.unit.test_a" name="test_shorter" time="0.25" />
<testcase classname="bench.tests.test_b.TestOthers" name="test_other" time="61" />
</testsuite></testsuites>
"""
A, B = "tests/unit/test_a.py", "bench/tests/test_b.py"


def test_long_functions_are_recorded_and_the_others_of_a_file_together(tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(RUN)
    seconds = read_junit(tmp_path / "run.xml")

    write_record(seconds, tmp_path / "record.csv")

    record = read_record(tmp_path / "record.csv")
    assert record == {(A, "test_long"): 121, (A, OTHERS): 1, (B, "test_other"): 61}
    assert seconds_of_files(record) == {A: 122, B: 61}


def test_the_tables_begin_with_what_takes_longest(tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(RUN)

    lines = list(tables(read_junit(tmp_path / "run.xml")))

    assert lines[2:4] == ["| `tests/unit` | 2.0 |", "| `bench/tests` | 1.0 |"]
    assert lines[7] == f"| 121 | `{A}::test_long` |"


def test_what_is_recorded_is_there() -> None:
    missing = {file for file, _ in read_record() if not (ROOT / file).is_file()}
    assert missing == set(), "record a run of `make test`: python -m tests.support.durations"
