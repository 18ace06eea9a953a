"""What a watched loop says: where its lines go, a line about a step, and the summary. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_dtdispatch.core.environment import read_world
from pytest_dtdispatch.core.text import first_of, plural
from pytest_dtdispatch.report.document import Block, Column, Document, Group, Line, Table, Tone, paragraph
from pytest_dtdispatch.steps.events import by_cause
from pytest_dtdispatch.steps.model import TRANSFERS, StepCounts
from pytest_dtdispatch.watch.model import LoopStep, LoopSteps, Total

Say = Callable[[str], object]


def say_on_first_rank(text: str) -> None:
    """Write to standard error, on the first of all ranks alone."""
    if is_first_rank():
        print(text, file=sys.stderr, flush=True)


def is_first_rank() -> bool:
    """Ask the process group, if there is one of real ranks, whether this is its first; else a launcher."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_backend() != "fake":
        return bool(dist.get_rank() == 0)
    return read_world(os.environ).is_first


MOST_LISTED, MOST_OPS = 3, 6
LEAST_TIMES = 5  # steady steps, before it is said what they take


def transfers_text(counts: StepCounts) -> str:
    """Say how many calls a step has, and how much it moves.

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
    """Say what happened in a step that was not steady: what missed and why, and what it cost."""
    missed = by_cause([step.counts.missed])
    listed = "; ".join(first_of(missed, MOST_LISTED))
    parts = [f"{plural(step.counts.misses, 'miss', 'es')}: {listed}"] * bool(missed)
    entries = ", ".join(f"{name} {count:+,}" for name, count in step.new_entries.items())
    parts += [f"cache entries: {entries}"] * bool(entries)
    if step.took_ns is not None:
        parts.append(f"took {ms(step.took_ns)} ms{_beside(steps.steady)}")
    if steps.unlisted.steps:
        similar = plural(steps.unlisted.steps, "similar step")
        parts.append(f"{similar} with {plural(steps.unlisted.misses, 'miss', 'es')} before it")
    return f"step {step.number}: {'; '.join(parts)}"


def calls_text(counts: StepCounts) -> str:
    """Say how many calls there were, and how many of them missed."""
    return f"{plural(counts.calls, 'call')}, {plural(counts.misses, 'miss', 'es')}"


def ops_text(ops: Mapping[str, int], calls: int) -> str:
    """List the ops that were called most often, of so many calls in all.

    Example:
        >>> ops_text({"mm.default": 12, "t.default": 8}, 20), ops_text({"mm.default": 12}, 30)
        ('12 mm.default, 8 t.default', '12 mm.default, 18 other')
    """
    listed = sorted(ops.items(), key=lambda item: -item[1])[:MOST_OPS]
    rest = calls - sum(count for _, count in listed)
    return ", ".join(f"{count:,} {op}" for op, count in [*listed, *[("other", rest)] * (rest > 0)])


def _beside(steady: Total) -> str:
    least, most = steady.most_of_them_ns
    return f", steady steps {ms(least)} to {ms(most)} ms" if len(steady.times) >= LEAST_TIMES else ""


def ms(ns: float) -> str:
    """Write a time in milliseconds with three digits.

    Example:
        >>> ms(1234567), ms(123456789)
        ('1.23', '123')
    """
    value = ns / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


MOST_CAUSES, MOST_MOVED = 10, 3  # that are listed
COLUMNS = (*map(Column, ("steps", "calls", "misses", "cache+", "ms")), Column("p10-p90", "ms"))


def document(name: str, steps: LoopSteps, notes: Sequence[str]) -> Document:
    """Lay out what a loop did."""
    title = f"{name}: {len(steps):,} steps, {steps.disturbed.steps:,} disturbed"
    rows = (("warm-up", steps.warmup), ("steady", steps.steady), ("disturbed", steps.disturbed))
    lines = tuple(_line(label, total) for label, total in rows if total.steps)
    blocks: list[Block] = [Table(COLUMNS, (Group(title, lines),), "steps that were", "", ("p10-p90",))]
    blocks += [paragraph(note, tone, indent=1, hanging=1) for note, tone in _notes(steps, notes)]
    return Document(tuple(blocks))


def _line(label: str, total: Total) -> Line:
    least, most = total.most_of_them_ns
    calls = f"{total.calls / total.steps:,.0f}"
    numbers = f"{total.steps:,}", calls, f"{total.misses:,}", f"{total.new_entries:,}"
    times = (ms(total.median_ns), f"{ms(least)}-{ms(most)}") if total.times else ("-", "-")
    return Line(label, (*numbers, *times))


def _notes(steps: LoopSteps, notes: Sequence[str]) -> Iterator[tuple[str, Tone]]:
    for cause in first_of(steps.causes, MOST_CAUSES):
        yield f"missed {cause}", Tone.BAD
    if (one := steps.looked_at) is not None:
        state = "steady" if one.is_steady else "disturbed"
        yield f"step {one.number}, {state}: {transfers_text(one.counts)}", Tone.PLAIN
        for kind in TRANSFERS:
            for text in first_of(by_cause([one.counts.of(kind)]), MOST_MOVED):
                yield f"{kind.verb} {text}", Tone.PLAIN
    for note in filter(None, notes):
        yield note, Tone.NOTICE
