"""Lakes as the notebooks' functions see them."""

from __future__ import annotations

import ast
import functools
from typing import Any

import polars as pl

from pipelines.notebooks.open_lake import OpenLake
from storage.lake.lake import Lake
from tests.support.in_memory_job import InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.notebook_runs import NOTEBOOKS, read
from tests.support.sound_lake import sound_rows


@functools.cache
def sound() -> LakeRows:
    """Return the rows of the lake in which everything happens that can: not to be changed."""
    return sound_rows()


def opened(job: InMemoryJob) -> OpenLake:
    """Open a job's lake as it is now."""
    return OpenLake(Lake(job.lake.path))


def answer(lake: OpenLake, notebook: str, name: str, **values: Any) -> pl.DataFrame:
    """Return what a notebook's own query finds: the one whose answer it calls by this name."""
    return lake.sql(_queries(notebook)[name], **values)


@functools.cache
def _queries(notebook: str) -> dict[str, str]:
    """Return the SQL of a notebook's cells, by the name that they give to its answer."""
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    found = {}
    for cell in read(path).cells:
        statements = ast.parse(cell.source).body if cell.cell_type == "code" else []
        for statement in statements:
            match statement:
                case ast.Assign([ast.Name(name)], ast.Call(_, [ast.Constant(str(text)), *_])):
                    found[name] = text
    return found
