"""The figures say what they show, and show what they say; what notebook 4 calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from pipelines.notebooks import (
    figures_health,
    figures_life,
    figures_spark,
    history,
    replays,
    tables,
)
from pipelines.notebooks.figures import Picture
from pipelines.notebooks.open_lake import OpenLake
from pipelines.notebooks.streams import forget_last_commit
from pipelines.replay import Verified
from tests.support.in_memory_job import InMemoryJob
from tests.support.notebook_lakes import answer, opened, sound


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> OpenLake:
    return OpenLake(sound().write(tmp_path_factory.mktemp("sound") / "lake"))


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


COMPARED = {"table": ["half", "outcomes"], "rows": [3, 3], "differences": [0, 0]}


def verified(**columns: list[int]) -> Verified:
    compared = pa.table({**COMPARED, **columns})
    return Verified(2, 5, 3, 0.25, compared, pa.table({"table": ["half"]}))


def test_the_verdict_of_a_replay_says_whether_all_is_equal() -> None:
    assert replays.verdict(verified()) == (
        "3 transactions of epochs 2 to 5, run again in 0.2 s: every row is there, bit for bit, "
        "and no other"
    )
    told = replays.verdict(verified(differences=[0, 1_700]))
    assert told.endswith("run again in 0.2 s: 1700 differences")


def test_the_parameters_in_force_are_those_of_the_newest_epoch(job: InMemoryJob) -> None:
    job.run()
    job.parameters = replace(job.parameters, check_max=7)
    job.run()
    shown = dict(replays.parameters(opened(job)).rows())
    assert shown["check_max"] == "7"
    assert shown["late_end_policy"] == "apply"


def test_bars_compare_what_was_with_what_would_have_been() -> None:
    compared = pl.DataFrame(
        {
            "producer_group": ["a", "b"],
            "checks": [15, 1],
            "what_if_checks": [2, 1],
            "discards": [1, 0],
            "what_if_discards": [4, 0],
        }
    )
    figure = replays.groups(compared, {"check_max": 2, "check_interval_ms": 5})
    assert figure.get_suptitle() == "What if check_max = 2, check_interval_ms = 5?"
    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    assert widths == [[15, 1, 2, 1], [1, 0, 4, 0]]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "checks (attempts to ask)",
        "halves given up",
    ]
    empty = replays.groups(compared.clear(), {"check_max": 2})
    assert "No group was asked" in empty.axes[0].texts[0].get_text()


@pytest.fixture(scope="module")
def pictures(lake: OpenLake) -> dict[str, Picture]:
    when = history.point_in_time(lake)
    pending = history.pending(lake, when)
    return {
        "life": figures_life.life(tables.life(lake, tables.pick_example(lake)), "What happened"),
        "over time": figures_health.pending_over_time(answer(lake, "2", "epochs")),
        "ages": figures_health.pending_ages(pending, when),
        "waits": figures_health.waits_by_end(answer(lake, "2", "waits")),
        "answers": figures_health.answers_by_group(answer(lake, "2", "answers")),
        "conflicts": figures_health.conflicts_by_group(answer(lake, "2", "conflicts")),
        "outcomes_since": figures_life.outcomes_since(
            answer(lake, "3", "outcomes_since", epoch=when.epoch), when, lake.last_at()
        ),
    }


def test_every_figure_has_a_title_and_named_axes(pictures: dict[str, Picture]) -> None:
    for name, figure in pictures.items():
        assert figure.get_suptitle(), name
        assert all(axes.get_ylabel() for axes in figure.axes), name
        assert figure.axes[-1].get_xlabel(), name
        assert figure._repr_png_().startswith(b"\x89PNG"), name


def test_bars_are_as_long_as_what_they_count(lake: OpenLake, pictures: dict[str, Picture]) -> None:
    answers, conflicts = answer(lake, "2", "answers"), answer(lake, "2", "conflicts")

    def widths(name: str) -> float:
        return sum(bar.get_width() for bar in pictures[name].axes[0].patches)

    assert widths("answers") == answers["checks"].sum() > 0
    assert widths("conflicts") == conflicts["conflicts"].sum() > 0
    pending = history.pending(lake, history.point_in_time(lake))
    assert sum(bar.get_height() for bar in pictures["ages"].axes[0].patches) == len(pending) > 0
    shown = [bar for bar in pictures["outcomes_since"].axes[0].patches if bar.get_width() > 0]
    assert len(shown) == len(
        answer(lake, "3", "outcomes_since", epoch=history.point_in_time(lake).epoch)
    )


def test_figures_without_anything_to_draw_say_so(job: InMemoryJob) -> None:
    job.run()
    lake = opened(job)
    when = history.point_in_time(lake)
    texts = [
        axes_text.get_text()
        for figure in (
            figures_health.pending_ages(history.pending(lake, when), when),
            figures_health.waits_by_end(answer(lake, "2", "waits")),
            figures_health.answers_by_group(answer(lake, "2", "answers")),
            figures_health.conflicts_by_group(answer(lake, "2", "conflicts")),
            figures_life.outcomes_since(
                answer(lake, "3", "outcomes_since", epoch=when.epoch), when, lake.last_at()
            ),
        )
        for axes_text in figure.axes[0].texts
    ]
    assert texts == [
        "Nothing was pending.",
        "No half has ended yet.",
        "No group was asked: every transaction ended in time.",
        "There is no conflict: every operation had its effect.",
        "Nothing was pending.",
    ]


def test_many_pending_halves_are_cut_and_the_title_says_so(job: InMemoryJob) -> None:
    for number in range(50):
        job.half(f"tx{number}")
    job.run()
    lake = opened(job)
    when = history.point_in_time(lake)
    figure = figures_life.outcomes_since(
        answer(lake, "3", "outcomes_since", epoch=when.epoch), when, lake.last_at()
    )
    assert "(the 40 oldest of 50)" in figure.get_suptitle()
    assert len([bar for bar in figure.axes[0].patches if bar.get_width() > 0]) == 40


def test_a_bar_has_the_messages_of_each_queue() -> None:
    queues = pl.DataFrame({"topic": ["a", "a", "b"], "queue_id": [0, 1, 1], "messages": [3, 4, 5]})
    figure = figures_spark.by_queue(queues)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [3, 0, 4, 5]  # queue 0 of both topics, then queue 1
    (sentence,) = figures_spark.by_queue(queues.clear()).axes[0].texts
    assert sentence.get_text() == "Nothing was delivered yet."


def test_a_copy_has_the_messages_of_each_queue() -> None:
    counts = pl.DataFrame({"queue_id": [0, 1], "lake": [3, 4], "once": [3, 4], "plain": [6, 8]})
    figure = figures_spark.copies(counts)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [3, 3, 6, 4, 4, 8]  # queue 0 of all three, then queue 1
    (sentence,) = figures_spark.copies(counts.clear()).axes[0].texts
    assert sentence.get_text() == "Nothing was delivered yet."


def test_a_checkpoint_is_put_back_by_one_micro_batch(tmp_path: Path) -> None:
    notes = tmp_path / "commits"
    notes.mkdir()
    with pytest.raises(FileNotFoundError, match="no micro-batch has ended"):
        forget_last_commit(str(tmp_path))

    for name in ("9", "10", ".10.crc"):
        (notes / name).touch()
    assert forget_last_commit(str(tmp_path)) == 10
    assert [path.name for path in notes.iterdir()] == ["9"]
