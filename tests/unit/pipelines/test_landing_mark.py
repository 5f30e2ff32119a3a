"""What a start knows of a run that died while it landed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.job.checkpoint import fresh_checkpoint
from pipelines.job.landing_mark import DiedLanding, LandingMark
from pipelines.jvm.heap import LandingHeap
from pipelines.kafka_client.intake import Intake

ENDS = {("half", 0): 7, ("op", 1): 3}


class DiedError(Exception):
    """Stands for the death of a process."""


def die(mark: LandingMark, divisor: int) -> None:
    with pytest.raises(DiedError), mark.over(ENDS, divisor):
        raise DiedError


def test_a_landing_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with LandingMark(tmp_path).over(ENDS, 1):
        assert LandingMark(tmp_path).died() == DiedLanding(ENDS, 4)
    assert LandingMark(tmp_path).died() is None
    assert list(tmp_path.iterdir()) == []


def test_each_death_makes_the_steps_smaller_until_one_is_survived(tmp_path: Path) -> None:
    divisor = 1
    for expected in (4, 16, 64):
        die(LandingMark(tmp_path), divisor)
        fresh_checkpoint(tmp_path / "checkpoint", "a lake")
        died = LandingMark(tmp_path).died()
        assert died is not None
        divisor = died.divisor
        assert divisor == expected
    with LandingMark(tmp_path).over(ENDS, divisor):
        pass
    assert LandingMark(tmp_path).died() is None


def test_a_new_checkpoint_keeps_the_mark(tmp_path: Path) -> None:
    fresh_checkpoint(tmp_path, "a lake")
    die(LandingMark(tmp_path), 1)
    fresh_checkpoint(tmp_path, "a lake")
    assert LandingMark(tmp_path).died() is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"divisor": 4}', '{"ends": [[1]]}'])
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "landing.json").write_text(text)
    assert LandingMark(tmp_path).died() is None


def test_a_landing_is_over_when_every_partition_is_landed() -> None:
    died = DiedLanding(ENDS, 4)
    assert not died.is_landed({})
    assert not died.is_landed({("half", 0): 7, ("op", 1): 2})
    assert died.is_landed({("half", 0): 7, ("op", 1): 3})
    assert died.is_landed({("half", 0): 900, ("op", 1): 3, ("admin", 0): 1})


def test_smaller_steps_are_at_least_one_record_and_one_byte() -> None:
    intake = Intake(LandingHeap(768 << 20, 2), 200_000)
    bounds = []
    for intake.divisor in (1, 4, 64, 1 << 20):
        bounds.append((intake.fetch_bytes, intake.epoch_offsets))
    assert bounds == [(16_384, 200_000), (4_096, 50_000), (256, 3_125), (1, 1)]
