"""The files of conf/: in a clone its folder, in an installed wheel a folder of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_OF_A_WHEEL: Final = _PACKAGE / "conf"
CONF_FOLDER: Final = _OF_A_WHEEL if _OF_A_WHEEL.is_dir() else _PACKAGE.parent / "conf"

# What `txlake config sample` prints, and what each is for.
SAMPLES: Final = {
    "local.toml": "settings of a job: every key with its default",
    "store.toml": "settings of a job whose lake is on the S3 server of `txlake store`",
    "alerts.yml": "alert rules for Prometheus",
    "grafana.json": "a dashboard for Grafana",
    "deploy/txlake.service": "the job as a service of systemd",
    "deploy/Containerfile": "an image of the job",
    "deploy/kubernetes.yaml": "the job, a standby and publishers on Kubernetes",
}


def sample(name: str) -> str:
    """Returns the text of one of SAMPLES."""
    return (CONF_FOLDER / name).read_text(encoding="utf-8")
