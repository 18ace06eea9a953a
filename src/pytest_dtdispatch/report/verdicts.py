"""What a gate says, as lines of a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.gates.saved_run import Judgement
from pytest_dtdispatch.report.terminal import INDENT, Text
from pytest_dtdispatch.report.units import column_unit

COLORS = {
    Verdict.PASSED: "green",
    Verdict.IMPROVED: "green",
    Verdict.NEW: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
}
ORDER = tuple(Verdict)
NOTHING_JUDGED = "no row could be judged, so the gate fails"


def judgement_lines(judgement: Judgement, where: str, width: int) -> Iterator[tuple[Text, ...]]:
    """Say how many rows passed, and of each other one its verdict, its figures and the remedy."""
    counts = verdict_counts(judgement.verdicts) or (Text("no row has a threshold"),)
    yield (*outcome(judgement.has_failed, where), *counts)
    for row in to_be_told(judgement.verdicts):
        yield from _row_lines(row, width)
    if judgement.control_shift is not None:
        shift = 100 * judgement.control_shift
        text = f"the op on plain tensors shifted by {shift:+.1f} % (median of {judgement.controls} rows)"
        yield from wrapped(text, width, "")
    if not judgement.has_compared and any(row.figures or row.criterion for row in judgement.verdicts):
        yield from wrapped(NOTHING_JUDGED, width, "red")
    yield from _resolution_lines(judgement, width)


def outcome(has_failed: bool, where: str) -> tuple[Text, ...]:
    """Begin the line of a gate: how it ended, and what the run was held against."""
    word = Text("failed", "red") if has_failed else Text("passed", "green")
    return Text("gate: "), word, Text(f" against {where}: ")


def verdict_counts(verdicts: Sequence[RowVerdict]) -> tuple[Text, ...]:
    """Say how often each verdict was given."""
    numbers = Counter(row.verdict for row in verdicts)
    return tuple(
        Text(f"{', ' if n else ''}{numbers[verdict]} {verdict}", COLORS.get(verdict, "red"))
        for n, verdict in enumerate(verdict for verdict in ORDER if numbers[verdict])
    )


def to_be_told(verdicts: Sequence[RowVerdict]) -> list[RowVerdict]:
    """Choose every row that has not just passed, in the order of verdicts."""
    others = [row for row in verdicts if row.verdict is not Verdict.PASSED]
    return sorted(others, key=lambda row: ORDER.index(row.verdict))


def _row_lines(row: RowVerdict, width: int) -> Iterator[tuple[Text, ...]]:
    yield Text(f"{INDENT}{row.verdict}", COLORS.get(row.verdict, "red")), Text(f" {row.row}")
    if row.figures:
        yield from wrapped(_figures_text(row), width, "", 2)
    elif row.criterion:
        yield from wrapped(row.criterion, width, "", 2)
    if row.remedy:
        yield from wrapped(row.remedy, width, "", 2)


def _figures_text(row: RowVerdict) -> str:
    figures = dict(row.figures)
    unit = column_unit([figures["base_ns"], figures["head_ns"]])
    percents = [f"{100 * (figures[name] - 1):+.1f} %" for name in ("ratio", "ratio_low", "ratio_high")]
    samples = (
        f"{figures['base_samples']:.0f} and {figures['head_samples']:.0f} samples"
        if figures["base_samples"]
        else f"saved without samples, so the interval is of this run's {figures['head_samples']:.0f} alone"
    )
    return (
        f"{row.criterion}: {unit.text(figures['base_ns'])} {unit.name} -> {unit.text(figures['head_ns'])} "
        f"{unit.name}, {percents[0]}, 99 % interval {percents[1]} to {percents[2]} ({samples})"
    )


def _resolution_lines(judgement: Judgement, width: int) -> Iterator[tuple[Text, ...]]:
    unresolved = judgement.unresolved
    if not unresolved:
        return
    worst = unresolved[0]
    resolution = dict(worst.figures)["resolution_percent"]
    text = (
        f"warning: {len(unresolved)} of {len(judgement.verdicts)} thresholds lie under what this run could "
        f"resolve; {worst.criterion} of {worst.row} needs at least {resolution:.1f} %, or more rounds"
    )
    yield from wrapped(text, width, "yellow")


def wrapped(text: str, width: int, color: str, depth: int = 1) -> Iterator[tuple[Text, ...]]:
    """Wrap a text, indented this many times; names and figures stay whole."""
    lines = textwrap.wrap(
        text,
        width - 1,
        initial_indent=INDENT * depth,
        subsequent_indent=INDENT * (depth + 1),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        yield (Text(line, color),)
