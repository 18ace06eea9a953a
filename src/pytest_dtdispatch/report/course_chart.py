"""The course of a row over saved runs, as a small chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.report.drawing import drawing
from pytest_dtdispatch.report.html_parts import Html, element

WIDTH, HEIGHT, EDGE = 240, 40, 5


def course_chart(points: Sequence[Samples | None], text: Callable[[float], str]) -> Html:
    """Draw a figure in each run, the oldest first, with its noise; a run without the row is a gap."""
    known = [(n, one) for n, one in enumerate(points) if one is not None]
    high = max(_most(one) for _, one in known)
    step = (WIDTH - 2 * EDGE) / max(len(points) - 1, 1)

    def x(n: int) -> str:
        return f"{EDGE + n * step:.1f}".removesuffix(".0")

    def y(value: float) -> str:
        return f"{HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * value / high:.1f}".removesuffix(".0")

    noise = "".join(f"M{x(n)} {y(one.figure)}V{y(_most(one))}" for n, one in known)
    line = "".join(
        f"{'L' if n and points[n - 1] is not None else 'M'}{x(n)} {y(one.figure)}" for n, one in known
    )
    dots = (element("circle", cx=x(n), cy=y(one.figure), r="2.2", class_="point") for n, one in known)
    figures = [one.figure for _, one in known]
    said = (
        f"{len(known)} of {len(points)} runs, from {text(figures[0])} to {text(figures[-1])}, "
        f"least {text(min(figures))}, greatest {text(max(figures))}; the chart begins at 0"
    )
    inner = element(
        "svg",
        element("path", d=f"M0 {HEIGHT - EDGE}H{WIDTH}", class_="grid"),
        element("path", d=noise, class_="noise"),
        element("path", d=line, class_="course"),
        *dots,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
    )
    return drawing(said, HEIGHT, inner, kind="course-chart")


def _most(samples: Samples) -> float:
    """Give how far the true median may lie above the figure."""
    return samples.figure * (1 + (samples.scatter or 0.0)) or 1.0
