"""A lake's tables by their names in SQL (DuckDB), up to the newest committed epoch.

Rows of an epoch that is planned and not committed are right, only early (docs/protocol/tables.md
"Tables"): they are hidden. A view is made at its first use: a lake can have thousands of
topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType
from duckdb.sqltypes import BLOB, DuckDBPyType

from pipelines.errors import OperatorError
from pipelines.settings.nearest import did_you_mean
from storage.errors import LakeError
from storage.lake.integrity import require_readable, require_recorded
from storage.lake.lake import Lake
from storage.schemas import CONSUMER_TABLES, TABLES, TOPIC

if TYPE_CHECKING:
    from txlake import BodySchema

MESSAGES: Final = "messages"
# SQL reads the lake, nothing else of the machine, and writes nothing.
_READ_ONLY: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 2,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}


def select(
    lake: Lake, text: str, rows_max: int, bodies: Mapping[str, BodySchema] | None = None
) -> tuple[pa.Table, bool]:
    """Returns the rows that a SQL text selects from a lake.

    Each table is there by its name, a topic's messages by the topic's, and all of them as
    `messages`. Of two names that differ by case alone, or are a table's, the first one counts:
    tables come before topics, older topics before younger ones.
    Input: `rows_max`: the limit of rows; `bodies`: of topics whose bodies are columns, too.
    Output: the rows, and whether there are more.
    Errors: LakeError; OperatorError for a text that is no SELECT, or that DuckDB refuses.
    """
    connection = duckdb.connect(config=_READ_ONLY)
    hint = ""

    try:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        _require_select(connection, text)

        views = LakeSql(lake, connection, bodies)
        unknown = _add_named(views, connection.get_table_names(text))
        hint = _hint(views, unknown)

        connection.execute("SET lock_configuration = true")
        return _fetch(connection, text, rows_max)
    except duckdb.CatalogException as error:
        raise OperatorError(_error_text(error) + hint) from error
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise OperatorError(_error_text(error)) from error
    finally:
        connection.close()


def _require_select(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuses a text that is not one statement that reads. Errors: OperatorError."""
    statements = connection.extract_statements(text)
    if len(statements) != 1:
        raise OperatorError(f"{len(statements)} statements: one SELECT is allowed")
    kind = statements[0].type.name
    if kind != "SELECT":
        raise OperatorError(f"{kind}: a lake is only read; one SELECT is allowed")


def _fetch(
    connection: duckdb.DuckDBPyConnection, text: str, rows_max: int
) -> tuple[pa.Table, bool]:
    """Returns the first rows of a query, and whether there are more."""
    reader = connection.execute(text).fetch_record_batch(rows_max + 1)
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        if sum(part.num_rows for part in batches) > rows_max:
            break

    rows = pa.Table.from_batches(batches, reader.schema)
    return rows.slice(0, rows_max), rows.num_rows > rows_max


def _add_named(views: LakeSql, names: Iterable[str]) -> list[str]:
    """Makes the tables in a query visible. Output: the names that the lake does not have."""
    known = views.known_names()
    names_of_lake = {name: known.get(name.lower()) for name in names}

    # `SHOW TABLES` names no table: it shows all.
    visible = [name for name in names_of_lake.values() if name is not None]
    for name in visible or known.values():
        views.add_named(name)

    return [name for name, known_name in names_of_lake.items() if known_name is None]


def _hint(views: LakeSql, unknown: list[str]) -> str:
    """Returns the end of a sentence: the known names that are nearest to the unknown ones."""
    known = views.known_names().values()
    near = "".join(did_you_mean(name, known) for name in unknown)
    return near or ("; `txlake topic list` names the topics" if unknown else "")


def _error_text(error: Exception) -> str:
    """Returns DuckDB's error, without the query itself and its own guess at a name."""
    lines = str(error).split("\n\n")[0].split("\n")
    return " ".join(line for line in lines if not line.startswith(("Did you mean", "Candidate")))


