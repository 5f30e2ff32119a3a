import subprocess, time, sys, threading
import pytest
from pipelines import driver
from tests.job import Job, running, settings_for, wait_until
from tests.wire import Wire
from txlake.protocol import COMMIT

@pytest.mark.parametrize("kind", ["tmpfs", "same"])
def test_dbg(spark, broker, tmp_path, unique, kind, monkeypatch):
    log = open("/tmp/dbg.log", "a")
    def watch(self, query, epochs):
        while query.isActive and not self._stop.is_set():
            self._stop.wait(0.1)
        t = time.monotonic(); n = 0
        while query.isActive and (s := query.status)["isTriggerActive"] and time.monotonic() - t < 30:
            n += 1
            if n < 40 or n % 20 == 0:
                print(kind, round(time.monotonic() - t, 2), s, file=log, flush=True)
            time.sleep(0.1)
        print(kind, "stopped after", time.monotonic() - t, n, [ (p["batchDuration"], p["durationMs"]) for p in query.recentProgress[-2:]], file=log, flush=True)
    monkeypatch.setattr(driver.Driver, "_watch", watch)
    disk = tmp_path / "disk"; disk.mkdir()
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    try:
        settings = settings_for(broker, disk / "lake", unique("dbg"), stream={"checkpoint": str(tmp_path / "checkpoint")})
        with running(settings) as job:
            wire = Wire(settings)
            wire.end(COMMIT, wire.half("x"))
            job.wait_for(lambda: job.messages("orders"), "m")
    finally:
        if kind == "tmpfs":
            subprocess.run(["umount", "-l", str(disk)], check=True)
