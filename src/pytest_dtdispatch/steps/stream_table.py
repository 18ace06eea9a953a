"""What is shown of a stream: a line for each shape, when it got steady, and what a miss cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.report.document import Column, Group, Line, Table, View
from pytest_dtdispatch.report.scales import MILLISECONDS
from pytest_dtdispatch.steps.causes import by_cause, ranged
from pytest_dtdispatch.steps.model import Steps
from pytest_dtdispatch.steps.stream import Missed, Stream, StreamStep, TimeSpread

MOST_SHAPES, FIRST_SHAPES = 10, 5
MISSING, HITTING = "ms missing", "ms not missing"
COLUMNS = ("steps", "missed", "misses", "cache+", MISSING, HITTING)
MEANINGS = {
    "missed": "steps of that shape that missed",
    MISSING: "median wall time of steps that missed while they were counted, and its 95 % interval; of fewer "
    "than six their range",
    HITTING: "the same of steps that did not miss",
}


def tables(counted: Mapping[str, Sequence[Steps]], view: View) -> Iterator[Table]:
    """Lay out every stream, a line for each shape in the order they came."""
    groups = tuple(
        Group(f"{test}: inputs of {steps.name} (counts of all steps of a shape)", _lines(steps.stream, view))
        for test, of_test in counted.items()
        for steps in of_test
        if steps.stream and steps.stream.steps
    )
    if groups:
        columns = tuple(map(Column, COLUMNS))
        yield Table(columns, groups, label_title="shape", proof_title="", expendable=("cache+", "missed"))


def _lines(stream: Stream, view: View) -> tuple[Line, ...]:
    of_shape: dict[str, list[StreamStep]] = {}
    for step in stream.steps:
        of_shape.setdefault(step.shape, []).append(step)
    shapes, cache = list(of_shape), stream.grown_most
    alone = len(shapes) if view.verbose or len(shapes) <= MOST_SHAPES else FIRST_SHAPES
    lines = [_line(shape, of_shape[shape], cache) for shape in shapes[:alone]]
    if rest := shapes[alone:]:
        title = f"{len(rest)} more shapes: {ranged(rest)}"
        lines.append(_line(title, [step for shape in rest for step in of_shape[shape]], cache))
    return tuple(lines)


def _line(label: str, steps: Sequence[StreamStep], cache: str) -> Line:
    cells = (
        f"{len(steps):,}",
        f"{sum(step.misses > 0 for step in steps):,}",
        f"{sum(step.misses for step in steps):,}",
        f"{sum(dict(step.counts.cache_growth).get(cache, 0) for step in steps):,}",
        _time([step.took_ns for step in steps if step.misses]),
        _time([step.took_ns for step in steps if not step.misses]),
    )
    return Line(label, cells)


def _time(took_ns: Sequence[int]) -> str:
    return _milliseconds(TimeSpread.of(took_ns)) if took_ns else "-"


def _milliseconds(spread: TimeSpread, unit: str = "") -> str:
    median = f"{MILLISECONDS.text(spread.median_ns)}{unit}"
    return median if spread.samples == 1 else f"{median} ({_range(spread)})"


def _range(spread: TimeSpread) -> str:
    return f"{MILLISECONDS.text(spread.low_ns)} to {MILLISECONDS.text(spread.high_ns)}"


def state_of_stream(stream: Stream) -> str:
    """Say in a few words whether a stream got steady."""
    steady = stream.steady_after
    if steady is None or stream.missed_again:
        return "misses" if steady is None else "misses again"
    return f"steady after {many(steady.shapes, 'shape')}" if steady.steps else "steady"


def notes_of(stream: Stream) -> Iterator[str]:
    """Say when a stream got steady, what a miss cost, and which shapes missed again."""
    shapes, steps = many(len(stream.shapes), "shape"), many(len(stream.steps), "step")
    yield f"inputs of {shapes} in {steps}: {_steadiness(stream)}"
    yield from _cost(stream)
    if again := stream.missed_again:
        yield (
            f"{many(len(again), 'step')} missed again, on {_named(again)}: calls that had missed before, "
            "whose plans were dropped or are never kept"
        )
    if inside := [step for step in stream.steps if step.missed_inside]:
        yield (
            f"{many(len(inside), 'step')} missed on inputs of a shape that came before, {_named(inside)}: "
            "something else than the input changes, as a cache that grows"
        )


def _named(steps: Sequence[StreamStep]) -> str:
    shapes = list(dict.fromkeys(step.shape for step in steps))
    more = f" and {len(shapes) - FIRST_SHAPES} more" if len(shapes) > FIRST_SHAPES else ""
    return f"{', '.join(shapes[:FIRST_SHAPES])}{more}"


def missed_texts(steps: Steps) -> list[str]:
    """List what missed, a line for each cause; of a stream first what a steady program would not miss."""
    if not steps.stream:
        return [f"missed {text}" for text in by_cause([step.missed for step in steps.steps])]
    stream = steps.stream.steps
    again = by_cause([step.again for step in stream])
    inside = by_cause([_new(step) if step.is_repeated else () for step in stream])
    first = by_cause([() if step.is_repeated else _new(step) for step in stream])
    return [*(f"missed again {text}" for text in again), *(f"missed {text}" for text in (*inside, *first))]


def _new(step: StreamStep) -> list[Missed]:
    return [miss for miss in step.counts.missed if not any(miss is other for other in step.again)]


def _steadiness(stream: Stream) -> str:
    steady, steps = stream.steady_after, len(stream.steps)
    if steady and not steady.steps:
        return "no step missed"
    misses = _misses(stream)
    if steady is None:
        what = "every step missed" if stream.hitting is None else "the last step missed"
        return f"never steady, {what}; {misses}"
    after = f"{many(steady.shapes, 'shape')} and {many(steady.steps, 'step')}"
    return f"steady after {after}, no miss in the {many(steps - steady.steps, 'step')} since; {misses}"


def _misses(stream: Stream) -> str:
    """Count misses by shape, where it is the shape of the input that they come of."""
    if any(step.missed_inside for step in stream.steps):
        missing = [step.misses for step in stream.steps if step.misses]
        return f"{_many_misses(sum(missing) / len(missing))} a step that missed"
    return f"{_many_misses(stream.misses_per_shape)} a shape"


def _many_misses(number: float) -> str:
    return f"{number:,.4g} {'miss' if number == 1 else 'misses'}"


def _cost(stream: Stream) -> Iterator[str]:
    cost, missing, hitting = stream.miss_cost, stream.missing, stream.hitting
    if missing is None or hitting is None or cost is None:
        if missing is not None:
            took = _milliseconds(missing, " ms")
            yield f"a step took {took}; what a miss costs is not known, as there is no step without one"
        return
    yield (
        f"{many(missing.samples, 'step')} that missed took {_milliseconds(missing, ' ms')}, "
        f"{hitting.samples:,} that did not {_milliseconds(hitting, ' ms')}"
    )
    if cost.is_noise:
        yield f"what a miss costs is not told apart from noise: {_range(cost.step)} ms a step"
        return
    beside = "one of its shape" if cost.is_of_same_shape else "one of another shape, whose work may differ"
    subject = "a step that misses takes" if cost.step.samples > 1 else "one step that missed took"
    yield (
        f"{subject} {_milliseconds(cost.step, ' ms')} longer than {beside}, "
        f"{_milliseconds(cost.miss, ' ms')} a miss"
    )
