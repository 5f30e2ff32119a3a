"""kill -9 of the job, its producers and its consumer, again and again; and who would see a loss."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from bench.chaos import CHECK_MAX, CONSUMER, JOB, PRODUCERS, run, schedule
from bench.chaos_compare import compare, read_facts
from bench.chaos_journal import Journal, Seen
from bench.chaos_producer import TOPICS
from storage.lake import Lake

SEED = 90  # its first nine kills hit everyone, and the job in each of its three ways
KILLS = schedule(9, SEED, pause_s_max=2.0)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run once for all tests here: the run's folder, and its report."""
    folder = tmp_path_factory.mktemp("kills")
    _, figures = run(folder / "lake", folder / "files", KILLS, SEED)
    return folder, dict(figures)


def test_kill_9_of_any_process_loses_nothing_and_duplicates_nothing(
    run_folder: tuple[Path, dict[str, Any]],
) -> None:
    _, figures = run_folder
    assert figures["differences"] == []
    assert figures["kills_in_all"] == len(KILLS)
    for topic in TOPICS:
        assert figures["messages"][topic] > 0
    assert figures["job_owners"] > 1, "more than one driver has written"
    assert figures["transactions"]["ROLLBACK"] > 0


def test_a_seed_fixes_who_is_killed_and_each_is() -> None:
    assert schedule(9, SEED, pause_s_max=2.0) == KILLS
    assert schedule(9, SEED + 1, pause_s_max=2.0) != KILLS
    targets = [kill.target for kill in KILLS]
    assert targets.count(JOB) >= 5
    assert {JOB, CONSUMER, *PRODUCERS} == set(targets)
    assert {kill.whom for kill in KILLS if kill.target == JOB} == {"all", "python", "jvm"}


class Copy:
    """A copy of what the run has left, to be tampered with."""

    def __init__(self, original: Path, folder: Path) -> None:
        shutil.copytree(original / "lake", folder / "lake")
        for path in (original / "files").glob("*.sqlite*"):
            shutil.copy(path, folder)
        self.journal = Journal(folder / "journal.sqlite")
        self.seen = Seen(folder / "seen.sqlite")
        self.lake = Lake(str(folder / "lake"))
        self.topic = TOPICS[0]
        (catalog,) = [
            row for row in self.lake.read("catalog").to_pylist() if row["topic"] == self.topic
        ]
        self.table = f"topics/{catalog['table_id']}"
        rows = self.lake.read(self.table)
        self.row = rows.filter(pc.equal(rows["queue_id"], rows["queue_id"][0])).slice(0, 1)
        self.message = self.row.to_pylist()[0]

    def differences(self) -> list[str]:
        return compare(read_facts(self.lake), self.journal, self.seen, CHECK_MAX)

    def execute(self, database: Journal | Seen, text: str, *values: Any) -> None:
        with closing(sqlite3.connect(database.path)) as connection, connection:
            assert connection.execute(text, values).rowcount == 1

    def delete(self) -> None:
        where = f"keys = '{self.message['keys']}'"
        deleted = DeltaTable(self.lake.table_path(self.table)).delete(where)
        assert deleted["num_deleted_rows"] == 1
        self.lake.forget()

    def append(self, table: str, row: pa.Table, **values: Any) -> None:
        for name, value in values.items():
            number = row.schema.get_field_index(name)
            column = pa.array([value], type=row.schema.field(name).type)
            row = row.set_column(number, row.schema.field(name), column)
        self.lake.append(table, row)


def commits_more(copy: Copy) -> None:
    values = ("more", "more-id", copy.topic, b"body")
    copy.execute(copy.journal, "INSERT INTO messages VALUES (?, ?, ?, ?, NULL)", *values)


def rolled_back_after_all(copy: Copy) -> None:
    copy.execute(copy.journal, "DELETE FROM messages WHERE key = ?", copy.message["keys"])


def drops_a_message(copy: Copy) -> None:
    copy.delete()


def delivers_twice(copy: Copy) -> None:
    rows = copy.lake.read(copy.table)
    of_queue = rows.filter(pc.equal(rows["queue_id"], copy.message["queue_id"]))
    copy.append(copy.table, copy.row, queue_offset=pc.max(of_queue["queue_offset"]).as_py() + 1)


def gives_an_offset_twice(copy: Copy) -> None:
    copy.append(copy.table, copy.row)


def changes_a_body(copy: Copy) -> None:
    copy.delete()
    copy.append(copy.table, copy.row, body=b"another")


def decides_otherwise(copy: Copy) -> None:
    outcomes = copy.lake.read("outcomes")
    is_its = pc.and_(
        pc.equal(outcomes["queue_id"], copy.message["half_queue_id"]),
        pc.equal(outcomes["queue_offset"], copy.message["half_queue_offset"]),
    )
    row = outcomes.filter(is_its).slice(0, 1)
    copy.append("outcomes", row, outcome="ROLLED_BACK", epoch=10**6)


def asks_too_often(copy: Copy) -> None:
    rows = copy.lake.read("checks")
    row = rows.filter(pc.and_(rows["acknowledged"], pc.equal(rows["check_times"], 1))).slice(0, 1)
    copy.append("checks", row)


def hides_a_message_from_the_consumer(copy: Copy) -> None:
    copy.execute(copy.seen, "DELETE FROM seen WHERE key = ?", copy.message["keys"])


def shows_the_consumer_another_body(copy: Copy) -> None:
    text = "UPDATE seen SET body = ? WHERE key = ?"
    copy.execute(copy.seen, text, b"another", copy.message["keys"])


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (commits_more, "message more of committed transaction more-id is delivered 0 times"),
        (rolled_back_after_all, "message {keys} was never committed, but is in"),
        (drops_a_message, "message {keys} of committed transaction {transaction_id} is delivered "
         "0 times"),
        (delivers_twice, "message {keys} of committed transaction {transaction_id} is delivered "
         "2 times"),
        (gives_an_offset_twice, "{queue_id}-{queue_offset} (epoch {epoch}) stands where"),
        (changes_a_body, "message {keys} of committed transaction {transaction_id} differs in"),
        (decides_otherwise, "of transaction {transaction_id} is ROLLED_BACK; the journal has "
         "COMMIT"),
        (asks_too_often, "was asked about as number [1, 1"),
        (hides_a_message_from_the_consumer, "the consumer never saw message {keys} at"),
        (shows_the_consumer_another_body, "the consumer saw message {keys} at"),
    ],
)  # fmt: skip
def test_a_difference_is_named(
    run_folder: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    tamper: Callable[[Copy], None],
    said: str,
) -> None:
    copy = Copy(run_folder[0], tmp_path)
    assert copy.differences() == []
    tamper(copy)
    found = copy.differences()
    assert any(said.format(**copy.message) in text for text in found), found
