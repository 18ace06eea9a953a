"""What gates say: how many rows passed, and of each other one its verdict, its figures and the remedy."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.gates.drifts import drifts_of
from pytest_dtdispatch.gates.expected import ExpectedJudgement
from pytest_dtdispatch.gates.limits import LimitJudgement
from pytest_dtdispatch.gates.saved_run import Judgement
from pytest_dtdispatch.report.document import (
    Block,
    Document,
    Paragraph,
    Span,
    Tone,
    Verbatim,
    Wrap,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.drift_lines import drift_blocks
from pytest_dtdispatch.report.scales import column_scale

AnyJudgement = Judgement | ExpectedJudgement | LimitJudgement
TONES = {
    Verdict.PASSED: Tone.GOOD,
    Verdict.IMPROVED: Tone.GOOD,
    Verdict.NEW: Tone.NOTICE,
    Verdict.INCONCLUSIVE: Tone.NOTICE,
}
ORDER = tuple(Verdict)
NOTHING_JUDGED = "no row could be judged, so the gate fails"
MOST_NEW = 10
LONGEST_ROW = 300


def saved_run_document(judgement: Judgement, where: str, since: str = "") -> Document:
    """Say what the comparison with a saved run found, and how far rows have moved since it was saved."""
    blocks: list[Block] = [_outcome(judgement, where, "no row has a threshold")]
    for row in _to_be_told(judgement):
        blocks += _row(row, _figures_text(row) if row.figures else row.criterion)
    blocks += drift_blocks(drifts_of(judgement.verdicts), since)
    if judgement.control_shift is not None:
        shift = f"{100 * judgement.control_shift:+.1f} % (median of {judgement.controls} rows)"
        doubt = ": what has moved may be the machine" if judgement.has_shifted else ""
        blocks.append(_detail(f"the op on plain tensors shifted by {shift}{doubt}"))
    if not judgement.has_compared and any(row.figures or row.criterion for row in judgement.verdicts):
        blocks.append(_detail(NOTHING_JUDGED, Tone.BAD))
    if judgement.unresolved:
        blocks.append(_detail(_unresolved_text(judgement), Tone.NOTICE))
    return Document(tuple(blocks))


def expected_document(judgement: ExpectedJudgement, where: str, results: str) -> Document:
    """Say what expected results were met, how far rows have moved, and what to put where one is off."""
    blocks: list[Block] = [_outcome(judgement, where, "neither the file nor the run has a row")]
    told = _to_be_told(judgement)
    for row in told:
        if row.verdict is not Verdict.NEW:
            blocks += _row(row, row.criterion and f"{row.criterion}{_found_text(row)}")
    blocks += _new_rows([row for row in told if row.verdict is Verdict.NEW])
    blocks += drift_blocks(drifts_of(judgement.verdicts))
    if not judgement.has_compared:
        blocks.append(_detail(NOTHING_JUDGED, Tone.BAD))
    has_improved = any(row.verdict is Verdict.IMPROVED for row in judgement.verdicts)
    if judgement.corrections and (judgement.has_failed or has_improved):
        command = shlex.join(["dtdispatch", "expected", "update", where, "--results", results, "--reason"])
        blocks.append(_detail("what changed, by command or as rows to paste:"))
        blocks.append(Verbatim((f'{command} "..."',), indent=2))
        blocks.append(Verbatim(tuple(map(str, judgement.corrections))))
    return Document(tuple(blocks))


def limits_document(judgement: LimitJudgement, where: str) -> Document:
    """Say what is over its limits, or was not judged, and what it consists of."""
    blocks: list[Block] = [_outcome(judgement, where, "nothing was judged")]
    for row in _to_be_told(judgement):
        expected = "its test is marked to fail (xfail)" * (row in judgement.expected)
        blocks += _row(row, *row.details, expected)
    return Document(tuple(blocks))


def growth_percent(row: RowVerdict) -> float:
    """Give how far a row has grown from what it was held against, in percent; 0 where that is not known."""
    figures = dict(row.figures)
    return figures.get("change_percent", 100 * (figures.get("ratio", 1.0) - 1))


def change_text(row: RowVerdict) -> str:
    """Say how far a row is from what it was held against; nothing where that is not known.

    Example:
        >>> change_text(RowVerdict("t.py::a", Verdict.REGRESSED, (("expected", 4), ("found", 5))))
        '4 -> 5'
    """
    figures = dict(row.figures)
    if "base_ns" in figures:
        unit = column_scale([figures["base_ns"], figures["head_ns"]])
        moved = f"{unit.text(figures['base_ns'])} -> {unit.text(figures['head_ns'])} {unit.name}"
        return f"{moved} ({100 * (figures['ratio'] - 1):+.1f} %)"
    if "found" not in figures:
        return ""
    share = f" ({figures['change_percent']:+.1f} %)" if "change_percent" in figures else ""
    return f"{figures['expected']:,.0f} -> {figures['found']:,.0f}{share}"


def verdict_counts(verdicts: Sequence[RowVerdict]) -> tuple[Span, ...]:
    """Say how often each verdict was given."""
    numbers = Counter(row.verdict for row in verdicts)
    return tuple(
        Span(f"{', ' if n else ''}{numbers[verdict]} {verdict}", TONES.get(verdict, Tone.BAD))
        for n, verdict in enumerate(verdict for verdict in ORDER if numbers[verdict])
    )


def _outcome(judgement: AnyJudgement, where: str, nothing: str) -> Paragraph:
    """Say how a gate ended, and what the run was held against."""
    word = Span("failed", Tone.BAD) if judgement.has_failed else Span("passed", Tone.GOOD)
    numbers = verdict_counts(judgement.verdicts) or (nothing,)
    return one_line("gate: ", word, f" against {where}: ", *numbers)


def _to_be_told(judgement: AnyJudgement) -> list[RowVerdict]:
    """Choose every row that has not just passed, in the order of verdicts."""
    others = [row for row in judgement.verdicts if row.verdict is not Verdict.PASSED]
    return sorted(others, key=lambda row: ORDER.index(row.verdict))


def _row(row: RowVerdict, *details: str) -> Iterator[Paragraph]:
    yield _row_title(row, cut_name(row.row, LONGEST_ROW))
    for text in filter(None, (*details, row.remedy)):
        yield _detail(text, indent=2)


def _row_title(row: RowVerdict, text: str) -> Paragraph:
    return one_line(Span(str(row.verdict), TONES.get(row.verdict, Tone.BAD)), f" {text}", indent=1)


def _detail(text: str, tone: Tone = Tone.PLAIN, indent: int = 1) -> Paragraph:
    return paragraph(text, tone, indent, hanging=1, wrap=Wrap.SPACES)


def _figures_text(row: RowVerdict) -> str:
    figures = dict(row.figures)
    unit = column_scale([figures["base_ns"], figures["head_ns"]])
    percents = [f"{100 * (figures[name] - 1):+.1f} %" for name in ("ratio", "ratio_low", "ratio_high")]
    samples = f"{figures['base_samples']:.0f} and {figures['head_samples']:.0f} samples"
    return (
        f"{row.criterion}: {unit.text(figures['base_ns'])} {unit.name} -> {unit.text(figures['head_ns'])} "
        f"{unit.name}, {percents[0]}, 99 % interval {percents[1]} to {percents[2]} ({samples})"
    )


def _unresolved_text(judgement: Judgement) -> str:
    unresolved = judgement.unresolved
    worst = unresolved[0]
    resolution = dict(worst.figures)["resolution_percent"]
    row = cut_name(worst.row, LONGEST_ROW)
    return (
        f"warning: {len(unresolved)} of {len(judgement.verdicts)} thresholds lie under what this run "
        f"could resolve; {worst.criterion} of {row} needs at least {resolution:.1f} %, or more rounds"
    )


def _found_text(row: RowVerdict) -> str:
    figures = dict(row.figures)
    if not figures:
        return ""
    change = f", {figures['change_percent']:+.1f} %" if "change_percent" in figures else ""
    return f": found {figures['found']:,}{change}"


def _new_rows(rows: Sequence[RowVerdict]) -> Iterator[Paragraph]:
    for row in rows[:MOST_NEW]:
        yield _row_title(row, f"{cut_name(row.row, LONGEST_ROW)}: {row.criterion}")
    if len(rows) > MOST_NEW:
        rest = f"and {len(rows) - MOST_NEW:,} more that are new; --dtdispatch-csv writes all"
        yield one_line(rest, indent=1)
    if rows:
        yield _detail(rows[0].remedy, indent=2)
