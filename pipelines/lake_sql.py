"""A lake's tables by their names in SQL (DuckDB), up to the newest committed epoch.

Rows of an epoch that is planned and not committed are right, only early (PROTOCOL.md "Tables"):
they are hidden. A view is made when it is asked for: a lake can have thousands of topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import duckdb
import pyarrow as pa

from pipelines.errors import OperatorError
from pipelines.settings.nearest import did_you_mean
from storage.errors import LakeError
from storage.lake.integrity import require_readable, require_recorded
from storage.lake.lake import Lake
from storage.schemas import TABLES, TOPIC

CONSUMER_OFFSETS: Final = "consumer_offsets"
MESSAGES: Final = "messages"
# What is read with SQL is the lake, nothing else of the machine, and nothing is written.
_READ_ONLY: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 2,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}


def select(lake: Lake, text: str, rows_max: int) -> tuple[pa.Table, bool]:
    """Returns the rows that a SQL text selects from a lake.

    Each table is there by its name, a topic's messages by the topic's, and all of them as
    `messages`. Of two names that differ by case alone, or are a table's, the first one counts:
    tables come before topics, older topics before younger ones.
    Input: at most so many rows. Output: the rows, and whether there are more.
    Errors: LakeError; OperatorError for a text that is no SELECT, or that DuckDB does not take.
    """
    connection = duckdb.connect(config=_READ_ONLY)
    meant = ""
    try:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        _require_select(connection, text)
        views = LakeSql(lake, connection)
        meant = _meant(views, _add_named(views, connection.get_table_names(text)))
        connection.execute("SET lock_configuration = true")
        return _fetched(connection, text, rows_max)
    except duckdb.CatalogException as error:
        raise OperatorError(_told(error) + meant) from error
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise OperatorError(_told(error)) from error
    finally:
        connection.close()


def _require_select(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuses what is not one statement that reads. Errors: OperatorError."""
    statements = connection.extract_statements(text)
    if len(statements) != 1:
        raise OperatorError(f"{len(statements)} statements: one SELECT is allowed")
    kind = statements[0].type.name
    if kind != "SELECT":
        raise OperatorError(f"{kind}: a lake is only read; one SELECT is allowed")


def _fetched(
    connection: duckdb.DuckDBPyConnection, text: str, rows_max: int
) -> tuple[pa.Table, bool]:
    """Returns the first rows of a query, and whether there are more."""
    found = connection.execute(text).fetch_record_batch(rows_max + 1)
    batches: list[pa.RecordBatch] = []
    for batch in found:
        batches.append(batch)
        if sum(one.num_rows for one in batches) > rows_max:
            break
    rows = pa.Table.from_batches(batches, found.schema)
    return rows.slice(0, rows_max), rows.num_rows > rows_max


def _add_named(views: LakeSql, names: Iterable[str]) -> list[str]:
    """Makes visible what a query names. Output: the names that the lake does not have."""
    known = views.known()
    wanted = {name: known.get(name.lower()) for name in names}
    named = [name for name in wanted.values() if name is not None]
    # `SHOW TABLES` names none.
    for name in named or known.values():
        views.add_named(name)
    return [name for name, there in wanted.items() if there is None]


def _meant(views: LakeSql, unknown: list[str]) -> str:
    """Returns the end of a sentence: what the lake has beside the names that it does not have."""
    known = views.known().values()
    near = "".join(did_you_mean(name, known) for name in unknown)
    return near or ("; `txlake topic list` names the topics" if unknown else "")


def _told(error: Exception) -> str:
    """Returns what DuckDB says is wrong, without the query itself and its own guess at a name."""
    lines = str(error).split("\n\n")[0].split("\n")
    return " ".join(line for line in lines if not line.startswith(("Did you mean", "Candidate")))


class LakeSql:
    """A lake as it was when this was made; make it again to see what came since.

    Input: the connection in which the views are made. `last`: the plan of `epoch`, the newest
    committed one; `topics`: the number of each real topic's table, by the topic's name.
    Errors: LakeError if something that was committed is missing, or nothing is committed yet.
    """

    def __init__(self, lake: Lake, connection: duckdb.DuckDBPyConnection) -> None:
        self.lake, self._connection = lake, connection
        self._made: set[str] = set()

        last = require_recorded(lake, ("catalog",)).last
        if last is None:
            raise LakeError(f"the lake {lake.path} has no committed epoch yet")
        self.last, self.epoch = last, last.epoch

        self.add("catalog")
        topics = "SELECT DISTINCT topic, table_id FROM catalog ORDER BY 2"
        self.topics: dict[str, int] = dict(connection.execute(topics).fetchall())

    @property
    def tables(self) -> list[str]:
        """Returns the names of all tables; that of the consumers can be missing."""
        return [*TABLES, CONSUMER_OFFSETS, *map(_table, self.topics.values())]

    def add_all(self) -> None:
        """Makes every table visible, and `messages`."""
        require_recorded(self.lake)
        for table in self.tables:
            self.add(table)
        self.add_messages()

    def add(self, table: str) -> None:
        """Makes a table visible to SQL, up to the newest committed epoch."""
        if table in self._made:
            return
        self._made.add(table)
        if table == CONSUMER_OFFSETS and not self.lake.is_table(table):
            return  # the first consumer makes it

        with self.lake.translating_read_errors(table):
            rows = self.lake.dataset(table)
        name = f"all of {table}"  # no topic can have this name
        self._connection.register(name, rows)
        before = f" WHERE epoch <= {self.epoch}" if "epoch" in rows.schema.names else ""
        self._connection.execute(f'CREATE VIEW "{table}" AS FROM "{name}"{before}')

    def add_messages(self) -> None:
        """Makes `messages` visible: all topics' tables in one, each row with its `topic`."""
        if MESSAGES in self._made:
            return
        self._made.add(MESSAGES)
        self._connection.register("no messages", TOPIC.empty_table())
        rows = ['SELECT NULL::VARCHAR AS topic, * FROM "no messages"']

        for topic, number in self.topics.items():
            self.add(_table(number))
            rows.append(f"SELECT '{topic}', * FROM \"{_table(number)}\"")
        self._connection.execute(f"CREATE VIEW {MESSAGES} AS {' UNION ALL '.join(rows)}")

    def known(self) -> dict[str, str]:
        """Returns the names that a query can use, by themselves in lower case: SQL knows no other.

        Tables come before topics, and older topics before younger ones.
        """
        known: dict[str, str] = {}
        for name in (*self.tables, MESSAGES, *self.topics):
            known.setdefault(name.lower(), name)
        return known

    def add_named(self, name: str) -> None:
        """Makes visible what a name of `known` stands for.

        Errors: BrokenLakeError if a table of it does not hold what was committed.
        """
        if name in self.tables:
            require_readable(self.lake, [name])
            self.add(name)
        elif name == MESSAGES:
            require_readable(self.lake, map(_table, self.topics.values()))
            self.add_messages()
        else:
            table = _table(self.topics[name])
            require_readable(self.lake, [table])
            self.add(table)
            self._connection.execute(f'CREATE VIEW "{name}" AS FROM "{table}"')


def _table(number: int) -> str:
    return f"topics/{number}"
