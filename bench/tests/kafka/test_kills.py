"""kill -9 of the job, its producers and its consumer, again and again; and who would see a loss."""

from __future__ import annotations

import json
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

from bench.chaos.__main__ import run
from bench.chaos.compare import compare, read_facts
from bench.chaos.counts import COMMON, missing
from bench.chaos.journal import Journal, Seen
from bench.chaos.kills import schedule
from bench.chaos.names import CONSUMER, JOB, PRODUCERS, RAW, RAW_TOPIC, TOPICS
from bench.chaos.raw_compare import compare_raw
from bench.chaos.raw_journal import DELIVERED, LATER, UNREADABLE, Promise, RawJournal
from bench.chaos.settings import CHECK_MAX, dealt
from storage.lake.lake import Lake

SEED = 91427  # its first nine kills hit everyone, and the job in each of its three ways
KILLS = schedule(9, SEED, pause_s_max=2.5)


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
    assert figures["sdk_transactions"]["ROLLBACK"] > 0


def test_what_the_rules_know_has_happened(run_folder: tuple[Path, dict[str, Any]]) -> None:
    assert missing(run_folder[1], COMMON) == []


def test_parameters_differed_and_records_of_each_kind_could_not_be_read(
    run_folder: tuple[Path, dict[str, Any]],
) -> None:
    figures = run_folder[1]
    assert set(figures["epochs_by_setting"]["late_end_policy"]) == {"apply", "reject"}
    assert len(figures["epochs_by_setting"]["check_interval_ms"]) > 1
    kinds = {name.split()[0] for name in figures["unreadable"]}
    assert kinds == {"half", "op", "schedule", "admin"}


def test_a_seed_fixes_who_is_killed_and_each_is() -> None:
    assert schedule(9, SEED, pause_s_max=2.5) == KILLS
    assert schedule(9, SEED + 1, pause_s_max=2.5) != KILLS
    targets = [kill.target for kill in KILLS]
    assert targets.count(JOB) >= 5
    assert {JOB, CONSUMER, RAW, *PRODUCERS} == set(targets)
    assert {kill.whom for kill in KILLS if kill.target == JOB} == {"all", "python", "jvm"}


def test_a_seed_fixes_the_settings_of_each_start_and_deals_every_value() -> None:
    starts = [dealt(SEED, start, is_last=start == 7) for start in range(1, 8)]
    assert starts == [dealt(SEED, start, is_last=start == 7) for start in range(1, 8)]
    assert {one["lake.pending_snapshot_epochs"] for one in starts} == {1, 2, 7, 100, 500}
    policies = [one["transaction.late_end_policy"] for one in starts]
    assert policies == [policies[0], policies[1]] * 3 + [policies[0]], "they take turns"
    assert set(policies) == {"apply", "reject"}


class Copy:
    """A copy of what the run has left, to be tampered with."""

    def __init__(self, original: Path, folder: Path) -> None:
        shutil.copytree(original / "lake", folder / "lake")
        for path in (original / "files").glob("*.sqlite*"):
            shutil.copy(path, folder)
        self.journal = Journal(folder / "journal.sqlite")
        self.raw_journal = RawJournal(folder / "raw.sqlite")
        self.seen = Seen(folder / "seen.sqlite")
        self.lake = Lake(str(folder / "lake"))
        self.turn_to(TOPICS[0])

    def differences(self) -> list[str]:
        facts = read_facts(self.lake)
        found = compare(facts, self.journal, self.seen, CHECK_MAX)
        return found + compare_raw(self.lake, facts, self.raw_journal)

    def promise(self, kind: str, is_set: bool = False) -> Promise:
        return next(
            one
            for one in self.raw_journal.promises()
            if one.kind == kind and one.facts.get("is_set", False) == is_set
        )

    def turn_to_promised(self, is_set: bool = False) -> None:
        self.turn_to(RAW_TOPIC, self.promise(DELIVERED, is_set).ids[-1])

    def turn_to(self, topic: str, keys: str | None = None) -> None:
        catalog = self.lake.read("catalog").to_pylist()
        (table_id,) = {row["table_id"] for row in catalog if row["topic"] == topic}
        self.topic = topic
        self.table = f"topics/{table_id}"
        rows = self.lake.read(self.table)
        if keys is not None:
            rows = rows.filter(pc.equal(rows["keys"], keys))
        self.row = rows.slice(0, 1)
        self.message = self.row.to_pylist()[0]

    def execute(self, database: Journal | RawJournal | Seen, text: str, *values: Any) -> None:
        with closing(sqlite3.connect(database.path)) as connection, connection:
            assert connection.execute(text, values).rowcount >= 1

    def delete(self, table: str | None = None) -> None:
        where = f"keys = '{self.message['keys']}'"
        deleted = DeltaTable(self.lake.table_path(table or self.table)).delete(where)
        assert deleted["num_deleted_rows"] == 1
        self.lake.reset()

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


