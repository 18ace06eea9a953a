"""The summary of a watched loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_dtdispatch.report.document import Block, Column, Document, Group, Line, Table, Tone, paragraph
from pytest_dtdispatch.steps.events import Happened, by_cause
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.watch.lines import ms, transfers_text
from pytest_dtdispatch.watch.model import LoopSteps, Total

MOST_CAUSES, MOST_MOVED = 10, 3  # that are listed
COLUMNS = (
    Column("steps"),
    Column("calls"),
    Column("misses"),
    Column("cache+"),
    Column("ms"),
    Column("p10-p90", "ms"),
)


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
    calls = f"{total.least_calls:,}"
    if total.most_calls > total.least_calls:
        calls += f"-{total.most_calls:,}"
    numbers = f"{total.steps:,}", calls, f"{total.misses:,}", f"{total.new_entries:,}"
    times = (ms(total.median_ns), f"{ms(least)}-{ms(most)}") if total.timed else ("-", "-")
    return Line(label, (*numbers, *times))


def _notes(steps: LoopSteps, notes: Sequence[str]) -> Iterator[tuple[str, Tone]]:
    for cause in _listed(steps.causes, MOST_CAUSES):
        yield f"missed {cause}", Tone.BAD
    if (one := steps.looked_at) is not None:
        state = "steady" if one.is_steady else "disturbed"
        yield f"step {one.number}, {state}: {transfers_text(one.counts)}", Tone.PLAIN
        for word, happened in _moved(one.counts):
            for text in _listed(by_cause([happened]), MOST_MOVED):
                yield f"{word} {text}", Tone.PLAIN
    for note in filter(None, notes):
        yield note, Tone.NOTICE


def _moved(counts: StepCounts) -> Sequence[tuple[str, Sequence[Happened]]]:
    return (
        ("redistributed", counts.redistributions),
        ("ran", counts.collective_runs),
        ("wrapped", counts.wraps),
        ("unwrapped", counts.unwraps),
    )


def _listed(texts: Sequence[str], most: int) -> list[str]:
    more = len(texts) - most
    return [*texts[:most], *[f"and {more:,} more"] * (more > 0)]
