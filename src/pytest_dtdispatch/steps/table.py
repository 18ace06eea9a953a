"""The table of what was counted: a line for each step that was run several times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_dtdispatch.core.itemized import repeated
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, Tone, View
from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.steps.judge import LIMITS, complaint
from pytest_dtdispatch.steps.model import METRICS, StepCounts, Steps

COLUMNS: tuple[tuple[str, Callable[[StepCounts], int]], ...] = (
    ("calls", lambda step: step.calls),
    ("hits", lambda step: step.hits),
    ("misses", lambda step: step.misses),
    ("redistributes", lambda step: step.redistributes),
    ("collectives", lambda step: step.collective_calls),
    ("cache+", lambda step: step.most_cache_growth),
    ("specs+", lambda step: step.spec_growth),
    ("DTensors+", lambda step: step.dtensor_growth),
)
EXPENDABLE = ("steps", "DTensors+", "hits", "collectives")
LEGEND = (
    "Counts of each step, least-most where steps differ. calls: ops on DTensors; misses: those whose "
    "sharding was propagated; cache+: entries gained by the cache that gained most; specs+, DTensors+: live "
    "objects gained. steps: of the warm-up + counted. More with -v."
)


def document(counted: Mapping[str, Sequence[Steps]], view: View) -> Document:
    """Lay out what was counted."""
    groups = tuple(
        Group(f"{test} (counts of each step)", tuple(_line(steps, view) for steps in of_test))
        for test, of_test in counted.items()
        if of_test
    )
    columns = tuple(map(Column, (*(title for title, _ in COLUMNS), "steps")))
    table = Table(columns, groups, label_title="step", proof_title="state", expendable=EXPENDABLE)
    return Document((table,), LEGEND)


def state_of(steps: Steps) -> str:
    """Say in a word or two whether a step is steady: no misses, no growth, as many calls each time.

    Example:
        >>> state_of(Steps("train", (), (StepCounts(hits=3), StepCounts(hits=4))))
        'unsteady'
    """
    if not steps.warmup and len(steps.steps) == 1:
        return "counted"
    trouble = {
        "misses": steps.misses,
        "grows": any(count > 0 for count in (*steps.cache_growth.values(), steps.spec_growth)),
        "unsteady": steps.unsteady,
    }
    return ", ".join(word for word, found in trouble.items() if found) or "steady"


def _line(steps: Steps, view: View) -> Line:
    cells = tuple(_range([count(step) for step in steps.steps]) for _, count in COLUMNS)
    state = state_of(steps)
    return Line(
        label=steps.name,
        cells=(*cells, f"{len(steps.warmup)}+{len(steps.steps)}"),
        proof=state,
        notes=tuple(_notes(steps, view)),
        tone=Tone.GOOD if state in ("steady", "counted") else Tone.BAD,
    )


def _notes(steps: Steps, view: View) -> Sequence[str]:
    notes = [f"unsteady: {steps.unsteady}"] if steps.unsteady else []
    notes += view.listed([f"missed {text}" for text in repeated(steps.missed)])
    grown = [f"{cache} {count:+,}" for cache, count in steps.cache_growth.items() if count]
    if grown:
        notes.append(f"cache entries over {_times(len(steps.steps))}: {', '.join(grown)}")
    if view.verbose:
        notes += [f"redistributed {text}" for text in repeated(steps.redistributions)]
        notes += [
            f"collectives: {', '.join(f'{kind} {n}x' for kind, n in steps.collectives.items())}"
        ] * bool(steps.collectives)
        warm = "+".join(str(step.misses) for step in steps.warmup)
        notes += [f"misses of the warm-up: {warm}"] if warm else []
        if steps.host_memory_growth_bytes is not None:
            notes.append(
                f"resident memory over {_times(len(steps.steps))}: {steps.host_memory_growth_bytes:+,} bytes"
            )
    return notes


def _times(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


KIND = Kind(
    Steps.kind,
    document,
    tuple(METRICS),
    complaint,
    LIMITS,
    "no steps were counted; call dtdispatch.steps(fn) in the test, "
    "or count whole tests with --dtdispatch-all --dtdispatch-metric counts",
    number="{} steps were counted",
)
