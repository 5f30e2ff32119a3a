"""The measured pages of the console are all of its pages."""

from __future__ import annotations

import pytest

from bench import console_pages, synthetic_lake
from pipelines.console.app import READS


def test_every_page_is_measured() -> None:
    measured = {address.partition("?")[0] for address in console_pages.addresses(1_000_000)}
    assert measured | set(console_pages.NOT_MEASURED) == set(READS)
    assert not measured & set(console_pages.NOT_MEASURED)


@pytest.mark.soak
def test_each_page_of_a_small_lake_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(synthetic_lake, "START_MS", synthetic_lake.START_MS)  # `main` moves it
    console_pages.main(8_000, 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(console_pages.addresses(8_000))
