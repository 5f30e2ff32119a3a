"""`known_at`: how far a queue's operations, or its halves, are known."""

from __future__ import annotations

import pytest

from checker.rules.known_at import EndOffsetSample, known_at, unreached

OPS, OTHERS = "ops", "others"


def horizon(asked_at: int, end: int, queue: int = 0, topic: str = OPS) -> EndOffsetSample:
    """What Kafka said at an instant of one partition's end."""
    return EndOffsetSample(asked_at, {(topic, queue): end})


@pytest.mark.parametrize(
    ("horizons", "landed", "before", "expected"),
    [
        pytest.param([], {}, {}, {}, id="nothing was asked: nothing is known"),
        pytest.param(
            [horizon(100, 5)], {0: 5}, {}, {0: 100},
            id="all that Kafka had is landed: known until it was asked",
        ),
        pytest.param(
            [horizon(100, 6)], {0: 5}, {}, {}, id="one record is not landed: not known yet"
        ),
        pytest.param([horizon(100, 4)], {0: 5}, {}, {0: 100}, id="more is landed than Kafka had"),
        pytest.param([horizon(100, 0)], {}, {}, {0: 100}, id="an empty queue is known"),
        pytest.param(
            [horizon(100, 6)], {0: 5}, {0: 40}, {0: 40},
            id="not reached: it stays where the last epoch left it",
        ),
        pytest.param(
            [horizon(100, 3), horizon(200, 5), horizon(300, 7)], {0: 5}, {}, {0: 200},
            id="the newest instant that is reached counts",
        ),
        pytest.param(
            [horizon(300, 5), horizon(100, 5)], {0: 5}, {}, {0: 300},
            id="in whatever order the horizons come",
        ),
        pytest.param([horizon(100, 5)], {0: 5}, {0: 150}, {0: 150}, id="it never decreases"),
        pytest.param(
            [horizon(100, 5), horizon(100, 9, queue=1)], {0: 5, 1: 5}, {1: 40}, {0: 100, 1: 40},
            id="each queue by itself",
        ),
        pytest.param(
            [horizon(100, 5, topic=OTHERS)], {0: 5}, {}, {}, id="another topic says nothing"
        ),
    ],
)  # fmt: skip
def test_known_at(
    horizons: list[EndOffsetSample],
    landed: dict[int, int],
    before: dict[int, int],
    expected: dict[int, int],
) -> None:
    places = {(OPS, queue): end for queue, end in landed.items()}
    assert known_at(horizons, places, before, OPS) == expected


def test_a_horizon_is_kept_until_every_partition_has_reached_it() -> None:
    both = EndOffsetSample(100, {(OPS, 0): 5, (OTHERS, 0): 3})
    assert unreached([both], {(OPS, 0): 5, (OTHERS, 0): 2}) == (both,)
    assert unreached([both], {(OPS, 0): 5, (OTHERS, 0): 3}) == ()
    assert unreached([both], {(OPS, 0): 6, (OTHERS, 0): 9}) == ()
    assert unreached([both], {}) == (both,)
