"""Messages kept in memory: what is read is the same with and without them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from storage.lake import Lake
from storage.messages import read_messages
from storage.recent import RecentMessages, coordinates
from storage.rows import instant
from storage.schemas import HALF

PLACE = ["queue_id", "queue_offset"]
EPOCH_ROWS = 300


def landed(epoch: int, count: int = EPOCH_ROWS) -> pa.Table:
    """Give the halves that an epoch lands in two queues, in the order of their places."""
    first = (epoch - 1) * count // 2
    rows = [
        {"queue_id": queue, "queue_offset": first + n, "stored_at": instant(epoch),
         "transaction_id": f"t{queue}-{first + n}", "body": b"x" * 50,
         "properties": [("name", str(n))], "epoch": epoch}
        for queue in (0, 3)
        for n in range(count // 2)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=HALF)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a lake as the job opens it, with `half`; three epochs' rows fit into its memory."""
    lake = Lake(str(tmp_path), is_maintained=True)
    lake.create_table("half")
    lake.recent = RecentMessages(int(landed(1).nbytes * 3.5))
    return lake


def kept(recent: RecentMessages | None, rows: pa.Table) -> int:
    """Count which rows are in memory."""
    assert recent is not None
    places = coordinates(rows).to_numpy()
    return sum(batch.num_rows for batch in recent.read(places, PLACE))


@pytest.mark.parametrize("before_epoch", [None, 5])
def test_rows_are_those_of_the_table_wherever_they_are(
    lake: Lake, before_epoch: int | None
) -> None:
    for epoch in range(1, 7):
        lake.append("half", landed(epoch), epoch)
    assert [kept(lake.recent, landed(epoch)) for epoch in range(1, 7)] == [0, 0, 0, 300, 300, 300]
    whole = lake.read("half")
    chance = random.Random(1)
    for size in (0, 1, 7, 400):
        at = pa.array(chance.sample(range(whole.num_rows), size), pa.int64())
        named = whole.select(PLACE).take(at)
        found = [
            pa.Table.from_batches(
                read_messages(lake, "half", named, HALF.names, before_epoch, recent=recent),
                schema=whole.schema,
            ).sort_by([(name, "ascending") for name in PLACE])
            for recent in (lake.recent, None)
        ]
        assert found[0].equals(found[1])
        assert size == 0 or before_epoch or found[0].num_rows == size


def test_files_are_not_opened_for_what_is_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.append("half", landed(1), 1)
    monkeypatch.delattr(Lake, "dataset")
    found = list(read_messages(lake, "half", landed(1), HALF.names, 2, recent=lake.recent))
    assert pa.Table.from_batches(found).equals(landed(1))
    assert not list(lake.recent.read(coordinates(landed(1)).to_numpy(), HALF.names, 1))  # type: ignore[union-attr]


def test_nothing_is_kept_of_a_lake_that_others_write_or_that_is_read_anew(lake: Lake) -> None:
    assert Lake(lake.path).recent is None
    lake.append("half", landed(1), 1)
    lake.forget()
    assert kept(lake.recent, landed(1)) == 0


def test_what_is_too_large_or_in_no_order_is_not_kept_nor_what_was_before_it(lake: Lake) -> None:
    for rows in (landed(2, 20 * EPOCH_ROWS), landed(2).sort_by([("queue_offset", "ascending")])):
        lake.append("half", landed(1), 1)
        lake.append("half", rows, 2)
        assert kept(lake.recent, landed(1)) == 0
        assert kept(lake.recent, rows.slice(0, 10)) == 0
