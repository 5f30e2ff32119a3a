"""Draw a figure's plots as PNG files."""

from __future__ import annotations

from pathlib import Path

from bench.figure import Plot


def draw(plot: Plot, path: Path) -> None:
    """Draw one plot into a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(7, 3.5), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for name, points in plot.lines.items():
        xs = [x for x, _ in points]
        ys = [y for _, y in points]
        if plot.kind == "bars":
            axes.bar(xs, ys, label=name)
        else:
            axes.plot(xs, ys, "." if plot.kind == "dots" else "-", label=name)
    if len(plot.lines) > 1:
        axes.legend()
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_ylim(bottom=0)
    if plot.kind == "bars":
        axes.tick_params(axis="x", rotation=20)
    canvas.savefig(path, dpi=110)
