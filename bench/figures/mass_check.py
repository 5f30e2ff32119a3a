"""How fast very many halves that are due at once are asked about, and whether none is dropped."""

from __future__ import annotations

import time

from bench.check_records import check_records
from bench.epoch_rig import land_halves, timed_rig
from bench.figure import Figure
from bench.sample_data import Mix
from bench.workbench import Workbench

_LANDING = 20_000  # halves an epoch


def measure(bench: Workbench) -> list[Figure]:
    """Land halves while none is due; then let all be due in one instant."""
    count = bench.size.mass_halves
    rig = timed_rig(bench, "mass", transaction={"transaction_timeout_ms": 3_600_000})
    bench.say(f"landing {count} halves that nobody ends")
    land_halves(rig, count, Mix(), _LANDING)
    rig.forget()
    due_at_ms = time.time_ns() // 1_000_000 + 3_601_000
    bench.say("all of them are due")
    began = time.time()
    while (plan := rig.run_if_due(due_at_ms)) is not None:
        bench.say(f"epoch {plan.epoch}: {rig.seconds[-1]:.2f} s")
        due_at_ms += 1
    ended_at = time.time()
    checks = check_records(rig.settings)
    first = {check.check_id for check in checks if check.check_times == 1}
    last_at = max(check.stored_at for check in checks)
    times = rig.times()
    rig.close()
    bench.forget("mass")
    return [Figure(
        name="mass check",
        value=len(first) / (last_at - began) if len(first) == count else 0.0,
        unit="checks/s",
        how="first checks / time from when all were due until the last one stood in Kafka, by the "
        "broker's clock; epochs in this process. 0 where one is missing",
        must=15_000,
        aim=40_000,
        samples=[round(t.counts["checks"] / t.seconds) for t in times],
        details={
            "missing": count - len(first),
            "sent_twice": len(checks) - len({check.check_id for check in checks}),
            "epochs": len(times),
            "epoch_s": [round(s, 2) for s in rig.seconds],
            "until_the_last_commit_s": round(ended_at - began, 2),
            "step_ms": [dict(t.step_ms) for t in times],
        },
        parameters={"halves": count, "producer_groups": 1},
    )]  # fmt: skip