def hides_all_from_the_consumer(copy: Copy) -> None:
    copy.execute(copy.seen, "DELETE FROM seen")


def shows_the_consumer_another_body(copy: Copy) -> None:
    text = "UPDATE seen SET body = ? WHERE key = ?"
    copy.execute(copy.seen, text, b"another", copy.message["keys"])


def forgets_a_raw_record(copy: Copy) -> None:
    copy.turn_to_promised()
    copy.delete("half")


def lands_what_nobody_sent(copy: Copy) -> None:
    copy.turn_to_promised()
    ids = json.dumps([copy.message["keys"]])
    copy.execute(copy.raw_journal, "DELETE FROM promises WHERE ids = ?", ids)
    copy.execute(copy.raw_journal, "DELETE FROM records WHERE id = ?", copy.message["keys"])


def withholds_a_promised_message(copy: Copy) -> None:
    copy.turn_to_promised()
    copy.delete()


def delivers_a_raw_message_twice(copy: Copy) -> None:
    copy.turn_to_promised()
    copy.append(copy.table, copy.row, queue_offset=10**6)


def tears_a_set_apart(copy: Copy) -> None:
    copy.turn_to_promised(is_set=True)
    copy.delete()
    copy.append(copy.table, copy.row, epoch=10**6)


def delivers_before_its_time(copy: Copy) -> None:
    copy.turn_to_promised()
    copy.raw_journal.promise(LATER, [copy.message["keys"]], not_before_ms=10**13)


def delivers_what_was_cancelled(copy: Copy) -> None:
    copy.turn_to_promised()
    place = f"half:{copy.message['half_queue_id']}-{copy.message['half_queue_offset']}"
    row = copy.lake.read("admin").slice(0, 1)
    values = {"command": "CANCEL", "target": place, "result": "cancelled", "queue_offset": 10**6}
    copy.append("admin", row, **values)


def reads_what_cannot_be_read(copy: Copy) -> None:
    promise = copy.promise(UNREADABLE)
    copy.message = {"id": promise.ids[0]}
    copy.raw_journal.promise(UNREADABLE, promise.ids, reason="another")


def commits_what_nobody_ended(copy: Copy) -> None:
    copy.turn_to_promised()
    text = "UPDATE records SET about = ? WHERE id = ?"
    for record in copy.raw_journal.records().values():
        if copy.message["transaction_id"] in record.about.get("ends", ()):
            about = json.dumps({**record.about, "decision": "ROLLBACK"})
            copy.execute(copy.raw_journal, text, about, record.id)


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (commits_more, "message more of committed transaction more-id is delivered 0 times"),
        (rolled_back_after_all, "message {keys} was never committed, but is in"),
        (
            drops_a_message,
            "message {keys} of committed transaction {transaction_id} is delivered 0 times",
        ),
        (
            delivers_twice,
            "message {keys} of committed transaction {transaction_id} is delivered 2 times",
        ),
        (gives_an_offset_twice, "{queue_id}-{queue_offset} (epoch {epoch}) stands where"),
        (changes_a_body, "message {keys} of committed transaction {transaction_id} differs in"),
        (
            decides_otherwise,
            "of transaction {transaction_id} is ROLLED_BACK; the journal has COMMIT",
        ),
        (asks_too_often, "was asked about as number [1, 1"),
        (hides_a_message_from_the_consumer, "the consumer never saw message {keys} at"),
        (hides_all_from_the_consumer, "the consumer never saw message"),
        (shows_the_consumer_another_body, "the consumer saw message {keys} at"),
        (forgets_a_raw_record, "is landed 0 times"),
        (lands_what_nobody_sent, "half record {keys} was never sent"),
        (withholds_a_promised_message, "is delivered 0 times: []"),
        (delivers_a_raw_message_twice, "is delivered 2 times"),
        (tears_a_set_apart, "set {transaction_id} is delivered in several epochs"),
        (delivers_before_its_time, "is there too early: {real_topic}"),
        (delivers_what_was_cancelled, "cancelled a message that is in {real_topic}"),
        (reads_what_cannot_be_read, "unreadable: {id} of story"),
        (commits_what_nobody_ended, "was never committed, but is in {real_topic}"),
    ],
)
def test_a_difference_is_named(
    run_folder: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    tamper: Callable[[Copy], None],
    said: str,
) -> None:
    copy = Copy(run_folder[0], tmp_path)
    tamper(copy)
    found = copy.differences()
    assert any(said.format(**copy.message) in text for text in found), found
