"""The rule of an A/B run, on scripted values: times, counts and instructions."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_dtdispatch.ab.rule import DEFAULT_RULES, LEVEL, Rule, Values, compare, is_undecided, judge
from pytest_dtdispatch.ab.values import CONTROL, Metric
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from tests.row_ids import state_id

ADD = RowId("t.py::test_add", "add@4")
PLAIN = RowId(CONTROL, "add", CONTROL)
HIT, MISS, LOCAL = (ADD._replace(state=state) for state in ("hit", "miss", "local"))
RULE = Rule()
Rows = list[dict[RowId, float]]  # of the processes of a side
PASSED, REGRESSED, IMPROVED = Verdict.PASSED, Verdict.REGRESSED, Verdict.IMPROVED
INCONCLUSIVE, CONTAMINATED = Verdict.INCONCLUSIVE, Verdict.CONTAMINATED


def processes(count: int, seed: int, noise: float = 0.01, **factor: float) -> list[dict[RowId, float]]:
    """Simulate processes: a hit of 7 us, a miss of 1.3 ms, a plain op of 2 us, times their factors."""
    draw = random.Random(seed)
    rows = {"hit": (7e3, noise), "miss": (1.3e6, noise), "local": (2e3, min(noise, 0.002))}

    def drawn(state: str) -> float:
        ns, spread = rows[state]
        return ns * factor.get(state, 1.0) * math.exp(draw.gauss(0, spread))

    return [{ADD._replace(state=state): drawn(state) for state in rows} for _ in range(count)]


def judged(base: Sequence[Values], head: Sequence[Values], rule: Rule = RULE) -> dict[RowId, RowVerdict]:
    return {one.row: one for one in judge(rule, compare(base, head, rule))}


def verdicts(base: Sequence[Values], head: Sequence[Values], rule: Rule = RULE) -> dict[RowId, Verdict]:
    return {row: one.verdict for row, one in judged(base, head, rule).items()}


def needed(base: Sequence[Values], head: Sequence[Values], rule: Rule = RULE) -> int:
    """Return the number of pairs that a run needs for the rule."""
    return next(
        pairs
        for pairs in range(rule.pairs, rule.confirm + 1)
        if pairs == rule.confirm or not is_undecided(compare(base[:pairs], head[:pairs], rule))
    )


@pytest.mark.parametrize(
    ("noise", "factor", "hit", "miss"),
    [
        (0.01, {}, PASSED, PASSED),
        (0.01, {"hit": 1.2}, REGRESSED, PASSED),
        (0.01, {"miss": 0.8}, PASSED, IMPROVED),
        (0.001, {"hit": 1.05, "miss": 1.07}, PASSED, PASSED),  # below the floor, regardless of confidence
        (0.001, {"hit": 1.09, "miss": 1.09}, REGRESSED, PASSED),  # a miss has a different floor
    ],
)
def test_run_has_expected_verdicts(
    noise: float, factor: dict[str, float], hit: Verdict, miss: Verdict
) -> None:
    found = verdicts(processes(8, 1, noise), processes(8, 2, noise, **factor))
    assert found == {HIT: hit, MISS: miss, LOCAL: PASSED}


def values_of(
    shifts: Sequence[float], noise: float = 0.001, row: RowId = HIT
) -> tuple[list[dict[RowId, float]], list[dict[RowId, float]]]:
    """Script both sides of a row: in each process, the head is slower by one of these fractions."""
    base = [{row: 1000 * (1 + noise * number)} for number, _ in enumerate(shifts)]
    head = [{row: values[row] * (1 + shift)} for values, shift in zip(base, shifts, strict=True)]
    return base, head


@pytest.mark.parametrize(
    ("shifts", "pairs", "verdict"),
    [
        ([0.065] * 8, 3, PASSED),  # below the floor by more than its standard error
        ([-0.05] * 8, 3, PASSED),
        ([0.2] * 8, 5, REGRESSED),  # four pairs have p of 1/70
        ([-0.2] * 8, 5, IMPROVED),
        ([0.2, 0.1, *[0.2] * 6], 5, REGRESSED),
        ([0.0745] * 8, 8, PASSED),  # below the floor by less than its standard error
        ([0.3, -0.1, 0.3, -0.1, 0.3, -0.1, 0.3, 0.3], 8, INCONCLUSIVE),
        ([0.3, 0.3, 0.3, *[0.0] * 5], 7, PASSED),
    ],
)
def test_pairs_run_until_the_row_is_decided(shifts: list[float], pairs: int, verdict: Verdict) -> None:
    base, head = values_of(shifts)
    assert needed(base, head) == pairs
    assert verdicts(base[:pairs], head[:pairs])[HIT] is verdict


def test_decided_row_keeps_its_verdict_and_figures() -> None:
    """A row that passed after three pairs stays so while another row is undecided."""
    (base, head), (other, slower) = values_of([0.01] * 3 + [0.5] * 5), values_of([0.3] * 8, row=MISS)
    for one, values in zip((*base, *head), (*other, *slower), strict=True):
        one.update(values)
    assert needed(base, head) == 5
    early, late = judged(base[:3], head[:3]), judged(base[:5], head[:5])
    assert early[HIT] == late[HIT]
    assert (early[MISS].verdict, late[MISS].verdict) == (INCONCLUSIVE, REGRESSED)
    assert early[MISS].remedy == "3 pairs cannot decide it: compare again"


def test_interval_begins_with_five_pairs() -> None:
    base, head = values_of([0.2, 0.21, 0.19, 0.2, 0.22])
    four, five = (vars(judged(base[:pairs], head[:pairs])[HIT].change) for pairs in (4, 5))
    assert (four["low_percent"], four["high_percent"]) == (-math.inf, math.inf)
    assert 18 < five["low_percent"] < five["shift_percent"] < five["high_percent"] < 23
    assert five["p"] <= LEVEL < four["p"]


def test_row_that_scatters_needs_more_pairs() -> None:
    """Two disturbed processes of the base do not let a slower head pass."""
    base, head = values_of([0.2] * 8)
    for values in base[1:3]:
        values[HIT] *= 1.25
    assert needed(base, head) == 8
    assert verdicts(base, head)[HIT] is INCONCLUSIVE


def test_wide_row_needs_a_smaller_p() -> None:
    """Processes that scatter by more than half of the floor need six pairs, and the row says so."""
    noise = 0.035  # a standard deviation of 5 % over five processes
    base, head = values_of([0.5] * 8, noise)
    assert needed(base, head) == 6
    found = judged(base[:6], head[:6])[HIT]
    assert found.verdict is REGRESSED
    expected = r"its processes scatter by \d\.\d %, so p must be at most 0\.002; find what"
    assert re.match(expected, found.remedy)


def test_smallest_change_is_of_the_largest_number_of_pairs() -> None:
    base, head = values_of([0.0, 0.05, -0.05])
    judged_sides = (
        judged(*values_of([0.0] * 3)),
        judged(base, head),
        judged(base, head, Rule(confirm=5)),
    )
    quiet, noisy, fewer = (vars(found[HIT].change)["smallest_percent"] for found in judged_sides)
    assert 7.5 < quiet < 8 < noisy < fewer


@pytest.mark.parametrize(("shifts", "pairs"), [([0.01] * 8, 3), ([0.05] * 3 + [0.0] * 5, 6), ([0.05] * 8, 8)])
def test_control_past_its_bound_takes_further_pairs(shifts: list[float], pairs: int) -> None:
    """The control contaminates all rows only after the last pair."""
    base, head = values_of(shifts, row=PLAIN)
    for one in (*base, *head):
        one[HIT] = 5.0
    assert needed(base, head) == pairs
    expected = CONTAMINATED if pairs == 8 else PASSED
    assert verdicts(base[:pairs], head[:pairs])[HIT] is expected
    assert needed(base, head, Rule(control=0.0)) == 3
    if pairs == 8:
        assert "plain tensors shifted by +5.0 %: run again" in judged(base, head)[HIT].remedy


@pytest.mark.parametrize("factor", [1.04, 1.02, 1 / 1.04, 1 / 1.02])
def test_control_has_a_floor_in_both_directions(factor: float) -> None:
    base, head = [{PLAIN: 2000.0}] * 3, [{PLAIN: 2000.0 * factor}] * 3
    assert compare(base, head, RULE).is_contaminated is (max(factor, 1 / factor) > 1.03)
    assert not compare(base, head, Rule(control=0.0)).is_contaminated


@pytest.mark.parametrize(
    ("metric", "pairs", "confirm"), [("time", 2, 8), ("time", 3, 4), ("time", 9, 8), ("counts", 1, 0)]
)
def test_too_few_pairs_are_refused(metric: str, pairs: int, confirm: int) -> None:
    with pytest.raises(ValueError, match=f"--pairs {pairs}, --confirm {confirm}: "):
        Rule(metric=Metric(metric), pairs=pairs, confirm=confirm)


@pytest.mark.parametrize("metric", [Metric.TIME, Metric.COUNTS])
def test_partly_measured_rows_have_verdicts(metric: Metric) -> None:
    same, gone_row, new_row, some_row = (RowId("a", "t", state) for state in ("x", "gone", "new", "some"))
    base = [{same: 1.0, gone_row: 1.0, some_row: 1.0}, {same: 1.0, gone_row: 1.0}]
    head = [{same: 1.0, new_row: 1.0, some_row: 1.0}] * 2
    rule = Rule(metric=metric)
    [_, gone, some, new] = judge(rule, compare(base, head, rule))
    assert [some.verdict, gone.verdict, new.verdict] == [INCONCLUSIVE, Verdict.MISSING, Verdict.NEW]
    assert [one.row for one in (some, gone, new)] == [some_row, gone_row, new_row]
    assert "1 of 2 and 2 of 2 processes" in some.remedy


def with_control(noise: float = 0.001, **factor: float) -> tuple[Rows, Rows]:
    """Simulate both sides with control rows: the head's add is slower by ``one``, all ops by ``every``."""
    base, head = processes(10, 1, noise), processes(10, 2, noise, **factor)
    for name in ("add", "mul", "mm", "relu", "sum", "clone"):
        for one in base:
            one[state_id(f"control::{name}::control")] = 1000.0
        for one in head:
            one[state_id(f"control::{name}::control")] = 1000.0 * factor.get("every", 1.0)
    for one in head:
        one[state_id("control::add::control")] *= factor.get("one", 1.0)
    return base, head


