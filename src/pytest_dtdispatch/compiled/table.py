"""The table of compiled functions, and limits of their counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from pytest_dtdispatch.compiled.model import METRICS, CompiledFunction
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.results import repeated
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import COUNT, MICROSECONDS, Scale, grouped
from pytest_dtdispatch.core.verdicts import RowVerdict, judge_count, unjudged
from pytest_dtdispatch.report.document import Column, Document, Group, Kind, Line, Table, Tone, View
from pytest_dtdispatch.report.notes import mark, proved, title_of

LIMITS = ("recompiles", "graph_breaks")  # each is the name of a count
TIMES = {
    "cold": (State.COMPILE_COLD, Scale("s", 1e9, 3)),
    "warm": (State.COMPILE_WARM, Scale("ms", 1e6, 1)),
    "call": (State.CALL, MICROSECONDS),
    "eager": (State.EAGER, MICROSECONDS),
}
MEANINGS = {
    "cold": "torch.compile and the first call, every cache empty",
    "warm": "the same with filled caches of compiled code",
    "call": "guards and the compiled program",
    "eager": "the same call uncompiled",
    "fake": "hits + misses of the FakeTensor cache",
    "samples": "cold + warm + calls",
}


def judge(function: CompiledFunction, limits: Mapping[str, int]) -> Iterator[RowVerdict]:
    """Compare a compiled function with each limit."""
    for limit in LIMITS:
        if limit in limits:
            found = getattr(function.counts, limit)
            gave_up = f"torch gave up compiling: {function.gave_up}" if function.gave_up else ""
            if gave_up or found is None:
                why = gave_up or "this torch does not count them"
                yield unjudged(RowId("", function.name), f"{limit}={limits[limit]}", why)
            else:
                text = f"there are {len(found):,}"
                yield judge_count(function.name, limit, limits[limit], len(found), text, found)


def document(compiled: Mapping[str, Sequence[CompiledFunction]], view: View) -> Document:
    """Render compiled functions, by test and backend."""
    measurements = [function.measurement for functions in compiled.values() for function in functions]
    is_timed = any(samples.ns for row in measurements for samples in row.figures.samples)
    columns = {
        Column(title, scale.name if is_timed else ""): (state, scale if is_timed else COUNT)
        for title, (state, scale) in TIMES.items()
        if any(row.of(state) for row in measurements)
    }
    groups, costs = [], []
    for test, of_test in compiled.items():
        for backend, functions in grouped((function.backend, function) for function in of_test).items():
            lines = [_line(function, columns, view) for function in functions]
            groups.append(Group(f"{test} (compiled by {backend})", lines))
            costs += [(each.measurement.figure(State.COMPILE_COLD) or 0.0, each.name) for each in functions]
    table = Table(
        groups,
        label_title="compiled",
        status_title=title_of(groups),
        optional=("samples", "fake", "propagations", "guards", "warm"),
        omitted_last=("eager",),  # the gates judge the others
        min_label=20,
    )
    legend = (
        "Each figure is the least sample, times of wall time. torch's counters count one cold compile; "
        "?: torch has no such counter."
    )
    cost, name = max(costs, default=(0.0, ""))
    text = f"{COUNT.text(cost)} {view.counted}" if view.counted else f"{TIMES['cold'][1].text(cost)} s"
    worst = f"worst: {name}, {text} to compile cold" if cost else ""
    proofs = proved(measurements if columns else (), by="torch's counters")
    return Document((table, *proofs), legend, MEANINGS, worst)


def _line(function: CompiledFunction, columns: Mapping[Column, tuple[State, Scale]], view: View) -> Line:
    """Return the line of a function: its times in these columns, its counts, and the number of samples."""
    row, counts = function.measurement, function.counts
    numbers = {field.name: counts.number(field.name) for field in fields(counts)}
    texts = {name: "?" if number is None else f"{number:,}" for name, number in numbers.items()}
    cells = {column: scale.text(row.figure(state)) for column, (state, scale) in columns.items()}
    cells |= {
        Column("graphs"): texts["graphs"],
        Column("breaks"): texts["graph_breaks"],
        Column("guards"): texts["guards"],
        Column("recompiles"): texts["recompiles"],
        Column("propagations"): texts["propagations"],
        Column("fake"): f"{texts['fake_tensor_hits']}+{texts['fake_tensor_misses']}",
    }
    status, tone = "", Tone.PLAIN
    if columns:
        recorded = [row.of(state) for state in (State.COMPILE_COLD, State.COMPILE_WARM, State.CALL)]
        cells[Column("samples")] = "+".join(str(len(each.values) if each else 0) for each in recorded)
        status, tone = mark(row)
    notes = list(row.figures.notes)
    if function.difference:
        notes.insert(0, f"compiled results differ from the uncompiled: {function.difference}")
    listed = [f"graph break at {text}" for text in repeated(counts.graph_breaks or ())]
    listed += [f"recompiled {text}" for text in repeated(counts.recompiles or ())]
    return Line(function.name, cells, status, [*notes, *view.listed(listed)], tone)


KIND = Kind(
    CompiledFunction.kind,
    document,
    METRICS,
    judge,
    LIMITS,
    title="Compiled functions",
    type=CompiledFunction,
    has_own_table=True,
    nothing="nothing was compiled; call dtdispatch.compile(fn, *args) in the test",
)