class LakeSql:
    """A lake as it was when this was made; make it again to see newer epochs.

    Input: the connection in which the views are made; the schemas of topics whose bodies are
    columns beside the raw body. `last`: the plan of `epoch`, the newest
    committed one; `topics`: the number of each real topic's table, by the topic's name.
    Errors: LakeError if committed rows are missing, or nothing is committed yet.
    """

    def __init__(
        self,
        lake: Lake,
        connection: duckdb.DuckDBPyConnection,
        bodies: Mapping[str, BodySchema] | None = None,
    ) -> None:
        self.lake = lake
        self._bodies = bodies or {}
        self._connection = connection
        # Where DuckDB 1.4.5 keeps the order of rows, two threads lose rows of a UNION ALL whose
        # right side is one, too, as `messages` is. SQL promises no order anyway.
        connection.execute("SET preserve_insertion_order = false")
        self._made: set[str] = set()

        last = require_recorded(lake, ("catalog",)).last
        if last is None:
            raise LakeError(f"the lake {lake.path} has no committed epoch yet")
        self.last = last
        self.epoch = last.epoch

        self.add("catalog")
        topics = "SELECT DISTINCT topic, table_id FROM catalog ORDER BY 2"
        self.topics: dict[str, int] = dict(connection.execute(topics).fetchall())

    @property
    def tables(self) -> list[str]:
        """Returns the names of all tables; those of the consumers can be missing."""
        return [*TABLES, *CONSUMER_TABLES, *map(_table, self.topics.values())]

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
        if table in CONSUMER_TABLES and not self.lake.is_table(table):
            return

        with self.lake.translating_read_errors(table):
            rows = self.lake.dataset(table)

        # A relation, not a registered name: nobody sees the rows of an epoch that is not committed.
        committed = self._connection.from_arrow(rows)
        if "epoch" in rows.schema.names:
            committed = committed.filter(f"epoch <= {self.epoch}")
        committed.create_view(table, replace=False)

    def add_messages(self) -> None:
        """Makes `messages` visible: all topics' tables in one, each row with its `topic`."""
        if MESSAGES in self._made:
            return

        self._made.add(MESSAGES)
        if not self.topics:
            nothing = self._connection.from_arrow(TOPIC.empty_table())
            nothing.project("NULL::VARCHAR AS topic, *").create_view(MESSAGES, replace=False)
            return

        rows = []
        for topic, number in self.topics.items():
            self.add(_table(number))
            rows.append(f"SELECT '{topic}' AS topic, * FROM \"{_table(number)}\"")
        self._connection.execute(f"CREATE VIEW {MESSAGES} AS {union_all(rows)}")

    def known_names(self) -> dict[str, str]:
        """Returns the names for queries, by their lower case: SQL ignores case.

        Tables come before topics, and older topics before younger ones.
        """
        names: dict[str, str] = {}
        for name in (*self.tables, MESSAGES, *self.topics):
            names.setdefault(name.lower(), name)
        return names

    def add_named(self, name: str) -> None:
        """Makes a name of `known_names` visible.

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
            self._add_topic(name, table)

    def add_topics_with_columns(self, taken: Iterable[str]) -> None:
        """Makes the topics visible by their names whose bodies are columns.

        Input: other names; a topic of such a name, or of a table's, is left out.
        """
        known = self.known_names()
        reserved = {name.lower() for name in (*self.tables, MESSAGES, *taken)}

        for name in self._bodies.keys() & self.topics.keys():
            if known[name.lower()] == name and name.lower() not in reserved:
                table = _table(self.topics[name])
                self.add(table)
                self._add_topic(name, table)

    def _add_topic(self, name: str, table: str) -> None:
        schema = self._bodies.get(name)
        if schema is None:
            self._connection.execute(f'CREATE VIEW "{name}" AS FROM "{table}"')
            return

        decode = f"columns of {table}"
        self._connection.create_function(
            decode,
            schema.decode,
            [BLOB],
            self._struct_type(schema.columns),
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
        columns = ", ".join(f"decoded.{_quoted(column)}" for column in schema.columns.names)
        self._connection.execute(
            f'CREATE VIEW "{name}" AS SELECT * EXCLUDE (decoded), {columns} '
            f'FROM (SELECT *, "{decode}"(body) AS decoded FROM "{table}")'
        )

    def _struct_type(self, columns: pa.Schema) -> DuckDBPyType:
        """Returns DuckDB's type of a struct with these columns."""
        empty = pa.table([pa.array([], pa.struct(list(columns)))], names=["decoded"])
        return self._connection.from_arrow(empty).types[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(number: int) -> str:
    return f"topics/{number}"


def union_all(queries: list[str]) -> str:
    """Returns the SQL of all rows of some queries.

    It is a balanced tree: a chain of a thousand is too deep for DuckDB, and slow in Spark.
    """
    while len(queries) > 1:
        odd = queries[-1:] if len(queries) % 2 else []
        pairs = zip(queries[::2], queries[1::2], strict=False)
        queries = [f"({left} UNION ALL {right})" for left, right in pairs] + odd

    return queries[0]
