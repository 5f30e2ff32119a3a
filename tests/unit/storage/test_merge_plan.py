"""Which files are merged: few are left, no row is written again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from storage.maintenance.merge_plan import (
    MergeLimits,
    TableFile,
    all_merges,
    merged_name,
    next_merge,
)

MB = 1_000_000
LIMITS = MergeLimits(merge_files=4, file_bytes_max=40 * MB)


def small(epoch: int, level: int = 0, size: int = 1_000) -> TableFile:
    name = f"merged-{level}-{epoch}.parquet" if level else f"part-{epoch}.parquet"
    return TableFile(name, size, 1, epoch)


def chosen(files: list[TableFile], limits: MergeLimits = LIMITS, **how: bool) -> list[int]:
    return [file.first_epoch for file in next_merge(files, limits, **how)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], []),
        ([small(n) for n in range(3)], []),
        ([small(n) for n in (3, 1, 2, 0)], [0, 1, 2, 3]),
        ([small(n, level=n % 2) for n in range(6)], []),
        ([small(0, level=1), *(small(n) for n in range(1, 5))], [1, 2, 3, 4]),
        ([small(n, level=1) for n in range(4)], [0, 1, 2, 3]),
        ([small(n, size=10 * MB) for n in range(9)], []),  # each is large enough
        ([small(n, size=10 * MB - 1) for n in range(9)], [0, 1, 2, 3]),
        ([small(n, size=9 * MB) for n in range(3)], []),
        ([small(n, size=9 * MB) for n in range(5)], [0, 1, 2, 3]),  # the fifth does not fit
    ],
)
def test_so_many_small_files_of_one_level_are_merged(
    files: list[TableFile], expected: list[int]
) -> None:
    assert chosen(files) == expected


def test_while_the_stream_is_busy_only_very_small_files_are_merged() -> None:
    files = [small(n, size=3 * MB) for n in range(9)]
    assert chosen(files) == list(range(9))
    assert chosen(files, is_busy=True) == []
    assert chosen([small(n, size=2 * MB) for n in range(9)], is_busy=True) == list(range(9))


def test_a_full_round_merges_all_small_files_whatever_their_level() -> None:
    files = [small(0, level=2), small(1, level=1), small(2, size=10 * MB), small(3)]
    assert chosen(files, is_full=True) == [0, 1, 3]
    assert chosen([small(0)], is_full=True) == []


def test_what_does_not_fit_together_is_merged_in_turns() -> None:
    sizes = [
        [f.size_bytes // MB for f in m]
        for m in all_merges([small(n, size=9 * MB) for n in range(10)], LIMITS)
    ]
    assert sizes == [[9, 9, 9, 9], [9, 9, 9, 9], [9, 9]]


def test_the_merges_of_a_full_round_are_found_without_comparing_files_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [small(n, size=5_000) for n in range(1_000)]
    compared: list[str] = []

    def counted(file: TableFile, other: object) -> bool:
        compared.append(file.path)
        return file is other

    monkeypatch.setattr(TableFile, "__eq__", counted)
    merges = list(all_merges(files, LIMITS))

    assert len(files) - sum(len(merge) - 1 for merge in merges) == 1
    assert {file.path for merge in merges for file in merge} >= {file.path for file in files}
    assert len(compared) <= len(files)


def test_a_merged_file_is_of_the_next_level_and_a_closed_one_is_left_alone() -> None:
    files = [small(0, level=2), small(1)]
    again = TableFile(f"topics/{merged_name(files, is_final=False)}", 1, 1, 0)
    assert again.level == 3
    assert LIMITS.can_merge(again)
    closed = TableFile(merged_name(files, is_final=True), 1, 1, 0)
    assert not LIMITS.can_merge(closed)


@pytest.mark.parametrize(
    ("last_epoch", "expected"),
    [
        pytest.param(7, [], id="old: it is held for a row"),
        pytest.param(8, [0, 9], id="some of its rows are younger"),
        pytest.param(None, [0, 9], id="nothing is known of it"),
    ],
)
def test_an_old_file_is_never_merged(last_epoch: int | None, expected: list[int]) -> None:
    held = TableFile("merged-1-0.parquet", 1_000, 5, 0, last_epoch)
    limits = replace(LIMITS, expired_epoch=7)
    assert chosen([held, small(9)], limits, is_full=True) == expected


def test_few_files_are_left_and_a_row_is_rewritten_once_a_level() -> None:
    """Ten thousand epochs, each with a file; what is live, and how often each row was written."""
    limits = MergeLimits(16, 1 << 25)
    files: list[TableFile] = []
    rewritten: Counter[int] = Counter()
    most = 0
    for epoch in range(10_000):
        files.append(small(epoch))
        while merge := next_merge(files, limits):
            rows = sum(file.row_count for file in merge)
            rewritten[merge[0].level] += rows
            name = merged_name(merge, is_final=False)
            whole = TableFile(name, 100 * rows, rows, merge[0].first_epoch)
            files = [file for file in files if file not in merge] + [whole]
        most = max(most, len(files))
    assert most <= 15 * 4
    assert sum(file.row_count for file in files) == 10_000
    assert max(rewritten.values()) <= 10_000
    assert set(rewritten) == {0, 1, 2}
