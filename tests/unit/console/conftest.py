"""Lakes that the console's tests look at."""

from __future__ import annotations

import pytest

from pipelines.console import app
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lake import EPOCHS, START_AT, STEP_MS, shop_rows, write_lake

NOW = START_AT + (EPOCHS - 1) * STEP_MS + 60_000


@pytest.fixture(scope="session")
def shop() -> LakeRows:
    return shop_rows()


@pytest.fixture(scope="session")
def shop_lake(shop: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_lake(shop, tmp_path_factory.mktemp("shop") / "lake").path


@pytest.fixture(autouse=True)
def _quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token is answered at once, but in the test of that."""
    monkeypatch.setattr(app, "REFUSED_FORM_S", 0.0)


@pytest.fixture
def shop_now(monkeypatch: pytest.MonkeyPatch) -> int:
    """The instant a minute after the shop's last epoch."""
    monkeypatch.setattr("time.time_ns", lambda: NOW * 1_000_000)
    return NOW
