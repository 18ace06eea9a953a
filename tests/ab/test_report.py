"""The result of an A/B run, and rates, as it is printed."""

from __future__ import annotations

import math

import pytest

from pytest_dtdispatch.ab.judge import Stage, compare_sides, judge
from pytest_dtdispatch.ab.model import ProcessSample, Request, Run, Side
from pytest_dtdispatch.ab.report import (
    result_document,
    summary,
)
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import plain
from tests.rendered import lines_of

ADD = "t.py::test_add[4]::add.Tensor(f32[8]S0)@4"
SIDE = Side("3.12.3", "0.1.0", "2.13.0", "abc", "a CPU")
VALUES = (7000.0, 7010.0, 7020.0, 7030.0, 7040.0)


def side(factor: float, *more: str) -> list[dict[str, float]]:
    return [{f"{ADD}::hit": value * factor, **dict.fromkeys(more, 9.0)} for value in VALUES]


def shown(stage: Stage, width: int = 140, base_rev: str = "", head_rev: str = "") -> list[str]:
    process = ProcessSample("screen", "base", 7.0, {})
    run = Run(
        Request(base="old", head="new", base_rev=base_rev, head_rev=head_rev),
        {"base": SIDE, "head": SIDE},
        (process,) * 10,
    )
    return lines_of(result_document(run, {"screen": stage}, judge(stage)), width)


def test_a_row_has_its_state_shift_interval_p_and_what_could_be_seen() -> None:
    lines = shown(compare_sides(side(1.0), side(1.01), Request()))
    assert lines[:2] == ["base: old: Python 3.12.3, torch 2.13.0", "head: new: Python 3.12.3, torch 2.13.0"]
    assert " ".join(lines[2].split()) == "row state base us head us shift % 95 % p sees % verdict"
    assert lines[3] == "t.py::test_add[4]"
    assert (
        " ".join(lines[4].split())
        == "add.Tensor(f32[8]S0)@4 hit 7.02 7.09 +1.0 +0.6 to +1.4 0.0040 7.5 passed"
    )
    assert lines[-1] == "1 row: 1 passed"


def test_rows_without_figures_have_dashes_and_say_why() -> None:
    lines = shown(compare_sides(side(1.0, f"{ADD}::miss"), side(1.0), Request()))
    [missing] = [line for line in lines if "missing" in line and "row" not in line]
    assert missing.split() == ["add.Tensor(f32[8]S0)@4", "miss", "-", "-", "-", "-", "-", "-", "missing"]
    assert any("the head did not measure it" in line for line in lines)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    lines = shown(compare_sides(side(1.0, f"{ADD}::miss"), side(1.0), Request()), width)
    table = lines[2 : next(i for i, line in enumerate(lines) if line.startswith("screen"))]
    assert all(len(line) <= max(width, 75) for line in table)


def test_commits_are_named_with_their_interpreter() -> None:
    lines = shown(compare_sides(side(1.0), side(1.0), Request()), base_rev="v1", head_rev="v2")
    assert lines[0].startswith("base: v1 (old): ")


def test_the_control_is_told_and_where_there_is_none_too() -> None:
    local = f"{ADD}::local"
    steady = compare_sides(side(1.0, local), side(1.0, local), Request())
    assert "screen: 10 processes in 70 s; plain tensors shifted by +0.0 %" in shown(steady)
    assert any("no plain tensors were measured" in line for line in shown(Stage({})))
    moved = Stage({}, control=math.log(1.05), is_contaminated=True)
    assert any("shifted by +5.0 %, past 3 %: contaminated; run again" in line for line in shown(moved))


def test_what_contaminated_a_stage_is_told_once() -> None:
    local = f"{ADD}::local"
    screen = compare_sides(side(1.0, local), [{**one, local: 10.0} for one in side(1.0)], Request())
    lines = shown(screen)
    assert any(line.endswith("contaminated") and "hit" in line for line in lines)
    assert sum("run again" in line for line in lines) == 1


def test_an_interval_without_ends_is_no_number() -> None:
    lines = shown(compare_sides(side(1.0)[:1], side(1.0)[:1], Request()))
    assert "- to -" in lines[4]
    assert lines[4].endswith("inconclusive")


def test_nothing_compared_is_said() -> None:
    assert plain(summary([]).spans) == "no rows: nothing was compared"
    verdicts = [RowVerdict("a", Verdict.NEW), RowVerdict("b", Verdict.PASSED)]
    assert plain(summary(verdicts).spans) == "2 rows: 1 passed, 1 new"
