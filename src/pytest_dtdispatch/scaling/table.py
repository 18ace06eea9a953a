"""Fitted exponents as lines of a terminal, a line a state."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.report.terminal import INDENT, Text
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Scaling

COLORS = {LimitVerdict.PASSED: "green", LimitVerdict.NO_LIMIT: ""}
FAILING = (LimitVerdict.FAILED, LimitVerdict.MISSING)


def scaling_lines(scalings: Mapping[str, Sequence[Scaling]], width: int) -> Iterator[tuple[Text, ...]]:
    """Lay out what was fitted in each test; nothing where nothing was."""
    for test, of_test in scalings.items():
        for scaling in of_test:
            sizes = ", ".join(str(point.size) for point in scaling.points)
            yield from _wrapped(f"{test}: {scaling.name} at sizes {sizes}", "bold", width, "")
            for fit in scaling.fits:
                color = "red" if fit.verdict in FAILING else COLORS.get(fit.verdict, "yellow")
                yield from _wrapped(fit_text(fit, scaling.max_exponent), color, width, INDENT)


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


def _wrapped(text: str, color: str, width: int, indent: str) -> Iterator[tuple[Text, ...]]:
    for line in textwrap.wrap(text, width - 1, initial_indent=indent, subsequent_indent=indent + INDENT):
        yield (Text(line, color),)
