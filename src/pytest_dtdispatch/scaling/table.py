"""Fitted exponents, a paragraph a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.report.document import Document, Paragraph, Tone, View, paragraph
from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.scaling.judge import complaint
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Scaling

TONES = {
    LimitVerdict.PASSED: Tone.GOOD,
    LimitVerdict.NO_LIMIT: Tone.PLAIN,
    LimitVerdict.FAILED: Tone.BAD,
    LimitVerdict.MISSING: Tone.BAD,
}


def document(scalings: Mapping[str, Sequence[Scaling]], view: View) -> Document:
    """Lay out what was fitted in each test; it is as much in every view."""
    every = [(test, scaling) for test, of_test in scalings.items() for scaling in of_test]
    return Document(tuple(block for test, scaling in every for block in _paragraphs(test, scaling)))


def _paragraphs(test: str, scaling: Scaling) -> Iterator[Paragraph]:
    sizes = ", ".join(str(point.size) for point in scaling.points)
    yield paragraph(f"{test}: {scaling.name} at sizes {sizes}", Tone.STRONG, hanging=1)
    for fit in scaling.fits:
        tone = TONES.get(fit.verdict, Tone.NOTICE)
        yield paragraph(fit_text(fit, scaling.max_exponent), tone, indent=1, hanging=1)


def fit_text(fit: Fit, limit: float | None) -> str:
    """Write one fit: exponent with interval, growth from size to size, what the limit says of it.

    Example:
        >>> from pytest_dtdispatch.core.measurement import State
        >>> fit_text(Fit(State.MISS, 1.0, 0.9, 1.1, (2.0, 1.93), 7), limit=None)
        'miss grows as size^1.00 (0.90 to 1.10 in 7 passes), from size to size x2.00, x1.93'
    """
    if fit.why_not:
        judged = f"; cannot be held against max_exponent={limit:g}" if limit is not None else ""
        return f"{fit}{judged}"
    growths = ", ".join(f"x{growth:.2f}" for growth in fit.growths)
    return f"{fit}, from size to size {growths}{_judged(fit, limit)}"


def _judged(fit: Fit, limit: float | None) -> str:
    if limit is None:
        return ""
    return {
        LimitVerdict.PASSED: f"; below max_exponent={limit:g}",
        LimitVerdict.FAILED: f"; above max_exponent={limit:g}",
    }.get(fit.verdict, f"; inconclusive: max_exponent={limit:g} lies in between")


KIND = Kind(Scaling.kind, document, complaint=complaint)
