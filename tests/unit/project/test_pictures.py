"""The documents' pictures are those that their script draws."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures.draw import FOLDER, PICTURES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == PICTURES[name](), "run: python -m docs.pictures.draw"
    ElementTree.fromstring(written)  # noqa: S314 - our own file


def test_every_picture_is_shown_in_a_document() -> None:
    documents = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    shown = {
        Path(target).name
        for document in documents
        for target in re.findall(r"!\[[^]]+\]\(([^)]+)\)", document.read_text("utf-8"))
    }
    assert shown >= {path.name for path in FOLDER.iterdir() if path.suffix in (".svg", ".png")}
