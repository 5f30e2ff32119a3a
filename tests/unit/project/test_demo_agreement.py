"""The demo's verdict: each claim alone makes it fail."""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from examples import demo
from examples.demo_agreement import CHECK_MAX, Seen, disagreements
from examples.demo_folders import Folders
from examples.demo_news import changes, milestones
from examples.demo_programs import DemoError
from examples.demo_screen import Screen
from pipelines.settings import load
from storage.files.location import lake_location
from storage.lake.lock import LakeLock

AGREED = Seen(
    committed=("a", "b", "killed"),
    refused=("no-stock",),
    order_points=30,
    to_remind=("b",),
    halves=("a", "b", "killed", "no-stock"),
    forgotten=("lost",),
    delivered=("killed", "a", "b"),
    published=("b", "killed", "a"),
    rolled_back=("no-stock",),
    causes={
        "a": "operation",
        "b": "operation",
        "killed": "check_answer",
        "no-stock": "operation",
        "lost": "check_max",
    },
    reminded=("b",),
    reminded_after_ms={"b": 5_000},
    given_up=("lost",),
    checks={"killed": 2, "lost": CHECK_MAX},
    pointed=("a", "b", "killed"),
    balance_points=30,
    killed="killed",
)


def test_what_agrees_is_told_by_silence() -> None:
    assert disagreements(AGREED) == []
    assert AGREED.is_quiet(4)


@pytest.mark.parametrize(
    ("what", "change", "expected"),
    [
        ("a message lost", {"delivered": ("a", "killed")},
         ["b: order in SQLite, but not message in topic orders"]),
        ("a record lost", {"published": ("a", "b")},
         ["killed: order in SQLite, but not record in Kafka"]),
        ("a record twice", {"published": ("a", "b", "killed", "a")},
         ["a: 2 times record in Kafka, not once"]),
        ("a message twice", {"delivered": ("a", "b", "b", "killed")},
         ["b: 2 times message in topic orders, not once"]),
        ("a message swapped for another", {"delivered": ("a", "x", "killed")},
         ["b: order in SQLite, but not message in topic orders",
          "x: message in topic orders, but not order in SQLite"]),
        ("a refused order delivered", {"delivered": ("a", "b", "killed", "no-stock")},
         ["no-stock: message in topic orders, but not order in SQLite"]),
        ("points lost", {"pointed": ("a", "killed")},
         ["b: order in SQLite, but not points row"]),
        ("points twice", {"pointed": ("a", "a", "b", "killed")},
         ["a: 2 times points row, not once"]),
        ("a balance too high", {"balance_points": 42},
         ["orders are worth 30 points, the balances 42"]),
        ("a refused order not rolled back", {"rolled_back": ()},
         ["no-stock: order refused in SQLite, but not rolled back"]),
        ("a committed order rolled back too", {"rolled_back": ("no-stock", "a")},
         ["a: rolled back, but not order refused in SQLite"]),
        ("a half that ended nowhere", {"halves": (*AGREED.halves, "open")},
         ["open: half message of the order service, but not committed or refused in SQLite"]),
        ("the killed one ended by an operation", {"causes": {"killed": "operation"}},
         ["killed: killed and ended by operation, not by check_answer"]),
        ("nobody was killed", {"killed": ""},
         ["nothing: killed, but no order in SQLite",
          "nothing: killed, committed and never delivered",
          "nothing: killed and ended by None, not by check_answer"]),
        ("the forgotten one asked once too few", {"checks": {"lost": CHECK_MAX - 1}},
         ["lost: forgotten and asked 14 times, not 15"]),
        ("the forgotten one asked once too often", {"checks": {"lost": CHECK_MAX + 1}},
         ["lost: forgotten and asked 16 times, not 15"]),
        ("the forgotten one not given up", {"given_up": ()},
         ["lost: half message of the forgetful service, but not message in "
          "TRANS_CHECK_MAX_TIME_TOPIC"]),
        ("an order given up", {"given_up": ("lost", "a")},
         ["a: message in TRANS_CHECK_MAX_TIME_TOPIC, but not half message of the forgetful "
          "service"]),
        ("no order refused", {"refused": (), "rolled_back": (), "halves": AGREED.committed},
         ["nothing was refused: the demo has not shown it"]),
        ("no order to remind of", {"to_remind": (), "reminded": (), "reminded_after_ms": {}},
         ["nothing was to be reminded of: the demo has not shown it"]),
        ("a reminder lost", {"reminded": (), "reminded_after_ms": {}},
         ["b: order to remind of in SQLite, but not message in topic reminders"]),
        ("a reminder twice", {"reminded": ("b", "b")},
         ["b: 2 times message in topic reminders, not once"]),
        ("a reminder of a refused order", {"reminded": ("b", "no-stock")},
         ["no-stock: message in topic reminders, but not order to remind of in SQLite"]),
        ("a reminder too early", {"reminded_after_ms": {"b": 4_999}},
         ["b: reminded 4999 ms after its order, not 5000"]),
    ],
)  # fmt: skip
def test_each_claim_that_does_not_hold_is_one_sentence(
    what: str, change: Mapping[str, object], expected: list[str]
) -> None:
    assert disagreements(replace(AGREED, **change)) == expected, what


