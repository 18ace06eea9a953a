"""What gates say: how many rows passed, and of each other one its verdict, its figures and the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import column_scale, plural
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    Block,
    Document,
    Paragraph,
    Span,
    Tone,
    Verbatim,
    one_line,
    paragraph,
)

TONES = {
    Verdict.PASSED: Tone.GOOD,
    Verdict.IMPROVED: Tone.GOOD,
    Verdict.NEW: Tone.NOTICE,
    Verdict.INCONCLUSIVE: Tone.NOTICE,
}
ORDER = tuple(Verdict)
MOST_NEW = 10
LONGEST_ROW = 300


def judgement_document(judgement: Judgement) -> Document:
    """Say what a gate found: each row that has not just passed, how far the others moved, what to do."""
    word = Span("failed", Tone.BAD) if judgement.has_failed else Span("passed", Tone.GOOD)
    numbers = verdict_counts(judgement.verdicts) or ("no row was there to be judged",)
    blocks: list[Block] = [one_line("gate: ", word, f" against {judgement.where}: ", *numbers)]
    ordered = sorted(
        (row for row in judgement.verdicts if row.verdict not in (Verdict.PASSED, Verdict.NEW)),
        key=lambda row: ORDER.index(row.verdict),
    )
    for row in ordered:
        blocks += _row(row)
    blocks += _new_rows([row for row in judgement.verdicts if row.verdict is Verdict.NEW])
    blocks += drift_lines(judgement.verdicts, judgement.since)
    blocks += map(_detail, judgement.remarks)
    if not judgement.has_compared and any(row.figures or row.criterion for row in judgement.verdicts):
        blocks.append(_detail("no row could be judged, so the gate fails", Tone.BAD))
    if judgement.to_paste:
        blocks.append(_detail("what changed, by command or as rows to paste:"))
        blocks += (Verbatim((judgement.command,), indent=2), Verbatim(judgement.to_paste))
    return Document(tuple(blocks))


def gravity(row: RowVerdict) -> tuple[int, float]:
    """Sort rows by their verdicts, the gravest first, and by how far they have grown, as far as is known."""
    return ORDER.index(row.verdict), -dict(row.figures).get("change_percent", 0.0)


def change_text(row: RowVerdict) -> str:
    """Say how far a row is from what it was held against; nothing where that is not known.

    Example:
        >>> change_text(RowVerdict("t.py::a", Verdict.REGRESSED, (("expected", 4), ("found", 5))))
        '4 -> 5'
    """
    match figures := dict(row.figures):
        case {"base_ns": then, "head_ns": now}:
            unit = column_scale([then, now])
            moved = f"{unit.text(then)} -> {unit.text(now)} {unit.name}"
        case {"expected": then, "found": now}:
            moved = f"{then:,.0f} -> {now:,.0f}"
        case _:
            return ""
    return f"{moved} ({figures['change_percent']:+.1f} %)" if "change_percent" in figures else moved


def verdict_counts(verdicts: Sequence[RowVerdict]) -> tuple[Span, ...]:
    """Say how often each verdict was given."""
    numbers = Counter(row.verdict for row in verdicts)
    return tuple(
        Span(f"{', ' if n else ''}{numbers[verdict]} {verdict}", TONES.get(verdict, Tone.BAD))
        for n, verdict in enumerate(verdict for verdict in ORDER if numbers[verdict])
    )


def drift_lines(verdicts: Sequence[RowVerdict], since: str = "") -> Iterator[Paragraph]:
    """Write how far rows that passed have moved since the baseline was set: small losses add up."""
    passed = [dict(row.figures) for row in verdicts if row.verdict is Verdict.PASSED]
    if not (drifts := [figures for figures in passed if "change_percent" in figures]):
        return
    figure, bounds = f"{median(figures['change_percent'] for figures in drifts):+.1f} %", ""
    if all("change_low_percent" in figures for figures in drifts):
        low, high = (
            median(figures[f"change_{end}_percent"] for figures in drifts) for end in ("low", "high")
        )
        figure = "noise" if low <= 0 <= high else figure
        bounds = f" ({low:+.1f} % to {high:+.1f} %, medians of 99 % intervals)"
    rows = plural(len(drifts), "passed row")
    yield _detail(f"drift of {rows}{f' since {since}' * bool(since)}: median {figure}{bounds}")


def _row(row: RowVerdict) -> Iterator[Paragraph]:
    yield _row_title(row, cut_name(row.row, LONGEST_ROW))
    for text in filter(None, (*(row.details or (_figures_text(row),)), row.remedy)):
        yield _detail(text, indent=2)


def _row_title(row: RowVerdict, text: str) -> Paragraph:
    return one_line(Span(str(row.verdict), TONES.get(row.verdict, Tone.BAD)), f" {text}", indent=1)


def _detail(text: str, tone: Tone = Tone.PLAIN, indent: int = 1) -> Paragraph:
    return paragraph(text, tone, indent, hanging=1)


def _figures_text(row: RowVerdict) -> str:
    """Say what a row was held against, what was found, and of a comparison how sure it is."""
    text = ": ".join(filter(None, (row.criterion, change_text(row))))
    match dict(row.figures):
        case {
            "change_low_percent": low,
            "change_high_percent": high,
            "base_samples": base,
            "head_samples": head,
        }:
            text += f", 99 % interval {low:+.1f} % to {high:+.1f} % ({base:.0f} and {head:.0f} samples)"
    return text


def _new_rows(rows: Sequence[RowVerdict]) -> Iterator[Paragraph]:
    for row in rows[:MOST_NEW]:
        yield _row_title(row, f"{cut_name(row.row, LONGEST_ROW)}: {row.criterion}")
    if len(rows) > MOST_NEW:
        rest = f"and {len(rows) - MOST_NEW:,} more that are new; --dtdispatch-export csv:FILE writes all"
        yield one_line(rest, indent=1)
    if rows:
        yield _detail(rows[0].remedy, indent=2)
