"""Consumers of a lake of format 2: what they check of it, and the table that they write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from storage.lake.lake import Lake
from tests.support import damage
from tests.support.damage import KINDS, consume, prints, txlake
from txlake import Consumer, LakeError, OffsetOutOfRangeError
from txlake._delta_files import DeltaFiles
from txlake._delta_log import LAKE_ID_PROPERTY
from txlake._integrity import TableChecks
from txlake._lake import Lake as SdkLake
from txlake.protocol import COMMIT


class TestConsumerOffsets:
    """What consumers write themselves."""

    def test_the_table_of_another_lake_is_refused(self, lake_copy: Path, other_lake: Path) -> None:
        consume(lake_copy)
        copy = lake_copy.parent / "copy"
        shutil.copytree(other_lake, copy)
        shutil.copytree(lake_copy / "consumer_offsets", copy / "consumer_offsets")
        before = prints(copy)
        with pytest.raises(LakeError, match="the table consumer_offsets belongs to lake"):
            consume(copy)
        code, said = txlake("verify", "--lake", str(copy))
        assert (code, "table=consumer_offsets: belongs to another lake" in said) == (3, True)
        assert prints(copy) == before
        handle = DeltaTable(str(copy / "consumer_offsets"))
        owner = {LAKE_ID_PROPERTY: Lake(str(copy)).lake_id()}
        handle.alter.set_table_properties(owner, raise_if_not_exists=False)
        assert consume(copy) == 0

    @pytest.mark.parametrize(
        ("table", "kind"),
        [("consumer_members", "of another lake"), ("consumer_members", "without a file")],
    )
    def test_verify_knows_the_other_tables_of_consumers(
        self, table: str, kind: str, lake_copy: Path, other_lake: Path, tmp_path: Path
    ) -> None:
        consume(lake_copy)
        assert txlake("verify", "--lake", str(lake_copy))[0] == 0

        if kind == "of another lake":
            copy = tmp_path / "copy"
            shutil.copytree(other_lake, copy)
            shutil.copytree(lake_copy / table, copy / table)
        else:
            copy = lake_copy
            KINDS[kind](copy / table, copy)
        code, said = txlake("verify", "--lake", str(copy))
        assert (code, f"table={table}: " in said) == (3, True), said

    @pytest.mark.parametrize("kind", ["without a file", "one version back"])
    def test_a_cut_table_is_one_sentence_or_a_commit_that_was_not_made(
        self, kind: str, lake_copy: Path
    ) -> None:
        consume(lake_copy, session_timeout_ms=1)
        KINDS[kind](lake_copy / "consumer_offsets", lake_copy)

        if kind == "one version back":  # the group's last word, "given back", is lost with it
            with Consumer(str(lake_copy), "points", ["orders"], wait_for_owner_ms=0) as consumer:
                assert consumer.poll(0.0) == []
            return

        before = prints(lake_copy)
        with pytest.raises(LakeError, match="the table consumer_offsets cannot be read"):
            consume(lake_copy)
        assert prints(lake_copy) == before

    def test_a_group_beyond_a_queues_end_is_refused(self, whole_lake: Path, tmp_path: Path) -> None:
        job = damage.run_job(tmp_path / "lake")
        path = Path(job.lake.path)
        shutil.copytree(path, tmp_path / "older")
        job.end(COMMIT, job.half("newer"))
        job.run()
        assert consume(path) == 7
        shutil.copytree(path / "consumer_offsets", tmp_path / "older" / "consumer_offsets")
        before = prints(tmp_path / "older")
        with pytest.raises(
            OffsetOutOfRangeError, match="committed offset 2, and the queue ends at 1"
        ):
            consume(tmp_path / "older")
        assert prints(tmp_path / "older") == before


def test_the_tables_of_many_topics_are_checked_with_one_look_at_the_epochs(
    lake_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = sorted(SdkLake(lake_copy).topics())
    opened: list[str] = []
    open_table = TableChecks._open

    def opening(checks: TableChecks, table: str) -> DeltaFiles:
        opened.append(table)
        return open_table(checks, table)

    monkeypatch.setattr(TableChecks, "_open", opening)
    Consumer(str(lake_copy), "points", topics).close()
    assert len(topics) > 1
    assert opened.count("epochs") == 2  # for the catalog, and for all topics
    assert sum(table.startswith("topics/") for table in opened) == len(topics)


def test_a_topic_that_an_epoch_is_making_is_waited_for(tmp_path: Path) -> None:
    job = damage.run_job(tmp_path / "lake")
    path = Path(job.lake.path)
    job.end(COMMIT, job.half("new", real_topic="bills"))
    job.run(commit=False)
    shutil.rmtree(path / "topics" / "3")  # its catalog row comes first
    with Consumer(str(path), "points", ["bills"]) as consumer:
        assert consumer.poll(0.0) == []
