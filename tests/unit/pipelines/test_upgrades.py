"""An upgrade finds an epoch that a txlake of other rules has begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checker.frames import RULE_VERSION
from pipelines.epoch.recover import adopt_rule_version
from pipelines.errors import StartError
from storage.lake.epoch_log import write_plan
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from tests.support.damage import WholeJob


class OlderJob(WholeJob):
    """A job of the rule version before ours."""

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        return replace(super()._plan(known, ops_ahead), rule_version=RULE_VERSION - 1)


def test_an_epoch_of_older_rules_is_finished_by_them_or_begun_by_ours(tmp_path: Path) -> None:
    lake = begun(tmp_path / "planned", writes=False)
    unfinished = read_progress(lake).unfinished
    assert unfinished is not None
    assert unfinished.rule_version == RULE_VERSION - 1
    assert adopt_rule_version(lake, unfinished).rule_version == RULE_VERSION

    lake = begun(tmp_path / "written", writes=True)
    unfinished = read_progress(lake).unfinished
    assert unfinished is not None
    with pytest.raises(StartError) as refused:
        adopt_rule_version(lake, unfinished)
    sentence = f"finish it with a txlake of rule version {RULE_VERSION - 1} first"
    assert sentence in str(refused.value)


def begun(path: Path, *, writes: bool) -> Lake:
    """Returns a lake whose newest epoch was planned, and perhaps written, under older rules."""
    job = OlderJob(path)
    job.half("later")
    if writes:
        job.run(commit=False)
    else:
        job.epoch += 1
        write_plan(job.lake, job._progress, job._plan(True, 0))
    return Lake(str(path))
