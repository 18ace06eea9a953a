"""What part of the dispatch time of regions their rows explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import TIME, Contains, State
from pytest_dtdispatch.core.results import InPlace, TestResults, has_figure
from pytest_dtdispatch.report.document import Paragraph, View, Wrap, paragraph

MOST_OPS = 3


@dataclass(frozen=True)
class Explained:
    """Calls of a test that were asked for, and that captures saw.

    Args:
        calls: those of rows with a figure.
        ns: what these take: calls x hit, or x miss where nothing hits; None where no time was taken.
        others: signatures without a figure.
    """

    calls: int
    ns: float | None
    others: Sequence[InPlace]

    @property
    def all_calls(self) -> int:
        """How many calls there were."""
        return self.calls + sum(other.calls for other in self.others)

    @property
    def least_share(self) -> float | None:
        """The least part of the time that rows make: a call in place takes longer than a figure would say."""
        if self.ns is None:
            return None
        whole_ns = self.ns + sum(other.ns for other in self.others)
        return self.ns / whole_ns if whole_ns else None


def explained(results: TestResults) -> Explained:
    """Look what of a test is explained."""
    rows = [
        row for row in results.measurements() if row.contains is Contains.DISPATCH and has_figure(row.figures)
    ]
    are_times = all(samples.unit == TIME for row in rows for samples in row.recorded())
    ns = sum(row.calls * (row.steady_ns or row.figure(State.MISS) or 0.0) for row in rows)
    return Explained(sum(row.calls for row in rows), ns if are_times else None, results.in_place())


def explained_lines(found: Mapping[str, TestResults], view: View) -> Iterator[Paragraph]:
    """Say of all tests together that everything is explained, else of each test what is not."""
    seen = {test: each for test, results in found.items() if (each := explained(results)).all_calls}
    passed_over = sum(results.calls_passed_over for results in found.values())
    rest = f"; {passed_over:,} others were not asked for" * bool(passed_over)
    if seen and not any(each.others for each in seen.values()):
        calls = sum(each.calls for each in seen.values())
        are_times = all(each.ns is not None for each in seen.values())
        share = " 100 % of the dispatch time," if are_times else ""
        yield _line(f"rows explain{share} {calls:,} of {calls:,} calls that captures saw{rest}")
        return
    lines = [_part(each, f" in {test}" * (len(seen) > 1)) for test, each in seen.items() if each.others]
    yield from (_line(f"{text}{rest * (n == 0)}") for n, text in enumerate(view.listed(lines)))


def _part(one: Explained, test: str) -> str:
    share = (
        "" if one.least_share is None else f" at least {100 * one.least_share:.1f} % of the dispatch time,"
    )
    calls: Counter[str] = Counter()
    for other in one.others:
        calls[other.op] += other.calls
    ops = ", ".join(f"{op} ({count:,}x)" for op, count in calls.most_common(MOST_OPS))
    left_out = len(calls) - MOST_OPS
    more = f" and {left_out} {'op' if left_out == 1 else 'ops'} more" * (left_out > 0)
    seen = f"{one.calls:,} of {one.all_calls:,} calls that captures saw{test}"
    return f"rows explain{share} {seen}; without a figure: {ops}{more}"


def _line(text: str) -> Paragraph:
    return paragraph(text, indent=1, hanging=1, wrap=Wrap.SPACES)
