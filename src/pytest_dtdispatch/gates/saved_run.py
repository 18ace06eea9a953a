"""Gate of saved runs: which rows became slower by more than their threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import fmean, median
from typing import NamedTuple

from pytest_dtdispatch.core.measurement import MIN_SAMPLES, NOISY, Measurement, State, traced_text
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import TextEnum
from pytest_dtdispatch.core.verdicts import (
    Judgement,
    Outlook,
    RowVerdict,
    Threshold,
    TimeChange,
    Verdict,
    judged,
)
from pytest_dtdispatch.gates.selection import name_renamed
from pytest_dtdispatch.stats.intervals import (
    mean_ratio_interval,
    median_interval,
    quantile,
    quantile_ratio_interval,
    scatter,
)

MOST_SAMPLES = 100  # the interval of 100 and 100 takes 14 ms, that of 20 and 20 takes 2 ms
QUANTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75}
# Properties of environments that must be equal for a comparison.
COMPARABLE = (
    *("CPU", "Python", "torch version", "torch build", "cuda", "device", "device name", "backend"),
    *("threads", "ranks", "rank stat"),
)
MAX_DIFFERENCES = 3  # listed below a gate that failed
LEAST_SAMPLES = 5  # the minimum rounds of a slow row
MOST_CONTROL_SHIFT = 0.03
MAX_SPEED_SHIFT = 0.1  # the loop takes 0.95 to 1.05 times its median, and 1.6 to 1.9 times on a slowed core
SLOWDOWN_EXPONENT = 1.5  # on a core whose loop takes 2.1 times as long, a call of 7 us takes up to 3.1 times
MAX_SLOWDOWN = 3.0  # other machines on the same processor make a core up to 2.1 times as slow
MIN_AGREEING_BLOCKS = 2  # one block can be slowed between two readings of the core's speed
MOST_PREEMPTED = 0.5  # of the samples: then their median contains a wait
MAX_WAITED = 0.2  # with two busy loops on two cores, a thread waits for a third of its time

SCATTERS = f"scatter by more than {NOISY:.0%}"
SLOW_CORE = (
    "the core ran slower while it was measured, so other machines may be the cause: run again, "
    "or compare builds with dtdispatch ab"
)
# By verdict of the interval: verdicts of the interval without the shift of plain ops, or of the core's speed,
# that agree with it. A row that passes on a slower machine passes.
AGREEING = {
    Verdict.REGRESSED: {Verdict.REGRESSED},
    Verdict.INCONCLUSIVE: set(Verdict),
    Verdict.IMPROVED: {Verdict.IMPROVED},
    Verdict.PASSED: {Verdict.PASSED, Verdict.IMPROVED},
}


class Unusable(TextEnum):
    """Reason why the samples of a row cannot be judged."""

    FEW = (
        f"fewer than {MIN_SAMPLES} samples: raise --dtdispatch-rounds or --dtdispatch-max-time, "
        "in the saved run too"
    )
    FEW_COMPILED = f"fewer than {MIN_SAMPLES} samples: raise dtdispatch_compile_rounds, in the saved run too"
    ZERO = "a sample of it is 0 ns: its clock is too coarse, or its file was changed"
    NOISY = f"samples {SCATTERS}: run again on a quieter machine, or use dtdispatch ab"
    NOISY_SAVED = f"samples of the saved run {SCATTERS}: save a new one on a quieter machine"


@lru_cache(maxsize=1024)  # rows are judged when they are measured, and again at the end
def interval_of_ratio(base: Sequence[float], head: Sequence[float], figure: str) -> tuple[float, float]:
    """Return the 99 % interval of the ratio of a statistic of two runs, from the scatter within both.

    Of many samples, :data:`MOST_SAMPLES` are used, which only widens the interval.
    """
    base, head = _thinned(base), _thinned(head)
    if figure == "mean":
        return mean_ratio_interval(base, head, confidence=0.99)
    return quantile_ratio_interval(base, head, QUANTILES[figure], confidence=0.99)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Return 20 groups of neighbors from many samples.

    A period of the samples would alias with every n-th of them: the first hit of each part of four was 1.3
    times as long, and the interval of 340 hits did not contain their median.
    """
    if len(values) <= MOST_SAMPLES:
        return values
    starts = [group * len(values) // 20 for group in range(20)]
    return [value for start in starts for value in values[start : start + MOST_SAMPLES // 20]]


class PlainShift(NamedTuple):
    """Relative slowdown of ops on plain tensors.

    Args:
        median: median over their rows.
        least: end of the 95 % interval of the median that is closer to 0; 0 if the interval contains 0.
    """

    median: float = 0.0
    least: float = 0.0


@dataclass(frozen=True)
class StateRow:
    """Latencies of a row in one state.

    Args:
        row: identity of the row, with the state.
        ns: samples in nanoseconds, in the order of measurement; at least one.
        mesh: mesh as text; empty if it used none.
        thresholds: thresholds of its test's marker.
        tracers: names of tools that made the calls longer.
        blocks: number of measured blocks; the samples are those of the quietest.
        slow_blocks: number of blocks on a slower core.
        waited: share of the time of its calls in which the thread waited for a core.
        preempted: share of its samples during which another thread took the core.
        speed_ns: nanoseconds of a fixed Python loop that was timed with its calls; 0 if unknown.
    """

    row: RowId
    ns: tuple[int, ...]
    mesh: str = ""
    thresholds: tuple[Threshold, ...] = ()
    tracers: tuple[str, ...] = ()
    blocks: int = 1
    waited: float = 0.0
    speed_ns: int = 0
    slow_blocks: int = 0
    preempted: float = 0.0

    @property
    def state(self) -> State:
        """State of its samples."""
        return State(self.row.state)


def state_rows(
    test: str, rows: Iterable[Measurement], thresholds: Sequence[Threshold] = ()
) -> Iterator[StateRow]:
    """Yield every state with latencies of every row of a test."""
    for row in rows:
        for samples in row.times():
            yield StateRow(
                RowId(test, row.label, samples.state),
                samples.ns,
                row.mesh,
                tuple(thresholds),
                row.figures.tracers,
                samples.blocks,
                samples.waited,
                samples.speed_ns,
                samples.slow_blocks,
                samples.preempted,
            )


def environment_differences(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Format the differences between two environments that make their figures not comparable."""
    return tuple(
        f"{name}: {shorten(then.get(name) or 'unknown')} then, {now.get(name) or 'unknown'} now"
        for name in COMPARABLE
        if then.get(name, "") != now.get(name, "")
    )


def possible_causes(then: Mapping[str, str], now: Mapping[str, str], any_machine: bool) -> tuple[str, ...]:
    """Format the differences between two environments that most probably explain a change.

    Args:
        then: environment of the saved run.
        now: environment of this run.
        any_machine: whether properties that must be equal were not compared.
    """
    named = () if any_machine else COMPARABLE  # equal, or named by the verdict
    names = [name for name in {**now, **then} if name not in named and then.get(name) != now.get(name)]
    names.sort(key=lambda name: name in ("numpy", "pytest", "plugins"))
    first, rest = names[:MAX_DIFFERENCES], names[MAX_DIFFERENCES:]
    lines = [
        f"another environment: {name}: {_change(then.get(name, ''), now.get(name, ''))}" for name in first
    ]
    if rest:
        lines[-1] += f"; and {len(rest)} more: {', '.join(rest[:MAX_DIFFERENCES])}"
    return tuple(lines)


def _change(then: str, now: str) -> str:
    """Format two values, of lists only the parts that differ."""
    parts = [text.split(", ") for text in (then, now)]
    own = [", ".join(part for part in mine if part not in other) for mine, other in (parts, parts[::-1])]
    return f"{shorten(own[0]) or 'none'} then, {shorten(own[1]) or 'none'} now"


def judge_run(
    base: Sequence[StateRow], head: Sequence[StateRow], thresholds: Callable[[StateRow], Sequence[Threshold]]
) -> Judgement:
    """Judge every row that has a threshold.

    A row is regressed if its whole interval of the ratio (bootstrap, 99 %) is above the threshold, and
    improved if it is faster by the threshold. A row is inconclusive, and does not pass, if the interval
    extends further from the ratio than the threshold in either direction, or if calls of the saved row waited
    for a core.

    Rows on plain tensors contain no dispatch. If their median shift exceeds 3 %, the interval is also judged
    without that shift: a row whose verdict changes is inconclusive. From a regression, only the part of the
    shift that exceeds the scatter of these rows is removed; if it then passes, it is contaminated. If the
    speed of the core during the calls differs by more than 10 %, a row whose verdict depends on it is
    inconclusive too, and so is a row whose first decile does not confirm the verdict.
    """
    then, now = {row.row: row for row in base}, {row.row: row for row in head}
    shifts = control_shifts(then, now).values()
    shift = plain_shift(shifts)
    verdicts: list[RowVerdict] = []
    saved: list[StateRow] = []
    for name in dict.fromkeys((*now, *then)):
        row = then.get(name) or now[name]
        limits = thresholds(row) if row.state is not State.LOCAL else ()
        verdicts += [_judge_row(row, then.get(name), now.get(name), limit, shift) for limit in limits]
        saved += [row for _ in limits if name in then]
    verdicts = [*name_renamed(verdicts, _unsaved(then, now)), *_refusals(saved)]
    if not shifts:
        return judged(verdicts)
    doubt = ": the machine may be the cause" if abs(shift.median) > MOST_CONTROL_SHIFT else ""
    rows = f"(median of {len(shifts)} rows)"
    remark = f"the op on plain tensors shifted by {100 * shift.median:+.1f} % {rows}{doubt}"
    return judged(verdicts, remarks=(remark,))


def outlook_of(base: StateRow, head: StateRow, threshold: Threshold, shift: PlainShift) -> Outlook:
    """Return what more samples can change in the verdict that :func:`judge_run` would return now."""
    verdict = _judge_row(head, base, head, threshold, shift).verdict
    if verdict in (Verdict.REGRESSED, Verdict.CONTAMINATED):
        return Outlook.FAILING
    is_useless = (
        _unusable(base, saved=True)
        or _waited_more(base, head)
        or head.tracers
        or speed_shift(base, head) < -MAX_SPEED_SHIFT
    )
    if verdict is not Verdict.INCONCLUSIVE or is_useless:
        return Outlook.DECIDED
    is_slow = (
        head.slow_blocks
        or speed_shift(base, head) > MAX_SPEED_SHIFT
        or _is_slow_by_waits(base, head, threshold)
    )
    return Outlook.SLOW if is_slow else Outlook.OPEN


def compare_rows(base: Sequence[StateRow], head: Sequence[StateRow]) -> list[RowVerdict]:
    """Compare the median of every row with the saved one, without thresholds: faster, slower or no change."""
    then, now = ({row.row: row for row in rows if row.state is not State.LOCAL} for rows in (base, head))
    verdicts, any_change = [], Threshold("", "median", 0.0)
    for name, row in {**then, **now}.items():
        verdict = _judge_row(row, then.get(name), now.get(name), any_change, PlainShift())
        remedy = "" if verdict.change else verdict.remedy
        verdicts.append(replace(verdict, criterion="", remedy=remedy, details=()))
    return name_renamed(verdicts, _unsaved(then, now))


def _unsaved(then: Iterable[RowId], now: Iterable[RowId]) -> list[RowId]:
    """Return rows that the saved run has in no state."""
    saved = {row._replace(state=None) for row in then}
    return [row for row in now if row._replace(state=None) not in saved]


def control_shifts(then: Mapping[RowId, StateRow], now: Mapping[RowId, StateRow]) -> dict[RowId, float]:
    """Return the log ratio of each row on plain tensors, without rows whose core speed shifted."""
    controls = [
        name
        for name, row in now.items()
        if row.state is State.LOCAL and name in then and abs(speed_shift(then[name], row)) <= MAX_SPEED_SHIFT
    ]
    medians = {name: (median(then[name].ns), median(now[name].ns)) for name in controls}
    return {name: math.log(head / base) for name, (base, head) in medians.items() if base and head}


def speed_shift(base: StateRow, head: StateRow) -> float:
    """Return the relative slowdown of the core from the base's calls to the head's; 0 if unknown."""
    return head.speed_ns / base.speed_ns - 1 if base.speed_ns and head.speed_ns else 0.0


def plain_shift(shifts: Collection[float]) -> PlainShift:
    """Return the slowdown of plain ops from :func:`control_shifts`; 0 without any."""
    if not shifts:
        return PlainShift()
    middle, values = median(shifts), list(shifts)
    low, high = median_interval(values) or (middle, middle)
    return PlainShift(math.expm1(middle), math.expm1(low if low > 0 else min(high, 0.0)))


def _judge_row(
    row: StateRow,
    base: StateRow | None,
    head: StateRow | None,
    threshold: Threshold,
    shift: PlainShift,
) -> RowVerdict:
    """Judge one row against a threshold."""
    verdict_of = partial(RowVerdict, row.row, criterion=str(threshold), is_strict=threshold.is_strict)
    if head is None:
        remedy = "in the saved run, but not measured: restore the test, or save a new run"
        return verdict_of(Verdict.MISSING, None, remedy)
    if base is None:
        remedy = "not in the saved run: save a new one if the row belongs there"
        return verdict_of(Verdict.NEW, None, remedy)
    if base.mesh != head.mesh:
        meshes = f"mesh: {shorten(base.mesh) or 'none'} then, {head.mesh or 'none'} now"
        return verdict_of(Verdict.MISMATCHED, None, f"{meshes}; save a new run on this mesh")
    if bool(base.tracers) != bool(head.tracers):
        traced = "the saved run" if base.tracers else "this run"
        return verdict_of(
            Verdict.MISMATCHED, None, f"in {traced} alone {_traced(base.tracers or head.tracers)}"
        )
    if unusable := _unusable(base, saved=True) or _unusable(head):
        return verdict_of(Verdict.INCONCLUSIVE, None, unusable)
    figure = threshold.field
    then, now = (
        fmean(of.ns) if figure == "mean" else quantile(of.ns, QUANTILES[figure]) for of in (base, head)
    )
    low, high = interval_of_ratio(base.ns, head.ns, figure)
    percent, low_percent, high_percent = (100 * (ratio - 1) for ratio in (now / then, low, high))
    change = TimeChange(then, now, percent, low_percent, high_percent, len(base.ns), len(head.ns))
    verdict, remedy = _verdict_of((low, now / then, high), base, head, threshold, shift)
    details: tuple[str, ...] = ()
    if head.blocks > 1:
        details = (f"the quietest of {head.blocks} blocks",)
    elif verdict in (Verdict.REGRESSED, Verdict.CONTAMINATED):
        details = ("one block: it was not measured again",)
    return verdict_of(verdict, change, remedy, details=details)


def _verdict_of(
    interval: Sequence[float], base: StateRow, head: StateRow, threshold: Threshold, shift: PlainShift
) -> tuple[Verdict, str]:
    """Return the verdict and remedy of an interval; it is not decided by a change of the machine's speed."""
    verdict, remedy = _interval_verdict(interval, threshold)
    speed = speed_shift(base, head)
    slowdown = (1 + speed) ** SLOWDOWN_EXPONENT
    without_speed, _ = _interval_verdict([end / slowdown for end in interval], threshold)
    if abs(speed) > MAX_SPEED_SHIFT and without_speed not in AGREEING[verdict]:
        slow_saved_core = "the core ran slower while the saved run measured it: save a new one"
        return Verdict.INCONCLUSIVE, SLOW_CORE if speed > 0 else slow_saved_core
    if head.slow_blocks and head.blocks - head.slow_blocks < MIN_AGREEING_BLOCKS:
        on_slow_core, _ = _interval_verdict([end / MAX_SLOWDOWN for end in interval], threshold)
        if verdict is Verdict.REGRESSED and on_slow_core is not verdict:
            return Verdict.INCONCLUSIVE, SLOW_CORE
    if not _is_shift_of_fast_calls(verdict, base, head, threshold):
        remedy = (
            "the fastest tenth of its calls changed differently, so other machines may be the cause: run "
            "again, or save a new run, on a quieter machine, or compare builds with dtdispatch ab"
        )
        return Verdict.INCONCLUSIVE, remedy
    plain = shift.least if verdict is Verdict.REGRESSED else shift.median
    without_shift, _ = _interval_verdict([end / (1 + plain) for end in interval], threshold)
    if abs(plain) > MOST_CONTROL_SHIFT and without_shift not in AGREEING[verdict]:
        verdict = Verdict.CONTAMINATED if verdict is Verdict.REGRESSED else Verdict.INCONCLUSIVE
        remedy = (
            "the same op on plain tensors shifted too, so the cause may be the machine: run again, "
            "or compare builds with dtdispatch ab"
        )
    if verdict in (Verdict.PASSED, Verdict.IMPROVED) and _waited_more(base, head):
        remedy = "calls of the saved run waited for a core: save a new one on a quieter machine"
        return Verdict.INCONCLUSIVE, remedy
    if verdict in (Verdict.REGRESSED, Verdict.CONTAMINATED) and _is_slow_by_waits(base, head, threshold):
        remedy = "calls waited for a core: run again on a quieter machine, or use dtdispatch ab"
        return Verdict.INCONCLUSIVE, remedy
    return verdict, remedy


def _is_shift_of_fast_calls(verdict: Verdict, base: StateRow, head: StateRow, threshold: Threshold) -> bool:
    """Return whether the first deciles agree with a verdict: calls that nothing slowed, if there are any.

    While another machine uses the same processor now and then, the median depends on the share of slowed
    calls: on one code, that of 200 hits was 72 % longer in one run, and the first decile of both runs equal.
    """
    ratio, half = quantile(head.ns, 0.1) / quantile(base.ns, 0.1), 1 + threshold.fraction / 2
    if verdict is Verdict.REGRESSED:
        return ratio >= half
    if verdict is Verdict.IMPROVED:
        return ratio <= 1 / half
    return verdict is not Verdict.PASSED or ratio <= 1 + threshold.fraction


def _refusals(saved: Sequence[StateRow]) -> Iterator[RowVerdict]:
    """Yield a verdict against the saved run if half of the thresholds lack samples or most are unusable."""
    few = sum(len(row.ns) < LEAST_SAMPLES for row in saved)
    useless = sum(bool(_unusable(row, saved=True)) for row in saved)
    if (few and 2 * few >= len(saved)) or 2 * useless > len(saved):
        why = f"{useless} of {len(saved)} thresholds can never be judged against this saved run"
        remedy = (
            "save one on a quieter machine with a greater --dtdispatch-rounds or --dtdispatch-max-time, "
            "or judge other states only: hit=median:20%"
        )
        yield RowVerdict(RowId("", why), Verdict.MISMATCHED, None, remedy)


def _waited_more(row: StateRow, other: StateRow) -> bool:
    """Return whether one row waited for a core much longer than another, and may be too slow."""
    return row.waited - other.waited > MAX_WAITED


def _is_slow_by_waits(base: StateRow, head: StateRow, threshold: Threshold) -> bool:
    """Return whether other processes may have slowed a row: it waited, and its samples show it.

    Either its quartiles differ by more than the threshold, or most samples were preempted. With four busy
    loops, the quartiles of a miss differ by 9 to 28 %, although preempted calls are repeated; on a quiet
    machine, by 5 to 23 %. Repetitions do not help calls that take longer than the scheduler's time slice:
    beside four loops, each miss of 5 ms took 17 ms.
    """
    lower, upper = quantile(head.ns, 0.25), quantile(head.ns, 0.75)
    shows_waits = upper > lower * (1 + threshold.fraction) or head.preempted > MOST_PREEMPTED
    return _waited_more(head, base) and shows_waits


def _traced(names: Sequence[str]) -> str:
    return f"{traced_text(names)}: compare two runs without it"


def _unusable(row: StateRow, saved: bool = False) -> str:
    """Return why the samples of a row of this or the saved run cannot be judged; empty if they can."""
    if len(row.ns) < MIN_SAMPLES:
        is_compiled = row.state in (State.COMPILE_COLD, State.COMPILE_WARM)
        return str(Unusable.FEW_COMPILED if is_compiled else Unusable.FEW)
    if row.tracers:
        return _traced(row.tracers)
    if not min(row.ns):
        return str(Unusable.ZERO)
    if (scatter(row.ns) or 0.0) > NOISY:
        return str(Unusable.NOISY_SAVED if saved else Unusable.NOISY)
    return ""


def _interval_verdict(interval: Sequence[float], threshold: Threshold) -> tuple[Verdict, str]:
    """Return verdict and remedy of an interval (low, ratio, high) for a threshold."""
    (low, ratio, high), most = interval, 1 + threshold.fraction
    if low > most:
        return Verdict.REGRESSED, "find what slowed it, or save a new run if the cost is wanted"
    if high > most:
        remedy = "the interval contains the threshold: run more rounds, or compare builds with dtdispatch ab"
        return Verdict.INCONCLUSIVE, remedy
    if threshold.fraction and max(ratio / low, high / ratio) > most:
        remedy = (
            "the interval is wider than the threshold: run again, or save a new run, on a quieter machine, "
            "or compare builds with dtdispatch ab"
        )
        return Verdict.INCONCLUSIVE, remedy
    return (Verdict.IMPROVED, "save a new run to keep it") if high < 1 / most else (Verdict.PASSED, "")
