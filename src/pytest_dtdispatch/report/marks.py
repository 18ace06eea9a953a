"""What the last column of a row says: what is not proved, or noisy; what holds for all is said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.measurement import NOISY, Measurement
from pytest_dtdispatch.report.document import Document, Line, Paragraph, Span, Tone, one_line, paragraph

TITLE = "mark"
COUNTERS = "the cache counters"
WHY_NOISY = (
    f"their samples scatter by more than {NOISY:.0%}, and no gate judges them on one run. Run again where "
    "less else runs, or compare builds with dtdispatch ab"
)


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


def proved(everything: Sequence[Measurement], by: str = COUNTERS) -> Iterator[Paragraph]:
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
