"""`txlake tx explain` on the command line: text, JSON, sentences; and tables on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipelines.output import print_rows
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    job = InMemoryJob(tmp_path / "lake")
    job.half("tx-1", keys="order-1")
    job.run()
    return job


def test_explain_prints_aligned_text(job: InMemoryJob, conf: str) -> None:
    text = said("tx", "explain", "tx-1", "--conf", conf)
    assert text.startswith("transaction tx-1, half 0-0, group g: PENDING\n")
    assert "when                      epoch  what\n" in text


def test_explain_prints_json(job: InMemoryJob) -> None:
    told = json.loads(said("tx", "explain", "0-0", "--lake", job.lake.path, "-o", "json"))
    assert (told["epoch"], told["target"]) == (1, "0-0")
    (story,) = told["transactions"]
    assert (story["transaction_id"], story["status"]) == ("tx-1", "PENDING")
    assert [event["event"] for event in story["events"]] == ["half"]
    assert [wait["code"] for wait in story["waits"]] == ["no_end", "immune"]
    assert story["waits"][1]["until"] == "2026-01-01T00:00:06.001Z"


def test_explain_finds_by_keys(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    of_id = said("tx", "explain", "tx-1", *lake)
    assert said("tx", "explain", "--keys", "order-1", *lake) == of_id
    (row,) = json.loads(said("tx", "explain", "--keys", "order-1", *lake, "-o", "json"))
    assert (row["target"], row["transaction_id"]) == ("half:0-0", "tx-1")
    assert said("tx", "explain", "--keys", "no", *lake, code=1) == (
        f"Error: no message in the lake {job.lake.path} has the keys 'no'\n"
    )


def test_keys_of_one_set_are_one_story_and_those_of_two_transactions_a_list(
    job: InMemoryJob,
) -> None:
    lake = ("--lake", job.lake.path)
    for seq in range(2):
        job.half("set", keys="order-2", tran_size=2, tran_seq=seq)
    job.half("tx-3", keys="order-1")
    job.run()
    told = said("tx", "explain", "--keys", "order-2", *lake)
    assert told.startswith("transaction set, half 0-1, group g: PENDING\n")
    heading, *listed = said("tx", "explain", "--keys", "order-1", *lake).splitlines()
    assert heading.startswith("target ")
    assert [line.split()[0] for line in listed] == ["half:0-0", "half:0-3"]


def test_what_a_producer_sends_cannot_forge_a_line_or_change_the_terminal(tmp_path: Path) -> None:
    keys = "a\x1b[2J\nforged: COMMITTED\r\u202e\u2028\x9b31m\x00"
    job = InMemoryJob(tmp_path / "lake")
    job.half("tx-1", keys=keys)
    job.run()
    lake = ("--lake", job.lake.path)
    seen = r"a\u001b[2J\u000aforged: COMMITTED\u000d\u202e\u2028\u009b31m\u0000"
    for words in (("tx-1",), ("--keys", keys)):
        text = said("tx", "explain", *words, *lake)
        assert seen in text
        assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", text) == []
    (row,) = json.loads(said("tx", "explain", "--keys", keys, *lake, "-o", "json"))
    assert row["keys"] == keys


def test_one_id_on_many_halves_is_told_in_part_and_says_so(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for _ in range(5):
        job.half("tx-1", keys="order-1")
    job.run()
    lake = ("--lake", job.lake.path)
    text = said("tx", "explain", "tx-1", "--limit", "2", *lake)
    assert text.count("transaction tx-1, half") == 2
    assert text.endswith("\n\n3 more: --limit shows more, <queue>-<offset> names one half\n")
    told = json.loads(said("tx", "explain", "tx-1", "--limit", "2", *lake, "-o", "json"))
    assert (len(told["transactions"]), told["more"]) == (2, 3)
    assert " more" not in said("tx", "explain", "tx-1", *lake)
    listed = said("tx", "explain", "--keys", "order-1", "--limit", "4", *lake)
    assert listed.count("half:0-") == 4
    assert listed.endswith("\n1 more: --limit shows more\n")


def test_what_is_not_there_is_one_sentence_and_exit_code_1(
    job: InMemoryJob, tmp_path: Path
) -> None:
    assert said("tx", "explain", "nobody", "--lake", job.lake.path, code=1) == (
        f"Error: no half and no schedule record has transaction id nobody in the lake "
        f"{job.lake.path}, which stands at epoch 1\n"
    )
    assert said("tx", "explain", "undeliverable:0", "--lake", job.lake.path, code=1) == (
        f"Error: there is no offset 0 in TRANS_UNDELIVERABLE_TOPIC in the lake {job.lake.path}, "
        "which stands at epoch 1\n"
    )
    nowhere = str(tmp_path / "nowhere")
    assert said("tx", "explain", "x", "--lake", nowhere, code=1) == (
        f"Error: {nowhere} is not a lake: `txlake run` makes one there\n"
    )


def test_a_terminal_gets_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows(("target", "keys"), [("half:0-1", "[red]"), ("half:0-2", None)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "half" in line] == [
        ["half:0-1", "[red]"],
        ["half:0-2"],
    ]
