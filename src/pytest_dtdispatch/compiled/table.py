"""The table of compiled functions, and limits of their counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from pytest_dtdispatch.compiled.model import METRICS, CompileCounts, CompiledFunction
from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.results import repeated
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import MICROSECONDS, Scale
from pytest_dtdispatch.core.verdicts import RowVerdict, judge_count, unjudged
from pytest_dtdispatch.report.document import Block, Column, Document, Group, Kind, Line, Table, Tone, View
from pytest_dtdispatch.report.notes import mark, proved, title_of

LIMITS = ("recompiles", "graph_breaks")  # each is the name of a count
TIMES = {
    "cold": (State.COMPILE_COLD, Scale("s", 1e9, 3)),
    "warm": (State.COMPILE_WARM, Scale("ms", 1e6, 1)),
    "call": (State.CALL, MICROSECONDS),
    "eager": (State.EAGER, MICROSECONDS),
}
COUNTS = {
    "graphs": "{graphs}",
    "breaks": "{graph_breaks}",
    "guards": "{guards}",
    "recompiles": "{recompiles}",
    "propagations": "{propagations}",
    "fake": "{fake_tensor_hits}+{fake_tensor_misses}",
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
    """Render compiled functions."""
    legend = (
        "Each figure is the least sample, times of wall time. torch's counters count one cold compile; "
        "?: torch has no such counter."
    )
    return Document(tuple(_table(compiled, view)), legend, MEANINGS, _worst_text(compiled, view))


def _worst_text(compiled: Mapping[str, Sequence[CompiledFunction]], view: View) -> str:
    """Describe the function with the most expensive cold compile."""
    scale, unit = (Scale("", 1, 0), f" {view.counted}") if view.counted else (TIMES["cold"][1], " s")
    costs = [
        (cost, function.name)
        for of_test in compiled.values()
        for function in of_test
        if (cost := function.measurement.figure(State.COMPILE_COLD))
    ]
    return f"worst: {max(costs)[1]}, {scale.text(max(costs)[0])}{unit} to compile cold" if costs else ""


def _table(compiled: Mapping[str, Sequence[CompiledFunction]], view: View) -> Iterator[Block]:
    everything = [function.measurement for of_test in compiled.values() for function in of_test]
    is_timed = any(samples.ns for measurement in everything for samples in measurement.figures.samples)
    scales = {
        title: (state, scale if is_timed else Scale("", 1, 0))
        for title, (state, scale) in TIMES.items()
        if any(measurement.of(state) for measurement in everything)
    }

    def line(function: CompiledFunction) -> Line:
        measurement, counts = function.measurement, _texts(function.counts)
        cells = [scale.text(measurement.figure(state)) for state, scale in scales.values()]
        cells += [text.format_map(counts) for text in COUNTS.values()]
        cells += [_samples(measurement)] * bool(scales)
        text, tone = mark(measurement) if scales else ("", Tone.PLAIN)
        return Line(function.name, tuple(cells), text, tuple(_notes(function, view)), tone)

    groups = tuple(
        Group(
            f"{test} (compiled by {backend})",
            tuple(line(each) for each in of_test if each.backend == backend),
        )
        for test, of_test in compiled.items()
        for backend in dict.fromkeys(function.backend for function in of_test)
    )
    titles = [*COUNTS, *["samples"] * bool(scales)]
    columns = (*(Column(title, scale.name) for title, (_, scale) in scales.items()), *map(Column, titles))
    last = title_of([line for group in groups for line in group.lines])
    expendable = ("samples", "fake", "propagations", "guards", "warm")
    yield Table(
        columns,
        groups,
        label_title="compiled",
        proof_title=last,
        expendable=expendable,
        omitted_last=("eager",),  # the gates judge the others
        least_label=20,
    )
    yield from proved(everything if scales else (), by="torch's counters")


def _samples(measurement: Measurement) -> str:
    states = (measurement.of(state) for state in (State.COMPILE_COLD, State.COMPILE_WARM, State.CALL))
    return "+".join(str(len(samples.values) if samples else 0) for samples in states)


def _notes(function: CompiledFunction, view: View) -> Iterator[str]:
    counts = function.counts
    if function.difference:
        yield f"compiled results differ from the uncompiled: {function.difference}"
    yield from function.measurement.figures.notes
    listed = [f"graph break at {text}" for text in repeated(counts.graph_breaks or ())]
    listed += [f"recompiled {text}" for text in repeated(counts.recompiles or ())]
    yield from view.listed(listed)


def _texts(counts: CompileCounts) -> dict[str, str]:
    numbers = {field.name: counts.number(field.name) for field in fields(counts)}
    return {name: "?" if number is None else f"{number:,}" for name, number in numbers.items()}


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
