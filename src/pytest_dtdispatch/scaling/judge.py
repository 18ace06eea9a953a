"""Fit how a cost grows with a size, hold the exponent against a limit, and show it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_dtdispatch.core.measurement import Figures, Samples, State, refused_of
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document, Kind, Paragraph, Tone, View, paragraph
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Point, Scaling, cost_text

MIN_PASSES = 5  # their interval covers the median with 94 %
# How each verdict is shown.
SHOWN = {
    LimitVerdict.NO_LIMIT: (Tone.PLAIN, ""),
    LimitVerdict.PASSED: (Tone.GOOD, "; below max_exponent={:g}"),
    LimitVerdict.FAILED: (Tone.BAD, "; above max_exponent={:g}"),
    LimitVerdict.INCONCLUSIVE: (Tone.NOTICE, "; inconclusive: max_exponent={:g} lies in between"),
    LimitVerdict.MISSING: (Tone.BAD, "; cannot be held against max_exponent={:g}"),
    LimitVerdict.ABSENT: (Tone.NOTICE, "; cannot be held against max_exponent={:g}"),
}


def fit_scaling(
    name: str, taken: Mapping[int, Sequence[Figures]], max_exponent: float | None = None
) -> Scaling:
    """Fit the growth of a miss and of a hit."""
    merged = {size: merge(taken[size]) for size in sorted(taken)}
    measured = {samples.state for figures in merged.values() for samples in figures.samples if samples.ns}
    # Calls, where no size has a hit and there are calls that ask no propagator.
    steady = State.CALL if State.CALL in measured and State.HIT not in measured else State.HIT
    miss, hit = (_fit_state(state, taken, merged, max_exponent) for state in (State.MISS, steady))
    points = (
        Point(size, _median_ns(figures, State.MISS), _median_ns(figures, steady))
        for size, figures in merged.items()
    )
    return Scaling(name, tuple(points), miss, hit, max_exponent)


def judge(scaling: Scaling, limits: Mapping[str, int] | None = None) -> Iterator[RowVerdict]:
    """Hold the exponents of a scaling against its own limit, if it has one.

    An interval that holds the limit is inconclusive: it does not tell on which side the exponent lies.
    Nothing was judged if nothing could be fitted, or if some sizes were not measured in a state.
    """
    if scaling.max_exponent is None:
        return
    complaints = []
    verdicts = {fit.verdict for fit in scaling.fits}
    for fit in scaling.fits:
        if fit.verdict is LimitVerdict.FAILED:
            is_miss = fit.state is State.MISS
            costs = (f"{at.size}: {cost_text(at.miss_ns if is_miss else at.hit_ns)}" for at in scaling.points)
            complaints.append(f"{fit}, all of it above the limit: {', '.join(costs)}")
        elif verdicts == {LimitVerdict.ABSENT} or fit.verdict is LimitVerdict.MISSING:
            complaints.append(str(fit))
    verdict = Verdict.INCONCLUSIVE if LimitVerdict.INCONCLUSIVE in verdicts else Verdict.PASSED
    if complaints:
        verdict = Verdict.REGRESSED if LimitVerdict.FAILED in verdicts else Verdict.MISSING
    criterion = f"max_exponent={scaling.max_exponent:g}"
    details = (f"{criterion}: {'; '.join(complaints)}",) if complaints else ()
    yield RowVerdict(scaling.name, verdict, (), "", criterion, details)


def fit_power(state: State, sizes: Sequence[int], passes: Sequence[Sequence[float]]) -> Fit:
    """Fit a power of the size to each pass; the exponent is the median of theirs, from least to greatest.

    A pass gives the slope of log(cost) over log(size) by least squares. The interval asks nothing of how the
    passes are distributed: see :attr:`Fit.coverage`.
    """
    logs = [math.log(size) for size in sizes]
    exponents = [
        statistics.linear_regression(logs, [math.log(cost) for cost in costs]).slope for costs in passes
    ]
    growths = tuple(
        statistics.median(costs[i + 1] / costs[i] for costs in passes) for i in range(len(sizes) - 1)
    )
    exponent = statistics.median(exponents)
    return Fit(state, exponent, min(exponents), max(exponents), growths, len(passes))


def merge(passes: Sequence[Figures]) -> Figures:
    """Put what several passes measured of one call together."""
    by_state: dict[State, list[Samples]] = {}
    for samples in (samples for figures in passes for samples in figures.samples):
        by_state.setdefault(samples.state, []).append(samples)
    return Figures(
        sum(figures.rounds for figures in passes),
        tuple(
            Samples(state, tuple(ns for each in every for ns in each.ns), refused_of(every), every[0].unit)
            for state in State
            if (every := by_state.get(state))
        ),
        tuple(dict.fromkeys(note for figures in passes for note in figures.notes)),
        tuple(dict.fromkeys(remark for figures in passes for remark in figures.remarks)),
    )


def _fit_state(
    state: State, taken: Mapping[int, Sequence[Figures]], merged: Mapping[int, Figures], limit: float | None
) -> Fit:
    at_sizes = ([_median_ns(figures, state) for figures in taken[size]] for size in merged)
    passes = list(zip(*at_sizes, strict=True))
    complete = [[cost for cost in costs if cost] for costs in passes if all(costs)]
    if len(complete) >= MIN_PASSES:
        fit = fit_power(state, [*merged], complete)
        return replace(fit, verdict=_verdict(fit, limit))
    of_state = [samples for one in merged.values() for samples in one.samples if samples.state is state]
    # Misses that were all refused are missing, and not absent: the callable propagates.
    if any(one.ns or (state is State.MISS and one.refused) for one in of_state):
        what = f"only {len(complete)} of {len(passes)} passes measured a {state} at every size"
        verdict = LimitVerdict.MISSING
    else:
        what, verdict = f"no {state} was measured", LimitVerdict.ABSENT
    if limit is None:
        verdict = LimitVerdict.NO_LIMIT
    if reasons := _why_no_samples(state, merged.values()):
        what = f"{what} ({reasons})"
    return Fit(state, math.nan, math.nan, math.nan, why_not=what, verdict=verdict)


def _why_no_samples(state: State, merged: Iterable[Figures]) -> str:
    """Give everything that was said of samples which are not there, each once."""
    said: dict[str, None] = {}
    for figures in merged:
        refused = [one.reason for s in figures.samples if s.state is state for one in s.refused]
        said |= dict.fromkeys((*figures.notes, *refused, *figures.remarks))
    return "; ".join(said)


def _verdict(fit: Fit, limit: float | None) -> LimitVerdict:
    if limit is None:
        return LimitVerdict.NO_LIMIT
    if fit.low > limit:
        return LimitVerdict.FAILED
    return LimitVerdict.PASSED if fit.high < limit else LimitVerdict.INCONCLUSIVE


def _median_ns(figures: Figures, state: State) -> float | None:
    return next((s.median_ns for s in figures.samples if s.state is state and s.ns), None)


def document(scalings: Mapping[str, Sequence[Scaling]], view: View) -> Document:
    """Lay out what was fitted in each test; it is as much in every view."""
    every = [(test, scaling) for test, of_test in scalings.items() for scaling in of_test]
    return Document(tuple(block for test, scaling in every for block in _paragraphs(test, scaling)))


def _paragraphs(test: str, scaling: Scaling) -> Iterator[Paragraph]:
    sizes = ", ".join(str(point.size) for point in scaling.points)
    yield paragraph(f"{test}: {scaling.name} at sizes {sizes}", Tone.STRONG, hanging=1)
    for fit in scaling.fits:
        tone, _ = SHOWN[fit.verdict]
        yield paragraph(fit_text(fit, scaling.max_exponent), tone, indent=1, hanging=1)


def fit_text(fit: Fit, limit: float | None) -> str:
    """Write one fit: exponent with interval, growth from size to size, what the limit says of it."""
    _, judged = SHOWN[fit.verdict]
    growths = ", ".join(f"x{growth:.2f}" for growth in fit.growths)
    text = str(fit) if fit.why_not else f"{fit}, from size to size {growths}"
    return text if limit is None else f"{text}{judged.format(limit)}"


KIND = Kind(Scaling.kind, document, judge=judge)
