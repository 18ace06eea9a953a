"""Reports of gates: counts of verdicts, and the verdict, figures and remedy of each row that did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from pytest_dtdispatch.core.measurement import NOISY
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import column_scale, first_of, grouped, joined_lines, plural, shorten_path
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    CountChange,
    Judgement,
    RowVerdict,
    SideShift,
    TimeChange,
    Verdict,
)
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    View,
    one_line,
    paragraph,
    plain,
)

TONES = {
    Verdict.PASSED: Tone.GOOD,
    Verdict.IMPROVED: Tone.GOOD,
    Verdict.NEW: Tone.NOTICE,
    Verdict.CHANGED: Tone.NOTICE,
    Verdict.INCONCLUSIVE: Tone.NOTICE,
    Verdict.QUARANTINED: Tone.NOTICE,
}
ORDER = tuple(Verdict)
MAX_ROWS = 20  # rows that did not pass


def judgement_document(judgement: Judgement, view: View | None = None) -> Document:
    """Render the judgement of a gate: rows with their remedies, and the drift of rows that passed."""
    view = view or View(verbose=True)
    word, tone = ("failed", Tone.BAD) if judgement.has_failed else ("passed", Tone.GOOD)
    numbers = plain(verdict_counts(judgement.verdicts)) or "no row to judge"
    if judgement.excluded:
        numbers += f", {plural(judgement.excluded, 'row')} not selected"
    compared = [row for row in judgement.verdicts if row.row.state]
    threshold = _shared_threshold(compared)
    by = f" ({threshold})" if threshold else ""
    title = f"gate: {word} against {shorten_path(judgement.where)}: {numbers}{by}"
    blocks: list[Block] = [paragraph(title, tone, hanging=1), *comparison_blocks(compared, view)]
    others = [row for row in judgement.verdicts if not row.row.state]
    rest = [row for row in others if row.verdict not in (Verdict.PASSED, Verdict.NEW)]
    rest.sort(key=lambda row: ORDER.index(row.verdict))
    listed = rest if view.verbose else rest[:MAX_ROWS]
    printed = set[tuple[RowId, str]]()  # a cause may be one of several counts of a row
    for row in listed:
        has_title = judgement.where == LIMITS or not isinstance(row.change, CountChange)
        first, causes = (row.details[:1], row.details[1:]) if has_title else ((), row.details)
        # The error of a failed test lists what exceeded its limit.
        is_cut = row.verdict is Verdict.REGRESSED and judgement.where == LIMITS and not view.verbose
        texts = [*(first or [_figures_text(row)]), *(() if is_cut else causes), row.remedy]
        blocks.append(_row_title(row, row_text(row)))
        blocks += [_detail(text, indent=2) for text in texts if text and (row.row, text) not in printed]
        printed.update((row.row, text) for text in texts)
    if len(rest) > len(listed):
        blocks.append(_detail(f"and {len(rest) - len(listed):,} more; -v lists them"))
    new = [row for row in others if row.verdict is Verdict.NEW]
    blocks += [_row_title(row, f"{row_text(row)}: {row.criterion}") for row in new[:10]]
    if len(new) > 10:
        more = f"and {len(new) - 10:,} more new rows; --dtdispatch-export csv:FILE writes all"
        blocks.append(one_line(more, indent=1))
    if new:
        blocks.append(_detail(new[0].remedy, indent=2))
    blocks += drift_lines(judgement.verdicts, judgement.since)
    blocks += map(_detail, judgement.remarks)
    if not judgement.has_compared and any(row.change or row.criterion for row in judgement.verdicts):
        blocks.append(_detail("no row could be judged, so the gate fails", Tone.BAD))
    if judgement.to_paste:
        blocks.append(_detail("changed rows, as a command or to paste:"))
        pasted = judgement.to_paste if view.verbose else first_of(judgement.to_paste, MAX_ROWS)
        blocks += (Verbatim((judgement.command,), indent=2), Verbatim(tuple(pasted)))
    return Document(tuple(blocks))


def comparison_blocks(rows: Sequence[RowVerdict], view: View) -> Iterator[Block]:
    """Render rows next to those of a saved run, by test, the worst first, and their remedies."""
    if not rows:
        return
    ordered = sorted(rows, key=badness)
    hidden: set[RowId] = set()
    if not view.verbose:
        hidden.update([row.row for row in ordered if not _is_ordinary(row)][MAX_ROWS:])
    has_threshold = any(row.criterion for row in rows) and not _shared_threshold(rows)
    changes = [row.change for row in rows if isinstance(row.change, TimeChange)]
    has_wall = any(change.wall_percent is not None for change in changes)
    groups = []
    for test, of_test in grouped((row.row.test, row) for row in ordered if row.row not in hidden).items():
        folded = [] if view.verbose else [row for row in of_test if _is_ordinary(row)][3:]
        words = Counter(_verdict_word(row)[0] for row in folded)
        more = f"and {', '.join(f'{n} {word}' for word, n in words.items())}; -v lists them" if folded else ""
        lines = []
        for row in of_test:
            if row not in folded:
                cells = _comparison_cells(row, view, has_wall, has_threshold)
                word, tone = _verdict_word(row)
                lines.append(Line(row.row.label, cells, word, row.details, tone))
        groups.append(Group(test, lines, more))
    optional = ("samples", "clock", "threshold", "base", "median", "wall")
    yield Table(groups, status_title="verdict", optional=optional, lists_omitted=True)
    if hidden:
        yield _detail(f"and {len(hidden):,} more; -v lists them")
    remedies = Counter((_verdict_word(row)[0], row.remedy) for row in ordered if row.remedy)
    for (word, remedy), count in remedies.items():
        yield _detail(f"{count} {word}: {remedy}")


def _shared_threshold(rows: Sequence[RowVerdict]) -> str:
    """Return the threshold of all rows; empty if they have different ones, or none."""
    thresholds = {row.criterion for row in rows}
    return thresholds.pop() if len(thresholds) == 1 else ""


def _comparison_cells(row: RowVerdict, view: View, has_wall: bool, has_threshold: bool) -> dict[Column, str]:
    change = row.change if isinstance(row.change, TimeChange) else None
    cells = {
        Column("state"): str(row.row.state),
        Column("base"): _time_text(change.base_ns) if change else "-",
        Column("now"): _time_text(change.head_ns) if change else "-",
        Column("change", "%"): f"{change.change_percent:+.1f}" if change else "-",
        Column("median", "%"): f"{change.median_percent:+.1f}" if change else "-",
    }
    if has_wall:
        wall = change.wall_percent if change else None
        cells[Column("wall", "%")] = "-" if wall is None else f"{wall:+.1f}"
    if view.verbose:
        cells[Column("clock")] = change.clock if change else "-"
        cells[Column("samples")] = f"{change.samples:,}" if change else "-"
    if has_threshold:
        cells[Column("threshold")] = row.criterion or "-"
    return cells


def _time_text(ns: float) -> str:
    unit = column_scale([ns])
    return f"{unit.text(ns)} {unit.name}"


def _is_ordinary(row: RowVerdict) -> bool:
    """Return whether a row needs no attention, so that only a few such rows are listed."""
    return row.verdict in (Verdict.PASSED, Verdict.NEW)


def _verdict_word(row: RowVerdict) -> tuple[str, Tone]:
    """Return the verdict as text with its tone; without a threshold, the direction of the change."""
    directions = {
        Verdict.REGRESSED: ("slower", Tone.NOTICE),
        Verdict.IMPROVED: ("faster", Tone.GOOD),
        Verdict.PASSED: ("no change", Tone.PLAIN),
        Verdict.INCONCLUSIVE: ("undecided", Tone.NOTICE),
    }
    if not row.criterion and row.verdict in directions:
        return directions[row.verdict]
    return str(row.verdict), TONES.get(row.verdict, Tone.BAD)


def badness(row: RowVerdict) -> tuple[int, float]:
    """Return a sort key: the worst row first, rows that passed last, and of these the slowest first."""
    severity = len(ORDER) if row.verdict is Verdict.PASSED else ORDER.index(row.verdict)
    return severity, -(_change_percent(row) or 0.0)


def worst_text(rows: Iterable[RowVerdict]) -> str:
    """Describe the row with the worst verdict; return an empty string if none needs attention."""
    worst = min(rows, key=badness, default=None)
    if worst is None or _is_ordinary(worst):
        return ""
    change = f", {change_text(worst)}" if change_text(worst) else ""
    return f"worst: {cut_name(name_in_files(worst.row))}{change}, {_verdict_word(worst)[0]}"


def _change_percent(row: RowVerdict) -> float | None:
    """Return the change of a row from its baseline, in percent; None if unknown."""
    if isinstance(row.change, SideShift):
        return row.change.shift_percent
    return row.change.change_percent if row.change else None


def change_text(row: RowVerdict) -> str:
    """Format the change of a row from its baseline; empty if there is none.

    Example:
        >>> change_text(RowVerdict(("t.py", "a", None), Verdict.REGRESSED, CountChange(4, 5)))
        '4 -> 5'
    """
    match row.change:
        case SideShift(then, now, p=None):
            moved = f"{number_text(then)} -> {number_text(now)}"
        case TimeChange(then, now) | SideShift(then, now):
            unit = column_scale([then, now])
            moved = f"{unit.text(then)} -> {unit.text(now)} {unit.name}"
        case CountChange(then, now):
            moved = f"{then:,.0f} -> {now:,.0f}"
        case _:
            return ""
    percent = _change_percent(row)
    return moved if percent is None else f"{moved} ({percent:+.1f} %)"


def number_text(number: float, sign: str = "-") -> str:
    """Format a number of an A/B run, which may be a mean per step.

    Args:
        number: the number.
        sign: ``+`` for a sign also of positive numbers.

    Example:
        >>> number_text(4_527_448.0), number_text(0.25, "+")
        ('4,527,448', '+0.25')
    """
    form = ",.0f" if float(number).is_integer() else ",.6g"
    return format(number, f"{sign}{form}")


def verdict_counts(verdicts: Sequence[RowVerdict]) -> tuple[Span, ...]:
    """Format the number of rows of each verdict."""
    numbers = Counter(row.verdict for row in verdicts)
    return tuple(
        Span(f"{', ' if n else ''}{numbers[verdict]} {verdict}", TONES.get(verdict, Tone.BAD))
        for n, verdict in enumerate(verdict for verdict in ORDER if numbers[verdict])
    )


def drift_lines(verdicts: Sequence[RowVerdict], since: str = "") -> Iterator[Paragraph]:
    """Render the median change of rows that passed: small regressions add up."""
    percents = (_change_percent(row) for row in verdicts if row.verdict is Verdict.PASSED)
    drifts = [percent for percent in percents if percent is not None]
    if drifts:
        rows, begin = plural(len(drifts), "passed row"), f" since {since}" if since else ""
        yield _detail(f"drift of {rows}{begin}: median {median(drifts):+.1f} %")


def row_text(row: RowVerdict) -> str:
    """Return the name of a row, shortened to fit a line."""
    return cut_name(name_in_files(row.row), 300)


def _row_title(row: RowVerdict, text: str) -> Paragraph:
    return one_line(Span(str(row.verdict), TONES.get(row.verdict, Tone.BAD)), f" {text}", indent=1)


def _detail(text: str, tone: Tone = Tone.PLAIN, indent: int = 1) -> Paragraph:
    """Return a line below a row; a cause begins with spaces, which indent its other lines too."""
    unindented = text.lstrip(" ")
    return paragraph(unindented, tone, indent + (len(text) - len(unindented)) // 2, hanging=1)


def _figures_text(row: RowVerdict) -> str:
    """Format the criterion of a row, its change, and the change of the median of times."""
    text = ": ".join(filter(None, (row.criterion, change_text(row))))
    if isinstance(row.change, TimeChange):
        text += f", median {row.change.median_percent:+.1f} % (least of {row.change.samples} samples)"
    return f"{text}, at {joined_lines(row.lines)}" if row.lines else text


def comparison_document(compared: Sequence[RowVerdict], view: View, proofs: Iterable[Paragraph]) -> Document:
    """Render rows without a threshold next to the saved run, and their proofs; a gate renders the others."""
    free = [row for row in compared if not row.criterion]
    meanings = {
        "change": "now against base",
        "median": "its change",
        "wall": "change of wall time, where the figure is CPU time",
        "clock": "of the figures: cpu if both runs have CPU time, else wall",
        "samples": "compared in each run",
    }
    legend = f"base and now: least sample. slower, faster: by more than {NOISY:.0%}, without a threshold."
    return Document((*comparison_blocks(free, view), *proofs), legend, meanings)


# Other files do not loop over verdicts: tools/call_path.py prints the files that do.


def worst_row(gates: Iterable[Judgement], compared: Sequence[RowVerdict]) -> str:
    """Describe the worst row that gates judged; rows over their limits are listed by their gate."""
    judged = [row for gate in gates if gate.where != LIMITS for row in gate.verdicts]
    return worst_text(compared or judged)


def failures(gates: Iterable[Judgement]) -> list[str]:
    """Return the kind of failure of each failed gate."""
    return ["gate failed" for gate in gates if gate.has_failed]


def slower_tests(gates: Iterable[Judgement]) -> set[str]:
    """Return the tests with rows for whose times a gate fails."""
    failed = [row for gate in gates for row in gate.failed]
    return {row.row.test for row in failed if isinstance(row.change, TimeChange)}


def inconclusive(gates: Iterable[Judgement]) -> list[RowVerdict]:
    """Return the rows that could not be decided."""
    return [row for gate in gates for row in gate.verdicts if row.verdict is Verdict.INCONCLUSIVE]


def judgement_documents(gates: Iterable[Judgement], view: View) -> list[Document]:
    """Render the judgement of each gate."""
    return [judgement_document(gate, view) for gate in gates]
