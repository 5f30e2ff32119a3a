"""The rows about many targets are read together, and say of each what is read of it alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.errors import OperatorError
from pipelines.explain import fetch, target_rows
from pipelines.explain.target_rows import TargetRows
from pipelines.operate.preview import preview_command, preview_end
from storage.lake.lake import Lake
from storage.wire.record_kinds import HALF
from tests.support.sound_lake import sound_rows
from txlake.protocol import CANCEL, COMMIT, RESUME, RecordTarget


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(sound_rows().write(tmp_path_factory.mktemp("targets") / "lake").path)


def _targets(lake: Lake) -> list[RecordTarget]:
    """Return all records of the lake, and some that are not there."""
    columns = ["queue_id", "queue_offset"]
    targets = [
        RecordTarget(kind, row["queue_id"], row["queue_offset"])
        for kind in ("half", "schedule")
        for row in lake.read(kind, columns).to_pylist()
    ]
    return [*targets, RecordTarget("half", 0, 10_000), RecordTarget("schedule", 77, 0)]


def _previews(
    lake: Lake, target: RecordTarget, target_rows: TargetRows | None
) -> Iterator[tuple[Any, ...]]:
    """Return what an end and a command would do, or why it cannot be done."""
    for name in (COMMIT, RESUME) if target.kind == HALF else (CANCEL,):
        is_end = name == COMMIT
        preview = preview_end if is_end else preview_command
        arguments: tuple[Any, ...] = (target, name) if is_end else (name, target)
        try:
            yield name, preview(lake, *arguments, "ada", "why", target_rows=target_rows)
        except OperatorError as error:
            yield name, str(error)


def test_of_each_target_the_same_is_said_as_of_it_alone(lake: Lake) -> None:
    targets = _targets(lake)
    together = TargetRows(lake, targets)
    assert len(targets) > 20

    for target in [*targets[::3], *targets[-2:]]:
        assert list(_previews(lake, target, together)) == list(_previews(lake, target, None))


def test_many_targets_are_as_many_reads_as_two(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def read_rows(lake: Lake, table: str, *more: Any) -> Any:
        reads.append(table)
        return original(lake, table, *more)

    original = fetch.read_rows
    monkeypatch.setattr(fetch, "read_rows", read_rows)

    halves = [target for target in _targets(lake)[:-2] if target.kind == HALF]
    TargetRows(lake, halves[:2])
    of_two = len(reads)
    reads.clear()
    together = TargetRows(lake, halves)
    assert len(reads) <= of_two + 1, "of sets the other halves, too"

    reads.clear()
    for half in halves:
        assert together.of(half).messages
    assert reads == []


def test_previews_of_many_targets_read_the_topics_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []

    def topics_before(lake: Lake, epoch: int) -> Any:
        epochs.append(epoch)
        return original(lake, epoch)

    original = target_rows.topics_before
    monkeypatch.setattr(target_rows, "topics_before", topics_before)

    halves = [target for target in _targets(lake)[:-2] if target.kind == HALF]
    together = TargetRows(lake, halves)
    for half in halves[:5]:
        assert list(_previews(lake, half, together))
    assert len(epochs) == 1
