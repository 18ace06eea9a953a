"""Comparison with a saved run: rows that have thresholds, plain ops, and environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from pytest_dtdispatch.core.measurement import MIN_PASSES
from pytest_dtdispatch.core.verdicts import Judgement, Threshold
from pytest_dtdispatch.gates.saved_run import (
    compare_rows,
    environment_differences,
    judge_run,
    possible_causes,
)
from pytest_dtdispatch.gates.times import TimedRow
from tests.gates.rows import TEN, row


def judge(base: Iterable[TimedRow], head: Iterable[TimedRow], *thresholds: Threshold) -> Judgement:
    return judge_run(list(base), list(head), lambda _: thresholds or (TEN,))


def verdicts_of(judgement: Judgement) -> list[str]:
    return [str(row.verdict) for row in judgement.verdicts]


def test_each_threshold_of_a_row_is_judged() -> None:
    double = Threshold("", "min", 1.0)
    both = judge([row()], [row(factor=1.5)], TEN, double)
    assert [(str(each.verdict), each.criterion) for each in both.verdicts] == [
        ("regressed", str(TEN)),
        ("passed", str(double)),
    ]
    assert [each.criterion for each in both.failed] == [str(TEN)]


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


# Plain ops


@pytest.mark.parametrize(
    ("factor", "controls", "verdict", "shift"),
    [
        (1.15, (1.08,), "contaminated", "+8.0 %"),
        (1.15, (1.02,), "regressed", "+2.0 %"),
        (1.5, (1.08,), "regressed", "+8.0 %"),
        (1.0, (1.5,), "passed", "+50.0 %"),
        (1.0, (0.5,), "passed", "-50.0 %"),
        (1.15, (1.0, 1.0, 3.0), "regressed", "+0.0 %"),
        (1.15, (1.07, 1.08, 1.3), "contaminated", "+8.0 %"),
    ],
)
def test_median_shift_of_plain_ops_contaminates(
    factor: float, controls: Sequence[float], verdict: str, shift: str
) -> None:
    base = [row(), *(row("local", label=str(n)) for n in range(len(controls)))]
    head = [row(factor=factor), *(row("local", each, label=str(n)) for n, each in enumerate(controls))]
    judgement = judge(base, head)
    assert verdicts_of(judgement) == [verdict]
    [remark] = judgement.remarks
    assert remark.startswith(f"the op on plain tensors shifted by {shift} (median of {len(controls)} rows)")
    assert ("may be the cause" in remark) is (abs(float(shift[:-2])) > 3)


def test_shift_of_plain_ops_has_one_clock() -> None:
    base, head = row("local", 2.0, cpu=1.0), row("local", 2.0)
    assert "shifted by +0.0 %" in judge([row(), base], [row(), head]).remarks[0], "wall time of both"
    assert "shifted by +50.0 %" in judge([row(), base], [row(), row("local", 4.0, cpu=1.5)]).remarks[0]


def test_shift_is_unknown_without_plain_ops() -> None:
    assert judge([row()], [row()]).remarks == ()
    assert judge([row(), row("local", 0.0)], [row(), row("local")]).remarks == ()


# Saved runs that cannot be judged


@pytest.mark.parametrize(("useless", "is_refused"), [(1, False), (2, False), (3, True), (4, True)])
def test_saved_run_of_unjudgeable_rows_is_refused(useless: int, is_refused: bool) -> None:
    states = ["hit", "miss", "call", "cold"]
    base = [row(state, passes=MIN_PASSES - (n < useless)) for n, state in enumerate(states)]
    judgement = judge(base, [row(state) for state in states])
    assert verdicts_of(judgement)[:4] == ["inconclusive"] * useless + ["passed"] * (4 - useless)
    assert [str(each.row) for each in judgement.failed] == [
        f"{useless} of 4 thresholds can never be judged against this saved run"
    ] * is_refused


def test_run_without_compared_rows_fails() -> None:
    judgement = judge([row()], [row(passes=1)])
    assert verdicts_of(judgement) == ["inconclusive"]
    assert judgement.has_failed
    assert not judge([row(), row("miss")], [row(passes=1), row("miss")]).has_failed


def test_strict_threshold_fails_an_inconclusive_row() -> None:
    strict = replace(TEN, is_strict=True)
    rows = [row(), row("miss")], [row(), row("miss", passes=1)]
    assert verdicts_of(judge(*rows, strict)) == verdicts_of(judge(*rows)) == ["passed", "inconclusive"]
    assert not judge(*rows).has_failed
    [failed] = judge(*rows, strict).failed
    assert (failed.row.state, failed.criterion) == ("miss", str(strict))
    assert not judge([row()], [row(), row("miss")], strict).has_failed, "new rather than inconclusive"


# Comparison without thresholds


def test_every_compared_row_has_a_change() -> None:
    base = [row(), row("miss"), row("call"), row("local"), row("cold")]
    head = [row(factor=1.5), row("miss", 0.5), row("call"), row("local"), row("eager")]
    found = compare_rows(base, head)
    assert {str(each.row.state): str(each.verdict) for each in found} == {
        "hit": "regressed",
        "miss": "improved",
        "call": "passed",
        "cold": "missing",
        "eager": "new",
    }
    assert not any(each.criterion for each in found)
    assert [each.change is None for each in found] == [bool(each.remedy) for each in found]


# Environments


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
