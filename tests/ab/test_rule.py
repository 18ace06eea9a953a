"""The rule of an A/B run, on scripted values: times, counts and instructions."""

from __future__ import annotations

import math
import random

import pytest

from pytest_dtdispatch.ab.rule import (
    CONFIRM,
    SCREEN,
    SCREEN_LEVEL,
    Metric,
    Rule,
    Sides,
    Stage,
    compare_sides,
    compare_stages,
    judge,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Verdict
from tests.row_ids import state_id

ADD = RowId("t.py::test_add", "add@4")
HIT, MISS, LOCAL = (ADD._replace(state=state) for state in ("hit", "miss", "local"))
RULE = Rule()
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


def screened(noise: float = 0.01, **factor: float) -> Stage:
    return compare_sides(processes(5, 1, noise), processes(5, 2, noise, **factor), RULE)


def fresh(only: list[RowId], noise: float = 0.01, pairs: int = 10, **factor: float) -> Stage:
    sides = processes(pairs, 3, noise), processes(pairs, 4, noise, **factor)
    return compare_sides(*sides, RULE, 0.005, only)


def verdicts(screen: Stage, confirm: Stage | None = None) -> dict[RowId, Verdict]:
    stages = {SCREEN: screen, CONFIRM: confirm} if confirm else {SCREEN: screen}
    return {one.row: one.verdict for one in judge(RULE, stages)}


@pytest.mark.parametrize(
    ("noise", "factor", "hit", "miss"),
    [
        (0.01, {}, PASSED, PASSED),
        (0.01, {"hit": 1.2}, REGRESSED, PASSED),
        (0.01, {"miss": 0.8}, PASSED, IMPROVED),
        (0.001, {"hit": 1.05, "miss": 1.08}, PASSED, PASSED),  # below the floor, regardless of confidence
        (0.001, {"hit": 1.09, "miss": 1.09}, REGRESSED, PASSED),  # a miss has a different floor
        (0.2, {}, INCONCLUSIVE, INCONCLUSIVE),  # a wide interval that crosses the floor
    ],
)
def test_run_has_expected_verdicts(
    noise: float, factor: dict[str, float], hit: Verdict, miss: Verdict
) -> None:
    def measured(stage: str) -> Sides:
        count, seed = (5, 1) if stage == SCREEN else (10, 3)
        return processes(count, seed, noise), processes(count, seed + 1, noise, **factor)

    stages = compare_stages(RULE, measured)
    assert verdicts(stages[SCREEN], stages.get(CONFIRM)) == {HIT: hit, MISS: miss}


@pytest.mark.parametrize(
    ("confirmed", "verdict"),
    [
        ({}, PASSED),
        ({"hit": 0.7}, IMPROVED),
        ({"hit": 1.3, "local": 1.1}, CONTAMINATED),
        (None, INCONCLUSIVE),
    ],
)
def test_only_fresh_processes_judge_tripped_rows(
    confirmed: dict[str, float] | None, verdict: Verdict
) -> None:
    """The screening stage does not contribute to the verdict."""
    screen = screened(hit=1.3)
    assert screen.tripped() == [HIT]
    found = verdicts(screen, None if confirmed is None else fresh([HIT], 0.01, 10, **confirmed))
    assert found == {HIT: verdict, MISS: PASSED}


def test_fresh_processes_clear_a_noisy_row() -> None:
    noisy = screened(noise=0.2)
    assert set(verdicts(noisy, fresh(noisy.tripped())).values()) == {PASSED}


def test_too_few_processes_report_how_many_confirm() -> None:
    def remedies(pairs: int) -> set[str]:
        screen = screened(hit=2.0, miss=2.0)
        confirm = fresh(screen.tripped(), pairs=pairs, hit=2.0, miss=2.0)
        return {one.remedy for one in judge(RULE, {SCREEN: screen, CONFIRM: confirm})}

    assert remedies(4) == {"so few processes cannot confirm 2 rows: --confirm 6"}
    assert all("commit by commit" in remedy for remedy in remedies(6))


def test_shifted_control_contaminates_all_rows() -> None:
    screen = screened(local=1.1, hit=1.3)
    assert verdicts(screen) == {HIT: INCONCLUSIVE, MISS: CONTAMINATED}
    assert verdicts(screen, fresh([HIT], hit=1.3)) == {HIT: REGRESSED, MISS: CONTAMINATED}
    [_, miss] = judge(RULE, {SCREEN: screen})
    assert "plain tensors shifted by +" in miss.remedy


@pytest.mark.parametrize("factor", [1.04, 1.02, 1 / 1.04, 1 / 1.02])
def test_control_has_a_floor_in_both_directions(factor: float) -> None:
    base, head = [{LOCAL: 2000.0}] * 3, [{LOCAL: 2000.0 * factor}] * 3
    assert compare_sides(base, head, RULE).is_contaminated is (max(factor, 1 / factor) > 1.03)
    assert not compare_sides(base, head, Rule(control=0.0)).is_contaminated


@pytest.mark.parametrize("metric", [Metric.TIME, Metric.COUNTS])
def test_partly_measured_rows_have_verdicts(metric: Metric) -> None:
    same, gone_row, new_row, some_row = (RowId("a", "t", state) for state in ("x", "gone", "new", "some"))
    base = [{same: 1.0, gone_row: 1.0, some_row: 1.0}, {same: 1.0, gone_row: 1.0}]
    head = [{same: 1.0, new_row: 1.0, some_row: 1.0}] * 2
    rule = Rule(metric=metric)
    [_, some, gone, new] = judge(rule, {SCREEN: compare_sides(base, head, rule)})
    assert [some.verdict, gone.verdict, new.verdict] == [INCONCLUSIVE, Verdict.MISSING, Verdict.NEW]
    assert [one.row for one in (some, gone, new)] == [some_row, gone_row, new_row]
    assert "1 of 2 and 2 of 2 processes" in some.remedy


def with_control(noise: float = 0.001, **factor: float) -> Sides:
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
    stages = compare_stages(rule := Rule(), lambda *_: with_control(scatter, **change))
    found = {one.row: one.verdict for one in judge(rule, stages)}
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
    stages = compare_stages(rule := Rule(metric=metric), lambda *_: with_control(**factor))
    found = {one.row: one for one in judge(rule, stages)}
    assert {row: one.verdict for row, one in found.items()} == {
        HIT: hit,
        MISS: found[MISS].verdict,
        LOCAL: local,
    }
    assert found[MISS].verdict in (PASSED, CONTAMINATED)
    assert (found[LOCAL].remedy == "the op itself, not its dispatch") is (local is REGRESSED)
    assert all(stage.has_control for stage in stages.values())


def test_older_file_is_judged_by_its_local_rows() -> None:
    stages = compare_stages(RULE, lambda *_: (processes(10, 1), processes(10, 2, local=1.4)))
    assert not stages[SCREEN].has_control
    assert verdicts(stages[SCREEN]) == {HIT: CONTAMINATED, MISS: CONTAMINATED}


def sides(base: dict[RowId, list[float]], head: dict[RowId, list[float]]) -> Sides:
    """Return the processes of two sides, with one value per row and process."""
    before, after = (
        [dict(zip(side, values, strict=True)) for values in zip(*side.values(), strict=True)]
        for side in (base, head)
    )
    return before, after


SLOW, SLOWER = [100.0, 101.0, 102.0, 103.0, 104.0], [120.0, 121.0, 122.0, 123.0, 124.0]


def test_p_values_are_adjusted_for_tripped_rows() -> None:
    """One row has the minimum p of five pairs: significant alone, but not beside noisy rows."""
    sure, *noisy = rows = [RowId(f"t.py::test_{i}", "add", "hit") for i in range(3)]
    base = {sure: SLOW} | {row: [*SLOW[:4], 130.0] for row in noisy}
    values = sides(base, dict.fromkeys(rows, SLOWER))
    screen = compare_sides(*values, RULE)
    alone = compare_sides(*values, RULE, 0.005, [sure])
    assert alone.rows[sure].p == pytest.approx(1 / 252)
    assert verdicts(screen, alone)[sure] is REGRESSED
    assert set(verdicts(screen, compare_sides(*values, RULE, 0.005, rows)).values()) == {INCONCLUSIVE}


def test_many_slow_rows_all_regress() -> None:
    rows = [RowId(f"t.py::test_{i}", "add", "hit") for i in range(20)]
    values = sides(dict.fromkeys(rows, SLOW), dict.fromkeys(rows, SLOWER))
    every = compare_sides(*values, RULE, 0.005, rows)
    assert set(verdicts(compare_sides(*values, RULE), every).values()) == {REGRESSED}


def test_large_uncertain_shift_is_inconclusive() -> None:
    """Two processes per side cannot reach a p of 0.05, regardless of the interval."""
    screen = compare_sides(*sides({HIT: [100.0, 100.1]}, {HIT: [120.0, 120.1]}), RULE)
    assert screen.tripped() == [HIT]
    assert verdicts(screen, screen) == {HIT: INCONCLUSIVE}


def test_slowdown_is_detected_despite_disturbed_process() -> None:
    screen = compare_sides(*sides({HIT: [*SLOW[:3], 150.0, 160.0]}, {HIT: SLOWER}), RULE)
    assert screen.rows[HIT].p > SCREEN_LEVEL
    assert screen.tripped() == [HIT]


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
    rule = Rule(metric=metric)
    [one] = judge(rule, {SCREEN: compare_sides(*sides({HIT: base}, {HIT: head}), rule)})
    assert one.verdict is verdict


def test_changed_plain_tensor_counts_contaminate_instructions() -> None:
    rule = Rule(metric=Metric.INSTRUCTIONS)
    stage = compare_sides([{HIT: 6e4, LOCAL: 12e3}], [{HIT: 6e4, LOCAL: 13e3}], rule)
    [one] = judge(rule, {SCREEN: stage})
    assert one.verdict is CONTAMINATED
    assert stage.control == pytest.approx(math.log(13 / 12))
    assert "--control off" in one.remedy
