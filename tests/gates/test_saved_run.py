"""Comparison with a saved run: the verdict of each row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import MIN_SAMPLES, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Judgement, Outlook, Threshold, TimeChange
from pytest_dtdispatch.gates.saved_run import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    PlainShift,
    StateRow,
    control_shifts,
    environment_differences,
    interval_of_ratio,
    judge_run,
    outlook_of,
    possible_causes,
)

TEN = Threshold("", "median", 0.1)
STEADY = tuple(1000 + 7 * n % 20 for n in range(20))


def row(name: str = "hit", factor: float = 1.0, count: int = 20) -> StateRow:
    ns = tuple(round(1000 * factor * STEADY[n % 20]) for n in range(count))
    return StateRow(RowId("t.py::test_a", name, name.split()[0]), ns)


def judge(base: Iterable[StateRow], head: Iterable[StateRow], *thresholds: Threshold) -> Judgement:
    return judge_run(list(base), list(head), lambda _: thresholds or (TEN,))


def verdicts_of(judgement: Judgement) -> list[str]:
    return [str(row.verdict) for row in judgement.verdicts]


@pytest.mark.parametrize("traced", ["base", "head"])
def test_traced_rows_are_not_judged(traced: str) -> None:
    sides = {"base": row(), "head": row(factor=2.0)}
    sides[traced] = replace(sides[traced], tracers=("coverage",))
    judgement = judge([sides["base"]], [sides["head"]])
    assert verdicts_of(judgement)[:1] == ["mismatched"]
    assert judgement.has_failed
    then, now = ([replace(side, tracers=("coverage",))] for side in sides.values())
    assert verdicts_of(judge(then, now))[:1] == ["inconclusive"]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, "passed"),
        (1.05, "passed"),
        (1.1, "inconclusive"),
        (1.15, "regressed"),
        (0.95, "passed"),
        (0.5, "improved"),
    ],
)
def test_row_is_judged_by_its_whole_interval(factor: float, verdict: str) -> None:
    judgement = judge([row()], [row(factor=factor)])
    assert verdicts_of(judgement) == [verdict]
    change = judgement.verdicts[0].change
    assert isinstance(change, TimeChange)
    assert change.change_percent == pytest.approx(100 * (factor - 1))
    assert change.low_percent <= change.change_percent <= change.high_percent
    assert judgement.verdicts[0].criterion == "median:10%"
    assert bool(judgement.verdicts[0].remedy) == (verdict != "passed")


@pytest.mark.parametrize("field", ["min", "q1", "median", "q3", "mean"])
def test_every_field_detects_a_slowdown(field: str) -> None:
    threshold = Threshold("", field, 0.1)
    assert verdicts_of(judge([row()], [row()], threshold)) == ["passed"]
    both = judge([row()], [row(factor=1.5)], threshold, Threshold("", field, 1.0))
    assert verdicts_of(both) == ["regressed", "passed"]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 10**6), min_size=MIN_SAMPLES, max_size=40))
def test_equal_runs_never_regress_or_improve(ns: list[int]) -> None:
    same = StateRow(RowId("t.py::test_a", "add", State.HIT), tuple(ns))
    assert verdicts_of(judge([same], [same]))[0] in ("passed", "inconclusive")


def test_unmatched_rows_are_new_or_missing() -> None:
    judgement = judge([row(), row("miss")], [row(), row("call")])
    assert verdicts_of(judgement) == ["passed", "new", "missing"]
    assert judgement.has_failed
    assert not judge([row()], [row(), row("call")]).has_failed


def test_control_rows_and_rows_without_threshold_are_ignored() -> None:
    judgement = judge_run([row(), row("local")], [row(), row("local")], lambda _: ())
    assert judgement.verdicts == ()
    assert judgement.has_failed  # passes only if a row was compared
    assert verdicts_of(judge([row("local")], [row("local")])) == []


@pytest.mark.parametrize(
    ("then", "now", "factor", "verdict"),
    [
        (0.5, 0.0, 1.0, "inconclusive"),
        (0.5, 0.0, 0.5, "inconclusive"),
        (0.5, 0.0, 1.5, "regressed"),
        (0.5, 0.45, 1.0, "passed"),
        (0.0, 0.5, 1.0, "passed"),
    ],
)
def test_baseline_that_waited_is_inconclusive(then: float, now: float, factor: float, verdict: str) -> None:
    sides = replace(row(), waited=then), replace(row(factor=factor), waited=now)
    assert verdicts_of(judge([sides[0]], [sides[1]])) == [verdict]


@pytest.mark.parametrize(
    ("waited", "upper", "preempted", "verdict"),
    [
        (0.5, 2000, 0.0, "inconclusive"),
        (0.5, 1500, 0.0, "regressed"),
        (0.5, 1500, 0.4, "regressed"),
        (0.5, 1500, 0.9, "inconclusive"),
        (0.1, 2000, 0.9, "regressed"),
    ],
)
def test_slow_row_that_waited_is_inconclusive(
    waited: float, upper: int, preempted: float, verdict: str
) -> None:
    head = replace(row(), ns=(1_400_000, 1000 * upper) * 10, waited=waited, preempted=preempted)
    assert verdicts_of(judge([row()], [head])) == [verdict]
    outlook = Outlook.SLOW if verdict == "inconclusive" else Outlook.FAILING
    assert outlook_of(row(), head, TEN, PlainShift()) is outlook


@pytest.mark.parametrize(
    ("then", "now", "factor", "verdict", "outlook"),
    [
        (100, 160, 1.5, "inconclusive", Outlook.SLOW),
        (100, 160, 1.9, "inconclusive", Outlook.SLOW),
        (100, 160, 2.5, "regressed", Outlook.FAILING),
        (100, 160, 1.0, "passed", Outlook.DECIDED),
        (100, 105, 1.5, "regressed", Outlook.FAILING),
        (160, 100, 1.0, "inconclusive", Outlook.DECIDED),
        (160, 100, 0.6, "inconclusive", Outlook.DECIDED),
        (210, 100, 0.33, "inconclusive", Outlook.DECIDED),
        (160, 100, 0.3, "improved", Outlook.DECIDED),
        (0, 160, 1.5, "regressed", Outlook.FAILING),
    ],
)
def test_speed_of_the_core_explains_a_shift(
    then: int, now: int, factor: float, verdict: str, outlook: Outlook
) -> None:
    base, head = replace(row(), speed_ns=then), replace(row(factor=factor), speed_ns=now)
    assert verdicts_of(judge([base], [head])) == [verdict]
    assert outlook_of(base, head, TEN, PlainShift()) is outlook


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ((1000, 1000), (1000, 1500), "inconclusive"),
        ((1000, 1000), (1040, 1500), "inconclusive"),
        ((1000, 1000), (1200, 1500), "regressed"),
        ((700, 1000), (700, 700), "inconclusive"),
        ((900, 1000), (700, 700), "improved"),
        ((800, 1000), (1000, 1000), "inconclusive"),
        ((950, 1000), (1000, 1000), "passed"),
        ((1000, 1000), (500, 1000), "passed"),
    ],
)
def test_fastest_tenth_of_calls_confirms_the_median(
    base: tuple[int, int], head: tuple[int, int], verdict: str
) -> None:
    sides = [replace(row(), ns=(fast,) * 3 + (other,) * 17) for fast, other in (base, head)]
    assert verdicts_of(judge([sides[0]], [sides[1]])) == [verdict]


@pytest.mark.parametrize(
    ("factor", "blocks", "slow_blocks", "verdict"),
    [
        (1.5, 4, 3, "inconclusive"),
        (1.5, 4, 2, "regressed"),
        (1.5, 4, 0, "regressed"),
        (1.5, 1, 0, "regressed"),
        (2.5, 4, 3, "inconclusive"),
        (3.6, 4, 3, "regressed"),
    ],
)
def test_one_fast_block_needs_a_large_shift(
    factor: float, blocks: int, slow_blocks: int, verdict: str
) -> None:
    head = replace(row(factor=factor), blocks=blocks, slow_blocks=slow_blocks)
    assert verdicts_of(judge([row()], [head])) == [verdict]


def test_control_row_of_slow_core_is_excluded() -> None:
    slow = replace(row("local", factor=1.6), speed_ns=160)
    then = {slow.row: replace(row("local"), speed_ns=100)}
    assert control_shifts(then, {slow.row: slow}) == {}
    assert control_shifts(then, {slow.row: replace(slow, speed_ns=105)})[slow.row] == pytest.approx(
        math.log(1.6)
    )


@pytest.mark.parametrize(
    ("head", "outlook"),
    [
        (row(), Outlook.DECIDED),
        (row(factor=1.5), Outlook.FAILING),
        (row(factor=1.1), Outlook.OPEN),
        (row(count=4), Outlook.OPEN),
        (replace(row(), ns=(1000, 5000, 4000) * 8), Outlook.OPEN),
        (replace(row(factor=1.5), tracers=("coverage",)), Outlook.DECIDED),
    ],
)
def test_row_has_an_outlook(head: StateRow, outlook: Outlook) -> None:
    assert outlook_of(row(), head, TEN, PlainShift()) is outlook
    useless = replace(row(), ns=STEADY[:4])
    assert outlook_of(useless, head, TEN, PlainShift()) is Outlook.DECIDED


def test_saved_zeros_are_inconclusive() -> None:
    zeros = replace(row(), ns=(0,) * 10 + (1000,) * 10)
    assert outlook_of(zeros, row(), TEN, PlainShift()) is Outlook.DECIDED
    assert verdicts_of(judge([zeros], [row()]))[0] == "inconclusive"


def test_contaminated_row_would_fail() -> None:
    assert outlook_of(row(), row(factor=1.15), TEN, PlainShift(0.08, 0.08)) is Outlook.FAILING
    assert outlook_of(replace(row(), waited=0.5), row(), TEN, PlainShift()) is Outlook.DECIDED


@pytest.mark.parametrize(
    ("factor", "control", "verdict"),
    [
        (1.5, 1.04, "regressed"),
        (1.5, 1.02, "regressed"),
        (1.5, 0.9, "regressed"),
        (1.15, 1.08, "contaminated"),
        (1.15, 2.0, "contaminated"),
        (1.1, 1.5, "inconclusive"),
        (1.0, 1.04, "passed"),
        (1.0, 1.5, "passed"),
        (1.0, 0.9, "inconclusive"),
        (0.5, 1.04, "improved"),
        (0.5, 0.5, "inconclusive"),
    ],
)
def test_shift_of_plain_ops_is_subtracted(factor: float, control: float, verdict: str) -> None:
    judgement = judge([row(), row("local")], [row(factor=factor), row("local", factor=control)])
    assert verdicts_of(judgement) == [verdict]
    text = f"the op on plain tensors shifted by {100 * (control - 1):+.1f} % "
    assert judgement.remarks[0].startswith(text)


@pytest.mark.parametrize(
    ("controls", "verdict"),
    [
        ((1.07, 1.08, 1.08, 1.09, 1.1, 1.3), "contaminated"),
        ((0.97, 1.02, 1.08, 1.09, 1.1, 1.3), "regressed"),
        ((0.97, 1.02, 1.08, 1.09, 1.1), "contaminated"),
    ],
    ids=["shifted", "scattered", "few"],
)
def test_scatter_of_plain_ops_does_not_contaminate(controls: Sequence[float], verdict: str) -> None:
    base = [row(), *(row(f"local {n}") for n in range(len(controls)))]
    head = [row(factor=1.15), *(row(f"local {n}", factor) for n, factor in enumerate(controls))]
    assert verdicts_of(judge(base, head)) == [verdict]


@pytest.mark.parametrize("factor", [0.7, 0.5])
def test_disturbed_baseline_is_inconclusive(factor: float) -> None:
    quiet = replace(row("miss"), ns=tuple(round(1000 * factor) + number for number in range(9)))
    disturbed = replace(quiet, ns=(640, 965, 1100, 640, 1150, 965, 1000, 640, 1200))
    threshold = Threshold("", "median", 0.2)
    assert verdicts_of(judge([disturbed], [quiet], threshold))[0] == "inconclusive"
    assert verdicts_of(judge([quiet], [quiet], threshold)) == ["passed"]
    assert verdicts_of(judge([disturbed], [row("miss", factor=2.0)], threshold)) == ["regressed"]


def test_single_shifted_control_row_is_ignored() -> None:
    base = [row(), *(StateRow(RowId("t.py::test_a", name, State.LOCAL), STEADY) for name in "abc")]
    head = [*base[:3], replace(base[3], ns=tuple(3 * ns for ns in STEADY))]
    judgement = judge(base, head)
    assert verdicts_of(judgement) == ["passed"]
    assert judgement.remarks == ("the op on plain tensors shifted by +0.0 % (median of 3 rows)",)
    assert judge([row()], [row()]).remarks == (), "unknown without a control row"


@pytest.mark.parametrize(("base", "head"), [(2, 20), (20, 2), (MIN_SAMPLES - 1, 200)])
@pytest.mark.parametrize(
    ("state", "flag"),
    [("hit", "--dtdispatch-rounds or --dtdispatch-max-time"), ("compile-cold", "dtdispatch_compile_rounds")],
)
def test_too_few_samples_are_inconclusive(base: int, head: int, state: str, flag: str) -> None:
    """Too few samples are inconclusive, and a run without other rows fails."""
    then, now = row(state, count=base), row(state, count=head, factor=2.0)
    judgement = judge([then], [now])
    assert verdicts_of(judgement)[0] == "inconclusive"
    remedy = f"fewer than {MIN_SAMPLES} samples: raise {flag}, in the saved run too"
    assert judgement.verdicts[0].remedy == remedy
    assert judgement.has_failed
    others = [row("miss"), row("call")]
    assert not judge([then, *others], [now, *others]).has_failed


def test_saved_run_with_too_few_samples_is_refused() -> None:
    base = [row(count=LEAST_SAMPLES - 1), row("miss"), row("local")]
    judgement = judge(base, [row(), row("miss"), row("local")])
    assert verdicts_of(judgement) == ["inconclusive", "passed", "mismatched"]
    [refused] = judgement.failed
    assert str(refused.row) == "1 of 2 thresholds can never be judged against this saved run"
    assert refused.remedy.startswith("save one on a quieter machine with a greater --dtdispatch-rounds ")
    better = judge([*base, row("call")], [row(), row("miss"), row("local"), row("call")])
    assert not better.has_failed


@pytest.mark.parametrize("ns", [(1000, 5000, 4000) * 8, STEADY[:LEAST_SAMPLES]], ids=["noisy", "slow"])
def test_saved_run_of_unjudgeable_rows_is_refused(ns: tuple[int, ...]) -> None:
    names = ["hit", "miss", "call", "cold"]
    useless, head = [replace(row(name), ns=ns) for name in names], [row(name) for name in names]
    assert not judge([*useless[:2], *head[2:]], head).has_failed
    [refused] = judge([*useless[:3], *head[3:]], head).failed
    assert str(refused.row) == "3 of 4 thresholds can never be judged against this saved run"


def test_strict_threshold_fails_an_inconclusive_row() -> None:
    strict = replace(TEN, is_strict=True)
    rows = [row(), row("miss")], [row(), row("miss", factor=1.1)]
    assert verdicts_of(judge(*rows, strict)) == verdicts_of(judge(*rows)) == ["passed", "inconclusive"]
    assert not judge(*rows).has_failed
    [failed] = judge(*rows, strict).failed
    assert (failed.row.label, failed.criterion) == ("miss", "median:10%,strict")
    assert not judge([row()], [row(), row("miss")], strict).has_failed, "new rather than inconclusive"


@pytest.mark.parametrize(("then", "now"), [("4", "4:cuda"), ("", "4"), ("4", "")])
def test_row_on_another_mesh_is_mismatched(then: str, now: str) -> None:
    judgement = judge([replace(row(), mesh=then), row("call")], [replace(row(), mesh=now), row("call")])
    assert verdicts_of(judgement) == ["mismatched", "passed"]
    remedy = f"mesh: {then or 'none'} then, {now or 'none'} now; save a new run on this mesh"
    assert judgement.failed[0].remedy == remedy


def test_many_samples_are_judged_in_seconds() -> None:
    many = replace(row(), ns=tuple(round(1e6 + 1e3 * math.sin(n)) for n in range(50 * MOST_SAMPLES)))
    judgement = judge([many], [replace(many, ns=tuple(round(1.5 * ns) for ns in many.ns))])
    assert verdicts_of(judgement) == ["regressed"]
    change = judgement.verdicts[0].change
    assert isinstance(change, TimeChange)
    assert change.head_samples == len(many.ns)


@pytest.mark.parametrize("count", [340, 400, 1000])
def test_interval_of_periodic_samples_contains_the_ratio(count: int) -> None:
    base = tuple(1300 if n % 4 == 0 else 1000 + n % 3 for n in range(count))
    low, high = interval_of_ratio(base, (1000, 1001, 1002) * 30, "median")
    assert 0.99 < low <= high < 1.01


def test_more_rounds_decide_a_row_with_slow_samples() -> None:
    """Three of ten samples take up to 1.4 times as long, as if another program had run."""
    slow = {0: 140, 1: 112, 2: 104}

    def judged_with(samples: int) -> list[str]:
        ns = [1000 * slow.get((n * n + n) // 3 % 10, 98 + n % 5) for n in range(samples)]
        return verdicts_of(
            judge([replace(row(), ns=tuple(ns))], [replace(row(), ns=tuple(13 * x // 10 for x in ns))])
        )

    assert judged_with(MOST_SAMPLES) == ["regressed"]
    assert judged_with(20) == ["inconclusive"]


SAVED_ON = {"CPU": "AMD EPYC", "Python": "CPython 3.11.8", "torch version": "2.13.0", "threads": "2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pytest-dtdispatch": "9.9", "load": "7"}, ()),
        ({"torch build": "def"}, ("torch build: unknown then, def now",)),
        ({"CPU": "Xeon", "threads": "4"}, ("CPU: AMD EPYC then, Xeon now", "threads: 2 then, 4 now")),
    ],
)
def test_each_relevant_difference_is_named(change: dict[str, str], message: tuple[str, ...]) -> None:
    assert environment_differences(SAVED_ON, {**SAVED_ON, **change}) == message


def test_differences_list_probable_causes_first() -> None:
    then = {
        **SAVED_ON,
        "OMP_NUM_THREADS": "4",
        "numpy": "1.26",
        "plugins": "a 1, b 2",
        "governor": "powersave",
    }
    now = {**SAVED_ON, "threads": "4", "numpy": "2.0", "plugins": "a 1, c 3"}
    texts = [
        line.removeprefix("another environment: ") for line in possible_causes(then, now, any_machine=False)
    ]
    assert texts == [
        "OMP_NUM_THREADS: 4 then, none now",
        "governor: powersave then, none now",
        "numpy: 1.26 then, 2.0 now; and 1 more: plugins",
    ]
    assert possible_causes(then, now, any_machine=True)[0].endswith("threads: 2 then, 4 now")
    assert possible_causes({"plugins": "a 1, b 2"}, {"plugins": "a 1, c 3"}, any_machine=False) == (
        "another environment: plugins: b 2 then, c 3 now",
    )
    assert not possible_causes(SAVED_ON, SAVED_ON, any_machine=True)


def test_saved_zero_median_fails_with_remedy() -> None:
    judgement = judge([replace(row(), ns=(0,) * 20)], [row()])
    assert "0 ns" in judgement.verdicts[0].remedy
    assert judgement.has_failed


@pytest.mark.parametrize("field", ["min", "median"])
@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_scattered_row_is_inconclusive_in_either_run(factor: float, field: str) -> None:
    quiet = row("miss")
    busy = StateRow(quiet.row, tuple(round(factor * ns) for ns in (1000, 5000, 4000) * 8))
    threshold = Threshold("", field, 0.1)
    [in_this_run] = judge([quiet], [busy], threshold).verdicts
    in_the_saved_run = judge([busy], [quiet], threshold).verdicts[0]
    assert in_this_run.verdict == in_the_saved_run.verdict == "inconclusive"
    assert in_this_run.remedy.startswith("samples scatter by more than 100%")
    assert in_the_saved_run.remedy.startswith("samples of the saved run scatter by more than 100%")
