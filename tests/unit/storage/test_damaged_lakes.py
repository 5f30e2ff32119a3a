"""A lake in which one table is not what it was: every tool names it or refuses, and writes nothing.

Each case damages one table of the same sound lake. What is left looks well formed, so only what the
epochs tell of their tables, and each table of its lake, gives it away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.notebooks.open_lake import open_lake
from pipelines.replay import verify
from storage.errors import BrokenLakeError, LakeError
from storage.lake.integrity import require_readable
from storage.lake.lake import Lake
from storage.schemas import TABLES
from tests.support import damage
from tests.support.crossing import crossing
from tests.support.damage import (
    KINDS,
    LAST_EPOCH,
    ORDERS,
    TRANSACTION,
    consume,
    is_named,
    look_at_the_tables_alone,
    prints,
    refusal,
    start,
    txlake,
)
from txlake import LakeError as ConsumersLakeError

# What cannot be told from a lake that nobody touched: an epoch that was planned and not committed.
LEGAL = ("epochs", "one version back")
READ_BY_CONSUMERS = {"lake", "catalog", "epochs", ORDERS}
CASES = crossing(
    (*TABLES, ORDERS), tuple(KINDS), whole=READ_BY_CONSUMERS, without=lambda pair: pair == LEGAL
)
Damage = Callable[[str, str], Path]


@pytest.mark.usefixtures("one_look")
@pytest.mark.parametrize(("table", "kind"), CASES)
def test_a_damaged_table_is_named_and_nothing_is_written(
    table: str, kind: str, damaged: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(table, kind)
    before = prints(path)
    if kind != "removed":  # that verify goes on to the end is looked at once for each table
        look_at_the_tables_alone(monkeypatch)
    code, said = txlake("verify", "--lake", str(path))
    assert code == 3, said
    assert f"table={table}: " in said
    assert is_named(table, refusal("tx", "explain", TRANSACTION, "--lake", str(path)))
    assert is_named(table, refusal("replay", "--verify", "--lake", str(path)))
    with pytest.raises(LakeError) as refused:
        start(path)
    assert is_named(table, str(refused.value))
    if table in READ_BY_CONSUMERS:
        with pytest.raises(ConsumersLakeError) as not_consumed:
            consume(path)
        assert is_named(table, str(not_consumed.value))
    assert prints(path) == before


def test_every_tool_answers_on_the_sound_lake(lake_copy: Path) -> None:
    before = prints(lake_copy)
    assert "all invariants hold" in txlake("verify", "--lake", str(lake_copy))[1]
    code, said = txlake("tx", "explain", TRANSACTION, "--lake", str(lake_copy))
    assert (code, "delivered to topic orders" in said) == (0, True)
    assert verify(str(lake_copy)).is_equal
    assert start(lake_copy).state.halves.num_rows == 2
    assert open_lake(str(lake_copy)).epoch == LAST_EPOCH
    assert prints(lake_copy) == before
    assert consume(lake_copy) == 6


def test_an_epoch_whose_commit_is_lost_is_one_that_was_not_committed_yet(damaged: Damage) -> None:
    path = damaged(*LEGAL)
    before = prints(path)
    code, said = txlake("verify", "--lake", str(path))
    assert (code, "since their epoch is not committed" in said) == (0, True)
    assert open_lake(str(path)).epoch == LAST_EPOCH - 1
    assert verify(str(path)).is_equal
    epochs = start(path)
    assert epochs.last is not None
    assert epochs.last.epoch == LAST_EPOCH - 1  # the start finishes the other one next
    assert prints(path) == before


@pytest.mark.usefixtures("one_look")
def test_more_of_epochs_cannot_be_lost_unseen(lake_copy: Path) -> None:
    for entry in damage.log_entries(lake_copy / "epochs")[-3:]:
        entry.unlink()
    before = prints(lake_copy)
    for refused in (lambda: require_readable(Lake(str(lake_copy))), lambda: start(lake_copy)):
        with pytest.raises(BrokenLakeError, match="rows"):
            refused()
    with pytest.raises(ConsumersLakeError, match=r"has rows of epoch 5, and the newest .* is 4"):
        consume(lake_copy)
    assert prints(lake_copy) == before


@pytest.mark.usefixtures("one_look")
@pytest.mark.parametrize("table", ["half", "delayed", ORDERS])
def test_every_other_command_refuses_too(table: str, damaged: Damage, tmp_path: Path) -> None:
    path = damaged(table, "emptied")
    before = prints(path)
    settings = f'[lake]\npath = "{path}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
    conf = tmp_path / "job.toml"
    conf.write_text(settings)
    write = ("--reason", "why", "--actor", "ada", "--dry-run", "--conf", str(conf))
    commands = [
        ("tx", "commit", "0-1", *write),
        ("schedule", "cancel", "half:0-2", *write),
        ("maintain", "--dry-run", "--conf", str(conf)),
        ("replay", "--what-if", "check_max=5", "--lake", str(path)),
    ]
    if table != ORDERS:  # these do not read it, and say nothing about it
        commands += [
            ("dead", "list", "--lake", str(path)),
            ("schedule", "list", "--conf", str(conf)),
        ]
        commands += [("topic", "create", "bills", "--queues", "2", *write)]
    for words in commands:
        assert is_named(table, refusal(*words)), words
    with pytest.raises(BrokenLakeError, match=f"the table {table} holds 0 rows"):
        open_lake(str(path))
    assert prints(path) == before
    assert is_named(table, refusal("maintain", "--offline", "--conf", str(conf)))
    assert {
        name: digest for name, digest in prints(path).items() if name != "_driver.lock"
    } == before
