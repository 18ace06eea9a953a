"""How the samples behind a figure are distributed, as small charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.report.drawing import Tick, axis, drawing, label, rule
from pytest_dtdispatch.report.html_parts import Html, element

BINS = 40
HEIGHT, FOOT = 44, 14
TextOf = Callable[[float], str]


def distribution(samples: Samples, text: TextOf) -> Html:
    """Draw how samples are distributed, with what stands for them."""
    chart = _histogram(samples, text)
    how = _told(samples, text)
    return element("figure", element("figcaption", *how), chart, class_="samples")


def _told(samples: Samples, text: TextOf) -> tuple[str, ...]:
    noise = "" if samples.scatter is None else f", noise ±{samples.scatter:.0%}"
    marked = element("strong", " noisy", class_="notice") if samples.is_noisy else ""
    figure = f": {samples.figure_name} {text(samples.figure)}{noise}, {samples.count:,} samples"
    return element("strong", str(samples.state)), figure, marked


def _histogram(samples: Samples, text: TextOf) -> Html:
    """Count samples in bins of equal ratio; all ranks together, where there are several."""
    of_ranks = tuple(ns for _, of_rank in samples.by_rank for ns in of_rank)
    values = of_ranks or samples.values
    low, high = max(min(values), 1), max(max(values), 1)
    counts = _binned(values, low, high)
    most = max(counts)
    steps = (f"M{n} {HEIGHT}V{_top(count, most)}h.85V{HEIGHT}" for n, count in enumerate(counts) if count)
    bars = element(
        "svg",
        element("path", d="".join(steps), class_="sample"),
        viewBox=f"0 0 {BINS} {HEIGHT}",
        preserveAspectRatio="none",
        width="100%",
        height=HEIGHT,
    )
    place = _place(samples.figure, low, high)
    near = text(_mode(counts, low, high))
    said = f"{len(values):,} samples from {text(low)} to {text(high)}, most of them near {near}"
    return drawing(said, HEIGHT + FOOT, bars, rule(place, 0, HEIGHT, "figure"), *_ends(low, high, text))


def _binned(values: Sequence[int], low: float, high: float) -> list[int]:
    counts = [0] * BINS
    for value in values:
        counts[min(int(_place(value, low, high) * BINS), BINS - 1)] += 1
    return counts


def _top(count: int, most: int) -> int:
    return HEIGHT - math.ceil(HEIGHT * count / most)


def _mode(counts: Sequence[int], low: float, high: float) -> float:
    middle = (counts.index(max(counts)) + 0.5) / len(counts)
    return float(low * (high / low) ** middle)


def _place(value: float, low: float, high: float) -> float:
    if high <= low:
        return 0.5
    return min(max(math.log(max(value, low) / low) / math.log(high / low), 0.0), 1.0)


def _ends(low: float, high: float, text: TextOf) -> list[Html]:
    if high <= low:
        return [label(0.5, HEIGHT + FOOT - 3, text(low), "tick")]
    return list(axis([Tick(0, text(low)), Tick(1, text(high))], HEIGHT + FOOT - 3))
