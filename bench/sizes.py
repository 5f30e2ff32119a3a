"""How much of everything is measured: full, small for the development loop, tiny for a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The amounts of one benchmark run. Units: `_s` seconds, all else counts."""

    name: str
    drain_transactions: int  # of 256 B; a start is a small part of so many
    body_transactions: int  # of 256 B and of 2 KiB; of larger bodies as many bytes as of 2 KiB
    body_rounds: int
    exactness_rounds: int
    start_rounds: int
    sustained_s: float
    in_flight: int  # messages that are sent and not consumed, at the most
    latency_s: float
    warm_up_s: float  # of the figures of a rate, before samples count
    rate: int  # transactions a second of the latency figures
    delayed_rate: int  # messages a second of the lateness figure
    mass_halves: int
    backlog_pending: int
    one_epoch_transactions: int  # of the epoch whose memory is measured
    large_messages: int  # of 1 MiB, the same
    epoch_transactions: int
    executors_transactions: int  # of an epoch on a cluster
    epoch_rounds: int  # of the epochs that are compared; as many again warm up, at most two
    topics: int
    growth_epochs: int
    growth_records: int  # of one epoch
    growth_s: float  # no longer than this
    growth_window: int  # epochs compared at the beginning and at the end
    idle_s: float
    waiting_few: int
    waiting_many: int
    due: int


FULL = Size(
    name="full", drain_transactions=2_000_000, body_transactions=500_000, body_rounds=3,
    exactness_rounds=2, start_rounds=3, sustained_s=300, in_flight=150_000, latency_s=300,
    warm_up_s=60, rate=1_000, delayed_rate=1_000, mass_halves=100_000, backlog_pending=1_000_000,
    one_epoch_transactions=1_860_000, large_messages=500, epoch_transactions=20_000,
    executors_transactions=100_000, epoch_rounds=10, topics=50, growth_epochs=10_000,
    growth_records=40, growth_s=10_800, growth_window=1_000, idle_s=120, waiting_few=10_000,
    waiting_many=1_000_000, due=1_000,
)  # fmt: skip
SMALL = Size(
    name="small", drain_transactions=2_000_000, body_transactions=100_000, body_rounds=2,
    exactness_rounds=1, start_rounds=2, sustained_s=40, in_flight=150_000, latency_s=30,
    warm_up_s=45, rate=1_000, delayed_rate=1_000, mass_halves=100_000, backlog_pending=1_000_000,
    one_epoch_transactions=1_860_000, large_messages=500, epoch_transactions=20_000,
    executors_transactions=100_000, epoch_rounds=5, topics=50, growth_epochs=300,
    growth_records=40, growth_s=90, growth_window=70, idle_s=20, waiting_few=10_000,
    waiting_many=300_000, due=1_000,
)  # fmt: skip
TINY = Size(
    name="tiny", drain_transactions=2_000, body_transactions=1_000, body_rounds=1,
    exactness_rounds=1, start_rounds=1, sustained_s=10, in_flight=500, latency_s=6, warm_up_s=3,
    rate=100, delayed_rate=50, mass_halves=500, backlog_pending=2_000, one_epoch_transactions=2_000,
    large_messages=4, epoch_transactions=200, executors_transactions=300, epoch_rounds=1, topics=3,
    growth_epochs=12, growth_records=10, growth_s=30, growth_window=4, idle_s=2, waiting_few=50,
    waiting_many=500, due=20,
)  # fmt: skip
SIZES = {size.name: size for size in (FULL, SMALL, TINY)}
