"""Growth of the cost of a callable with a size: measurement, fit, limit and report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_dtdispatch.core.checks import callable_at, check_result
from pytest_dtdispatch.core.measurement import Figures, State, merge
from pytest_dtdispatch.core.results import NoRows
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import own_name, show_progress
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document, Kind, Tone, View, paragraph

if TYPE_CHECKING:
    from pytest_dtdispatch.rounds.plan import Plan
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

PASSES = 7  # odd, so that the median of their exponents is one of them
Make = Callable[[int], Callable[[], Any]]
# The worst first.
VERDICT_TEXTS = {
    Verdict.REGRESSED: (Tone.BAD, "above {}"),
    Verdict.MISSING: (Tone.BAD, "cannot be compared with {}"),
    Verdict.INCONCLUSIVE: (Tone.NOTICE, "inconclusive: {} lies in between"),
    Verdict.PASSED: (Tone.GOOD, "below {}"),
}


@dataclass(frozen=True)
class Fit:
    """Power law of the cost in one state: ``cost = constant * size**exponent``.

    Args:
        state: state of the samples; ``call`` if the callable never calls the sharding propagator.
        exponent: median over passes; NaN if nothing was fitted, so that no comparison with it is true.
        low: smallest exponent of a pass. The interval to ``high`` contains the true median of n independent
            passes with probability ``1 - 2**(1-n)`` (David and Nagaraja, Order Statistics, 2003, 7.1).
        high: largest exponent of a pass.
        growths: ratio of the cost at each size to that at the previous size, median over passes.
        passes: number of passes with an exponent.
        why_not: why nothing was fitted; empty if it was.
        is_absent: whether the callable has no sample in this state, at any size.
    """

    state: State
    exponent: float = math.nan
    low: float = math.nan
    high: float = math.nan
    growths: tuple[float, ...] = ()
    passes: int = 0
    why_not: str = ""
    is_absent: bool = False

    def verdict(self, limit: float) -> Verdict:
        """Compare the whole interval with a limit; an interval that contains the limit is inconclusive."""
        if self.why_not:
            return Verdict.MISSING
        if self.low > limit:
            return Verdict.REGRESSED
        return Verdict.PASSED if self.high < limit else Verdict.INCONCLUSIVE

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.state} not fitted: {self.why_not}"
        values = self.exponent, self.low, self.high
        exponent, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in values)  # no sign before a zero
        return f"{self.state} grows as size^{exponent} ({low} to {high} in {self.passes} passes)"


@dataclass(frozen=True)
class Scaling(NoRows):
    """Growth of the cost of a callable with a size, on a miss and on a hit.

    The call at each size has its own row. If nothing is measured, there are no sizes, and both
    exponents are 0, so that an assertion on them passes.

    Args:
        name: prefix of its rows' names, which are ``name[8]`` and so on.
        sizes: measured sizes, the smallest first.
        miss: growth of a miss.
        hit: growth of a hit, or of any call if the callable never propagates.
        max_exponent: limit; None for no limit.
    """

    kind: ClassVar[str] = "scaling"
    name: str
    sizes: tuple[int, ...]
    miss: Fit
    hit: Fit
    max_exponent: float | None = None

    @property
    def fits(self) -> tuple[Fit, Fit]:
        """Both fits, the miss first."""
        return self.miss, self.hit


def run_sizes(make: Make, sizes: Sequence[int], name: str | None) -> Scaling:
    """Create and call a callable at each size, the largest first, without measuring."""
    __tracebackhide__ = True
    for size in reversed(sizes):
        check_result("scaling", callable_at(make, size)())
    states, reason = (State.MISS, State.HIT), "nothing is measured"
    miss, hit = (Fit(state, 0.0, 0.0, 0.0, why_not=reason) for state in states)
    return Scaling(name or own_name(make), (), miss, hit)


def run_and_measure_sizes(
    run: Callable[[Callable[[], Any]], tuple[Any, Any]],
    make: Make,
    sizes: Sequence[int],
    caches: ShardingCaches,
    plan: Plan,
) -> tuple[dict[int, list[Figures]], dict[int, str]]:
    """Create and run a callable at each size for the program, the largest first; then measure them in passes.

    Each pass measures all sizes, every second one in the reverse order of the pass before, so that a drift of
    the machine adds scatter and not slope.

    Args:
        run: function that runs a call, and returns its result and a repeatable call.
        make: function that creates the callable of a size.
        sizes: sizes in any order.
        caches: sharding caches.
        plan: rounds and time of all passes together.

    Returns:
        The figures of each pass by size, the smallest first, and the mesh as text by size.
    """
    __tracebackhide__ = True
    from pytest_dtdispatch.rounds.plan import Stop, take
    from pytest_dtdispatch.torchapi.tensors import wait_for

    ran: dict[int, Any] = {}
    for size in sorted(sizes, reverse=True):
        result, ran[size] = run(callable_at(make, size))
        check_result("scaling", result)
        wait_for(result)
    for call in ran.values():
        call.replay.settle_again()
    share = replace(plan, rounds=math.ceil(plan.rounds / PASSES), max_time_s=plan.max_time_s / PASSES)
    figures: dict[int, list[Figures]] = {size: [] for size in sorted(ran)}
    stop = Stop(None, PASSES)
    for in_order in take([*ran], stop, rotates=True):
        for size in in_order:
            show_progress("measuring size {}: pass {} of {}", size, stop.done + 1, PASSES)
            figures[size].append(ran[size].measure(caches, share))
    return figures, {size: ran[size].mesh for size in figures}


def fit_scaling(
    name: str, measured: Mapping[int, Sequence[Figures]], max_exponent: float | None = None
) -> Scaling:
    """Fit the growth of a miss and of a hit to the figures of all passes."""
    merged = {size: merge(measured[size]) for size in sorted(measured)}
    states = {samples.state for figures in merged.values() for samples in figures.samples if samples.ns}
    # Calls, if no size has a hit and some calls do not query the propagator.
    steady = State.CALL if State.CALL in states and State.HIT not in states else State.HIT
    miss, hit = (_fit_state(state, measured, merged) for state in (State.MISS, steady))
    return Scaling(name, tuple(merged), miss, hit, max_exponent)


def _fit_state(state: State, measured: Mapping[int, Sequence[Figures]], merged: Mapping[int, Figures]) -> Fit:
    complete = []
    passes = [*zip(*(measured[size] for size in merged), strict=True)]
    for figures in passes:
        of_sizes = [each for one in figures for each in one.samples if each.state is state and each.ns]
        costs = [samples.figure for samples in of_sizes]
        if len(costs) == len(merged) and all(costs):
            complete.append(costs)
    if len(complete) >= 5:  # their interval covers the median with 94 %
        return fit_power(state, [*merged], complete)
    of_state = [each for one in merged.values() for each in one.samples if each.state is state]
    # If all misses were refused they are missing, not absent: the callable propagates.
    is_absent = not any(each.ns or (state is State.MISS and each.refused) for each in of_state)
    few = f"only {len(complete)} of {len(passes)} passes measured a {state} at every size"
    reasons = [note for one in merged.values() for note in (*one.notes, *one.remarks)]
    reasons += [one.reason for each in of_state for one in each.refused]
    why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    return Fit(state, why_not=(f"no {state} was measured" if is_absent else few) + why, is_absent=is_absent)


def fit_power(state: State, sizes: Sequence[int], passes: Sequence[Sequence[float]]) -> Fit:
    """Fit a power of the size to each pass: the slope of log(cost) over log(size) by least squares."""
    logs = [math.log(size) for size in sizes]
    lines = (statistics.linear_regression(logs, [*map(math.log, costs)]) for costs in passes)
    exponents = [line.slope for line in lines]
    steps = zip(*([later / cost for cost, later in pairwise(costs)] for costs in passes), strict=True)
    growths = tuple(map(statistics.median, steps))
    exponent = statistics.median(exponents)
    return Fit(state, exponent, min(exponents), max(exponents), growths, len(passes))


def judge(scaling: Scaling, limits: Mapping[str, int] | None = None) -> Iterator[RowVerdict]:
    """Compare the exponents of a scaling with its limit, if it has one.

    The verdict is ``missing`` if nothing was fitted, or if a state was not measured at all sizes.
    """
    limit = scaling.max_exponent
    if limit is None:
        return
    fits = [fit for fit in scaling.fits if not fit.is_absent] or scaling.fits
    verdicts = [fit.verdict(limit) for fit in fits]
    failures = [
        f"{fit}, all of it above the limit" if verdict is Verdict.REGRESSED else str(fit)
        for fit, verdict in zip(fits, verdicts, strict=True)
        if verdict in (Verdict.REGRESSED, Verdict.MISSING)
    ]
    criterion = f"max_exponent={limit:g}"
    details = (f"{criterion}: {'; '.join(failures)}",) if failures else ()
    worst = next(verdict for verdict in VERDICT_TEXTS if verdict in verdicts)
    yield RowVerdict(RowId("", scaling.name), worst, None, "", criterion, details)


def document(scalings: Mapping[str, Sequence[Scaling]], view: View) -> Document:
    """Render the fits of each test, equally in every view."""
    every = [(test, scaling) for test, of_test in scalings.items() for scaling in of_test]
    fits = [(scaling.name, fit) for _, scaling in every for fit in scaling.fits]
    fitted = [(fit.exponent, f"worst: {name}, {fit}") for name, fit in fits if not fit.why_not]
    _, worst = max(fitted, default=(0.0, ""))
    blocks = []
    for test, scaling in every:
        sizes = ", ".join(map(str, scaling.sizes))
        blocks.append(paragraph(f"{test}: {scaling.name} at sizes {sizes}", Tone.STRONG, hanging=1))
        for fit in scaling.fits:
            growths = ", ".join(f"x{growth:.2f}" for growth in fit.growths)
            text, tone = f"{fit}, from size to size {growths}" if growths else str(fit), Tone.PLAIN
            limit = scaling.max_exponent
            if limit is not None:
                tone, judged = VERDICT_TEXTS[fit.verdict(limit)]
                tone = Tone.NOTICE if fit.is_absent else tone
                text += f"; {judged.format(f'max_exponent={limit:g}')}"
            blocks.append(paragraph(text, tone, indent=1, hanging=1))
    return Document(tuple(blocks), worst=worst)


KIND = Kind(Scaling.kind, document, judge=judge, title="Scaling", type=Scaling)
