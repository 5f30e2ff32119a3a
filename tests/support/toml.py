"""Settings as the TOML of a job's file."""

from __future__ import annotations

import json
from typing import Any


def toml_of(values: dict[str, Any], above: str = "") -> str:
    """Return values as TOML; JSON's texts, numbers and lists are TOML's, too."""
    lines = []
    sections = []
    for key, value in values.items():
        if isinstance(value, dict):
            sections.append(f"[{above}{key}]\n{toml_of(value, f'{above}{key}.')}")
        else:
            name = json.dumps(key) if "." in key else key
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *sections])
