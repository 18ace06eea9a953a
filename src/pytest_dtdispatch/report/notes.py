"""What is said of rows beside their figures: proof, noise, what was not seen, what they explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import NOISY, TIME, Contains, Measurement, State
from pytest_dtdispatch.core.results import InPlace, TestResults, Unseen, has_figure
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.report.document import (
    Document,
    Line,
    Paragraph,
    Span,
    Tone,
    View,
    Wrap,
    one_line,
    paragraph,
)

TITLE = "mark"
WHY_NOISY = (
    f"their samples scatter by more than {NOISY:.0%}, and no gate judges them on one run. Run again where "
    "less else runs, or compare builds with dtdispatch ab"
)

MOST_OPS = 3  # that are named


def mark(measurement: Measurement) -> tuple[str, Tone]:
    """Say of a row what is not proved, and that it is noisy; nothing where all is well."""
    proof, noisy = measurement.proof, "noisy" if measurement.noisy else ""
    if proof in ("proved", "unpropagated"):
        tone = Tone.NOTICE if noisy else Tone.GOOD
    else:
        tone = Tone.NOTICE if proof == "not measured" else Tone.BAD
    return ", ".join(filter(None, ("" if proof == "proved" else proof, noisy))), tone


def title_of(lines: Sequence[Line]) -> str:
    """Title the last column, where it says anything."""
    return TITLE if any(line.proof for line in lines) else ""


def proved(everything: Sequence[Measurement], by: str = "the cache counters") -> Iterator[Paragraph]:
    """Say once how many rows are proved."""
    if everything:
        count = sum(measurement.proof == "proved" for measurement in everything)
        tone = Tone.GOOD if count == len(everything) else Tone.PLAIN
        yield one_line(Span(f"{count:,} of {len(everything):,} rows are proved by {by}", tone), indent=1)


def noise(everything: Sequence[Measurement]) -> Document:
    """Say how many rows are noisy, and what that means; nothing where none is."""
    noisy = [measurement.noisy for measurement in everything if measurement.noisy]
    if not noisy:
        return Document()
    states = ", ".join(dict.fromkeys(state for states in noisy for state in states))
    text = f"{len(noisy):,} of {len(everything):,} rows are noisy ({states}): {WHY_NOISY}"
    return Document((paragraph(text, Tone.NOTICE, hanging=1),))


def caveats(tests: Iterable[TestResults]) -> Document:
    """Say of how many tests something was not seen, in a line for each way, and how many simulate ranks."""
    found = list(tests)
    lines = list(_unseen_lines([test.unseen for test in found]))
    if simulated := sum(test.is_simulated for test in found):
        of = plural(simulated, "test")
        lines.append(f"figures of {of} hold the work of all ranks, which LocalTensorMode simulates")
    return Document(tuple(paragraph(line, Tone.NOTICE, hanging=1, wrap=Wrap.SPACES) for line in lines))


def _unseen_lines(tests: list[Unseen]) -> Iterator[str]:
    if in_threads := [test for test in tests if test.threads]:
        threads, ops = sum(test.threads for test in in_threads), sum(test.ops for test in in_threads)
        yield (
            f"not measured: {plural(len(in_threads), 'test')} ran DTensor ops (at least {ops:,}) in "
            f"{plural(threads, 'thread')} of their own, which a capture of the main thread does not see; "
            "--dtdispatch-metric counts counts what misses there"
        )
    if in_processes := [test for test in tests if test.processes]:
        processes = sum(test.processes for test in in_processes)
        yield (
            f"not measured: {plural(len(in_processes), 'test')} started {plural(processes, 'process', 'es')}"
            ", and what ran in them was not seen; --dtdispatch-metric counts counts in those that are spawned"
        )
    modes = list(dict.fromkeys(mode for test in tests for mode in test.modes))
    for mode in modes:
        hidden = sum(mode in test.modes for test in tests)
        yield (
            f"not measured: {plural(hidden, 'test')} opened {mode}, which hides DTensor ops from a capture "
            f"around it; take the fixture and open dtdispatch.capture() inside {mode}, "
            "or count it by --dtdispatch-metric counts"
        )


@dataclass(frozen=True)
class Explained:
    """Calls of a test that were asked for, and that captures saw.

    Args:
        calls: those of rows with a figure.
        all_calls: those of signatures without one, too.
        least_share: the least part of the time that rows make: calls x hit, or x miss where nothing hits. A
            call without a figure takes longer than a figure would say. None where no time was taken.
        others: signatures without a figure.
    """

    calls: int
    all_calls: int
    least_share: float | None
    others: Sequence[InPlace]


def explained(results: TestResults) -> Explained:
    """Look what of a test is explained."""
    rows = [
        row for row in results.measurements() if row.contains is Contains.DISPATCH and has_figure(row.figures)
    ]
    others, calls = results.in_place(), sum(row.calls for row in rows)
    ns = sum(row.calls * (row.steady_ns or row.figure(State.MISS) or 0.0) for row in rows)
    whole_ns = ns + sum(other.ns for other in others)
    are_times = all(samples.unit == TIME for row in rows for samples in row.recorded())
    share = ns / whole_ns if are_times and whole_ns else None
    return Explained(calls, calls + sum(other.calls for other in others), share, others)


def explained_lines(found: Mapping[str, TestResults], view: View) -> Iterator[Paragraph]:
    """Say of all tests together that everything is explained, else of each test what is not."""
    seen = {test: each for test, results in found.items() if (each := explained(results)).all_calls}
    passed_over = sum(results.calls_passed_over for results in found.values())
    rest = f"; {passed_over:,} others were not asked for" * bool(passed_over)
    if seen and not any(each.others for each in seen.values()):
        calls = sum(each.calls for each in seen.values())
        are_times = all(each.least_share is not None for each in seen.values())
        share = " 100 % of the dispatch time," * are_times
        yield _explained_line(f"rows explain{share} {calls:,} of {calls:,} calls that captures saw{rest}")
        return
    lines = [_part(each, f" in {test}" * (len(seen) > 1)) for test, each in seen.items() if each.others]
    yield from (_explained_line(f"{text}{rest * (n == 0)}") for n, text in enumerate(view.listed(lines)))


def _part(one: Explained, test: str) -> str:
    least = one.least_share
    share = "" if least is None else f" at least {100 * least:.1f} % of the dispatch time,"
    calls: Counter[str] = Counter()
    for other in one.others:
        calls[other.op] += other.calls
    ops = ", ".join(f"{op} ({count:,}x)" for op, count in calls.most_common(MOST_OPS))
    left_out = len(calls) - MOST_OPS
    more = f" and {plural(left_out, 'op')} more" * (left_out > 0)
    seen = f"{one.calls:,} of {one.all_calls:,} calls that captures saw{test}"
    return f"rows explain{share} {seen}; without a figure: {ops}{more}"


def _explained_line(text: str) -> Paragraph:
    return paragraph(text, indent=1, hanging=1, wrap=Wrap.SPACES)
