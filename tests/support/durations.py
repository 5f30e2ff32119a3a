"""How long tests take, as a whole run recorded it: the longest files begin, `make check` is quick.

    python -m tests.support.durations build/tests.xml    records a run of `make test`, and prints
                                                         the two tables of CONTRIBUTING.md

The record names each test function that takes a second or more, with its parameters together; the
others of a file are one row, `*`. A file that it does not know may take long, and begins first.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

Function = tuple[str, str]  # file and name

RECORD = Path(__file__).parents[1] / "durations.csv"
LONG_S = 1.0
OTHERS = "*"
SLOWEST = 20
_COLUMNS = ("seconds", "file", "function")


def read_record(path: Path = RECORD) -> dict[Function, float]:
    """Returns the seconds of the recorded functions, by file and name."""
    with path.open(newline="") as file:
        return {
            (row["file"], row["function"]): float(row["seconds"]) for row in csv.DictReader(file)
        }


def seconds_of_files(record: Mapping[Function, float]) -> Mapping[str, float]:
    """Returns the recorded seconds by file."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for (file, _), taken in record.items():
        seconds[file] += taken
    return seconds


def read_junit(path: Path) -> Mapping[Function, float]:
    """Returns the seconds of all functions of a run. Input: pytest's file of `--junitxml`."""
    seconds: defaultdict[Function, float] = defaultdict(float)
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 pytest wrote it
        # The name of a class of tests stands behind its module's.
        module = [part for part in case.attrib["classname"].split(".") if not part[0].isupper()]
        file = "/".join(module) + ".py"
        function = case.attrib["name"].partition("[")[0]
        seconds[file, function] += float(case.attrib["time"])
    return seconds


def write_record(seconds: Mapping[Function, float], path: Path = RECORD) -> None:
    """Writes the functions that take long, in the order of files and names."""
    rows: defaultdict[Function, float] = defaultdict(float)
    for (file, function), taken in seconds.items():
        rows[file, function if taken >= LONG_S else OTHERS] += taken

    with path.open("w", newline="") as record:
        writer = csv.writer(record, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([round(taken), *function] for function, taken in sorted(rows.items()))


def folder_of(file: str) -> str:
    """Returns the part of the tests that a file belongs to."""
    return "/".join(file.split("/")[:2])


def tables(seconds: Mapping[Function, float]) -> Iterator[str]:
    """Returns the lines of two tables: the minutes of each part, and the slowest functions."""
    folders: defaultdict[str, float] = defaultdict(float)
    for (file, _), taken in seconds.items():
        folders[folder_of(file)] += taken

    yield "| part | minutes of one worker |"
    yield "|---|---|"
    for folder, taken in sorted(folders.items(), key=lambda row: -row[1]):
        yield f"| `{folder}` | {taken / 60:.1f} |"

    yield ""
    yield "| seconds | test |"
    yield "|---|---|"
    slowest = sorted(seconds.items(), key=lambda row: -row[1])[:SLOWEST]
    for (file, function), taken in slowest:
        yield f"| {taken:.0f} | `{file}::{function}` |"


if __name__ == "__main__":
    found = read_junit(Path(sys.argv[1]))
    write_record(found)
    print("\n".join(tables(found)))
