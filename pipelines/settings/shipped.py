"""The files of conf/: in a clone its folder, in an installed wheel a folder of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGES: Final = Path(__file__).parents[1]
_WHEELS: Final = _PACKAGES / "conf"
CONF_FOLDER: Final = _WHEELS if _WHEELS.is_dir() else _PACKAGES.parent / "conf"

# What `txlake config sample` prints, and what each is for.
SAMPLES: Final = {
    "local.toml": "settings of a job: every key with its default",
    "store.toml": "settings of a job whose lake is on the S3 server of `txlake store`",
    "alerts.yml": "alert rules for Prometheus",
    "grafana.json": "a dashboard for Grafana",
}


def sample(name: str) -> str:
    """Returns the text of one of SAMPLES."""
    return (CONF_FOLDER / name).read_text(encoding="utf-8")
