"""How a rebuilt lake begins where the old one has a floor: the rows below it are copied.

Epochs up to the floor's cannot be run again: their input is deleted. So their remaining rows go
into the new lake as they are: records, decisions, the state, messages, their epochs. Each table
says how many of its rows were deleted, and a topic's table where its queues begin: so numbers and
offsets go on in the new lake where they would have in the old one.

1. Each table in one Delta commit, its rows in files as the old lake has them: they can go whole.
2. `epochs`, as a chain of the new lake; the floor's own row names the versions of the new tables.

Messages decide nothing: a topic whose table is lost begins at the floor. Any other lost table
cannot be made again.

Replay: a table that has its rows is left out, so an interrupted copy goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction

from pipelines.epoch.recorded_state import topics_before
from pipelines.errors import StartError
from storage.errors import BrokenLakeError, LakeError, OlderLakeError
from storage.files.data_files import DataFile, new_name, write_file
from storage.lake.buffered import BufferedLake
from storage.lake.chain import chain_order, digest_of
from storage.lake.datasets import bounds_of, dataset_of
from storage.lake.epochs import COMMITTED
from storage.lake.floor import Floor
from storage.lake.identity import infer_identity
from storage.lake.lake import NO_LOG_UPKEEP, Lake
from storage.lake.progress import Progress, read_progress
from storage.lake.table import deleted_epoch, deleted_rows, queue_floor
from storage.maintenance.topic_retention import alter, configs_of
from storage.schemas import EPOCHS, FORMAT_VERSION, FORMATS, GROUPS_FORMAT, TABLES
from storage.wire.record_kinds import KINDS
from txlake._counted import counted
from txlake._delta_handle import file_stats
from txlake.protocol import DELETED_EPOCH_ID, UNDELIVERABLE_TOPIC, deleted_id, floor_id

_EPOCHS_AT_ONCE = 1_000
_COPIED_FORMAT = GROUPS_FORMAT  # from this one on what a lake lacks of the newest one can be filled


@dataclass(frozen=True)
class FloorCopy:
    """The rows below the floor of a lake. `progress`: where its epochs stood at the floor's."""

    lake: Lake
    floor: Floor
    progress: Progress

    def copy_into(self, target: BufferedLake) -> None:
        """Copies it into a new lake.

        Errors: BrokenLakeError if rows are missing; StartError if the target holds something else,
        or the floor has moved meanwhile.
        """
        topics = topics_before(self.lake, self.floor.epoch + 1).to_pylist()
        tables = {f"topics/{row['table_id']}": row["topic"] for row in topics}

        for table in (*TABLES, *tables):
            if table not in ("lake", "epochs"):
                target.create_table(table)
                self._copy_table(target, table, tables.get(table))

        newest = read_progress(self.lake).last
        if newest is None or newest.floor != self.floor:
            raise self._moved_error(target, self.floor.epoch)

        self._copy_epochs(target)
        target.reset()

    def require_reached(self, target: Lake) -> None:
        """Checks that a lake has landed everything below the floor, where records are missing.

        Errors: StartError.
        """
        last = read_progress(target).last
        at_floor = self.progress.last
        landed = {} if last is None else last.landed()
        ends = {} if at_floor is None else at_floor.landed()

        for (topic, queue_id), end in ends.items():
            if landed.get((topic, queue_id), 0) < end:
                raise StartError(
                    f"{target.path} has landed {topic} partition {queue_id} up to offset "
                    f"{landed.get((topic, queue_id), 0)}, below the floor of {self.lake.path} "
                    f"(offset {end}, epoch {self.floor.epoch}): name a new place"
                )

    def _moved_error(self, target: Lake, epoch: int) -> StartError:
        return StartError(
            f"{target.path} has rows up to epoch {epoch} of a rebuild that was interrupted, and "
            f"the floor of {self.lake.path} has moved since: name a new place"
        )

    def _copy_table(self, target: BufferedLake, table: str, topic: str | None) -> None:
        epoch = self.floor.epoch
        held = target.table(table).transaction()
        if held == epoch:
            return
        if held >= 0:
            raise self._moved_error(target, held)

        committed = self.progress.tables[table].rows if table in self.progress.tables else 0
        transactions: dict[str, int] = {}
        files: list[DataFile] = []

        if self.lake.is_table(table):
            handle = self.lake.handle(table)
            deleted_up_to = 0
            remaining = committed - deleted_rows(handle)

            if topic is not None:
                alter(target, table, configs_of(handle))
                deleted_up_to = deleted_epoch(handle)
                transactions = self._deletion_marks(topic, handle)

            files = list(self._copy_files(target, table, handle, deleted_up_to))
            if deleted_up_to <= epoch:
                self._require_rows(table, remaining, sum(file.rows for file in files))
        elif topic in (None, UNDELIVERABLE_TOPIC):
            raise BrokenLakeError(
                f"the table {table} of the lake {self.lake.path} is missing. What it held below "
                f"the floor, epoch {epoch}, cannot be decided again: put the table back from a copy"
            )
        else:
            transactions = self._deletion_marks(topic)

        deleted = committed - sum(file.rows for file in files)
        if deleted:
            transactions[deleted_id(target.majority_lake_id())] = deleted
        if files or transactions:
            _commit(target, table, files, transactions, epoch)

    def _deletion_marks(self, topic: str, handle: DeltaTable | None = None) -> dict[str, int]:
        """Returns up to which epoch messages are deleted, and where the queues begin.

        Messages of epochs above the floor are made anew, also those that the old lake has deleted.
        Input: the old table; None if it is lost.
        """
        epoch = self.floor.epoch
        deleted = epoch if handle is None else min(epoch, deleted_epoch(handle))
        begins = {
            floor_id(queue_id): end if handle is None else min(end, queue_floor(handle, queue_id))
            for (name, queue_id), end in self.progress.next_offsets.items()
            if name == topic
        }
        return {DELETED_EPOCH_ID: deleted, **begins} if deleted else {}

    def _copy_files(
        self, target: Lake, table: str, handle: DeltaTable, deleted_epoch: int
    ) -> Iterator[DataFile]:
        """Writes the rows up to the floor, file by file, of the version that the handle is at."""
        epoch = pc.field("epoch")
        schema = self.lake.schema(table)
        files = self.lake.table(table).files(handle)
        if "min.epoch" in files.column_names:
            is_below = pc.less_equal(files["min.epoch"], self.floor.epoch)
            files = files.filter(pc.fill_null(is_below, True))

        paths = files["path"].to_pylist() if files.num_rows else []
        for index, path in enumerate(paths):
            with self.lake.translating_read_errors(table):
                file = dataset_of(self.lake.location, table, files.slice(index, 1), schema)
                rows = file.to_table(filter=(epoch <= self.floor.epoch) & (epoch > deleted_epoch))
                rows.validate(full=True)

            if table == "pending":
                rows = _fill_ages(rows)

            if rows.num_rows:
                yield write_file(target.location, table, PurePosixPath(path).name, rows)

    def _require_rows(self, table: str, expected: int, count: int) -> None:
        if count != expected:
            raise BrokenLakeError(
                f"the lake {self.lake.path} is not whole: the table {table} holds "
                f"{counted(count, 'row')} up to its floor, epoch {self.floor.epoch}, where "
                f"{expected} should be left. They cannot be decided again: put the table back from "
                "a copy"
            )

    def _copy_epochs(self, target: BufferedLake) -> None:
        last = self.floor.epoch
        digest = target.majority_lake_id()
        files = []

        for rows in self._epochs():
            for row in rows:
                if (row["epoch"], row["state"]) == (last, COMMITTED):
                    row["tables"] = self._tables(target)
                row["digest"] = digest = digest_of(row, digest)

            table = pa.Table.from_pylist(rows, schema=EPOCHS)
            files.append(write_file(target.location, "epochs", new_name(rows[-1]["epoch"]), table))

        deleted = 2 * last - sum(file.rows for file in files)
        transactions = {deleted_id(target.majority_lake_id()): deleted} if deleted else {}
        _commit(target, "epochs", files, transactions, last, transaction=2 * last + 1)

    def _epochs(self) -> Iterator[list[dict[str, Any]]]:
        """Returns the rows of `epochs` up to the floor, some at a time, in order.

        They are read as of one version: a job deletes meanwhile.
        """
        last = self.floor.epoch
        handle = self.lake.handle("epochs")
        remaining = 2 * last - deleted_rows(handle)
        files = self.lake.table("epochs").files(handle)
        dataset = dataset_of(self.lake.location, "epochs", files, EPOCHS, bounds_of(files))
        count = 0

        for low in range(_first_epoch(files), last + 1, _EPOCHS_AT_ONCE):
            high = min(last, low + _EPOCHS_AT_ONCE - 1)
            within = (pc.field("epoch") >= low) & (pc.field("epoch") <= high)
            with self.lake.translating_read_errors("epochs"):
                read = dataset.to_table(filter=within)
                read.validate(full=True)

            rows = chain_order(read.to_pylist())
            if rows:
                count += len(rows)
                yield rows

        self._require_rows("epochs", remaining, count)

    def _tables(self, target: Lake) -> list[dict[str, Any]]:
        """Returns the rows of the tables at the floor, by their versions in the new lake."""
        return [
            {"table": table, "version": target.handle(table).version(), "rows": at.rows}
            for table, at in sorted(self.progress.tables.items())
        ]


