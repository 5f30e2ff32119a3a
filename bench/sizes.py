"""How much of everything is measured: full, small for the development loop, tiny for a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The amounts of one benchmark run. Units: `_s` seconds, all else counts."""

    name: str
    drain_transactions: int  # of 256 B; a start is a small part of so many
    disk_transactions: int  # whose bytes on the disk are counted
    store_rounds: int  # of drains on the local disk and on a store
    start_rounds: int
    sustained_s: float
    in_flight: int  # messages that are sent and not consumed, at the most
    latency_s: float
    warm_up_s: float  # of the figures of a rate, before samples count
    rate: int  # transactions a second of the latency figures
    pending: int  # halves that nobody ends, while memory is looked at
    pending_transactions: int  # that come when these wait
    one_epoch_transactions: int  # of the epoch whose memory is measured
    large_messages: int  # of 1 MiB, the same
    idle_s: float


FULL = Size(
    name="full",
    drain_transactions=2_000_000,
    disk_transactions=500_000,
    store_rounds=3,
    start_rounds=3,
    sustained_s=300,
    in_flight=150_000,
    latency_s=300,
    warm_up_s=60,
    rate=1_000,
    pending=1_000_000,
    pending_transactions=20_000,
    one_epoch_transactions=1_860_000,
    large_messages=500,
    idle_s=120,
)
SMALL = Size(
    name="small",
    drain_transactions=2_000_000,
    disk_transactions=100_000,
    store_rounds=2,
    start_rounds=2,
    sustained_s=40,
    in_flight=150_000,
    latency_s=30,
    warm_up_s=45,
    rate=1_000,
    pending=1_000_000,
    pending_transactions=20_000,
    one_epoch_transactions=1_860_000,
    large_messages=500,
    idle_s=20,
)
TINY = Size(
    name="tiny",
    drain_transactions=2_000,
    disk_transactions=1_000,
    store_rounds=1,
    start_rounds=1,
    sustained_s=10,
    in_flight=500,
    latency_s=6,
    warm_up_s=3,
    rate=100,
    pending=2_000,
    pending_transactions=200,
    one_epoch_transactions=2_000,
    large_messages=4,
    idle_s=2,
)
SIZES = {size.name: size for size in (FULL, SMALL, TINY)}
