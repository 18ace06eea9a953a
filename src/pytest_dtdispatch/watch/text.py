"""Output of a watched loop: lines about steps, and the summary. Does not import torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

from pytest_dtdispatch.budget.collector import OLDEST, Pause
from pytest_dtdispatch.core.measurement import traced_text
from pytest_dtdispatch.core.text import escape_controls, first_of, listed, plural
from pytest_dtdispatch.core.verdicts import complaint
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, Tone, paragraph
from pytest_dtdispatch.report.terminal import page_width, plain_text
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
    by_cause,
)
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.watch.model import MIN_PAUSED, MIN_TIMED, LoopStep, LoopSteps, Total, Violation

Say = Callable[[str], object]


def say(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def transfers_text(counts: StepCounts) -> str:
    """Format the number of calls and of transfers of a step.

    Example:
        >>> from pytest_dtdispatch.steps.events import Collective
        >>> transfers_text(StepCounts(hits=24, events=(Collective("all_reduce"),)))
        '24 calls, 1 collective'
    """
    numbers = (
        ("call", counts.calls),
        ("redistribution", len(counts.redistributions)),
        ("collective", len(counts.collective_runs)),
        ("wrap", len(counts.wraps)),
        ("unwrap", len(counts.unwraps)),
    )
    return ", ".join(plural(count, name) for name, count in numbers if count or name == "call")


def disturbed_line(step: LoopStep, steps: LoopSteps) -> str:
    """Format a disturbed step: misses with their causes, cache growth and time."""
    missed = by_cause([step.counts.missed])
    parts = []
    if missed:
        listed = "; ".join(first_of(missed, 3, " misses"))
        parts.append(f"{plural(step.counts.misses, 'miss', 'es')}: {listed}")
    if step.new_entries:
        entries = ", ".join(f"{name} {count:+,}" for name, count in step.new_entries.items())
        parts.append(f"cache entries: {entries}")
    if step.took_ns is not None:
        parts.append(f"took {ms(step.took_ns)} ms{_beside(steps.steady)}")
        if sum(pause.ns for pause in step.pauses) >= MIN_PAUSED * step.took_ns:
            parts.append(pauses_text(step.pauses))
    if steps.unlisted.steps:
        similar = plural(steps.unlisted.steps, "similar step")
        parts.append(f"{similar} with {plural(steps.unlisted.misses, 'miss', 'es')} before it")
    return f"step {step.number}: {'; '.join(parts)}"


def violation_text(exceeded: Violation, rank: int | None, is_ending: bool) -> str:
    """Format a step over its limits as one block: its counts, their causes, and whether the program ends."""
    first, *lines = complaint(exceeded.verdicts).splitlines()
    has_lines = any(verdict.lines for verdict in exceeded.verdicts)  # that of cache growth has none
    if exceeded.missed and not has_lines:
        lines += [plural(len(exceeded.missed), "miss", "es"), *listed(exceeded.missed)]
    others = "; ranks that continue fail or wait in their next collective until their launcher ends them"
    if is_ending:
        lines.append(f"the program ends here, with status 1{'' if rank is None else others}")
    of_rank = "" if rank is None else f"rank {rank}: "
    return "\n  ".join(map(escape_controls, [f"dtdispatch: {of_rank}{first}", *lines]))


def pauses_text(pauses: Sequence[Pause]) -> str:
    """Format pauses of the garbage collector.

    Example:
        >>> pauses_text([Pause(0, 1_000_000), Pause(2, 20_000_000)])
        'the garbage collector paused it for 21 ms (2 pauses, 1 of the oldest generation)'
    """
    oldest = sum(pause.generation == OLDEST for pause in pauses)
    counts = f"{plural(len(pauses), 'pause')}, {oldest:,} of the oldest generation"
    return f"the garbage collector paused it for {ms(sum(pause.ns for pause in pauses))} ms ({counts})"


def paused_line(number: int, took_ns: int, pauses: Sequence[Pause], steady: Total) -> str:
    """Format a steady step that stands out because the garbage collector paused it."""
    return f"step {number}: took {ms(took_ns)} ms{_beside(steady)}: {pauses_text(pauses)}"


def calls_text(counts: StepCounts) -> str:
    """Format the number of calls and of misses."""
    return f"{plural(counts.calls, 'call')}, {plural(counts.misses, 'miss', 'es')}"


def ops_text(ops: Mapping[str, int], calls: int) -> str:
    """Format the most frequent ops among a number of calls.

    Example:
        >>> ops_text({"mm.default": 12, "t.default": 8}, 20), ops_text({"mm.default": 12}, 30)
        ('12 mm.default, 8 t.default', '12 mm.default, 18 other')
    """
    listed = Counter(ops).most_common(6)
    rest = calls - sum(count for _, count in listed)
    if rest > 0:
        listed.append(("other", rest))
    return ", ".join(f"{count:,} {op}" for op, count in listed)


def _beside(steady: Total) -> str:
    if len(steady.times) < MIN_TIMED:
        return ""
    low, high = steady.range_ns
    return f", steady steps {ms(low)} to {ms(high)} ms"


def ms(ns: float) -> str:
    """Format a time in milliseconds with three digits.

    Example:
        >>> ms(1234567), ms(123456789)
        ('1.23', '123')
    """
    value = ns / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rendered(document: Document, stream: Any) -> str:
    """Render a document for a stream, in the width of its terminal. The stream may be None."""
    is_terminal = stream is not None and stream.isatty()
    return plain_text(document, page_width(is_terminal, get_terminal_size().columns))


def document(name: str, steps: LoopSteps, notes: Sequence[str]) -> Document:
    """Render the steps of a loop."""
    title = f"{name}: {len(steps):,} steps, {steps.disturbed.steps:,} disturbed"
    rows = (("warm-up", steps.warmup), ("steady", steps.steady), ("disturbed", steps.disturbed))
    mark = "traced" if steps.tracers else ""
    lines = [_line(label, total, mark) for label, total in rows if total.steps]
    table = Table(
        (Group(title, lines),),
        label_title="steps that were",
        status_title="mark" if mark else "",
        optional=("p10-p90",),
    )
    blocks = (paragraph(note, tone, indent=1, hanging=1) for note, tone in _notes(steps, notes))
    return Document((table, *blocks))


def _line(label: str, total: Total, mark: str) -> Line:
    low, high = total.range_ns
    cells = {
        Column("steps"): f"{total.steps:,}",
        Column("calls"): f"{total.calls / total.steps:,.0f}",
        Column("misses"): f"{total.misses:,}",
        Column("cache+"): f"{total.new_entries:,}",
        Column("ms"): ms(total.median_ns) if total.times else "-",
        Column("p10-p90", "ms"): f"{ms(low)}-{ms(high)}" if total.times else "-",
    }
    return Line(label, cells, mark)


def _listed(kind: type[StepEvent], items: Sequence[object], most: int) -> Iterator[str]:
    """Yield a line for each of the first items, and one with the number of the others."""
    yield from (f"{kind.prefix}{item}" for item in items[:most])
    if len(items) > most:
        yield f"{len(items) - most:,} more {kind.plural}"


def _notes(steps: LoopSteps, notes: Sequence[str]) -> Iterator[tuple[str, Tone]]:
    for line in _listed(Miss, steps.causes, 10):
        yield line, Tone.BAD
    one = steps.with_transfers
    if one is not None:
        state = "steady" if one.is_steady else "disturbed"
        yield f"step {one.number}, {state}: {transfers_text(one.counts)}", Tone.PLAIN
        for kind in (Redistribution, Collective, Wrapping, Unwrapping):
            for line in _listed(kind, by_cause([one.counts.of(kind)]), 3):
                yield line, Tone.PLAIN
    if steps.tracers:
        yield traced_text([*steps.tracers]), Tone.NOTICE
    for note in filter(None, notes):
        yield note, Tone.NOTICE
