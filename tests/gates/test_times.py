"""The rule on times: the verdict of one row, from the passes of two runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    MIN_PASSES,
    PASSES,
    Clock,
    Figures,
    Samples,
    State,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold, TimeChange
from pytest_dtdispatch.gates.times import MAX_SHIFT, MAX_WAITED, TimedRow, judge_row, timed_rows
from tests.gates.rows import TEN, in_passes, row
from tests.reported_runs import measured

MEDIAN = Threshold("", "median", 0.1)
TIMES = st.integers(1, 10**6)
EIGHT = st.lists(TIMES, min_size=8, max_size=8)


def judge(
    base: TimedRow | None, head: TimedRow | None, threshold: Threshold = TEN, shift: float = 0.0
) -> RowVerdict:
    return judge_row(RowId("t.py::test_a", "add", "hit"), base, head, threshold, shift)


def verdict(
    base: TimedRow | None, head: TimedRow | None, threshold: Threshold = TEN, shift: float = 0.0
) -> str:
    return str(judge(base, head, threshold, shift).verdict)


def change(base: TimedRow, head: TimedRow, threshold: Threshold = TEN) -> TimeChange:
    found = judge(base, head, threshold).change
    assert isinstance(found, TimeChange)
    return found


# The figure


@pytest.mark.parametrize("field", ["min", "median"])
@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.0, "passed"),
        (1.1, "passed"),
        (1.101, "regressed"),
        (0.91, "passed"),
        (0.9, "improved"),
        (9.0, "regressed"),
    ],
)
def test_growth_of_all_samples_is_judged(field: str, factor: float, expected: str) -> None:
    threshold = Threshold("", field, 0.1)
    found = judge(row(), row(factor=factor), threshold)
    assert (str(found.verdict), found.criterion) == (expected, str(threshold))
    assert bool(found.remedy) == (expected != "passed")
    shown = change(row(), row(factor=factor))
    assert (shown.change_percent, shown.median_percent) == pytest.approx((100 * (factor - 1),) * 2, abs=0.05)
    assert (shown.base_ns, shown.head_ns) == (1000, 1000 * factor)


@pytest.mark.parametrize(
    ("head", "of_min", "of_median"),
    [
        ((1000, 1500, 1500), "passed", "inconclusive"),
        ((1200, 1040, 1100), "passed", "passed"),
        ((1130, 1060, 1300), "passed", "passed"),
        ((1150, 1150, 1150), "regressed", "regressed"),
        ((1110, 1110, 1110), "regressed", "passed"),  # the median grew by less
        ((500, 1040, 1100), "improved", "passed"),
        ((500, 500, 1100), "improved", "improved"),
        ((500, 1500, 1500), "improved", "inconclusive"),
    ],
)
def test_median_rule_needs_the_least_sample_too(head: tuple[int, ...], of_min: str, of_median: str) -> None:
    found = [verdict(row(), row(calls=head), threshold) for threshold in (TEN, MEDIAN)]
    assert found == [of_min, of_median]


def test_moved_median_is_strict_on_request() -> None:
    alone = row(calls=(1000, 1500, 1500))
    strict = judge(row(), alone, replace(MEDIAN, is_strict=True))
    assert (str(strict.verdict), strict.is_strict) == ("inconclusive", True)
    assert change(row(), alone, MEDIAN).median_percent == pytest.approx(100 * (1500 / 1040 - 1))
    assert not judge(row(), alone, MEDIAN).is_strict


@given(st.lists(st.lists(TIMES, min_size=1, max_size=6), min_size=MIN_PASSES, max_size=8))
def test_equal_runs_pass(passes: list[list[int]]) -> None:
    same = in_passes(*passes)
    assert {verdict(same, same, threshold) for threshold in (TEN, MEDIAN)} == {"passed"}


@given(base=EIGHT, head=EIGHT, waits=EIGHT)
def test_interference_with_other_samples_decides_nothing(
    base: list[int], head: list[int], waits: list[int]
) -> None:
    """Interference only adds time, and one undisturbed sample is enough."""
    waits[head.index(min(head))] = 0
    disturbed = [ns + wait for ns, wait in zip(head, waits, strict=True)]
    then, now, later = (in_passes(*zip(ns, strict=True)) for ns in (base, head, disturbed))
    assert verdict(then, later) == verdict(then, now)


# Plain ops


@pytest.mark.parametrize(
    ("factor", "shift", "expected"),
    [
        (1.15, 0.08, "contaminated"),
        (1.15, 2.0, "contaminated"),
        (1.15, 0.04, "regressed"),  # by more than the threshold even then
        (1.12, MAX_SHIFT, "regressed"),
        (1.5, 0.08, "regressed"),
        (1.5, -0.5, "regressed"),
        (1.05, 0.5, "passed"),
        (1.0, -0.5, "passed"),
        (0.5, 0.5, "improved"),
    ],
)
def test_shift_that_decides_the_verdict_contaminates(factor: float, shift: float, expected: str) -> None:
    assert verdict(row(), row(factor=factor), TEN, shift) == expected
    assert verdict(row(), row(factor=factor), MEDIAN, shift) == expected


@pytest.mark.parametrize(
    ("waited", "cpu", "expected"),
    [
        (MAX_WAITED, 1.3, "regressed"),
        (0.76, 1.3, "contaminated"),
        (0.76, 1.05, "passed"),
        (0.76, 0.5, "improved"),
        (0.76, None, "regressed"),  # by wall time, whose least sample contains no wait
    ],
)
def test_waits_contaminate_cpu_time_that_grew(waited: float, cpu: float | None, expected: str) -> None:
    head = row(factor=1.3, cpu=cpu)
    head = replace(head, samples=replace(head.samples, waited=waited))
    assert verdict(row(cpu=None if cpu is None else 1.0), head) == expected


# Passes


@pytest.mark.parametrize(
    ("state", "least", "reason"),
    [("hit", MIN_PASSES, "fewer than 4 passes"), ("compile-cold", PASSES, "fewer than 8 compiles")],
)
@pytest.mark.parametrize("short", ["base", "head"])
def test_few_passes_are_inconclusive(short: str, state: str, least: int, reason: str) -> None:
    sides = {"base": row(state, passes=least), "head": row(state, 2.0, passes=least)}
    assert verdict(sides["base"], sides["head"]) == "regressed"
    sides[short] = row(state, passes=least - 1)
    found = judge(sides["base"], sides["head"])
    assert (str(found.verdict), found.change) == ("inconclusive", None)
    assert found.remedy.startswith(reason)


FOUR = [(9, 8)] * 4


@pytest.mark.parametrize(
    ("longer", "samples", "figures"),
    [
        ([*FOUR, (1, 1)], 8, (8, 8)),
        ([(9, 8, 1)] * 4, 8, (8, 8)),
        ([(9,), (7, 1), (9, 8), (9, 8), (1,)], 4, (9, 7)),
    ],
    ids=["passes", "calls", "both"],
)
def test_smaller_numbers_of_both_runs_are_compared(
    longer: list[tuple[int, ...]], samples: int, figures: tuple[int, int]
) -> None:
    now, then = (
        change(*sides)
        for sides in ((in_passes(*FOUR), in_passes(*longer)), (in_passes(*longer), in_passes(*FOUR)))
    )
    assert (now.samples, now.base_ns, now.head_ns) == (samples, *figures)
    assert (then.samples, then.head_ns, then.base_ns) == (samples, *figures)


# Clocks


@pytest.mark.parametrize(
    ("base", "head", "expected", "clock", "wall_percent"),
    [
        (row(factor=2.0, cpu=1.0), row(factor=3.0, cpu=1.0), "passed", Clock.CPU, 50),
        (row(factor=2.0, cpu=1.0), row(factor=2.0, cpu=1.5), "regressed", Clock.CPU, 0),
        (row(factor=2.0, cpu=1.0), row(factor=3.0), "regressed", Clock.WALL, None),
        (row(factor=2.0), row(factor=2.0, cpu=1.5), "passed", Clock.WALL, None),
        (row(factor=2.0), row(factor=2.0), "passed", Clock.WALL, None),
    ],
)
def test_two_clocks_are_never_compared(
    base: TimedRow, head: TimedRow, expected: str, clock: Clock, wall_percent: float | None
) -> None:
    for threshold in (TEN, MEDIAN):
        assert verdict(base, head, threshold) == expected
        shown = change(base, head, threshold)
        assert (shown.clock, shown.wall_percent) == (clock, wall_percent and pytest.approx(wall_percent))


@pytest.mark.parametrize("is_base", [True, False])
@pytest.mark.parametrize(
    "zero",
    [row(factor=0.0), row(calls=(1000, 0, 1100)), row(cpu=0.0), row(factor=0.0, cpu=1.0)],
    ids=["all", "one", "CPU time", "wall time"],
)
def test_zero_is_no_time_of_a_call(zero: TimedRow, is_base: bool) -> None:
    other = row(cpu=1.0)
    found = judge(zero, other) if is_base else judge(other, zero)
    assert str(found.verdict) == "inconclusive"
    assert found.remedy.startswith("a sample of it is 0 ns: ")


# Rows that only one run has, or that differ in more than their time


@pytest.mark.parametrize(("then", "now"), [("4", "4:cuda"), ("", "4"), ("4", "")])
def test_row_on_another_mesh_is_mismatched(then: str, now: str) -> None:
    found = judge(replace(row(), mesh=then), replace(row(), mesh=now))
    assert str(found.verdict) == "mismatched"
    assert found.remedy == f"mesh: {then or 'none'} then, {now or 'none'} now; save a new run on this mesh"


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ((), (), "regressed"),
        (("x",), (), "mismatched"),
        ((), ("x",), "mismatched"),
        (("x",), ("y",), "inconclusive"),
    ],
)
def test_traced_rows_are_not_judged(base: tuple[str, ...], head: tuple[str, ...], expected: str) -> None:
    found = judge(replace(row(), tracers=base), replace(row(factor=2.0), tracers=head))
    assert str(found.verdict) == expected
    assert ("a tracer or profiler ran" in found.remedy) is (expected != "regressed")


def test_row_of_one_run_is_missing_or_new() -> None:
    assert (verdict(row(), None), verdict(None, row())) == ("missing", "new")
    assert judge(None, row(passes=1)).change is None


# Ranks


@pytest.mark.parametrize(
    ("stat", "factors", "expected"),
    [
        ("median", (1.0, 1.0, 1.5), "passed"),
        ("max", (1.0, 1.0, 1.5), "regressed"),
        ("median", (1.0, 1.5, 1.5), "regressed"),
        ("median", (0.5, 0.5, 1.0), "improved"),
    ],
)
def test_ranks_are_judged_by_the_statistic_of_passes(
    stat: str, factors: tuple[float, ...], expected: str
) -> None:
    """In each pass, one call of the first rank waits for no other rank."""

    def of_ranks(factors: tuple[float, ...]) -> TimedRow:
        ranks = [[10, *(round(1000 * factor) for _ in range(4))] * 4 for factor in factors]
        by_rank = tuple((rank, tuple(ns)) for rank, ns in enumerate(ranks))
        times = Samples(State.HIT, by_rank[0][1], by_rank=by_rank, stat=stat, lengths=(5,) * 4)
        return replace(row(), samples=times)

    base, head = of_ranks((1.0,) * 3), of_ranks(factors)
    assert verdict(base, head) == expected
    assert change(base, head).samples == 4, "one of each pass"


# Rows of a run


def test_each_state_with_latencies_is_a_row() -> None:
    hits, misses = row().samples, replace(row().samples, state=State.MISS)
    counted = Samples(State.CALL, (7,), unit=INSTRUCTIONS)
    traced = replace(
        measured("add", misses, hits, counted), figures=Figures(5, (misses, hits, counted), tracers=("x",))
    )
    found = timed_rows([("t.py::test_a", traced)])
    assert [(each.row, each.state, each.samples) for each in found] == [
        (RowId("t.py::test_a", "add", "miss"), State.MISS, misses),
        (RowId("t.py::test_a", "add", "hit"), State.HIT, hits),
    ]
    assert {(each.mesh, each.tracers) for each in found} == {("4", ("x",))}
