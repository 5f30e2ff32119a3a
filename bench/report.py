"""The report of a run: Markdown and plots (PNG) for people, JSON with every sample for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.plots import draw

JSON_NAME, MARKDOWN_NAME = "report.json", "report.md"


@dataclass(frozen=True)
class Report:
    """All that a run found. `failed`: figure -> why it could not be measured."""

    size: str
    date: str
    commit: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    parameters: Mapping[str, Any]
    seconds: Mapping[str, float]  # how long each figure took to measure
    load: Mapping[str, float]  # the system's, a minute's mean, when a figure was measured
    figures: Sequence[Figure]
    failed: Mapping[str, str]


def write(report: Report, folder: Path, json_folder: Path | None = None) -> None:
    """Write the report into a folder, over an older one.

    Input: `json_folder`: where the JSON goes; without it, beside the report.
    """
    json_folder = json_folder or folder
    folder.mkdir(parents=True, exist_ok=True)
    json_folder.mkdir(parents=True, exist_ok=True)

    for old in folder.glob("*.png"):
        old.unlink()

    pictures: dict[str, list[tuple[str, str]]] = {}
    for figure in report.figures:
        for number, plot in enumerate(figure.plots, 1):
            name = f"{_file_name(figure.name)}-{number}.png"
            draw(plot, folder / name)
            pictures.setdefault(figure.name, []).append((plot.title, name))

    values = asdict(report)
    for value, figure in zip(values["figures"], report.figures, strict=True):
        value["verdict"] = figure.verdict

    text = json.dumps(values, indent=1, default=str)
    (json_folder / JSON_NAME).write_text(text + "\n", "utf-8")
    (folder / MARKDOWN_NAME).write_text(_markdown(report, pictures), "utf-8")


def _file_name(figure: str) -> str:
    """Return a figure's name without what has a meaning in a path."""
    return re.sub("[^A-Za-z0-9]+", "-", figure).strip("-")


def number_text(value: float | None) -> str:
    """Write a number with three digits that count."""
    if value is None:
        return "-"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _markdown(report: Report, pictures: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    machine = report.machine
    lines = [
        f"# Benchmark, size {report.size}",
        "",
        f"{report.date}, commit {report.commit}. {machine['cores']} cores ({machine['processor']}),"
        f" {machine['memory_gib']} GiB, {machine['system']}; load before the run "
        f"{machine['load_before']}.",
        "",
        ", ".join(f"{name} {text}" for name, text in report.versions.items()) + ".",
        "",
        "| figure | value | unit | must | aim | verdict |",
        "|---|---|---|---|---|---|",
    ]

    for f in report.figures:
        cells = [
            f.name,
            number_text(f.value),
            f.unit,
            number_text(f.must),
            number_text(f.aim),
            f.verdict,
        ]
        lines.append(f"| {' | '.join(cells)} |")

    for name, why in report.failed.items():
        lines.append(f"| {name} | - | | | | not measured: {why} |")
    for figure in report.figures:
        lines += ["", *_section(figure, pictures.get(figure.name, ()))]

    times = [f"{n} {s:.0f} s (load {report.load[n]:.1f})" for n, s in report.seconds.items()]
    lines += ["", "## The run", "", f"Measured in: {', '.join(times)}.", ""]
    lines += [f"- {name}: {value}" for name, value in report.parameters.items()]

    return "\n".join(lines) + "\n"


def _section(figure: Figure, pictures: Sequence[tuple[str, str]]) -> list[str]:
    what = ", ".join(f"{name} {value}" for name, value in figure.parameters.items())
    lines = [f"## {figure.name}", "", f"{figure.how}.", "", f"Parameters: {what}.", ""]
    for name, value in figure.details.items():
        text = json.dumps(value, default=str) if isinstance(value, (dict, list)) else value
        lines.append(f"- {name}: {text}")
    for title, path in pictures:
        lines += ["", f"![{title}]({path})"]
    return lines
