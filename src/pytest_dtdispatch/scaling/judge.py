"""Fit how a cost grows with a size, and hold the exponent against a limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_dtdispatch.core.measurement import Figures, Samples, State, refused_of
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Point, Scaling, cost_text

MIN_PASSES = 5  # their interval covers the median with 94 %


def fit_scaling(
    name: str, taken: Mapping[int, Sequence[Figures]], max_exponent: float | None = None
) -> Scaling:
    """Fit the growth of a miss and of a hit."""
    sizes = sorted(taken)
    merged = {size: merge(taken[size]) for size in sizes}
    steady = _steady_state(merged.values())
    miss, hit = (_fit_state(state, taken, merged, max_exponent) for state in (State.MISS, steady))
    points = tuple(
        Point(size, _median_ns(merged[size], State.MISS), _median_ns(merged[size], steady)) for size in sizes
    )
    return Scaling(name, points, miss, hit, max_exponent)


def complaint(scaling: Scaling, limits: Mapping[str, object] | None = None) -> str:
    """Say in one line what its own limit has against a scaling; empty where it has nothing against it.

    An interval that holds the limit is no complaint: it does not tell on which side the exponent lies. That
    nothing could be fitted is one, and so is a state that some sizes were not measured in.
    """
    complaints = [
        _exceeded(fit, scaling) if fit.verdict is LimitVerdict.FAILED else str(fit)
        for fit in scaling.fits
        if fit.verdict in (LimitVerdict.FAILED, LimitVerdict.MISSING)
    ]
    if all(fit.verdict is LimitVerdict.ABSENT for fit in scaling.fits):
        complaints = [str(fit) for fit in scaling.fits]
    if not complaints:
        return ""
    return f"scaling {scaling.name!r}, max_exponent={scaling.max_exponent:g}: {'; '.join(complaints)}"


def fit_power(state: State, sizes: Sequence[int], passes: Sequence[Sequence[float]]) -> Fit:
    """Fit a power of the size to each pass; the exponent is the median of theirs, from least to greatest.

    The interval asks nothing of how the passes are distributed: see :attr:`Fit.coverage`.
    """
    exponents = [_slope(sizes, costs) for costs in passes]
    growths = [statistics.median(costs[i + 1] / costs[i] for costs in passes) for i in range(len(sizes) - 1)]
    return Fit(
        state, statistics.median(exponents), min(exponents), max(exponents), tuple(growths), len(passes)
    )


def merge(passes: Sequence[Figures]) -> Figures:
    """Put what several passes measured of one call together."""
    every = [samples for figures in passes for samples in figures.samples]
    return Figures(
        sum(figures.rounds for figures in passes),
        tuple(_merge_state(state, every) for state in State if any(s.state is state for s in every)),
        tuple(dict.fromkeys(note for figures in passes for note in figures.notes)),
        tuple(dict.fromkeys(remark for figures in passes for remark in figures.remarks)),
    )


def _merge_state(state: State, every: Iterable[Samples]) -> Samples:
    of_state = [samples for samples in every if samples.state is state]
    ns = tuple(ns for samples in of_state for ns in samples.ns)
    return Samples(state, ns, refused_of(of_state), of_state[0].unit)


def _fit_state(
    state: State,
    taken: Mapping[int, Sequence[Figures]],
    merged: Mapping[int, Figures],
    limit: float | None,
) -> Fit:
    sizes = sorted(taken)
    passes = [
        [_median_ns(figures, state) for figures in one]
        for one in zip(*(taken[size] for size in sizes), strict=True)
    ]
    complete = [[cost for cost in costs if cost] for costs in passes if all(costs)]
    if len(complete) >= MIN_PASSES:
        fit = fit_power(state, sizes, complete)
        return replace(fit, verdict=_verdict(fit, limit))
    of_state = [samples for one in merged.values() for samples in one.samples if samples.state is state]
    # Misses that were all refused are missing, and not absent: the callable propagates.
    if is_absent := not any(one.ns or (state is State.MISS and one.refused) for one in of_state):
        what = f"no {state} was measured"
    else:
        what = f"only {len(complete)} of {len(passes)} passes measured a {state} at every size"
    verdict = LimitVerdict.ABSENT if is_absent else LimitVerdict.MISSING
    if limit is None:
        verdict = LimitVerdict.NO_LIMIT
    why = _why_no_samples(state, merged.values())
    why_not = f"{what} ({why})" if why else what
    return Fit(state, math.nan, math.nan, math.nan, why_not=why_not, verdict=verdict)


def _why_no_samples(state: State, merged: Iterable[Figures]) -> str:
    """Give everything that was said of samples which are not there, each once."""
    said: dict[str, None] = {}
    for figures in merged:
        refused = [one.reason for s in figures.samples if s.state is state for one in s.refused]
        said |= dict.fromkeys((*figures.notes, *refused, *figures.remarks))
    return "; ".join(said)


def _steady_state(merged: Iterable[Figures]) -> State:
    """Hits; calls, where no size has a hit and there are calls that ask no propagator."""
    measured = {samples.state for figures in merged for samples in figures.samples if samples.ns}
    return State.CALL if State.CALL in measured and State.HIT not in measured else State.HIT


def _verdict(fit: Fit, limit: float | None) -> LimitVerdict:
    if limit is None:
        return LimitVerdict.NO_LIMIT
    if fit.low > limit:
        return LimitVerdict.FAILED
    return LimitVerdict.PASSED if fit.high < limit else LimitVerdict.INCONCLUSIVE


def _exceeded(fit: Fit, scaling: Scaling) -> str:
    costs = [
        f"{point.size}: {cost_text(point.miss_ns if fit.state is State.MISS else point.hit_ns)}"
        for point in scaling.points
    ]
    return f"{fit}, all of it above the limit: {', '.join(costs)}"


def _slope(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Slope of log(cost) over log(size) by least squares."""
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    ).slope


def _median_ns(figures: Figures, state: State) -> float | None:
    samples = next((s for s in figures.samples if s.state is state and s.ns), None)
    return samples.median_ns if samples else None
