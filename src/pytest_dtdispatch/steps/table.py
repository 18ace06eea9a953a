"""The table of counts, with one line for each step, and limits of counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import name_of_any_dim, plural
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, judge_count, unjudged
from pytest_dtdispatch.report.document import Column, Document, Group, Kind, Line, Table, Tone, View
from pytest_dtdispatch.steps.data import steps_data
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    Read,
    Redistribution,
    Unwrapping,
    Wrapping,
    by_cause,
)
from pytest_dtdispatch.steps.model import (
    COUNTS,
    GROWTH,
    IMPLICIT,
    PARTIAL_READS,
    READS,
    CountKind,
    StepCounts,
    Steps,
    kinds_of_dim,
    state_of,
)


def in_table_order(kinds: Sequence[CountKind]) -> list[CountKind]:
    """Sort kinds: calls and hits are the first columns; COUNTS has the order of files."""
    return sorted(kinds, key=lambda kind: kind.title not in ("calls", "hits"))


COLUMNS = [kind for kind in in_table_order(COUNTS) if kind.title]
# Names of limits and of metrics; those of a mesh dimension have a placeholder for it.
OF_ANY_DIM = tuple(kind.limit for kind in kinds_of_dim("DIM"))
LIMITS = (*(kind.limit for kind in in_table_order(COUNTS) if kind.limit), *OF_ANY_DIM)
RARE = (IMPLICIT, READS, PARTIAL_READS)  # columns that are omitted if all steps have 0
MEANINGS = {
    "misses": "calls whose sharding was propagated",
    IMPLICIT: "redistributions that an op implied",
    "wraps": "conversions of local tensors to DTensors",
    READS: "reads of values by the host, which wait for a device",
    PARTIAL_READS: "reads of partial DTensors: each rank reads its own share",
    "cache+": "entries that the fastest-growing cache gained",
    "specs+": "live sharding specs gained",
    "DTensors+": "live DTensors gained",
    "calls": "ops on DTensors",
    "steps": "warm-up + counted",
    "missed": "steps of that input shape that missed",
}


def document(counted: Mapping[str, Sequence[Steps]], view: View) -> Document:
    """Render the counts of each test."""
    every = [step for of_test in counted.values() for steps in of_test for step in steps.steps]
    shown = [each for each in COLUMNS if each.title not in RARE or any(map(each.number, every))]
    groups = tuple(
        Group(f"{test} (counts of each step)", tuple(_line(test, steps, shown, view) for steps in of_test))
        for test, of_test in counted.items()
        if of_test
    )
    columns = tuple(map(Column, (*(column.title for column in shown), "steps")))
    expendable = ("steps", "DTensors+", "hits", "wraps", "collectives", IMPLICIT)
    tables = [Table(columns, groups, "step", "state", expendable, least_label=20)]
    shapes = tuple(
        Group(f"{test}: inputs of {steps.name} (counts of all steps of a shape)", _shape_lines(steps, view))
        for test, of_test in counted.items()
        for steps in of_test
        if steps.inputs
    )
    if shapes:
        columns = tuple(map(Column, ("steps", "missed", "misses", "cache+")))
        tables.append(Table(columns, shapes, "shape", "", expendable=("cache+", "missed")))
    legend = "Counts of each step, minimum-maximum if steps differ."
    return Document(tuple(tables), legend, MEANINGS, _worst_text(counted))


def _worst_text(counted: Mapping[str, Sequence[Steps]]) -> str:
    """Describe the step with most misses, or else most redistributions; empty if no step has any."""
    every = [
        (RowId(test, "" if steps.name == "step" else steps.name), steps.steps)
        for test, of_test in counted.items()
        for steps in of_test
    ]
    for noun, ending, number in (
        ("miss", "es", lambda step: step.misses),
        ("redistribution", "s", lambda step: len(step.redistributions)),
    ):
        found = [(row, sorted(map(number, steps))) for row, steps in every if steps]
        row, numbers = max(found, key=lambda item: item[1][-1], default=(None, [0]))
        if numbers[-1]:
            up_to = "up to " * (numbers[0] < numbers[-1])
            return f"worst: {row}: {up_to}{plural(numbers[-1], noun, ending)} per step"
    return ""


def _line(test: str, steps: Steps, columns: Sequence[CountKind], view: View) -> Line:
    cells = tuple(_range([column.number(step) for step in steps.steps]) for column in columns)
    state, is_over = state_of(steps), RowId(test, steps.name) in view.over
    return Line(
        label=steps.name,
        cells=(*cells, f"{len(steps.warmup)}+{len(steps.steps)}"),
        proof=f"{'over its limits, ' * is_over}{state.text}",
        notes=tuple(_notes(steps, view)),
        tone=Tone.BAD if is_over or state.has_trouble else Tone.GOOD,
    )


def _notes(steps: Steps, view: View) -> Sequence[str]:
    notes = [f"unsteady: {steps.unsteady}"] if steps.unsteady else []
    for kind in (Miss, Read):
        texts = by_cause([step.of(kind) for step in steps.steps], view.each_layer)
        notes += view.listed([f"{kind.prefix}{text}" for text in texts], f" {kind.plural}")
    if elsewhere := sum(miss.elsewhere for miss in steps.missed):
        notes.append(
            f"{elsewhere} of {steps.misses} misses were in other threads, whose hits are not counted: "
            "torch counts hits per thread"
        )
    grown = [f"{cache} {count:+,}" for cache, count in steps.cache_growth.items() if count]
    length = plural(len(steps.steps), "step")
    notes += [f"cache entries over {length}: {', '.join(grown)}"] if grown else []
    notes += [line for advice in steps.advice for line in advice.lines if not view.for_page]
    if view.verbose:
        notes += [
            f"{kind.prefix}{text}"
            for kind in (Redistribution, Wrapping, Unwrapping, Collective)
            for text in by_cause([step.of(kind) for step in steps.steps], view.each_layer)
        ]
        warm = ", ".join(str(step.misses) for step in steps.warmup)
        notes += [f"misses of each step of the warm-up: {warm}"] if warm else []
    return notes


def _shape_lines(steps: Steps, view: View) -> tuple[Line, ...]:
    """Return a line for each shape, in order of first occurrence, and one line for the rest of many."""
    of_shape: dict[str, list[StepCounts]] = {}
    for shape, counts in zip(steps.inputs[len(steps.warmup) :], steps.steps, strict=True):
        of_shape.setdefault(shape, []).append(counts)
    shapes = list(of_shape)
    alone = len(shapes) if view.verbose else 10
    lines = [_shape_line(shape, of_shape[shape]) for shape in shapes[:alone]]
    if rest := shapes[alone:]:
        title = f"{plural(len(rest), 'more shape')}; -v lists them"
        lines.append(_shape_line(title, [counts for shape in rest for counts in of_shape[shape]]))
    return tuple(lines)


def _shape_line(label: str, steps: Sequence[StepCounts]) -> Line:
    counted = Steps("", (), tuple(steps))
    missed = sum(step.misses > 0 for step in steps)
    grown = max(counted.cache_growth.values(), default=0)
    return Line(label, tuple(f"{count:,}" for count in (len(steps), missed, counted.misses, grown)))


def _range(counts: Sequence[int]) -> str:
    lowest, highest = min(counts), max(counts)
    return f"{lowest:,}" if lowest == highest else f"{lowest:,}-{highest:,}"


def judge(counted: Steps, limits: Mapping[str, int]) -> Iterator[RowVerdict]:
    """Compare the worst step with each limit."""
    steps = counted.steps
    for name in limits if steps else ():
        if name_of_any_dim(name) in OF_ANY_DIM and name not in {kind.limit for kind in counted.kinds}:
            valid = ", ".join(counted.mesh_dims) or "there are none"
            reason = f"no mesh has this dimension; valid: {valid}"
            yield unjudged(RowId("", counted.name), f"{name}={limits[name]}", reason, Verdict.MISSING)
    for kind in in_table_order(counted.kinds):
        limit = kind.limit
        if limit in limits and steps:
            worst = max(steps, key=kind.number)
            found = 0 if limit == GROWTH and counted.is_cold else kind.number(worst)
            text = f"step {steps.index(worst) + 1} has {found:,}"
            lines = dict.fromkeys(event.place.line_text for event in kind.events(worst) if event.place)
            yield judge_count(counted.name, limit, limits[limit], found, text, kind.details(worst), [*lines])


KIND = Kind(
    Steps.kind,
    document,
    (*(kind.metric for kind in COUNTS if kind.metric), *OF_ANY_DIM),
    judge,
    LIMITS,
    title="Counts of each step",
    type=Steps,
    advice=attrgetter("advice"),
    data=steps_data,
    nothing="no steps were counted; call dtdispatch.steps(fn) in the test, "
    "or count whole tests with --dtdispatch-all --dtdispatch-metric counts",
)
