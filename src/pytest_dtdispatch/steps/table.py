"""The table of counts, with one line for each step, and limits of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import grouped, name_of_any_dim, plural
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, judge_count, unjudged
from pytest_dtdispatch.report.document import Column, Document, Group, Kind, Line, Table, Tone, View
from pytest_dtdispatch.steps.data import steps_data
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    Read,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
    by_cause,
    with_short_path,
)
from pytest_dtdispatch.steps.model import (
    COUNTS,
    GROWTH,
    IMPLICIT,
    CountKind,
    StepCounts,
    Steps,
    StepState,
    kinds_of_dim,
    state_of,
)


def in_table_order(kinds: Sequence[CountKind]) -> list[CountKind]:
    """Sort kinds: calls and hits are the first columns; COUNTS has the order of files."""
    return sorted(kinds, key=lambda kind: kind.title not in ("calls", "hits"))


# Names of limits and of metrics; those of a mesh dimension have a placeholder for it.
OF_ANY_DIM = tuple(kind.limit for kind in kinds_of_dim("DIM"))
LIMITS = (*(kind.limit for kind in in_table_order(COUNTS) if kind.limit), *OF_ANY_DIM)
MEANINGS = {
    **{kind.title: kind.meaning for kind in COUNTS if kind.meaning},
    "steps": "warm-up + counted",
    "missed": "steps of that input shape that missed",
}


def document(counted: Mapping[str, Sequence[Steps]], view: View) -> Document:
    """Render the counts of each test."""
    every = [step for of_test in counted.values() for steps in of_test for step in steps.steps]
    columns = [kind for kind in in_table_order(COUNTS) if kind.title]
    kinds = [kind for kind in columns if not kind.is_omitted or any(map(kind.number, every))]
    groups, shapes = [], []
    for test, of_test in counted.items():
        lines = [_line(test, steps, kinds, view) for steps in of_test]
        if lines:
            groups.append(Group(f"{test} (counts of each step)", lines))
        for steps in of_test:
            if steps.inputs:
                title = f"{test}: inputs of {steps.name} (counts of all steps of a shape)"
                shapes.append(Group(title, _shape_lines(steps, view)))
    optional = ("steps", "DTensors+", "hits", "wraps", "collectives", IMPLICIT)
    tables = [Table(groups, "step", "state", optional, min_label=20)]
    if shapes:
        tables.append(Table(shapes, "shape", optional=("cache+", "missed")))
    legend = "Counts of each step, minimum-maximum if steps differ."
    return Document(tuple(tables), legend, MEANINGS, _worst_text(counted))


def _worst_text(counted: Mapping[str, Sequence[Steps]]) -> str:
    """Describe the step with most misses, or else most redistributions; empty if no step has any."""
    every = [
        (RowId(test, "" if steps.name == "step" else steps.name), steps.steps)
        for test, of_test in counted.items()
        for steps in of_test
        if steps.steps
    ]
    of_misses = [(row, [step.misses for step in steps]) for row, steps in every]
    of_moves = [(row, [len(step.redistributions) for step in steps]) for row, steps in every]
    for noun, ending, counts in (("miss", "es", of_misses), ("redistribution", "s", of_moves)):
        row, numbers = max(counts, key=lambda item: max(item[1]), default=(None, [0]))
        if max(numbers):
            up_to = "up to " if min(numbers) < max(numbers) else ""
            return f"worst: {row}: {up_to}{plural(max(numbers), noun, ending)} per step"
    return ""


def _line(test: str, steps: Steps, kinds: Sequence[CountKind], view: View) -> Line:
    cells = {}
    for kind in kinds:
        counts = [kind.number(step) for step in steps.steps]
        lowest, highest = min(counts), max(counts)
        cells[Column(kind.title)] = f"{lowest:,}" if lowest == highest else f"{lowest:,}-{highest:,}"
    cells[Column("steps")] = f"{len(steps.warmup)}+{len(steps.steps)}"
    details = []  # redistributions by cause; in a verbose view all other events that are no misses
    for shown in (Redistribution, Wrapping, Unwrapping, Collective) if view.verbose else (Redistribution,):
        details += _causes(shown, steps, view)
    if view.verbose and steps.warmup:
        misses = ", ".join(str(step.misses) for step in steps.warmup)
        details.append(f"misses of each step of the warm-up: {misses}")
    state = state_of(steps)
    if RowId(test, steps.name) in view.over:
        state = StepState(f"over its limits, {state.text}", has_trouble=True)
        details = details if view.verbose else []  # the error of its test lists the causes
    tone = Tone.BAD if state.has_trouble else Tone.GOOD
    return Line(steps.name, cells, state.text, _notes(steps, view), tone, details=details)


def _notes(steps: Steps, view: View) -> list[str]:
    notes = []
    if steps.unsteady:
        notes.append(f"unsteady: {steps.unsteady}")
    for kind in (Miss, Read):
        notes += _causes(kind, steps, view)
    elsewhere = sum(miss.elsewhere for miss in steps.missed)
    if elsewhere:
        notes.append(
            f"{elsewhere} of {steps.misses} misses were in other threads, whose hits are not counted: "
            "torch counts hits per thread"
        )
    grown = [f"{cache} {count:+,}" for cache, count in steps.cache_growth.items() if count]
    if grown:
        notes.append(f"cache entries over {plural(len(steps.steps), 'step')}: {', '.join(grown)}")
    if not view.for_page:
        notes += [line for advice in steps.advice for line in advice.lines]
    return notes


def _causes(kind: type[StepEvent], steps: Steps, view: View) -> list[str]:
    """Return a line for each visible cause of events of a kind."""
    events = [map(with_short_path, step.of(kind)) for step in steps.steps]
    texts = [f"{kind.prefix}{text}" for text in by_cause(events, view.each_layer)]
    return view.listed(texts, f" {kind.plural}")


def _shape_lines(steps: Steps, view: View) -> list[Line]:
    """Return a line for each shape, in order of first occurrence, and one line for the rest of many."""
    by_shape = grouped(zip(steps.inputs[len(steps.warmup) :], steps.steps, strict=True))
    rest = [] if view.verbose else list(by_shape)[10:]
    if rest:
        merged = [counts for shape in rest for counts in by_shape.pop(shape)]
        by_shape[f"{plural(len(rest), 'more shape')}; -v lists them"] = merged
    lines = []
    for label, of_shape in by_shape.items():
        counted = Steps("", (), tuple(of_shape))
        numbers = {
            "steps": len(of_shape),
            "missed": sum(step.misses > 0 for step in of_shape),
            "misses": counted.misses,
            "cache+": max(counted.cache_growth.values(), default=0),
        }
        lines.append(Line(label, {Column(title): f"{count:,}" for title, count in numbers.items()}))
    return lines


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
            label = f"step {steps.index(worst) + 1}"
            yield judge_step(counted.name, kind, limits[limit], found, label, worst)


def judge_step(name: str, kind: CountKind, most: int, found: int, label: str, step: StepCounts) -> RowVerdict:
    """Compare a count of a step with its limit; the verdict has the lines that caused it."""
    bytes_by_line = Counter[str]()
    for event in kind.events(step):
        if event.place and event.place.file:
            bytes_by_line[event.place.line_text] += getattr(event, "bytes", 0) + 1
    lines = [line for line, _ in bytes_by_line.most_common()]
    text = f"{label} has {found:,}"
    return judge_count(name, kind.limit, most, found, text, kind.details(step), lines)


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
