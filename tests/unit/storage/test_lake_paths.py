"""Folders with unusual names: a lake is made, read, checked and kept in shape there, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest

from storage.errors import NotALakeError
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.damage import ORDERS, consume, live_file, log_entries, refusal, txlake
from tests.support.maintenance_rounds import rows_in, run_round
from txlake import Consumer, LakeError

# A folder in a folder in a folder: there is to get wrong
USABLE = [
    "a b/"  # an escape in a URI
    "100%/"  # a percent sign that begins no escape
    "{a}*b?c#d",  # patterns, and the end of a URI's path
    "a'b\"c`d/"  # the end of a text or a name in SQL
    "~ü:s3:/"  # a home, a scheme, not ASCII
    "epoch=5",  # a partition of Hive
]
# A name | what the sentence says of it
REFUSED = [
    ("a%20b", "'%20'"),
    ("a%25b", "'%25'"),
    ("a\\b", r"'\\'"),
    ("[x]", "'['"),
    ("x]", "']'"),
    ("a|b", "'|'"),
    ("a^b", "'^'"),
    ("a\tb", r"'\t'"),
    ("a\x7fb", r"'\x7f'"),
]
STORE = [
    ("s3://bucket/a%20b", "'%'"),
    ("s3://bucket/[x]", "'['"),
    ("s3://bucket/a|b", "'|'"),
    ("s3://bucket/a^b", "'^'"),
    ("s3://bucket/a?b", "'?'"),
    ("s3://bucket/a#b", "'#'"),
    ("s3://bucket/a\\b", r"'\\'"),
]


def violations(lake: Path) -> list[str]:
    return [found.invariant.name for found in verify(Lake(str(lake))).findings if found.violations]


@pytest.mark.parametrize("name", USABLE, ids=ascii)
def test_a_lake_lives_in_a_folder_of_any_usable_name(
    name: str, whole_lake: Path, tmp_path: Path
) -> None:
    lake = tmp_path / name
    txlake("replay", "--lake", str(whole_lake), "--into", str(lake))
    rows = rows_in(lake)
    assert rows["outcomes"] == rows_in(whole_lake)["outcomes"]
    assert violations(lake) == []

    assert consume(lake, "before") == len(rows[ORDERS]) > 0
    outcomes = pl.read_delta(str(lake / "outcomes"), use_pyarrow=True)
    assert outcomes.height == len(rows["outcomes"])

    run_round(lake)
    assert rows_in(lake) == rows
    assert (violations(lake), consume(lake, "after")) == ([], len(rows[ORDERS]))

    beside = {path for path in tmp_path.rglob("*") if not path.is_relative_to(lake)}
    assert beside == set(lake.parents) - {tmp_path, *tmp_path.parents}


@pytest.mark.parametrize(("name", "said"), REFUSED, ids=[ascii(name) for name, _ in REFUSED])
def test_a_name_that_a_library_mistakes_is_refused_before_anything_is_written(
    name: str, said: str, whole_lake: Path, tmp_path: Path
) -> None:
    lake = tmp_path / name / "lake"
    for words in (("verify", "--lake"), ("replay", "--lake", str(whole_lake), "--into")):
        sentence = refusal(*words, str(lake))
        assert (said in sentence, repr(str(lake)) in sentence) == (True, True), sentence
        assert len(sentence.splitlines()) == 1
    with pytest.raises(LakeError) as refused:
        consume(lake)
    assert repr(str(lake)) in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_not_utf8_is_refused_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "\udcff" / "lake"  # as an argument it is wrong usage of any command
    monkeypatch.setenv("TXLAKE_LAKE", str(lake))
    assert repr(str(lake)) in refusal("verify")
    with pytest.raises(LakeError) as refused:
        consume(lake)
    assert repr(str(lake)) in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "said"), STORE)
def test_a_prefix_that_a_library_mistakes_is_refused(path: str, said: str) -> None:
    with pytest.raises(NotALakeError) as refused:
        lake_location(path)
    assert (said in str(refused.value), repr(path) in str(refused.value)) == (True, True)
    with pytest.raises(LakeError):
        Consumer(path, "points", ["orders"])


def test_a_link_that_leads_to_such_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    with pytest.raises(NotALakeError, match=r"link/lake', which leads to '.*a%20b/lake': it has"):
        lake_location(str(tmp_path / "link" / "lake"))


def test_a_folder_whose_name_looks_like_a_store_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (f"{tmp_path}/s3://lake", "./s3://lake"):
        assert lake_location(path).path == f"{tmp_path}/s3:/lake"
    assert not lake_location("s3://bucket/lake").is_local


def test_a_file_is_found_by_its_decoded_name(lake_copy: Path) -> None:
    rows = rows_in(lake_copy)
    file = live_file(lake_copy / ORDERS)
    strange = file.with_name("a b%20#ü.parquet")
    file.rename(strange)
    for entry in log_entries(lake_copy / ORDERS):
        entry.write_text(entry.read_text().replace(file.name, quote(strange.name)))
    newest = log_entries(lake_copy / ORDERS)[-1].read_text()
    added = [json.loads(line) for line in newest.splitlines()]
    assert [row["add"]["path"] for row in added if "add" in row] == ["a%20b%2520%23%C3%BC.parquet"]

    assert rows_in(lake_copy) == rows
    assert (violations(lake_copy), consume(lake_copy, "before")) == ([], len(rows[ORDERS]))

    run_round(lake_copy)
    assert rows_in(lake_copy) == rows
    assert (violations(lake_copy), consume(lake_copy, "after")) == ([], len(rows[ORDERS]))
    assert not strange.exists()
