"""What other parameters would have made; the commands, their exit codes and what they print."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipelines import progress
from pipelines.cli.main import main
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.progress import progress_bar
from pipelines.replay import what_if
from pipelines.settings import SettingsError
from tests.support.lake_rows import LakeRows
from tests.support.operator import said

LINE_EVERY_S = progress._LINE_EVERY_S  # before a fixture makes it endless


def numbers(**parameters: Any) -> Callable[[Path], dict[str, tuple[int, int]]]:
    def ask(path: Path) -> dict[str, tuple[int, int]]:
        answer = what_if(str(path), **parameters)
        rows = answer.numbers.to_pylist()
        return {row["measure"]: (row["history"], row["what_if"]) for row in rows}

    return ask


def test_the_same_parameters_give_the_same_history(sound_lake: Path) -> None:
    answer = what_if(str(sound_lake), tick_ms=0)
    assert answer.outcomes.num_rows == 0
    for row in answer.numbers.to_pylist():
        assert row["history"] == row["what_if"], row["measure"]
    for row in answer.groups.to_pylist():
        assert row["checks"] == row["what_if_checks"]


def test_without_checks_all_that_is_silent_is_given_up(sound_lake: Path) -> None:
    answer = what_if(str(sound_lake), check_max=0)
    (checks,) = [r for r in answer.numbers.to_pylist() if r["measure"] == "checks"]
    assert (checks["history"] > 0, checks["what_if"]) == (True, 0)
    ends = {row["transaction_id"]: row for row in answer.outcomes.to_pylist()}
    assert ends["young"]["outcome"] is None
    assert (ends["young"]["what_if_outcome"], ends["young"]["what_if_cause"]) == (
        "DISCARDED",
        "check_max",
    )
    assert ends["nobody"]["what_if_decided_at"] < ends["nobody"]["decided_at"]


def test_a_shorter_interval_asks_in_the_idle_time_too(sound_lake: Path) -> None:
    in_recorded = numbers(check_interval_ms=1_000, tick_ms=0)(sound_lake)["checks"]
    also_idle = numbers(check_interval_ms=1_000, tick_ms=10_000)(sound_lake)["checks"]
    assert in_recorded[0] < in_recorded[1] < also_idle[1]
    with pytest.raises(SettingsError, match="check_interval_ms"):
        what_if(str(sound_lake), check_interval_ms=0)
    with pytest.raises(SettingsError, match="ask_timeout_ms decides nothing"):
        what_if(str(sound_lake), ask_timeout_ms=10)


class TestCommand:
    """`txlake replay`."""

    def _run(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["replay", *arguments])

    def test_an_equal_lake_exits_with_0_and_a_difference_with_3_and_its_row(
        self, sound_lake: Path, changed: Callable[..., Path]
    ) -> None:
        done = self._run("--lake", str(sound_lake), "--verify", "--epochs", "3-4")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "all rows are equal")
        assert done.stdout.startswith("epochs 3 to 4:")

        def change(rows: LakeRows) -> None:
            rows.messages["orders"][0]["body"] = b"another"

        path = str(changed(change))
        done = self._run("--lake", path, "--verify", "--epochs", "1-1")
        assert done.exit_code == 3
        assert "topics/2 (orders) queue_id=0 queue_offset=0, epoch 1: body is" in done.stdout
        done = self._run("--lake", path, "--verify", "--epochs", "1-1", "-o", "json")
        told = json.loads(done.stdout)
        assert (done.exit_code, told["is_equal"]) == (3, False)
        assert [row["column"] for row in told["differences"]] == ["body"]

    def test_rebuilding_and_asking(self, sound_lake: Path, tmp_path: Path) -> None:
        into = str(tmp_path / "new")
        arguments = ("--lake", str(sound_lake), "--into", into, "--epochs", "1-2")
        assert "epochs 1 to 2 added" in self._run(*arguments).stdout
        assert "nothing was added" in self._run(*arguments).stdout
        done = self._run(
            "--lake",
            str(sound_lake),
            "--what-if",
            "check_max=0",
            "--what-if",
            "late_end_policy=reject",
            "-o",
            "json",
        )
        told = json.loads(done.stdout)
        assert told["parameters"] == {"check_max": 0, "late_end_policy": "reject"}
        assert {row["measure"] for row in told["numbers"]} >= {"checks", "discards", "pending"}

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            ((), 2, "name one: --verify"),
            (("--verify", "--into", "x"), 2, "name one: --verify"),
            (("--into", "x", "--epochs", "2-3"), 2, "only --verify can begin later"),
            (("--verify", "--one-batch"), 2, "--one-batch goes with --into"),
            (("--into", "x", "--one-batch", "--epochs", "1-2"), 2, "takes all that was landed"),
            (("--what-if", "check_max=1", "--epochs", "1-2"), 2, "the whole history"),
            (("--what-if", "check_max"), 2, "KEY=VALUE"),
            (("--what-if", "check_max=--5"), 1, "check_max"),
            (
                ("--what-if", "check_max=5", "--what-if", "check_max=7"),
                2,
                "check_max is named twice",
            ),
            (("--what-if", "reject_after_immunity=yes"), 1, "true or false is allowed"),
            (("--what-if", "progress=1"), 1, "progress is unknown"),
        ],
    )
    def test_wrong_usage_is_said(
        self, sound_lake: Path, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        done = self._run("--lake", str(sound_lake), *arguments)
        assert done.exit_code == code
        assert said in done.stderr


class TestBackfillCommand:
    """`txlake backfill`, as far as it goes without Kafka."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--half", "x"), "--half and --op are both needed"),
            (("--half", "x", "--op", "y", "--to-time", "2026-01-01T00:00:00Z"), "taken whole"),
            (("--from-time", "yesterday"), "an instant as 2026"),
            (("--from-time", "2026-01-01T00:00:00"), "say its time zone"),
            (("--from-offsets", "17"), "offsets as"),
            (("--to-time", "2026-01-01T00:00:00Z", "--to-offsets", "{}"), "name one: --to-time"),
            (
                ("--from-time", "2199-01-01T00:00:00Z"),
                "--from-time 2199-01-01T00:00:00.000Z is in the future: it is 20",
            ),
            (
                ("--from-time", "2026-01-02T00:00:00Z", "--to-time", "2026-01-01T00:00:00Z"),
                "--to-time 2026-01-01T00:00:00.000Z is not after --from-time 2026-01-02",
            ),
        ],
    )
    def test_wrong_usage_is_said(self, arguments: tuple[str, ...], said: str) -> None:
        done = CliRunner().invoke(main, ["backfill", "--conf", "conf/local.toml", *arguments])
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_backfill_of_topics_that_kafka_has_not_makes_no_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    conf = tmp_path / "job.toml"
    conf.write_text(
        f'[lake]\npath = "{lake}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\nop_topic = "other"\n'
    )
    monkeypatch.setattr(
        KafkaAdmin, "existing_names", lambda self: {*self.names.values()} - {"other"}
    )
    monkeypatch.setattr("pipelines.replay.from_kafka.start_session", None)

    assert "Error: Kafka has no topic other: nothing was added" in said(
        "backfill", "--conf", str(conf), code=1
    )
    assert not lake.exists()


def test_spark_submit_runs_any_of_our_long_commands() -> None:
    arguments = ["spark-submit", "--print", "--", "replay", "--lake", "lake", "--verify"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert done.stdout.strip().endswith("pipelines/submit.py replay --lake lake --verify")
    done = CliRunner().invoke(main, ["spark-submit"])
    assert "name the job's settings, --conf FILE, or a command" in done.stderr


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_with_its_end_on_a_terminal() -> None:
    screen = Screen()
    with progress_bar("replay", "records", screen) as told:
        told(250, 1_000)
    assert "250/1000" in screen.getvalue()
    assert "left" in screen.getvalue()


def test_progress_is_a_line_every_ten_seconds_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, seconds = io.StringIO(), 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", LINE_EVERY_S)
    with progress_bar("replay", "records", lines) as told:
        for seconds in (1.0, 9.9, 10.0, 19.9, 21.0):
            told(int(seconds * 100), 5_000)
    assert lines.getvalue().splitlines() == [
        "replay: 1,000 of 5,000 records (20 %), 100/s, 40 s left",
        "replay: 2,100 of 5,000 records (42 %), 100/s, 29 s left",
    ]
