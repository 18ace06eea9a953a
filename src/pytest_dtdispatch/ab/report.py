"""What an A/B run found, and how often its rule errs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_dtdispatch.ab.error_rates import VerdictCounts
from pytest_dtdispatch.ab.judge import RUN_AGAIN, Stage, percent
from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, Floors, Request, Run, state_of
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    one_line,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import verdict_counts
from pytest_dtdispatch.report.measurements import Scale, column_scale
from pytest_dtdispatch.stats.resampling import rate_interval

GOOD = (Verdict.PASSED, Verdict.IMPROVED, Verdict.NEW)
LEGEND = (
    "base, head: median over processes, where the value of a process is that of its quietest block. "
    "shift: of Hodges and Lehmann, with its 95 % interval. p: of the rank test, one-sided, "
    "before any adjustment. sees: the smallest slow-down that this comparison could have called regressed."
)


def result_document(run: Run, stages: Mapping[str, Stage], verdicts: Sequence[RowVerdict]) -> Document:
    """Lay out what an A/B run found."""
    sides = [
        one_line(f"{name}: {_name(run.asked, name)}: Python {side.python}, torch {side.torch}")
        for name, side in run.sides.items()
    ]
    told = [one_line(_stage_text(run, name, stage, run.asked.control)) for name, stage in stages.items()]
    legend = paragraph(LEGEND, indent=1)
    return Document((*sides, _table(verdicts), legend, *told, one_line(summary(verdicts))))


def summary(verdicts: Sequence[RowVerdict]) -> str:
    """Count the verdicts.

    Example:
        >>> summary([RowVerdict("a::hit", Verdict.PASSED), RowVerdict("b::hit", Verdict.PASSED)])
        '2 rows: 2 passed'
    """
    rows = "1 row" if len(verdicts) == 1 else f"{len(verdicts):,} rows"
    return f"{rows}: {plain(verdict_counts(verdicts))}" if verdicts else "no rows: nothing was compared"


def tally_document(tally: VerdictCounts, kinds: Sequence[str]) -> Document:
    """Write how many rows got a verdict, as rates with intervals."""
    head = f"{tally.rule}: {tally.rows:,} row comparisons in {tally.windows:,} windows of the pool"
    if not tally.rows:
        return Document((one_line(head),))
    apart = f"(windows overlap; those that share no process have {tally.apart:,} of these comparisons)"
    rates = [f"{kind}: {rate_text(tally.found.get(kind, 0), tally.rows)}" for kind in kinds]
    return Document((one_line(head), *(one_line(text, indent=1) for text in (apart, *rates))))


def rate_text(count: int, total: int) -> str:
    """Write a rate with its interval.

    Example:
        >>> rate_text(0, 976)
        '0 of 976, 0.000 % (95 % interval 0.000 to 0.377 %)'
    """
    low, high = rate_interval(count, total)
    return (
        f"{count:,} of {total:,}, {100 * count / total:.3f} % "
        f"(95 % interval {100 * low:.3f} to {100 * high:.3f} %)"
    )


def floors_text(floors: Floors) -> str:
    """Write the floors.

    Example:
        >>> floors_text(Floors())
        'floors: hit 7.5 %, miss 10 %; control 3 %'
    """
    control = f"{100 * floors.control:g} %" if floors.control else "off"
    return f"floors: hit {100 * floors.hit:g} %, miss {100 * floors.miss:g} %; control {control}"


def _name(asked: Request, side: str) -> str:
    python = getattr(asked, side)
    revision = getattr(asked, f"{side}_rev")
    return f"{revision} ({python})" if revision else python


def _table(verdicts: Sequence[RowVerdict]) -> Table:
    figures = {verdict.row: dict(verdict.figures) for verdict in verdicts}
    unit = column_scale(each.get(name) for each in figures.values() for name in ("base_ns", "head_ns"))
    groups: dict[str, list[Line]] = {}
    for verdict in verdicts:
        # The last part is the state, the one before it the signature, and all before that the test.
        test, _, label = verdict.row.removesuffix(f"::{state_of(verdict.row)}").rpartition("::")
        cells = (state_of(verdict.row), *_cells(figures[verdict.row], unit))
        # A contaminated stage is told once, below the table.
        notes = (verdict.remedy,) if verdict.remedy and verdict.verdict is not Verdict.CONTAMINATED else ()
        tone = Tone.GOOD if verdict.verdict in GOOD else Tone.BAD
        groups.setdefault(test, []).append(Line(label, cells, str(verdict.verdict), notes, tone))
    columns = (
        Column("state"),
        Column("base", unit.name),
        Column("head", unit.name),
        Column("shift", "%"),
        Column("95", "%"),
        Column("p"),
        Column("sees", "%"),
    )
    return Table(
        columns,
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="verdict",
        expendable=("base", "head", "p", "95"),
    )


def _cells(found: Mapping[str, float], unit: Scale) -> tuple[str, ...]:
    low, high = (_percent(found.get(name), "+.1f") for name in ("low_percent", "high_percent"))
    return (
        unit.text(found.get("base_ns")),
        unit.text(found.get("head_ns")),
        _percent(found.get("shift_percent"), "+.1f"),
        f"{low} to {high}" if found else "-",
        f"{found['p']:.4f}" if found else "-",
        _percent(found.get("smallest_percent"), ".1f"),
    )


def _percent(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _stage_text(run: Run, name: str, stage: Stage, limit: float) -> str:
    processes = run.of(name)
    what = {SCREEN: "screen", CONFIRM: "confirmation"}[name]
    said = f"{what}: {len(processes)} processes in {sum(p.seconds for p in processes):.0f} s; "
    if stage.control is None:
        return (
            said
            + "no plain tensors were measured: a change of the machine cannot be told from one of the code"
        )
    shift = f"plain tensors shifted by {percent(stage.control):+.1f} %"
    if stage.is_contaminated:
        return said + f"{shift}, past {100 * limit:g} %: contaminated; {RUN_AGAIN}"
    return said + shift
