"""Run a notebook from top to bottom, as JupyterLab's "Run all" does, and read what it showed."""

from __future__ import annotations

import base64
import html
import io
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tests.support.class_archive import quick_java

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
# Every picture that a run draws, and the one of each notebook that docs/notebooks.md shows.
BUILT, KEPT = ROOT / "build" / "notebooks", ROOT / "docs" / "pictures"
CELL_S = 600  # never what a test asserts: a cell starts Spark
# Jupyter and matplotlib write into the home folder unless they are told where.
PLACES = {
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "jupyter",
    "JUPYTER_DATA_DIR": "jupyter/data",
    "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
    "MPLCONFIGDIR": "matplotlib",
}


@dataclass(frozen=True)
class Shown:
    """What a cell showed: `kind` is text, table, picture or error; what it is in `text`.

    `rows`: a table's cells as texts, its names first. `png`: a picture's bytes.
    """

    cell: int
    kind: str
    text: str
    rows: tuple[tuple[str, ...], ...] = ()
    png: bytes = b""


def read(path: Path) -> Any:
    """Return a notebook, after checking that it has the form of one."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    return notebook


def use_places() -> None:
    """Let what notebooks need be written into the clone's cache folder."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    for name, folder in PLACES.items():
        os.environ.setdefault(name, str(ROOT / ".cache" / folder))


def run(notebook: Any, **environment: str) -> list[Shown]:
    """Run all cells in a process of their own and give what they showed, errors too."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    use_places()
    client = NotebookClient(
        notebook,
        timeout=CELL_S,
        kernel_name="python3",
        allow_errors=True,
        # A busy machine takes longer than the 5 s after which a kernel is killed.
        config=Config({"KernelManager": {"shutdown_wait_time": CELL_S}}),
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as temp:
        client.execute(env={**os.environ, **quick_java(Path(temp)), **environment})

    return [
        _shown(number, output)
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
    ]


def difference(one: bytes, other: bytes) -> float:
    """Returns how far two PNGs differ, as a mean of all pixels; 1.0 where their sizes differ.

    Fonts are drawn a little differently on other processors, so the bytes are not compared.
    """
    import numpy as np
    from matplotlib.image import imread

    pixels, others = imread(io.BytesIO(one)), imread(io.BytesIO(other))
    if pixels.shape != others.shape:
        return 1.0
    return float(np.abs(pixels - others).mean())


def together(paths: list[Path]) -> Any:
    """Return all cells of several notebooks as one, for one kernel to run."""
    first, *others = map(read, paths)
    first.cells += [cell for other in others for cell in other.cells]
    for number, cell in enumerate(first.cells):
        cell["id"] = f"cell-{number}"
    return first


def _shown(number: int, output: Any) -> Shown:
    if output.output_type == "error":
        return Shown(number, "error", f"{output.ename}: {output.evalue}")

    if output.output_type == "stream":
        return Shown(number, "text" if output.name == "stdout" else "error", output.text)

    data = output.data
    if "image/png" in data:
        return Shown(number, "picture", "", png=base64.b64decode(data["image/png"]))

    table = data.get("text/html", "")
    if "<table" in table:
        lines = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.S) for line in lines]
        rows = tuple(tuple(html.unescape(cell).strip('"') for cell in line) for line in cells)
        has_types = 'class="dataframe"' in table  # the second line of polars, not of Spark

        return Shown(number, "table", table, rows=(rows[0], *rows[1 + has_types :]))

    return Shown(number, "text", table or data["text/plain"])
