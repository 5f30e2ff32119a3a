"""`txlake sql`: a question in SQL about a lake."""

from __future__ import annotations

import click

from pipelines.cli.options import lake_options, limit_option, open_lake, rows_option, settings_of
from pipelines.output import TABLE, is_instant, now_ms, print_records


@click.command()
@click.argument("query")
@lake_options
@limit_option
@rows_option
def sql(query: str, lake_path: str | None, conf: str | None, limit: int, output: str) -> None:
    """Answer a SELECT over the lake's tables and topics.

    QUERY is one SELECT of DuckDB's SQL. Tables have the names of docs/protocol/tables.md, a topic's
    messages the topic's ("..." where it has dots or dashes), and `messages` has those of all
    topics. With --conf, a topic that has a schema there has the fields of its bodies as columns,
    too. Rows of an epoch that is not committed are hidden, and nothing is written. Bytes are shown
    as text; hex(body) shows them all.
    """
    import pyarrow as pa

    from pipelines.bodies import read_body_schemas
    from pipelines.cli.cells import plain_rows
    from pipelines.lake_sql import select

    bodies = read_body_schemas(settings_of(conf).bodies) if conf else {}
    table, has_more = select(open_lake(lake_path, conf), query, limit, bodies)
    columns, rows = plain_rows(table, output)
    numbers = {
        name
        for name, column in zip(columns, table.columns, strict=True)
        if is_instant(name) and not pa.types.is_timestamp(column.type)
    }

    if output == TABLE and not rows:
        click.echo("no rows")
    else:
        print_records(columns, rows, output, now_ms(), numbers)
    if has_more:
        click.echo("there are more rows: --limit shows more", err=output != TABLE)
