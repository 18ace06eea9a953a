"""Judge a run against one that pytest-benchmark saved: what became slower by more than its threshold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pytest_dtdispatch.core.environment import Machine, machine_of, mapping
from pytest_dtdispatch.core.measurement import NOISY, State, noise_text
from pytest_dtdispatch.core.saved_file import member, members_of, read_saved, time_ns
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold, Verdict, read_thresholds
from pytest_dtdispatch.gates.figure_ratios import STATISTICS, interval_of_ratio
from pytest_dtdispatch.stats.medians import scatter

GROUP = "dtdispatch "
FIGURES = ("min", "median", "mean")  # quartiles are defined in more than one way
MIN_SAMPLES = 8  # the least and the greatest of fewer do not cover their median with 99 %
LEAST_SAMPLES = 5  # the rounds that a slow row has without being asked for fewer
MOST_CONTROL_SHIFT = 0.03
LONGEST_MESH = 40
CHANGES = ("change_percent", "change_low_percent", "change_high_percent")

NEVER_SAVED = "it is not in the saved run: save a new one where the row belongs there"
GONE = "it is in the saved run and was not measured: restore the test, or save a new run"
TOO_FEW = f"fewer than {MIN_SAMPLES} samples: raise {{flag}}, in the saved run too"
FLAGS, COMPILE_FLAG = "--dtdispatch-rounds or --dtdispatch-max-time", "--dtdispatch-compile-rounds"
SAVE_MORE = (
    "save one with --benchmark-save-data and a greater --dtdispatch-rounds or --dtdispatch-max-time "
    "where little else runs, or hold other states alone: hit=median:20%"
)
NO_SAMPLES = "the saved run has no samples: save it with --benchmark-save-data"
OTHER_MESH = "mesh: {} then, {} now; save a new run on this mesh"
STRADDLES = "the threshold is inside the interval: take more rounds, or compare builds with dtdispatch ab"
SLOWER = "find what slowed it, or save a new run where the cost is wanted"
IN_THIS_RUN = "noisy: {noise}; run again where less else runs, or compare builds with dtdispatch ab"
IN_SAVED_RUN = "noisy in the saved run: {noise}; save a new one where less else runs"
CONTAMINATED = (
    "the same op on plain tensors shifted too, so it may have been the machine: run again, "
    "or compare builds with dtdispatch ab"
)


@dataclass(frozen=True)
class StateRow:
    """One signature in one state in one test.

    Args:
        name: unique in its run, the same from run to run.
        state: of its samples.
        ns: samples in nanoseconds, in the order taken; none where the run was saved without them.
        figures: in nanoseconds, of a row without samples: its least, its median, its mean.
        mesh: that it ran on, as text; empty where it used none, None where the saved run does not say.
        thresholds: that the marker of its test had when it was saved.
    """

    name: str
    state: State
    ns: tuple[float, ...]
    figures: tuple[tuple[str, float], ...] = ()
    mesh: str | None = None
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True)
class SavedRun:
    """All of a saved run that concerns us.

    Args:
        where: its file.
        machine: what must be equal before figures may be compared.
        rows: ours; those of other benchmarks are left out.
        metric: that its rows are of, as ``--dtdispatch-metric`` names it.
        day: when it was saved, as ``2026-07-31``; empty where it does not say.
    """

    where: str
    machine: Machine
    rows: tuple[StateRow, ...]
    metric: str = "time"
    day: str = ""


@dataclass(frozen=True)
class Judgement:
    """What a gate says of a whole run.

    Args:
        verdicts: of each row and threshold.
        control_shift: median growth of the rows on plain tensors, as a fraction; None where both runs
            share none.
        controls: how many they are.
    """

    verdicts: tuple[RowVerdict, ...]
    control_shift: float | None = None
    controls: int = 0

    @property
    def has_compared(self) -> bool:
        """Whether any row could be told to be this side of its threshold or the other."""
        told = {Verdict.PASSED, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.CONTAMINATED}
        return any(row.verdict in told for row in self.verdicts)

    @property
    def failed(self) -> tuple[RowVerdict, ...]:
        """Rows that the run must fail by; an inconclusive one only where its threshold is strict."""
        harmless = {Verdict.PASSED, Verdict.IMPROVED, Verdict.NEW}
        decided = (row for row in self.verdicts if row.is_strict or row.verdict is not Verdict.INCONCLUSIVE)
        return tuple(row for row in decided if row.verdict not in harmless)

    @property
    def has_failed(self) -> bool:
        """Whether the run must fail, because of rows or because nothing was compared."""
        return bool(self.failed) or not self.has_compared

    @property
    def has_shifted(self) -> bool:
        """Whether plain tensors shifted so far that the machine may have done what rows show."""
        return self.control_shift is not None and abs(self.control_shift) > MOST_CONTROL_SHIFT

    @property
    def unresolved(self) -> tuple[RowVerdict, ...]:
        """Rows whose threshold is under what they could resolve, the worst first."""
        figures = [(dict(row.figures), row) for row in self.verdicts if row.figures]
        under = [
            (found["resolution_percent"], row)
            for found, row in figures
            if found["resolution_percent"] > found["threshold_percent"]
        ]
        return tuple(row for _, row in sorted(under, key=lambda each: -each[0]))


def read_run(path: Path) -> SavedRun:
    """Read a saved run, which may come from anywhere."""
    return read_saved(path, lambda run: _read(run, str(path)))


def parse_run(text: str, where: str) -> SavedRun:
    """Read the text of a saved run."""
    return _read(members_of(text), where)


def _read(run: Any, where: str) -> SavedRun:
    benchmarks = member(run, "benchmarks", list, "the file")
    info = member(run, "machine_info", dict, "the file")
    rows = tuple(_rows(benchmarks))
    for name, times in Counter(row.name for row in rows).items():
        if times > 1:
            raise ValueError(f"{name!r} is there twice")
    metric = mapping(info.get("dtdispatch")).get("metric") or "time"
    return SavedRun(where, machine_of(info), rows, shorten(str(metric)), _day(run.get("datetime")))


def not_judged(verdict: Verdict, why: str, remedy: str = "") -> Judgement:
    """Say of every row at once why it could not be judged."""
    return Judgement((RowVerdict(why, verdict, (), remedy),))


def judge_run(
    base: Sequence[StateRow], head: Sequence[StateRow], thresholds: Callable[[StateRow], Sequence[Threshold]]
) -> Judgement:
    """Judge every row that has a threshold.

    Regressed is a row whose whole interval of the ratio, with 99 % by bootstrap, is past its threshold;
    improved is one that has become faster by as much. Where rows on plain tensors, in which no dispatch is,
    shifted by more than 3 % in the median, the machine may have done it: such a row is contaminated, and not
    regressed. A row under its threshold passes all the same.
    """
    then, now = {row.name: row for row in base}, {row.name: row for row in head}
    shifts = list(_control_shifts(then, now))
    shift = math.expm1(median(shifts)) if shifts else None
    verdicts: list[RowVerdict] = []
    saved: list[tuple[StateRow, str]] = []
    for name in dict.fromkeys((*now, *then)):
        row = then.get(name) or now[name]
        limits = thresholds(row) if row.state is not State.LOCAL else ()
        verdicts += [_judge_row(name, then.get(name), now.get(name), limit) for limit in limits]
        saved += [(row, limit.field) for limit in limits if name in then]
    judgement = Judgement((*verdicts, *_refusals(saved)), shift, len(shifts))
    if judgement.has_shifted:
        return replace(judgement, verdicts=tuple(map(_doubted, judgement.verdicts)))
    return judgement


def _rows(benchmarks: list[Any]) -> Iterator[StateRow]:
    for place, benchmark in enumerate(benchmarks, start=1):
        name = member(benchmark, "fullname", str, f"benchmark {place}")
        stats = member(benchmark, "stats", dict, repr(name))
        state = name.rpartition("::")[2]
        if not f"{benchmark.get('group')} ".startswith(f"{GROUP}{state} "):  # a comparison is named behind it
            continue
        if state not in set(map(str, State)):
            raise ValueError(f"{name!r} has no state that is known")
        samples = stats.get("data", [])
        if not isinstance(samples, list):
            raise ValueError(f"{name!r}: its data is no list")
        mesh = mapping(benchmark.get("params")).get("mesh")
        held = mapping(benchmark.get("extra_info")).get("threshold")
        yield StateRow(
            name,
            State(state),
            tuple(time_ns(sample, name) for sample in samples),
            tuple((field, time_ns(stats.get(field), name)) for field in FIGURES),
            None if mesh is None else str(mesh)[:LONGEST_MESH],
            read_thresholds(held) if held else (),
        )


def _day(saved: Any) -> str:
    try:
        return datetime.fromisoformat(saved).date().isoformat()
    except (TypeError, ValueError):
        return ""


def _control_shifts(then: Mapping[str, StateRow], now: Mapping[str, StateRow]) -> Iterator[float]:
    for name, row in now.items():
        if row.state is State.LOCAL and name in then:
            base, head = _figure(then[name], "median"), _figure(row, "median")
            if base and head:
                yield math.log(head / base)


def _figure(row: StateRow, field: str) -> float | None:
    return STATISTICS[field](row.ns) if row.ns else dict(row.figures).get(field)


def _doubted(verdict: RowVerdict) -> RowVerdict:
    """Turn a change that the machine may have made into what can be said of it; what passed has passed."""
    if verdict.verdict is Verdict.REGRESSED:
        return replace(verdict, verdict=Verdict.CONTAMINATED, remedy=CONTAMINATED)
    return replace(verdict, remedy=CONTAMINATED) if verdict.verdict is Verdict.IMPROVED else verdict


def _judge_row(name: str, base: StateRow | None, head: StateRow | None, threshold: Threshold) -> RowVerdict:
    criterion = f"{threshold} of all samples"  # tables show the quietest block
    judged = partial(RowVerdict, name, criterion=criterion, is_strict=threshold.is_strict)
    if head is None:
        return judged(Verdict.MISSING, (), GONE)
    if base is None:
        return judged(Verdict.NEW, (), NEVER_SAVED)
    if base.mesh not in (None, head.mesh):
        return judged(Verdict.MISMATCHED, (), OTHER_MESH.format(base.mesh or "none", head.mesh or "none"))
    then = _figure(base, threshold.field)
    why_not = _why_not(base, threshold.field, IN_SAVED_RUN) or _why_not(head, threshold.field, IN_THIS_RUN)
    if why_not or then is None:
        return judged(Verdict.INCONCLUSIVE, (), why_not)
    now = STATISTICS[threshold.field](head.ns)
    low, high = interval_of_ratio(base.ns or (then,), head.ns, STATISTICS[threshold.field])
    figures = (
        ("base_ns", then),
        ("head_ns", now),
        ("ratio", now / then),
        ("ratio_low", low),
        ("ratio_high", high),
        *zip(CHANGES, (100 * (ratio - 1) for ratio in (now / then, low, high)), strict=True),
        ("threshold_percent", 100 * threshold.fraction),
        # Slower samples move the ratio and its interval by one factor: here the interval would leave 1.
        ("resolution_percent", 100 * (now / then / low - 1) if low > 0 else math.inf),
        ("base_samples", len(base.ns)),
        ("head_samples", len(head.ns)),
    )
    verdict, remedy = _place(low, high, 1 + threshold.fraction)
    return judged(verdict, figures, remedy)


def _refusals(saved: Sequence[tuple[StateRow, str]]) -> Iterator[RowVerdict]:
    """Refuse a saved run of whose thresholds half lack samples, or most can never be judged."""
    few = sum(_figure(row, field) is None or 0 < len(row.ns) < LEAST_SAMPLES for row, field in saved)
    useless = sum(bool(_why_not(row, field, IN_SAVED_RUN)) for row, field in saved)
    if (few and 2 * few >= len(saved)) or 2 * useless > len(saved):
        why = f"{useless} of {len(saved)} thresholds can never be judged against this saved run"
        yield RowVerdict(why, Verdict.MISMATCHED, (), SAVE_MORE)


def _why_not(row: StateRow, field: str, noisy: str) -> str:
    """Say why what one run has of a row can decide nothing; empty where it can."""
    if _figure(row, field) is None:
        return NO_SAMPLES
    if 0 < len(row.ns) < MIN_SAMPLES:
        flag = COMPILE_FLAG if row.state in (State.COMPILE_COLD, State.COMPILE_WARM) else FLAGS
        return TOO_FEW.format(flag=flag)
    share = scatter(row.ns) or 0.0
    return noisy.format(noise=noise_text(share)) if share > NOISY else ""


def _place(low: float, high: float, most: float) -> tuple[Verdict, str]:
    if low > most:
        return Verdict.REGRESSED, SLOWER
    if high > most:
        return Verdict.INCONCLUSIVE, STRADDLES
    return (Verdict.IMPROVED, "save a new run to keep it") if high < 1 / most else (Verdict.PASSED, "")
