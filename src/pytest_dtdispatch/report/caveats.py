"""What must be known beside the figures of a run: what ran and was not seen, and whose work they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.report.document import Document, Tone, Wrap, paragraph


def document(tests: Iterable[TestResults]) -> Document:
    """Say of how many tests something was not seen, in a line for each way, and how many simulate ranks."""
    found = list(tests)
    lines = list(_lines([test.unseen for test in found]))
    if simulated := sum(test.is_simulated for test in found):
        of = many(simulated, "test")
        lines.append(f"figures of {of} hold the work of all ranks, which LocalTensorMode simulates")
    return Document(tuple(paragraph(line, Tone.NOTICE, hanging=1, wrap=Wrap.SPACES) for line in lines))


def _lines(tests: list[Unseen]) -> Iterator[str]:
    if in_threads := [test for test in tests if test.threads]:
        threads, ops = sum(test.threads for test in in_threads), sum(test.ops for test in in_threads)
        yield (
            f"not measured: {many(len(in_threads), 'test')} ran DTensor ops (at least {ops:,}) in "
            f"{many(threads, 'thread')} of their own, which a capture of the main thread does not see; "
            "--dtdispatch-metric counts counts what misses there"
        )
    if in_processes := [test for test in tests if test.processes]:
        processes = sum(test.processes for test in in_processes)
        yield (
            f"not measured: {many(len(in_processes), 'test')} started {many(processes, 'process', 'es')}, "
            "and what ran in them was not seen; --dtdispatch-metric counts counts in those that are spawned"
        )
    modes = list(dict.fromkeys(mode for test in tests for mode in test.modes))
    for mode in modes:
        hidden = sum(mode in test.modes for test in tests)
        yield (
            f"not measured: {many(hidden, 'test')} opened {mode}, which hides DTensor ops from a capture "
            f"around it; take the fixture and open dtdispatch.capture() inside {mode}, "
            "or count it by --dtdispatch-metric counts"
        )