def ended(seen: Seen, tmp_path: Path) -> tuple[int, str]:
    """Return the demo's exit code and what it prints at its end."""
    output = io.StringIO()
    screen = Screen(Console(file=output, width=80))
    code = demo.show_end(seen, screen, Folders(tmp_path / "lake"), 9092)
    return code, output.getvalue()


def test_agreement_is_exit_code_0_and_says_what_to_try_next(tmp_path: Path) -> None:
    code, told = ended(AGREED, tmp_path)
    assert code == 0
    assert (
        "Agreed: 3 orders in SQLite = 3 messages in the topic table = 3 records in Kafka = 3 points"
        in told
    )
    assert "What to try next" in told


def test_one_point_too_many_is_exit_code_1_and_names_the_difference(tmp_path: Path) -> None:
    code, told = ended(replace(AGREED, balance_points=31), tmp_path)
    assert code == 1
    assert "orders are worth 30 points, the balances 31" in told
    assert "Agreed" not in told
    assert "What to try next" not in told


@pytest.mark.parametrize(("seen", "code"), [(AGREED, 0), (replace(AGREED, pointed=()), 1)])
def test_program_ends_with_the_code_of_what_it_saw(
    seen: Seen, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda *_: (seen, 9092))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    result = CliRunner().invoke(demo.main, ["--lake", str(tmp_path / "lake")])
    assert result.exit_code == code, result.output


def test_news_are_told_once_when_they_are_seen() -> None:
    before = replace(
        AGREED,
        delivered=("a", "b"),
        reminded=(),
        reminded_after_ms={},
        given_up=(),
        checks={"lost": 14},
    )
    assert milestones(before, AGREED) == [
        "check-back: the restarted order service was asked 2 times about killed and answered "
        "COMMIT: delivered",
        "1 reminder delivered, 5.0 s after the order, or more; the delay is 5 s",
        "always UNKNOWN: asked 15 of 15 times, given up: lost is in TRANS_CHECK_MAX_TIME_TOPIC",
    ]
    assert milestones(AGREED, AGREED) == []
    assert milestones(Seen(), Seen()) == []


def test_line_names_what_changed_and_nothing_else() -> None:
    before = replace(AGREED, delivered=("a", "b"), checks={"killed": 2, "lost": 14})
    assert changes(before, AGREED) == "3 delivered, always UNKNOWN asked 15 of 15 times"
    assert changes(AGREED, AGREED) == ""


def test_nothing_at_all_is_no_agreement() -> None:
    told = disagreements(Seen())
    assert "nothing was committed: the demo has not shown it" in told
    assert not Seen().is_quiet(0)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("an order that has not ended", {"committed": ("a", "killed")}),
        ("a half that has not landed", {"halves": ("a", "b", "killed")}),
        ("a message not delivered", {"delivered": ("a", "b")}),
        ("a rollback not decided", {"rolled_back": ()}),
        ("points not added", {"pointed": ("a", "b")}),
        ("a reminder not delivered", {"reminded": ()}),
        ("a forgotten one not given up", {"given_up": ()}),
        ("a forgotten one not landed", {"forgotten": (), "given_up": ()}),
    ],
)
def test_demo_goes_on_while_something_is_open(what: str, change: Mapping[str, object]) -> None:
    assert not replace(AGREED, **change).is_quiet(4), what


def test_folder_that_no_demo_made_is_not_deleted(tmp_path: Path) -> None:
    precious = tmp_path / "lake" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    with pytest.raises(DemoError, match="was not made by the demo"):
        Folders(tmp_path / "lake").make_anew()
    assert precious.read_text() == "kept"
    assert not Folders(tmp_path / "lake").beside.exists()


def test_folders_of_an_earlier_demo_are_made_anew(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "lake")
    assert not folders.make_anew()
    (folders.lake / "half").mkdir()
    folders.orders.touch()
    assert folders.make_anew()
    assert not (folders.lake / "half").exists()
    assert not folders.orders.exists()


def test_lake_on_which_a_job_runs_is_not_deleted(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "lake")
    folders.make_anew()
    lock = LakeLock(lake_location(str(folders.lake)), "a-host:1:job")
    with pytest.raises(DemoError, match="is written by a-host:1:job"):
        folders.make_anew()
    lock.release()
    assert folders.make_anew()


def test_settings_name_a_folder_of_any_usable_name(tmp_path: Path) -> None:
    folders = Folders(tmp_path / 'ü \U0001f600 "100%"')
    folders.make_anew()
    folders.write_conf("127.0.0.1:9092", CHECK_MAX)
    assert load(str(folders.conf)).lake.path == str(folders.lake)


def test_a_folder_that_no_lake_can_have_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="a%20b': it has '%20'"):
        Folders(tmp_path / "a%20b").make_anew()
    assert list(tmp_path.iterdir()) == []
