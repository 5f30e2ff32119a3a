"""What larger bodies cost: transactions and bytes a second, epochs of several sizes in turn."""

from __future__ import annotations

import statistics

from bench.epoch_rig import TimedRig, take_turns, timed_rig
from bench.epoch_times import median_steps_ms
from bench.figure import Figure
from bench.sample_data import Mix
from bench.workbench import Workbench

_SMALL, _MIDDLE = 256, 2_048
_LARGE = {"64 KiB": 65_536, "1 MiB": 1_000_000}  # a record has its headers, too


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between lakes whose messages differ in size only.

    As many transactions of 256 B as of 2 KiB; of larger ones as many bytes as of 2 KiB.
    """
    count = 5 * bench.size.epoch_transactions
    sizes = {"256 B": _SMALL, "2 KiB": _MIDDLE, **_LARGE}
    counts = {name: count if size <= _MIDDLE else max(1, count * _MIDDLE // size)
              for name, size in sizes.items()}  # fmt: skip
    rigs = {name: timed_rig(bench, f"bodies-{size}") for name, size in sizes.items()}

    def prepare(name: str, rig: TimedRig) -> None:
        rig.writer.transactions(counts[name], Mix(body_bytes=sizes[name], unanswered=0.0))

    take_turns(bench, rigs, prepare)
    small, middle = (rigs[name].seconds for name in ("256 B", "2 KiB"))
    seconds = {name: statistics.median(rig.seconds) for name, rig in rigs.items()}
    details = {
        name: {
            "transactions": counts[name],
            "tx_s": round(counts[name] / seconds[name]),
            "mb_s": round(counts[name] * sizes[name] / seconds[name] / 1e6, 1),
            "processor_us_a_transaction":
                round(statistics.median(rig.processor_s) / counts[name] * 1e6, 1),
            "median_step_ms": median_steps_ms(rig.times()),
        }
        for name, rig in rigs.items()
    }  # fmt: skip
    figures = [_figure(
        "bodies of 2 KiB", "tx/s with bodies of 2 KiB / with 256 B",
        seconds["256 B"] / seconds["2 KiB"], 0.45, 0.65, details,
        [round(a / b, 3) for a, b in zip(small, middle, strict=True)],
    )]  # fmt: skip
    for name, size in _LARGE.items():
        ratio = counts[name] * size / (count * _MIDDLE)
        figures.append(_figure(
            f"bodies of {name}", f"MB/s with bodies of {name} / with 2 KiB",
            ratio * seconds["2 KiB"] / seconds[name], 1.0, 2.0,
            {key: details[key] for key in ("2 KiB", name)},
            [round(ratio * a / b, 3)
             for a, b in zip(middle, rigs[name].seconds, strict=True)],
        ))  # fmt: skip
    return figures


def _figure(
    name: str,
    how: str,
    value: float,
    must: float,
    aim: float,
    details: dict[str, dict[str, object]],
    samples: list[float],
) -> Figure:
    return Figure(
        name=name,
        value=value,
        unit="ratio",
        how=f"{how}; bodies are random; median epochs in this process, in turn",
        must=must,
        aim=aim,
        samples=samples,
        details=details,
    )
