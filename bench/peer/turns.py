"""What turns make: rows, ratios by round, figures. No process is started here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figure import Figure

OURS, PEER = "ours", "rocketmq"
# RocketMQ with half messages in RocksDB, which it has since 5.4.0, and not by default.
PEER_ON_ROCKSDB = "rocketmq, transRocksDBEnable"
# Must and aim of the ratio of rates, by the bytes of a body; None: not judged.
ASKED = {256: (3.5, 5.0), 2_048: (2.5, 4.0)}


@dataclass(frozen=True)
class Turn:
    """What one side did in one round. Units: `rate` transactions a second.

    `cores`: process -> processors that it kept busy. `counts`: at (s since 1970), messages
    committed, messages consumed. `failed`: transactions that could not be sent. `not_delivered`:
    committed messages that were not consumed when nothing had been sent for a while; below 0 some
    were consumed twice.
    """

    side: str
    body_bytes: int
    number: int
    rate: float
    cores: Mapping[str, float]
    counts: Sequence[tuple[float, int, int]]
    age_ms: Mapping[str, float]
    failed: int = 0
    not_delivered: int = 0

    @property
    def processor_us(self) -> float:
        """The processor time of all processes for one transaction. Units: us."""
        return sum(self.cores.values()) / self.rate * 1e6

    @property
    def consumed_rate(self) -> float:
        """Messages consumed a second, between the first and the last look."""
        (began, _, first), (ended, _, last) = self.counts[0], self.counts[-1]
        return (last - first) / max(ended - began, 1e-9)

    def row(self) -> dict[str, Any]:
        """Returns what the report says of it."""
        _, first_committed, first_consumed = self.counts[0]
        _, last_committed, last_consumed = self.counts[-1]

        return {
            "tx_s": round(self.rate),
            "consumed_s": round(self.consumed_rate),
            "processor_us_a_transaction": round(self.processor_us, 1),
            "cores": dict(self.cores),
            "not_consumed": {
                "first": first_committed - first_consumed,
                "last": last_committed - last_consumed,
            },
            "age_ms": dict(self.age_ms),
            "failed": self.failed,
            "not_delivered": self.not_delivered,
        }


def pairs(turns: Sequence[Turn], body_bytes: int) -> list[tuple[Turn, Turn]]:
    """Returns ours and RocketMQ's turn of each round that has both."""
    found = {(turn.side, turn.number): turn for turn in turns if turn.body_bytes == body_bytes}
    numbers = sorted({number for _, number in found})
    return [
        (found[OURS, number], found[PEER, number])
        for number in numbers
        if (OURS, number) in found and (PEER, number) in found
    ]


def figures(turns: Sequence[Turn], body_bytes: int, parameters: Mapping[str, Any]) -> list[Figure]:
    """Returns the ratio of the rates and that of the processor times; nothing without a round."""
    rounds = pairs(turns, body_bytes)
    if not rounds:
        return []

    must, aim = ASKED.get(body_bytes, (None, None))
    medians = [statistics.median(turn.rate for turn in side) for side in zip(*rounds, strict=True)]
    rates = [ours.rate / peer.rate for ours, peer in rounds]
    processor = [peer.processor_us / ours.processor_us for ours, peer in rounds]
    rows = {f"round {turn.number}, {turn.side}": turn.row() for both in rounds for turn in both}

    what = f"bodies of {body_bytes} B"
    return [
        Figure(
            f"sustained / RocketMQ, {what}",
            statistics.median(rates),
            "ratio",
            "median over rounds of: transactions a second that ours sustains / those that RocketMQ "
            "sustains; the two take turns, each alone on the same two cores; ours counts "
            "transactions landed between two commits, RocketMQ those whose end was sent",
            must=must,
            aim=aim,
            samples=[round(value, 3) for value in rates],
            details={
                "ours, tx/s by round": [round(ours.rate) for ours, _ in rounds],
                "RocketMQ, tx/s by round": [round(peer.rate) for _, peer in rounds],
                "ratio by round": [round(value, 2) for value in rates],
                "ratio of the medians": round(medians[0] / medians[1], 2),
                **rows,
            },
            parameters={"body_bytes": body_bytes, **parameters},
        ),
        Figure(
            f"processor time, RocketMQ / ours, {what}",
            statistics.median(processor),
            "ratio",
            "median over rounds of: processor time of all of RocketMQ's processes for one "
            "transaction / that of ours",
            samples=[round(value, 3) for value in processor],
            details={
                "ours, us by round": [round(ours.processor_us, 1) for ours, _ in rounds],
                "RocketMQ, us by round": [round(peer.processor_us, 1) for _, peer in rounds],
            },
            parameters={"body_bytes": body_bytes, **parameters},
        ),
        *_on_rocksdb(turns, body_bytes, parameters),
    ]


def _on_rocksdb(
    turns: Sequence[Turn], body_bytes: int, parameters: Mapping[str, Any]
) -> list[Figure]:
    """Returns what RocketMQ sustains with half messages in RocksDB; nothing without a turn."""
    found = [turn for turn in turns if turn.side == PEER_ON_ROCKSDB]
    found = [turn for turn in found if turn.body_bytes == body_bytes]
    if not found:
        return []

    return [
        Figure(
            f"RocketMQ on RocksDB, bodies of {body_bytes} B",
            statistics.median(turn.rate for turn in found),
            "tx/s",
            "transactions a second that RocketMQ sustains with transRocksDBEnable=true and "
            "transWriteOriginTransHalfEnable=false, which are not its defaults; ours is compared "
            "with the defaults",
            details={f"round {turn.number}": turn.row() for turn in found},
            parameters={"body_bytes": body_bytes, **parameters},
        )
    ]
