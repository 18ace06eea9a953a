"""The printed result of an A/B run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_dtdispatch.ab.answer import CONTROL
from pytest_dtdispatch.ab.process import Versions
from pytest_dtdispatch.ab.report import run_document
from pytest_dtdispatch.ab.rule import Values
from pytest_dtdispatch.ab.run import PairResult, ProcessSample, Request, Run, judge_pairs
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from tests.rendered import lines_of

ADD = RowId("t.py::test_add[4]", "add.Tensor(f32[8]S0)@4")
HIT, MISS = (ADD._replace(state=state) for state in ("hit", "miss"))
PLAIN = RowId(CONTROL, "add", CONTROL)
VERSIONS = Versions("3.12.3", "0.1.0", "2.13.0", "abc", "a CPU")
TIMES = (7000.0, 7010.0, 7020.0, 7030.0, 7040.0)


def processes(factor: float = 1.0, **others: float) -> list[dict[RowId, float]]:
    named = {"plain": PLAIN, "miss": MISS}
    return [{HIT: ns * factor, **{named[name]: each for name, each in others.items()}} for ns in TIMES]


def shown(base: Sequence[Values], head: Sequence[Values], width: int = 140) -> list[str]:
    samples = tuple(
        ProcessSample(each, side=side, seconds=7.0)
        for side, of_side in (("base", base), ("head", head))
        for each in of_side
    )
    run = Run(Request(("old", "new"), ("v1", "v2")), {"base": VERSIONS, "head": VERSIONS}, samples)
    return lines_of(run_document(run, judge_pairs(run)), width)


def test_row_of_times_has_all_columns() -> None:
    lines = shown(processes(), processes(1.1))
    versions = "Python 3.12.3, torch 2.13.0"
    assert lines[:2] == [f"base: v1 (old): {versions}", f"head: v2 (new): {versions}"]
    titles = "row state base us head us change % interval % plain % p sees % verdict"
    assert " ".join(lines[2].split()) == titles
    assert lines[3] == "t.py::test_add[4]"
    found = "add.Tensor(f32[8]S0)@4 hit 7.02 7.72 +10.0 +9.4 to +10.6 - 0.0040 7.7 regressed"
    assert " ".join(lines[4].split()) == found
    assert "10 processes in 70 s" in lines
    assert lines[-1] == "1 row: 1 regressed"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_rows_without_figures_have_dashes_and_reasons(width: int) -> None:
    lines = shown(processes(miss=9.0), processes(), width)
    table = lines[2 : next(i for i, line in enumerate(lines) if line.startswith("10 processes"))]
    assert all(len(line) <= max(width, 75) for line in table)
    [missing] = [line for line in table if line.endswith("missing")]
    assert " miss " in missing
    assert missing.split()[2] == "-"
    assert "the head did not measure it" in " ".join(" ".join(table).split())


def test_contamination_is_reported_once() -> None:
    lines = shown(processes(plain=9.0), processes(plain=9.45))
    assert any(line.endswith("contaminated") and "hit" in line for line in lines)
    assert sum("run again" in line for line in lines) == 1
    expected = "10 processes in 70 s; plain tensors shifted by +5.0 %, past 3 %: contaminated; run again"
    assert any(line.startswith(expected) for line in lines)


def test_new_row_has_the_figure_of_its_side() -> None:
    of = (processes(), processes(miss=2000.0), processes(miss=90000.0))
    sides = {f"python-{number}": each for number, each in enumerate(of, start=1)}
    samples = tuple(ProcessSample(each, side=side) for side, of_side in sides.items() for each in of_side)
    run = Run(Request(("a", "b", "c")), dict.fromkeys(sides, VERSIONS), samples)
    pairs = {("python-1", "python-2"): "2.00", ("python-1", "python-3"): "90.00"}
    found = {pair: PairResult(None, [RowVerdict(MISS, Verdict.NEW)]) for pair in pairs}
    lines = [line.split() for line in lines_of(run_document(run, found)) if " miss " in line]
    assert [line[line.index("miss") + 2] for line in lines] == [*pairs.values()]


def test_nothing_compared_is_reported() -> None:
    assert shown([{PLAIN: 9.0}], [{PLAIN: 9.0}])[-1] == "no rows: nothing was compared"


def test_interval_without_ends_is_not_a_number() -> None:
    lines = shown(processes()[:1], processes()[:1])
    assert " - " in lines[4]
    assert "to" not in lines[4]
