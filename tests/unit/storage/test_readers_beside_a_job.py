"""Who reads a lake beside a job, or rebuilds one, asks of it what it needs and no more."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.notebooks.open_lake import open_lake
from pipelines.replay import rebuild, verify, what_if
from storage.errors import BrokenLakeError, OlderLakeError
from storage.lake import integrity
from storage.lake.integrity import require_readable, require_recorded
from storage.lake.lake import Lake
from storage.lake.pruned import read_rows
from storage.schemas import TABLES
from tests.support import damage
from tests.support.damage import (
    LAST_EPOCH,
    ORDERS,
    TRANSACTION,
    consume,
    is_named,
    prints,
    refusal,
    start,
    txlake,
)
from txlake.protocol import COMMIT

REPLAYED_FROM = {"half", "op", "schedule", "admin", "checks", "epochs"}
Damage = Callable[[str, str], Path]


class TestReaders:
    """Beside a job that writes."""

    def test_a_reader_never_fails_for_what_a_job_has_begun(self, tmp_path: Path) -> None:
        job = damage.run_job(tmp_path / "lake")
        path = Path(job.lake.path)
        job.end(COMMIT, job.half("early"))
        job.run(commit=False)
        assert "all invariants hold" in txlake("verify", "--lake", str(path))[1]
        assert txlake("tx", "explain", TRANSACTION, "--lake", str(path))[0] == 0
        assert verify(str(path)).is_equal
        assert open_lake(str(path)).epoch == LAST_EPOCH
        assert consume(path) == 7  # a message of an epoch that is not committed is only early

    def test_what_looks_wrong_is_looked_at_again(
        self, damaged: Damage, whole_lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = damaged("half", "removed")

        here = threading.get_ident()

        def put_back(_: float) -> None:
            if threading.get_ident() == here:  # threads that other tests left behind sleep, too
                shutil.copytree(whole_lake / "half", path / "half", dirs_exist_ok=True)

        monkeypatch.setattr(integrity.time, "sleep", put_back)
        require_readable(Lake(str(path)))
        shutil.rmtree(path / "half")
        assert require_recorded(Lake(str(path))).newest_epoch == LAST_EPOCH

    def test_of_the_epochs_a_reader_reads_the_columns_that_tell(
        self, lake_copy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[tuple[str, list[str]]] = []

        def noted(lake: Lake, table: str, columns: Sequence[str], *rest: Any) -> Any:
            read.append((table, list(columns)))
            return read_rows(lake, table, columns, *rest)

        monkeypatch.setattr("storage.lake.committed_tables.read_rows", noted)
        monkeypatch.setattr(Lake, "read", None)
        require_readable(Lake(str(lake_copy)))
        assert read == [("epochs", ["epoch", "state", "counts", "tables"])]

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_others_may_put_committed_and_later_rows_into_one_file(
        self, is_committed: bool, tmp_path: Path
    ) -> None:
        job = damage.run_job(tmp_path / "lake")
        path = Path(job.lake.path)
        job.half("early")
        job.run(commit=is_committed)
        DeltaTable(str(path / "half")).optimize.compact()
        start(path)
        require_recorded(Lake(str(path)))
        DeltaTable(str(path / "half")).delete("epoch = 1")
        with pytest.raises(BrokenLakeError, match=r"half holds [34] rows, and held [67] when"):
            start(path)
        with pytest.raises(BrokenLakeError, match=r"half holds [34] rows, and held [67] when"):
            require_readable(Lake(str(path)))

    @pytest.mark.parametrize("state", ["planned", "committed"])
    def test_a_row_of_epochs_that_is_gone_is_missed(self, state: str, lake_copy: Path) -> None:
        DeltaTable(str(lake_copy / "epochs")).delete(f"epoch = 4 AND state = '{state}'")
        with pytest.raises(BrokenLakeError, match=f"epochs .*has no {state} row of epoch 4"):
            require_readable(Lake(str(lake_copy)))
        with pytest.raises(BrokenLakeError, match="the table epochs "):
            require_recorded(Lake(str(lake_copy)))


class TestRebuild:
    """`replay --into`: the way back."""

    @pytest.mark.usefixtures("one_look")
    @pytest.mark.parametrize("table", sorted({*TABLES, ORDERS}))
    def test_a_lake_is_rebuilt_from_the_tables_that_it_needs_whatever_became_of_the_others(
        self, table: str, damaged: Damage, whole_lake: Path, tmp_path: Path
    ) -> None:
        path = damaged(table, "emptied")
        new = tmp_path / "new"
        if table in REPLAYED_FROM:
            said = refusal("replay", "--lake", str(path), "--into", str(new))
            assert is_named(table, said)
            assert not new.exists()
            return
        assert rebuild(str(path), str(new)).epochs == LAST_EPOCH
        for name in ("outcomes", "pending", "catalog", ORDERS):
            rows = [Lake(str(at)).read(name).sort_by("epoch").num_rows for at in (whole_lake, new)]
            assert rows[0] == rows[1], name
        require_recorded(Lake(str(new)))

    @pytest.mark.usefixtures("one_look")
    def test_in_one_batch_it_needs_what_was_landed(self, damaged: Damage, tmp_path: Path) -> None:
        path = damaged("checks", "removed")
        shutil.rmtree(path / "outcomes")
        assert rebuild(str(path), str(tmp_path / "new"), one_batch=True).epochs == 1
        shutil.rmtree(path / "half")
        said = refusal("replay", "--lake", str(path), "--into", str(tmp_path / "2"), "--one-batch")
        assert "has no table half" in said

    def test_a_rebuild_does_not_go_on_with_what_was_damaged_meanwhile(
        self, whole_lake: Path, tmp_path: Path
    ) -> None:
        new = tmp_path / "new"
        rebuild(str(whole_lake), str(new), last_epoch=2)
        shutil.rmtree(new / "outcomes")
        with pytest.raises(BrokenLakeError, match="the table outcomes is missing"):
            rebuild(str(whole_lake), str(new))


def test_a_lake_of_format_1_is_verified_and_rebuilt_and_else_refused(
    lake_copy: Path, tmp_path: Path
) -> None:
    damage.as_format_1(lake_copy)
    before = prints(lake_copy)
    for refused in (
        lambda: verify(str(lake_copy)),
        lambda: what_if(str(lake_copy), check_max=2),
        lambda: open_lake(str(lake_copy)),
        lambda: start(lake_copy),
    ):
        with pytest.raises(OlderLakeError, match=r"has format 1, .*`txlake replay --into NEW"):
            refused()
    assert "has format 1" in refusal("tx", "explain", TRANSACTION, "--lake", str(lake_copy))
    code, said = txlake("verify", "--lake", str(lake_copy))
    assert (code, "all invariants hold" in said) == (0, True), said
    assert rebuild(str(lake_copy), str(tmp_path / "new")).epochs == LAST_EPOCH
    require_recorded(Lake(str(tmp_path / "new")))
    assert prints(lake_copy) == before
    assert consume(lake_copy) == 6