@pytest.mark.parametrize(("scatter", "verdict"), [(0.001, REGRESSED), (0.09, PASSED)])
def test_noisy_overhead_follows_the_op(scatter: float, verdict: Verdict) -> None:
    # A hit of 7 us grew by 3.2 us: its local op explains 2 us, and a scatter of 9 % hides the rest.
    change = {"local": 2.0, "hit": 1 + 3.2 / 7}
    found = verdicts(*with_control(scatter, **change))
    assert (found[HIT], found[LOCAL]) == (verdict, REGRESSED)


@pytest.mark.parametrize("metric", [Metric.TIME, Metric.INSTRUCTIONS])
@pytest.mark.parametrize(
    ("factor", "hit", "local"),
    [
        ({}, PASSED, PASSED),
        ({"local": 1.4, "hit": 1 + 0.4 * 2 / 7}, PASSED, REGRESSED),  # a kernel of 2 us in 7 us
        ({"local": 1.4, "hit": 1.4}, REGRESSED, REGRESSED),
        ({"hit": 1.4}, REGRESSED, PASSED),
        ({"local": 0.6}, PASSED, IMPROVED),
        ({"local": 0.6, "hit": 1.4}, REGRESSED, IMPROVED),
        ({"local": 1.4, "one": 1.4}, PASSED, REGRESSED),  # the op belongs to the control
        ({"local": 1.4, "every": 1.4}, CONTAMINATED, CONTAMINATED),
    ],
)
def test_op_and_dispatch_are_judged_apart(
    metric: Metric, factor: dict[str, float], hit: Verdict, local: Verdict
) -> None:
    rule = DEFAULT_RULES[metric]
    found = judged(*with_control(**factor), rule)
    assert {row: one.verdict for row, one in found.items()} == {
        HIT: hit,
        MISS: found[MISS].verdict,
        LOCAL: local,
    }
    assert found[MISS].verdict in (PASSED, CONTAMINATED)
    assert (found[LOCAL].remedy == "the op itself, not its dispatch") is (local is REGRESSED)


