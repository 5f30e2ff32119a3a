"""The rows of a synthetic lake, collected by table and appended in few commits."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.epoch.recorded_state import FRAMES, latest_rows
from storage.lake.chain import with_digest
from storage.lake.epochs import TableVersion
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.schemas import SNAPSHOT


class SyntheticRows:
    """Collect rows by table and append them in as many commits as are wanted."""

    def __init__(self, lake: Lake, epochs_per_file: int) -> None:
        self._lake, self._epochs_per_file = lake, epochs_per_file
        self._digest = lake.majority_lake_id()
        self._totals: dict[str, int] = defaultdict(int)
        self._touched: set[str] = set()
        self._parts: dict[str, list[pa.Table]] = defaultdict(list)
        self._changes: dict[str, list[pa.Table]] = defaultdict(list)

    def add(self, table: str, count: int, **columns: Any) -> None:
        """Add rows of a table. Input: a column's values, or one value; a column without is null."""
        if count:
            schema = self._lake.schema(table)
            arrays = []
            for field in schema:
                values = columns.get(field.name)
                if values is None or np.isscalar(values):
                    values = [values] * count
                arrays.append(pa.array(values, field.type))
            self._add(table, pa.table(arrays, schema=schema))

    def _add(self, table: str, rows: pa.Table) -> None:
        self._totals[table] += rows.num_rows
        self._touched.add(table)
        self._parts[table].append(rows)
        if table in FRAMES:
            self._changes[table].append(rows)

    def take_snapshot(self, epoch: int) -> None:
        """Add the whole state, as its rows so far say it."""
        for table in FRAMES:
            schema = self._lake.schema(table)
            changes = self._changes.pop(table, [schema.empty_table()])
            found = latest_rows(table, pa.concat_tables(changes))
            self._add(table, to_rows(found, schema, change=SNAPSHOT, epoch=epoch))

    def add_to_chain(self, row: pa.Table) -> None:
        """Add the next row of epochs."""
        chained_row, self._digest = with_digest(row, self._digest)
        self._parts["epochs"].append(chained_row)

    def written(self, *, is_all: bool) -> dict[str, TableVersion]:
        """Return the tables written since this was last asked, and how many rows they have."""
        touched = set(self._totals) if is_all else self._touched
        self._touched = set()
        return {table: TableVersion(0, self._totals[table]) for table in touched}

    def end_epoch(self, epoch: int, is_last: bool) -> None:
        """Write what was collected, if it is time to."""
        if is_last or epoch % self._epochs_per_file == 0:
            for table, parts in self._parts.items():
                self._lake.append(table, pa.concat_tables(parts), epoch)
            self._parts.clear()
