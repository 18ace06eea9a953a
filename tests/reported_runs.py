"""Reported runs for tests of renderers, with realistic figures and hostile names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.core.events import Cell
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    FunctionShare,
    Measurement,
    Profile,
    Samples,
    State,
)
from pytest_dtdispatch.core.results import Advice, MetricValue, NoRows
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document, Kind, View
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.row_ids import row_id

MISSES, HITS = (900_000, 910_000, 905_000, 990_000, 902_000), (6_900, 7_100, 7_000, 7_050, 6_950, 9_000)
ADD = "add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"
# A call of that op in Python, on a fake process group.
SHARD = "tensor(0, torch.float32, (2, 8), (8, 1), [Shard(dim=0)], (8, 8), (8, 1))"
CALL = {
    "call": f"torch.ops.aten.add.Tensor, {SHARD}, {SHARD}, alpha=2.5",
    "group": "rank=0, world_size=4",
    "mesh": "'cpu', (4,), mesh_dim_names=('tp',)",
    "frames": "69",
}
# Valid names that are markup, a command or a second line in some format.
HOSTILE = (
    "a|b",
    "back\\|slash",
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    "`code` and ``more``",
    "two\nlines\r\nthree",
    "\x1b[31mred\x07",
    "\u202eright to left",
    "=1+1",
    '@SUM(1;2) "quoted", comma',
    "::error::not ours",
    "a;b 12",
    "[link](javascript:alert(1)) **bold**",
    "lone \udcff",
    "x" * 10_000,
)


def measured(
    label: str,
    *samples: Samples,
    calls: int = 1,
    rounds: int = 5,
    contains: Contains = Contains.DISPATCH,
    **texts: Any,
) -> Measurement:
    """Build a row of these samples; texts are its notes and remarks."""
    figures = Figures(rounds, samples, **texts)
    return Measurement(label, label, label.partition("(")[0], "4", contains, calls, figures)


def row(label: str = ADD, *samples: Samples, calls: int = 1) -> Measurement:
    """Build a row, by default of misses and hits."""
    samples_or_default = samples or (Samples(State.MISS, MISSES), Samples(State.HIT, HITS))
    return measured(label, *samples_or_default, calls=calls)


def op_row(label: str = ADD, **parts: str) -> Measurement:
    """Build the row of a captured op on a fake process group."""
    return with_call(replace(row(label), backend="fake"), {**CALL, **parts})


def with_call(one: Measurement, call: dict[str, str]) -> Measurement:
    """Return a row with this call in Python."""
    return replace(one, figures=replace(one.figures, call=call))


def run_of(*rows: Measurement, test: str = "t.py::test_a", **more: object) -> ReportedRun:
    """Build a run of one test."""
    return ReportedRun(measured={test: rows or (row(),)}, **more)  # type: ignore[arg-type]


def hostile_run() -> ReportedRun:
    """Build a run with every hostile name as a test, a row, a result and in verdicts of a gate."""
    verdicts = tuple(RowVerdict(row_id(name), Verdict.REGRESSED, None, name, name) for name in HOSTILE)
    return ReportedRun(
        environment={name: name for name in HOSTILE},
        measured={f"t.py::{name}": (row(name),) for name in HOSTILE},
        numbers=tuple(MetricValue(RowId(f"t.py::{name}", "step"), "misses_per_step", 3) for name in HOSTILE),
        gates=(Judgement(verdicts, HOSTILE[0], verdicts),),
    )


def profiled_run(*names: str) -> ReportedRun:
    """Build a run of one counted miss, whose functions have these names."""
    profile = Profile(tuple(FunctionShare(name, 10 + n) for n, name in enumerate(names)), 100)
    return run_of(row(ADD, Samples(State.MISS, (5_000,), unit=INSTRUCTIONS, profile=profile)))


@dataclass(frozen=True)
class Shown(NoRows):
    """A result whose fields its table shows unchanged."""

    kind: ClassVar[str] = "own"
    name: str
    document: Document


def shown_as_it_is(found: Mapping[str, Sequence[Shown]], view: View) -> Document:
    """Concatenate the documents of results."""
    blocks = (block for of_test in found.values() for one in of_test for block in one.document.blocks)
    return Document(tuple(blocks))


OWN = Kind(Shown.kind, shown_as_it_is, type=Shown)
BUDGET = Budget("train", 5e6, (Cell("local", "mm", None, 1e6, 1.0), Cell("dispatch", "mm", None, 3e6, 1.0)))
ADVICE = Advice("x redistributed 3 times", "do it once", "saves at most 2 redistributions", 2, 9e3, 0.1)
COUNTED = Steps("step", (), (StepCounts(hits=3),), advice=(ADVICE,))


def results_of(*results: Any, test: str = "t.py::test_b") -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the results of one test in the form of a run."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for one in results:
        found.setdefault(one.kind, {test: ()})[test] += (one,)
    return found