def sides(base: dict[RowId, list[float]], head: dict[RowId, list[float]]) -> tuple[Rows, Rows]:
    """Return the processes of two sides, with one value per row and process."""
    before, after = (
        [dict(zip(side, values, strict=True)) for values in zip(*side.values(), strict=True)]
        for side in (base, head)
    )
    return before, after


@pytest.mark.parametrize(
    ("metric", "base", "head", "verdict"),
    [
        (Metric.COUNTS, [0], [0], PASSED),
        (Metric.COUNTS, [0], [1], REGRESSED),
        (Metric.COUNTS, [2], [1], IMPROVED),
        (Metric.COUNTS, [2.0], [2.25], REGRESSED),
        (Metric.COUNTS, [0, 0], [1, 1], REGRESSED),
        (Metric.COUNTS, [0, 3], [4, 5], REGRESSED),
        (Metric.COUNTS, [0, 1], [1, 1], INCONCLUSIVE),  # varies between processes
        (Metric.COUNTS, [0, 1], [0, 0], INCONCLUSIVE),
        (Metric.COUNTS, [1, 1], [0, 2], INCONCLUSIVE),
        (Metric.INSTRUCTIONS, [60_000], [61_199], PASSED),
        (Metric.INSTRUCTIONS, [60_000], [61_201], REGRESSED),
        (Metric.INSTRUCTIONS, [60_000], [58_799], IMPROVED),
        # A side is represented by its minimum.
        (Metric.INSTRUCTIONS, [60_000, 60_100], [63_000, 60_300], PASSED),
        (Metric.INSTRUCTIONS, [64_000, 60_000], [63_000, 63_000], REGRESSED),
    ],
)
def test_numbers_are_judged_by_metric(
    metric: Metric, base: list[float], head: list[float], verdict: Verdict
) -> None:
    rule = Rule(metric=metric, pairs=1, confirm=1)
    pairs = [values * (2 // len(values)) for values in (base, head)]  # no further process would run
    found = compare(*sides({HIT: pairs[0]}, {HIT: pairs[1]}), rule)
    [one] = judge(rule, found)
    assert one.verdict is verdict
    assert is_undecided(found) is (verdict is not PASSED)


def test_times_of_runs_that_did_not_alternate_are_inconclusive() -> None:
    base, head = values_of([0.0] * 5)
    found = replace(compare(base, head, RULE), is_in_turn=False)
    [one] = judge(RULE, found)
    assert (one.verdict, one.remedy) == (INCONCLUSIVE, "")
    rule = DEFAULT_RULES[Metric.COUNTS]
    [one] = judge(rule, replace(compare(base[:1], head[:1], rule), is_in_turn=False))
    assert one.verdict is PASSED


def test_changed_plain_tensor_counts_contaminate_instructions() -> None:
    rule = Rule(metric=Metric.INSTRUCTIONS)
    found = compare([{HIT: 6e4, PLAIN: 12e3}], [{HIT: 6e4, PLAIN: 13e3}], rule)
    [one] = judge(rule, found)
    assert one.verdict is CONTAMINATED
    assert found.control == pytest.approx(math.log(13 / 12))
    assert "--control off" in one.remedy
