"""Notes on rows: proof, noise, uncaptured work, explained calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_dtdispatch.core.measurement import (
    MIN_WAITED,
    NOISY,
    SIMULATED,
    Contains,
    Measurement,
    Proof,
    State,
    traced_text,
)
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.report.document import (
    Document,
    Group,
    Paragraph,
    Tone,
    View,
    paragraph,
)


def traced(measurement: Measurement) -> str:
    """Return the mark of a row that tools made longer; empty without any."""
    tracers = measurement.figures.tracers
    return f"traced by {', '.join(tracers)}" if tracers else ""


def mark(measurement: Measurement) -> tuple[str, Tone]:
    """Return the text and tone of a row's last column: missing proof and noisy states; empty if proved."""
    kind = measurement.proof_kind
    states = "all" if len(measurement.noisy) > 2 else ", ".join(measurement.noisy)
    is_of_ranks = any(samples.by_rank for samples in measurement.recorded())
    simulated = "simulated" if is_of_ranks and measurement.backend in SIMULATED else ""
    noisy = ", ".join(filter(None, (states and f"noisy {states}", traced(measurement), simulated)))
    if kind in (Proof.PROVED, Proof.UNPROPAGATED):
        tone = Tone.NOTICE if noisy else Tone.GOOD
    else:
        tone = Tone.NOTICE if kind is Proof.NOT_MEASURED else Tone.BAD
    return ", ".join(filter(None, ("" if kind is Proof.PROVED else measurement.proof, noisy))), tone


def notes_of(row: Measurement, view: View) -> tuple[str, ...]:
    """Return the notes below a row; a verbose view includes its remarks."""
    notes = list(row.figures.notes)
    waits = [f"{each.state} {each.waited:.0%}" for each in row.recorded() if each.waited > MIN_WAITED]
    if waits:
        notes.append(f"waited for a core: {', '.join(waits)} of the time")
    if view.verbose:
        notes += row.figures.remarks
    return tuple(notes)


def title_of(groups: Sequence[Group]) -> str:
    """Return the title of the last column; empty if all its cells are empty."""
    return "mark" if any(line.status for group in groups for line in group.lines) else ""


def proved(everything: Sequence[Measurement], by: str = "the cache counters") -> Iterator[Paragraph]:
    """Render the number of proved rows, and the number of captured calls that they explain."""
    if everything:
        count = sum(measurement.proof_kind is Proof.PROVED for measurement in everything)
        tone = Tone.GOOD if count == len(everything) else Tone.PLAIN
        text = f"{count:,} of {len(everything):,} rows are proved by {by}{_explained(everything)}"
        yield paragraph(text, tone, indent=1, hanging=1)


def noise(everything: Sequence[Measurement]) -> Document:
    """Render the numbers of noisy rows, and of traced ones, which no gate judges."""
    names = tuple(dict.fromkeys(name for row in everything for name in row.figures.tracers))
    remedy = "Run again on a quieter machine, or compare builds with dtdispatch ab"
    noisy = f"are noisy: the halves of their passes differ by more than {NOISY:.0%}. {remedy}"
    counts = {
        noisy: sum(bool(row.noisy) for row in everything),
        f"are not judged: {traced_text(names)}": sum(bool(row.figures.tracers) for row in everything),
    }
    lines = (f"{count:,} of {len(everything):,} rows {text}" for text, count in counts.items() if count)
    return Document(tuple(paragraph(line, Tone.NOTICE, hanging=1) for line in lines))


def caveats(records: Iterable[TestRecord]) -> Document:
    """Render the numbers of tests with uncaptured work, by cause, and of tests that simulate ranks."""
    records = list(records)
    tests = [record.uncaptured for record in records]
    lines = []
    in_threads = [test for test in tests if test.threads]
    if in_threads:
        threads, ops = sum(test.threads for test in in_threads), sum(test.ops for test in in_threads)
        lines.append(
            f"not measured: {plural(len(in_threads), 'test')} ran DTensor ops (at least {ops:,}) in "
            f"{plural(threads, 'thread')} of their own, which a capture in the main thread cannot observe; "
            "--dtdispatch-metric counts also counts misses there"
        )
    in_processes = [test for test in tests if test.processes]
    if in_processes:
        processes = plural(sum(test.processes for test in in_processes), "process", "es")
        why = "which a capture cannot observe; --dtdispatch-metric counts also counts in spawned processes"
        lines.append(f"not measured: {plural(len(in_processes), 'test')} started {processes}, {why}")
    lines += dict.fromkeys(note for test in tests for note in test.notes)
    for mode in dict.fromkeys(mode for test in tests for mode in test.modes):
        hidden = sum(mode in test.modes for test in tests)
        lines.append(
            f"not measured: {plural(hidden, 'test')} opened {mode}, which hides DTensor ops from a capture "
            f"around it; use the fixture and open dtdispatch.capture() inside {mode}, "
            "or count ops by --dtdispatch-metric counts"
        )
    simulated = sum(record.is_simulated for record in records)
    if simulated:
        of = plural(simulated, "test")
        lines.append(f"figures of {of} include the work of all ranks, which LocalTensorMode simulates")
    return Document(tuple(paragraph(line, Tone.NOTICE, hanging=1) for line in lines))


def _explained(everything: Sequence[Measurement]) -> str:
    """Format the number of captured calls that the rows explain, and the ops without a figure."""
    captured = [row for row in everything if row.contains is Contains.DISPATCH]
    if not captured:
        return ""
    without: Counter[str] = Counter()
    for row in captured:
        if row.steady is None and row.of(State.MISS) is None:
            without[row.op] += row.calls
    calls = sum(row.calls for row in captured)
    text = f", {calls - without.total():,} of {calls:,} calls explained"
    if without:
        ops = ", ".join(f"{op} ({count:,}x)" for op, count in without.most_common(3))
        text += f"; without a figure: {ops}"
    if len(without) > 3:
        text += f" and {plural(len(without) - 3, 'op')} more"
    return text
