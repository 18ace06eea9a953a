"""Where instructions went, as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.profile import Share
from pytest_dtdispatch.core.signature import shorten
from pytest_dtdispatch.report.terminal import INDENT, Text

MACHINE = "machine code, without what it calls"
PYTHON = "Python, with the machine code that it calls"
COUNT_WIDTH, PERCENT_WIDTH = 14, 8
KEPT_OF_PLACE = 16  # the name comes first, and is what is looked for


def profile_lines(measured: Mapping[str, Sequence[Measurement]], width: int) -> Iterator[tuple[Text, ...]]:
    """List the functions that the instructions of each profiled call went to."""
    for test, of_test in measured.items():
        for measurement in of_test:
            for samples in measurement.samples:
                if (profile := samples.profile) is not None:
                    yield (Text(f"profile of a {samples.state}: {test}::{measurement.label}", "bold"),)
                    yield from _kind_lines(MACHINE, profile.machine, profile.machine_total, width)
                    yield from _kind_lines(PYTHON, profile.python, profile.python_total, width)


def _kind_lines(kind: str, shares: Sequence[Share], total: int, width: int) -> Iterator[tuple[Text, ...]]:
    yield (Text(f"{INDENT}{total:>{COUNT_WIDTH},}{'100.0 %':>{PERCENT_WIDTH}}  {kind}"),)
    room = max(width - len(INDENT) - COUNT_WIDTH - PERCENT_WIDTH - 2, len(kind))
    for share in shares:
        percent = f"{100 * share.instructions / total:.1f} %"
        function = shorten(share.function, keep_end=KEPT_OF_PLACE, limit=room)
        yield (Text(f"{INDENT}{share.instructions:>{COUNT_WIDTH},}{percent:>{PERCENT_WIDTH}}  {function}"),)
