"""RocketMQ's side of the benchmark beside it: where its jars were fetched, it runs for real."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.peer import java_program, sides
from bench.peer.turns import PEER, PEER_ON_ROCKSDB
from bench.sizes import TINY

pytestmark = pytest.mark.soak
_JARS = [jar for name in java_program.JAR_SETS for jar in java_program.locked(name)]


def left_over(folder: Path) -> list[str]:
    """Return the command lines of the processes that name a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return [line for line in lines if str(folder) in line]


# A turn fails if its half messages are not where they should be.
@pytest.mark.parametrize("side", [PEER, PEER_ON_ROCKSDB])
@pytest.mark.skipif(
    not all(jar.path.is_file() for jar in _JARS),
    reason="RocketMQ's jars are not in the cache: `make bench-peer` fetches them",
)
def test_rocketmq_sends_and_consumes_and_nothing_of_it_is_left(tmp_path: Path, side: str) -> None:
    class_path = java_program.compile_program(tmp_path / "classes")
    size = dataclasses.replace(TINY, sustained_s=3.0, warm_up_s=1.0)
    bench = sides.Bench(size, tmp_path, class_path, lambda text: None)

    turn = sides.measure(bench, side, 256, 1)

    assert turn.rate > 0
    assert turn.consumed_rate > 0
    assert set(turn.cores) == {"nameserver", "broker", "producer", "consumer"}
    assert turn.failed == 0
    # RocketMQ delivers at least once: a batch may come again when the queues are shared out.
    assert turn.not_delivered <= 0
    assert [path.name for path in tmp_path.iterdir()] == ["classes"]
    assert left_over(tmp_path) == []
