"""What an end or a command would do is foretold of many targets at once as of each alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipelines.errors import OperatorError
from pipelines.explain import fetch
from pipelines.operate import preview
from pipelines.operate.preview import (
    all_of,
    preview_commands,
    preview_ends,
)
from storage.lake.lake import Lake
from storage.wire.record_kinds import HALF, SCHEDULE
from tests.support.sound_lake import sound_rows
from txlake.protocol import CANCEL, COMMIT, RESUME, RecordTarget, Target, UndeliverableTarget

WHO = ("ada", "why")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(sound_rows().write(tmp_path_factory.mktemp("targets") / "lake").path)


def _records(lake: Lake, kind: str) -> list[RecordTarget]:
    """Return all records of a kind in the lake, and two that are not there."""
    columns = ["queue_id", "queue_offset"]
    rows = lake.read(kind, columns).to_pylist()
    records = [RecordTarget(kind, row["queue_id"], row["queue_offset"]) for row in rows]
    return [*records, RecordTarget(kind, 0, 10_000), RecordTarget(kind, 77, 0)]


def _texts(previews: Sequence[preview.Preview | OperatorError]) -> list[str]:
    return [str(each) if isinstance(each, OperatorError) else each.expected for each in previews]


def test_of_each_half_the_same_is_said_as_of_it_alone(lake: Lake) -> None:
    halves = _records(lake, HALF)
    assert len(halves) > 20

    together = _texts(preview_ends(lake, halves, COMMIT, *WHO))
    assert together[::3] == [
        text for half in halves[::3] for text in _texts(preview_ends(lake, [half], COMMIT, *WHO))
    ]


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        (RESUME, lambda lake: [UndeliverableTarget(offset) for offset in (0, 1, 2, 3, 99)]),
        (RESUME, lambda lake: _records(lake, HALF)[::3]),
        (CANCEL, lambda lake: [*_records(lake, SCHEDULE), *_records(lake, HALF)[::4]]),
    ],
)
def test_of_each_target_the_same_is_said_as_of_it_alone(
    lake: Lake, name: str, targets: Callable[[Lake], list[Target]]
) -> None:
    named = targets(lake)
    together = _texts(preview_commands(lake, name, named, *WHO))
    assert together == [
        text for target in named for text in _texts(preview_commands(lake, name, [target], *WHO))
    ]
    assert len(set(together)) > 2


def test_what_is_named_twice_is_done_once(lake: Lake) -> None:
    half = RecordTarget(HALF, 0, 3)  # discarded
    ends = _texts(preview_ends(lake, [half, half], COMMIT, *WHO))
    assert [text.partition(",")[0] for text in ends] == ["COMMITTED", "duplicate_end: ended before"]

    resumed = _texts(preview_commands(lake, RESUME, [half, half], *WHO))
    assert [text.partition(":")[0] for text in resumed] == ["rearmed", "not_discarded"]


def test_many_targets_are_as_many_reads_and_decisions_as_two(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counting(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(module, name, counted)

    for module, name in ((fetch, "read_rows"), (preview, "topics_before"), (preview, "decide")):
        counting(module, name)

    halves = _records(lake, HALF)[:-2]
    all_of(preview_ends(lake, halves[:2], COMMIT, *WHO))
    of_two = Counter(calls)
    assert of_two["decide"] == of_two["topics_before"] == 1
    calls.clear()
    preview_ends(lake, halves, COMMIT, *WHO)

    of_sets = 1  # the other halves of the sets among them are one read more
    assert Counter(calls) == of_two + Counter(read_rows=of_sets)
