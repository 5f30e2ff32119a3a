"""The programs of CONTRIBUTING.md and of docs/notebooks.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.notebook_lake import shop_rows, write_lake

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("document", "count"), [("CONTRIBUTING.md", 3), ("docs/notebooks.md", 1)])
def test_the_programs_of_a_document_run(
    document: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / document).read_text("utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    write_lake(shop_rows(epochs=9, transactions=(3, 6)), tmp_path / "demo-lake")
    monkeypatch.chdir(tmp_path)
    assert len(programs) == count
    for program in programs:
        exec(program, {})  # noqa: S102
