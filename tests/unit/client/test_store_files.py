"""The files of a table in a store, as Arrow's threads read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

from txlake._store import StoreFiles

NAMES = [f"{number}.parquet" for number in range(8)]
LATE = "late.parquet"


class Shared(dict[str, Any]):
    """Files in memory; another thread reads one while the oldest of them is looked for."""

    def __init__(self, files: StoreFiles) -> None:
        super().__init__()
        self.files = files
        self.others: list[Thread] = []

    def __iter__(self) -> Iterator[str]:
        oldest = super().__iter__()
        if not self.others:
            self.others.append(Thread(target=self.files.open_input_file, args=(LATE,)))
            self.others[0].start()
            self.others[0].join(0.2)
        return oldest


def test_small_files_are_kept_by_several_threads_at_once(tmp_path: Path) -> None:
    for name in (*NAMES, LATE):
        (tmp_path / name).write_bytes(name.encode())
    sizes = {name: len(name) for name in (*NAMES, LATE)}
    files = StoreFiles(str(tmp_path), {}, sizes, "next")
    files._contents = shared = Shared(files)

    assert [files.open_input_file(name).read().decode() for name in NAMES] == NAMES
    shared.others[0].join()
