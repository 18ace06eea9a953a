"""Cells from slices and traced lines, and the tables of a budget. Without torch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.budget import model
from pytest_dtdispatch.budget.data import budgets_data
from pytest_dtdispatch.budget.model import Budget, cells_of, fold_shares, split_by_line
from pytest_dtdispatch.budget.table import document, pairs_document
from pytest_dtdispatch.budget.timeline import ACCUMULATING, BETWEEN_NODES, Context, Slice
from pytest_dtdispatch.core.events import Cell, CodePlace, Part, Phase, ns_by_part
from pytest_dtdispatch.core.results import Advice, AdviceKind
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.lines.traced_line import TracedLine
from pytest_dtdispatch.report.document import Document, StackedBar, View
from pytest_dtdispatch.report.markdown import document_text
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.terminal import plain_text
from pytest_dtdispatch.steps.events import Redistribution
from tests.rendered import assert_outputs_match, lines_of

FORWARD = CodePlace("model.py", 3, "layers.0", Phase.FORWARD)
PYTHON = CodePlace("train.py", 8, "", Phase.FORWARD)
CALLED = CodePlace("train.py", 9, "", Phase.BACKWARD)
LINES = [
    TracedLine(0, 0, PYTHON, False),
    TracedLine(20, 20, FORWARD, False),
    TracedLine(50, 50, CALLED, False),
]
FORWARD_MM = Slice(Context(Part.DISPATCH, "mm", called_ns=22, new_node=7), 22, 40, calls=1)
TIMELINE = (
    Slice(Context(Part.OTHER), 0, 22),
    FORWARD_MM,
    Slice(Context(Part.AUTOGRAD, "MmBackward0", running_node=7, in_engine=True), 60, 80),
    Slice(Context(Part.AUTOGRAD, "engine", in_engine=True), 80, 90),
)


def test_time_is_attributed_to_the_executing_line() -> None:
    cells = {(cell.op, cell.place): cell.ns for cell in cells_of([TIMELINE], LINES, [TIMELINE])}
    in_backward = CodePlace("model.py", 3, "layers.0", Phase.BACKWARD)
    assert cells == {
        ("", PYTHON): pytest.approx(20),
        ("", FORWARD): pytest.approx(2),
        ("mm", FORWARD): 18,
        ("MmBackward0", in_backward): 20,  # the line that created the node
        ("engine", CALLED): 10,
    }


def lines_by_op(own: CodePlace) -> dict[str, CodePlace | None]:
    lines = [*LINES, TracedLine(60, 60, own, True), TracedLine(80, 80, CALLED, False)]
    return {cell.op: cell.place for cell in cells_of([TIMELINE], lines, [TIMELINE])}


def test_user_code_run_by_engine_has_own_line() -> None:
    inside = CodePlace("checkpoint.py", 5, "layers.0", Phase.BACKWARD)
    found = lines_by_op(inside)
    assert (found["MmBackward0"], found["engine"]) == (inside, CALLED)


def test_user_code_outside_modules_uses_module_of_node() -> None:
    own = CodePlace("function.py", 9, "", Phase.BACKWARD)
    found = lines_by_op(own)
    assert (found["MmBackward0"], found["engine"]) == (replace(own, module="layers.0"), CALLED)
    lines = [*LINES, TracedLine(60, 60, own, True), TracedLine(80, 80, CALLED, False)]
    add = FORWARD_MM._replace(context=FORWARD_MM.context._replace(op="add"))
    [cell] = cells_of([(add,)], lines, [TIMELINE])  # this op occurs in no traced step
    assert (cell.ns, cell.place) == (18, None)
    orphan = (TIMELINE[2],)
    assert {cell.place for cell in cells_of([orphan], lines, [orphan])} == {own}


def node_slice(running: int, begin_ns: int, op: str, new: int = -1) -> Slice:
    context = Context(Part.LOCAL, op, begin_ns, running_node=running, new_node=new, in_engine=True)
    return Slice(context, begin_ns, begin_ns + 5)


def in_backward(*slices: Slice) -> list[CodePlace | None]:
    """Return the lines of slices after a forward whose op has records of nodes 7 and 12."""
    after = FORWARD_MM._replace(context=FORWARD_MM.context._replace(op="loss", new_node=12, called_ns=5))
    timeline = (FORWARD_MM, after, *slices)
    cells = {cell.op: cell.place for cell in cells_of([timeline], LINES, [timeline])}
    return [cells[one.context.op] for one in slices]


BACKWARD = replace(FORWARD, phase=Phase.BACKWARD)


def test_node_without_record_has_the_line_of_its_op() -> None:
    found = in_backward(*(node_slice(number, 60 + number, str(number)) for number in (6, 7, 9, 11, 12)))
    assert found == [CALLED, BACKWARD, BACKWARD, BACKWARD, replace(PYTHON, phase=Phase.BACKWARD)]


def test_accumulation_has_the_line_of_the_node_before() -> None:
    accumulated = [node_slice(ACCUMULATING, begin_ns, op) for begin_ns, op in ((65, "first"), (80, "last"))]
    found = in_backward(accumulated[0], node_slice(8, 70, "node"), accumulated[1])
    assert found == [CALLED, BACKWARD, BACKWARD]


def test_accumulation_in_a_checkpoint_has_the_line_of_the_node_before() -> None:
    # The engine runs in the node of the checkpoint, number 12.
    between = Slice(Context(Part.AUTOGRAD, BETWEEN_NODES, running_node=12, in_engine=True), 75, 80)
    found = in_backward(node_slice(8, 70, "node"), between, node_slice(ACCUMULATING, 80, "last"))
    assert found == [BACKWARD, replace(PYTHON, phase=Phase.BACKWARD), BACKWARD]


def test_node_created_in_backward_has_the_forward_line() -> None:
    # With create_graph=True, ops in backward create nodes. The event of a node has its own number.
    first = node_slice(7, 60, "MulBackward0", new=7), node_slice(7, 65, "mul", new=13)
    assert in_backward(*first, node_slice(13, 70, "twice")) == [BACKWARD] * 3


def test_fsdp_in_backward_has_its_module_and_the_line_of_the_node() -> None:
    owner = CodePlace("", 0, "layers.3", Phase.BACKWARD)
    lines = [*LINES, TracedLine(60, 60, owner, True), TracedLine(80, 80, CALLED, False)]
    timeline = (*TIMELINE[:2], node_slice(7, 60, "gather"), node_slice(-1, 85, "engine"))
    found = {cell.op: cell.place for cell in cells_of([timeline], lines, [timeline])}
    assert (found["gather"], found["engine"]) == (replace(BACKWARD, module="layers.3"), CALLED)


def at_lines(*lines: int) -> list[TracedLine]:
    return [TracedLine(10 * n, 10 * n, CodePlace("model.py", n, "", Phase.FORWARD), False) for n in lines]


def call_of(op: str, line: int, *parts: Part) -> list[Slice]:
    """Return slices of a call that begins at a line, followed by a slice of Python."""
    begin, inside = 10 * line + 1, len(parts)
    call = [
        Slice(Context(part, op, begin), begin + n, begin + n + 1, calls=n == 0)
        for n, part in enumerate(parts)
    ]
    return [*call, Slice(end_ns=begin + inside + 1, begin_ns=begin + inside)]


def ops_at_lines(timeline: list[Slice], traced: list[Slice]) -> list[tuple[str, int]]:
    cells = cells_of([tuple(timeline)], at_lines(0, 1, 2, 3), [tuple(traced)])
    return [(cell.op, cell.place.line) for cell in cells if cell.place]


def test_python_between_ops_belongs_to_its_library() -> None:
    lines = [TracedLine(0, 0, PYTHON, False, Part.MODULES), TracedLine(15, 15, PYTHON, False), *LINES[1:]]
    parts = ns_by_part(cells_of([TIMELINE], lines, [TIMELINE]))
    assert parts == {"modules": pytest.approx(15), "other": pytest.approx(7), "dispatch": 18, "autograd": 30}


def test_step_with_other_shapes_has_equal_lines() -> None:
    hit, miss = (Part.DISPATCH, Part.LOCAL), (Part.DISPATCH, Part.PROPAGATION, Part.DISPATCH, Part.LOCAL)
    traced = [
        *call_of("mm", 1, *hit),
        *call_of("redistribute f32[8]S0", 2, Part.MOVING),
        *call_of("mm", 3, *hit),
    ]
    grown = [
        *call_of("mm", 4, *miss),
        *call_of("redistribute f32[12]S0", 5, Part.MOVING),
        *call_of("mm", 6, *hit),
    ]
    assert ops_at_lines(grown, traced) == [
        *(("mm", 1), ("mm", 1), ("mm", 1), ("", 1)),
        *(("redistribute f32[12]S0", 2), ("", 2)),
        *(("mm", 3), ("mm", 3), ("", 3)),
    ]


def test_unmatched_call_has_the_line_of_its_op() -> None:
    traced = [*call_of("mm", 1, Part.DISPATCH), *call_of("add", 2, Part.DISPATCH)]
    longer = [*traced, *call_of("mm", 7, Part.DISPATCH)]
    assert {line for op, line in ops_at_lines(longer, traced) if op == "mm"} == {1}
    assert all(line in (1, 2) for _, line in ops_at_lines(longer, traced))


def test_steps_are_averaged_and_timing_cost_subtracted() -> None:
    longer = FORWARD_MM._replace(end_ns=60, timing_ns=4.0)
    [cell] = cells_of([(FORWARD_MM,), (longer,)], [], [])
    assert (cell.ns, cell.calls, cell.timing_ns) == ((18 + 34) / 2, 1, 2)
    [cell] = cells_of([(FORWARD_MM._replace(timing_ns=99.0),)], [], [])
    assert cell.ns == 18 - 99


def test_span_before_first_moment_is_assigned_to_it() -> None:
    assert split_by_line(LINES, -5, 0) == [(LINES[0], 1.0)]
    assert split_by_line([], 0, 5) == []


def test_lengths_of_pieces_are_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []

    def counted(lengths: list[int]) -> int:
        sums.append(lengths)
        return sum(lengths)

    monkeypatch.setattr(model, "sum", counted, raising=False)
    lines = [TracedLine(number, number, PYTHON, False) for number in range(50)]
    assert [share for _, share in split_by_line(lines, 0, 50)] == [0.02] * 50
    assert len(sums) == 1


def test_time_after_last_followed_line_is_unlocated() -> None:
    lines = [*LINES, TracedLine(70, 70, None, False)]
    unplaced = {cell.op: cell.place for cell in cells_of([TIMELINE], lines, [TIMELINE])}
    assert unplaced["MmBackward0"] == replace(FORWARD, phase=Phase.BACKWARD)
    assert unplaced["engine"] is None


def budget(**changes: Any) -> Budget:
    cells = (
        Cell("local", "mm", FORWARD, 20_000.0, 2.0, 9_000.0),
        Cell("dispatch", "mm", FORWARD, 60_000.0, 2.0, 1_000.0),
        Cell("redistribution python", "redistribute f32[8]S0 -> R", PYTHON, 30_000.0, 1.0),
        Cell("other", "", None, 5_000.0, 0.0),
    )
    result = Budget("train", 120_000.0, cells, 150_000.0, 0.02, steps=20, events=30.0, event_ns=600.0)
    return replace(result, **changes)


def test_parts_and_unexplained_time_sum_to_step() -> None:
    measured = budget()
    assert sum(measured.parts.values()) + measured.unexplained_ns == measured.measured_ns
    assert [measured.basis(part) for part in ("local", "dispatch")] == ["modelled", "timed"]
    for breakdown in (measured.by_phase(), measured.by_op(), measured.by_module(), measured.by_line()):
        assert sum(spent.ns for spent in breakdown) == sum(measured.parts.values())
        assert [spent.ns for spent in breakdown] == sorted((spent.ns for spent in breakdown), reverse=True)


@pytest.mark.parametrize("layers", [3, 12, 48])
def test_folded_layers_have_summed_figures(layers: int) -> None:
    cells = [
        Cell(part, "mm", replace(FORWARD, module=f"layers.{n}.{name}"), 1000.1 * n + weight, n / 7, 0.3)
        for n in range(layers)
        for name, weight in (("wq", 17.3), ("wk", 900.7))
        for part in ("dispatch", "local")
    ]
    others = ("layers.0.first", "")
    outside = [Cell("local", "mm", replace(FORWARD, module=name), 5.1, 1.0) for name in others]
    measured = budget(cells=(*cells, *outside))
    alone, folded = measured.by_module(), fold_shares(measured.by_module())
    joined = {share.name: share for share in folded}
    assert [*joined] == [f"layers.*.wk ({layers}x)", f"layers.*.wq ({layers}x)", "layers.0.first", ""]
    for name in ("wq", "wk"):
        of_layers = [share for share in alone if share.name.endswith(name)]
        whole = joined[f"layers.*.{name} ({layers}x)"]
        assert len(of_layers) == layers
        # Since Python 3.12, sum() of floats is rounded once.
        assert whole.ns == pytest.approx(sum(share.ns for share in of_layers))
        assert whole.calls == pytest.approx(sum(share.calls for share in of_layers))
        for part in ("dispatch", "local"):
            assert whole.parts[part] == pytest.approx(sum(share.parts[part] for share in of_layers))
    assert [share for share in folded if "*" not in share.name] == alone[-2:]


def test_worst_is_never_the_programs_own_part() -> None:
    own = Cell("local", "mm", FORWARD, 500_000.0, 2.0), Cell("other", "", PYTHON, 400_000.0, 0.0)
    busy = budget(cells=(*budget().cells, *own), measured_ns=1_200_000.0)
    assert document({"t.py::test": [busy]}, View()).worst == "worst: dispatch, 5% of train, 5% at model.py:3"
    assert not document({"t.py::test": [budget(cells=own, measured_ns=900_000.0)]}, View()).worst


def test_worst_is_the_first_part_of_the_table() -> None:
    worst = "worst: dispatch, 50% of train, 50% at model.py:3"
    assert document({"t.py::test": [budget()]}, View()).worst == worst
    both = document({"t.py::test": [budget(), budget(name="noisy", noise=0.4, measured_ns=1e5)]}, View())
    assert both.worst == worst.replace("train,", "train in t.py::test,")
    assert not document({"t.py::test": [budget(noise=0.4)]}, View()).worst


def test_unmeasured_budget_is_empty() -> None:
    empty = Budget("x")
    assert empty.parts == {}
    assert not any((empty.unexplained_ns, empty.is_noisy))


MORE = (
    Cell("local", "mm", FORWARD, 25_000.0, 2.0),
    Cell("propagation", "mm", FORWARD, 50_000.0, 2.0),
    Cell("redistribution python", "redistribute f32[8]S0 -> R", PYTHON, 90_000.0, 1.0),
)
EARLIER = budget(cells=MORE, measured_ns=200_000.0)


def beside(before: Budget, after: Budget, test: str = "t.py::test") -> Document:
    view = View(before={RowId(test, before.name): before}, about_before="before: a.json")
    return document({"t.py::test": [after]}, view)


def test_parts_and_bars_share_colors_and_scale() -> None:
    before, after = (one for one in beside(EARLIER, budget()).blocks if isinstance(one, StackedBar))
    [alone] = (one for one in document({"x": [budget()]}, View()).blocks if isinstance(one, StackedBar))
    colours: dict[str, set[int]] = {}
    for bar in (before, after, alone):
        assert [colour for _, _, colour in bar.parts] == sorted(colour for _, _, colour in bar.parts)
        for text, _, colour in bar.parts:
            colours.setdefault(re.split(r" [\d.]+ us", text)[0], set()).add(colour)
    assert all(len(each) == 1 for each in colours.values())
    assert len({*map(max, colours.values())}) == len(colours) == 6
    shares = [sum(share for _, share, _ in bar.parts) for bar in (before, after, alone)]
    assert shares == pytest.approx([1.0, 0.6, 1.0])


def test_unmatched_budget_is_shown_alone() -> None:
    assert beside(EARLIER, budget(), test="t.py::other") == document({"t.py::test": [budget()]}, View())


# Outputs

AT = replace(FORWARD, file="/opt/lib/models/model.py", module="")
SMALL, LARGE = (Redistribution("add", "f32[8]", ("S0",), ("R",), size, place=AT) for size in (32, 90))
ADVICE = Advice("mm moved", "place it", "saves at most 2 redistributions", 2, 12_000.0, 0.25)
KINDS = (AdviceKind.CPU_TIME,) * 4 + (AdviceKind.MEMORY,) * 2
CHANGES = tuple(Advice(f"x{n}", "drop it", "saves 1", 1, kind=kind) for n, kind in enumerate(KINDS))
CALLS = {"a": 0.0, "b": 0.25, "c": 0.5, "d": 1.0, "e": 1030.0, "f": 65_432.4}
SMALL_PARTS = tuple(
    Cell(part, "", None, ns, 0.0) for part, ns in (("local", 2e3), ("other", 2_900.0), ("dispatch", 95_100.0))
)
PLAIN = (Cell("local", "mm", FORWARD, 48_000.0, 1.0), Cell("other", "", PYTHON, 1_000.0, 0.0))
BELOW_ZERO = (Cell("local", "mm", None, 13e4, 1.0), Cell("autograd", "", None, -2e3, 0.0))
MANY = tuple(Cell("local", f"op{n}", FORWARD, 1e6 + n, 1.0) for n in range(25))
RANGES = tuple(
    Cell("other", f"FSDP::pre_forward (layers.{n})", replace(FORWARD, module=f"layers.{n}"), 2e6, 2.0)
    for n in range(12)
)
ATTENTION = tuple(
    Cell(part, name, replace(FORWARD, module=f"layers.{number}.attention.{name}"), 4e6, 90.0)
    for number in range(12)
    for name in ("wq", "wk", "wv")
    for part in ("redistribution python", "dispatch", "redistribution planning")
)
VERBOSE, OF_EACH_LAYER = View(verbose=True), View(verbose=True, each_layer=True)
# By name: a step and its view. Parts are added to, or replace, those of `budget()`.
BUDGETS: dict[str, tuple[Budget, View]] = {
    "parts": (budget(), View()),
    "parts, -v": (budget(), VERBOSE),
    "noisy": (budget(noise=0.4), View()),
    "the parts miss the step": (budget(measured_ns=150_000.0), View()),
    "noisy, and the parts miss the step": (budget(measured_ns=150_000.0, noise=0.4), View()),
    "small parts": (budget(cells=SMALL_PARTS, measured_ns=1e5), View()),
    "small parts, -v": (budget(cells=SMALL_PARTS, measured_ns=1e5), VERBOSE),
    "waits": (budget(waiting_ns=80_000.0), View()),
    "short waits": (budget(waiting_ns=900.0), View()),
    "tracer and settings": (
        budget(tracers=("pdb",), slowed_by={"anomaly mode": "on", "TORCH_LOGS": "set"}, note="no lines"),
        View(),
    ),
    "a part below zero": (budget(cells=BELOW_ZERO), View()),
    "profiling without a cost": (
        budget(
            cells=(Cell("local", "mm", FORWARD, 110e3, 2.0, -30e3),), timed_ns=90_000.0, event_ns=-1_000.0
        ),
        VERBOSE,
    ),
    "calls": (budget(cells=tuple(Cell("local", op, FORWARD, 9e3, n) for op, n in CALLS.items())), VERBOSE),
    "many ops": (Budget("x", 3e7, MANY, steps=5), VERBOSE),
    "many ops on the page": (Budget("x", 3e7, MANY, steps=5), View(verbose=True, for_page=True)),
    "layers and ranges": (budget(cells=RANGES, measured_ns=24e6), VERBOSE),
    "each layer and range": (budget(cells=RANGES, measured_ns=24e6), OF_EACH_LAYER),
    "three parts in each layer": (budget(cells=ATTENTION, measured_ns=432e6), VERBOSE),
    "advice and redistributions": (
        budget(advice=(ADVICE,), redistributions=(LARGE, SMALL, SMALL, SMALL)),
        View(),
    ),
    "changes of two classes": (budget(advice=CHANGES), View()),
    "changes of two classes, -v": (budget(advice=CHANGES), VERBOSE),
    "no DTensors": (budget(cells=PLAIN, measured_ns=49e3), View()),
    "a wrap": (
        budget(cells=(*PLAIN, Cell("wrapping", "from_local", FORWARD, 1e3, 1.0)), measured_ns=5e4),
        View(),
    ),
    "collectives of another mesh": (
        budget(
            cells=(Cell("redistribution collectives", "redistribute", None, 9e4, 1.0),),
            elsewhere="all_gather on a CPU mesh",
        ),
        VERBOSE,
    ),
}


def test_outputs_match_the_saved_text() -> None:
    documents = {name: document({"t.py::test": [one]}, view) for name, (one, view) in BUDGETS.items()}
    documents["before and after"] = beside(EARLIER, budget())
    documents["one step before"] = beside(budget(steps=0, scatter=0.0), budget())
    outputs = {name: "\n".join(lines_of(found, 80)) for name, found in documents.items()}
    for name, output in outputs.items():
        assert max(map(len, output.splitlines())) <= 80, name
    outputs["parts with their legend"] = plain_text(documents["parts"], 80)
    noisy, _ = BUDGETS["noisy"]
    page = document({"t.py::test": [noisy]}, View(for_page=True))
    outputs["noisy, Markdown"] = document_text(page)
    assert_outputs_match(Path(__file__).with_name("budget_outputs.txt"), outputs)


def test_common_budgets_of_saved_runs_are_paired() -> None:
    runs = [
        ReportedRun(where=f"{name}.json", started=name, results={"budget": dict.fromkeys(tests, (one,))})
        for name, one, tests in (
            ("a", EARLIER, ("t.py::test", "gone")),
            ("b", budget(), ("t.py::test", "new")),
        )
    ]
    text = plain_text(pairs_document(*runs), 200)
    assert text.count("before and after") == 1
    assert "t.py::test: train (budget): before and after" in text
    assert "before: a.json, taken a. Steps scatter" in text
    assert not pairs_document(runs[0], ReportedRun()).blocks
    there, here = (
        replace(run, environment={"CPU": cpu}) for run, cpu in zip(runs, ("other", "this"), strict=True)
    )
    assert "taken a; CPU: other then, this now. Steps" in plain_text(pairs_document(there, here), 200)


def test_exported_budget_contains_causes_of_redistributions() -> None:
    many = tuple(Redistribution("add", f"f32[{n}]", ("S0",), ("R",), 4 * n, place=AT) for n in range(11, 31))
    [data] = budgets_data([Budget("train", 100.0, redistributions=(SMALL, LARGE, LARGE, *many))])
    first = data["redistributions"][0]
    assert (first["bytes"], first["per_step"], first["line"]) == (90, [2], AT.line_text)
    assert (len(data["redistributions"]), data["left_out"]) == (20, {"redistributions": 2})


def test_exported_budget_names_what_slows_calls() -> None:
    slowed_by = {"anomaly mode": "on"}
    [data, quiet] = budgets_data([budget(slowed_by=slowed_by, tracers=("pdb",)), budget()])
    assert (data["slowed_by"], data["tracers"]) == (slowed_by, ("pdb",))
    assert (quiet["slowed_by"], quiet["tracers"]) == ({}, ())