def below_floor(lake: Lake) -> FloorCopy | None:
    """Returns the rows below a lake's floor; None if all of its epochs can be run again.

    Errors: LakeError if rows are deleted and no epoch says up to where; OlderLakeError.
    """
    try:
        last = read_progress(lake).last if lake.is_table("epochs") else None
    except BrokenLakeError:
        last = None

    if last is None:
        kinds = [kind for kind in KINDS if lake.is_table(kind) and deleted_rows(lake.handle(kind))]
        if kinds:
            raise LakeError(
                f"the lake {lake.path} has a floor, as rows of {kinds[0]} are deleted, and its "
                "epochs, which say where the floor is, cannot be read: put the table epochs back "
                "from a copy"
            )
        return None

    if last.floor.first_epoch == 1:
        return None

    _, version = infer_identity(lake, FORMATS)
    if version < _COPIED_FORMAT:
        raise OlderLakeError(
            f"the lake {lake.path} has format {version} and a floor, epoch {last.floor.epoch}: "
            f"what stands below it cannot be written in format {FORMAT_VERSION}"
        )

    return FloorCopy(lake, last.floor, read_progress(lake, until=last.floor.epoch))


def _first_epoch(files: pa.Table) -> int:
    """Returns an epoch before which no file of `epochs` has rows: 1 if the log does not tell."""
    first = file_stats(files, ["min.epoch"])[0]
    return 1 if first.null_count else pc.min(first).as_py() or 1


def _fill_ages(pending: pa.Table) -> pa.Table:
    """Returns rows of `pending` with `age_from_at`: a lake of format 4 counts from `stored_at`."""
    column = pending.schema.get_field_index("age_from_at")
    age_from_at = pc.coalesce(pending["age_from_at"], pending["stored_at"])
    return pending.set_column(column, pending.schema.field(column), age_from_at)


def _commit(
    target: Lake,
    table: str,
    files: Sequence[DataFile],
    transactions: Mapping[str, int],
    epoch: int,
    transaction: int | None = None,
) -> None:
    """Commits files of a table, and the numbers of its deleted rows, once."""

    def write(handle: DeltaTable, properties: CommitProperties) -> None:
        more = [Transaction(name, value) for name, value in transactions.items()]
        handle.create_write_transaction(
            [file.add_action() for file in files],
            "append",
            handle.schema(),
            commit_properties=CommitProperties(
                custom_metadata=properties.custom_metadata,
                app_transactions=[*(properties.app_transactions or ()), *more],
            ),
            post_commithook_properties=NO_LOG_UPKEEP,
        )

    target.table(table).commit_once(epoch, write, transaction)
