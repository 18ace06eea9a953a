"""Gate of saved runs: environments that can be compared, and rows that became slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from pytest_dtdispatch.core.measurement import NOISY, State
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import first_of, grouped
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Threshold, Verdict, judged
from pytest_dtdispatch.gates.times import MAX_SHIFT, TimedRow, judge_row, plain_shifts, unusable

# Properties of environments that must be equal for a comparison.
COMPARABLE = (
    *("CPU", "Python", "torch version", "torch build", "cuda", "device", "device name", "backend"),
    *("threads", "ranks", "rank stat"),
)


def environment_differences(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Format the differences between two environments that make their figures not comparable."""
    return tuple(
        f"{name}: {shorten(then.get(name) or 'unknown')} then, {now.get(name) or 'unknown'} now"
        for name in COMPARABLE
        if then.get(name, "") != now.get(name, "")
    )


def possible_causes(then: Mapping[str, str], now: Mapping[str, str], any_machine: bool) -> tuple[str, ...]:
    """Format the differences between two environments that most probably explain a change.

    Args:
        then: environment of the saved run.
        now: environment of this run.
        any_machine: whether properties that must be equal were not compared.
    """
    named = () if any_machine else COMPARABLE  # equal, or named by the verdict
    differing = [name for name in {**now, **then} if name not in named and then.get(name) != now.get(name)]
    packages = ("numpy", "pytest", "plugins")  # the least probable causes
    names = [name for name in differing if name not in packages]
    names += [name for name in differing if name in packages]
    most = 3  # listed
    changes = {name: _change(then.get(name, ""), now.get(name, "")) for name in names[:most]}
    lines = [f"another environment: {name}: {change}" for name, change in changes.items()]
    rest = names[most:]
    if rest:
        lines[-1] += f"; and {len(rest)} more: {', '.join(rest[:most])}"
    return tuple(lines)


def _change(then: str, now: str) -> str:
    """Format two values, of lists only the parts that differ."""
    parts = [text.split(", ") for text in (then, now)]
    own = [", ".join(part for part in mine if part not in other) for mine, other in (parts, parts[::-1])]
    return f"{shorten(own[0]) or 'none'} then, {shorten(own[1]) or 'none'} now"


def judge_run(
    base: Sequence[TimedRow], head: Sequence[TimedRow], thresholds: Callable[[RowId], Sequence[Threshold]]
) -> Judgement:
    """Judge every row that has a threshold.

    Rows on plain tensors contain no dispatch. If their median shift exceeds 3 %, a row that would not be
    regressed without it is contaminated.
    """
    then, now = {row.row: row for row in base}, {row.row: row for row in head}
    shifts = plain_shifts(then, now)
    shift = median(shifts) if shifts else 0.0
    verdicts: list[RowVerdict] = []
    saved: list[TimedRow] = []  # one for each threshold
    for name in dict.fromkeys((*now, *then)):
        row = then.get(name) or now[name]
        limits = thresholds(name) if row.state is not State.LOCAL else ()
        verdicts += [judge_row(name, then.get(name), now.get(name), limit, shift) for limit in limits]
        saved += [row for _ in limits if name in then]
    verdicts = name_renamed(verdicts, _unsaved(then, now))
    useless = sum(bool(unusable(row)) for row in saved)
    if 2 * useless > len(saved):
        why = f"{useless} of {len(saved)} thresholds can never be judged against this saved run"
        remedy = (
            "save one with a greater --dtdispatch-rounds or --dtdispatch-max-time, or judge other states "
            "only: hit=20%"
        )
        verdicts.append(RowVerdict(RowId("", why), Verdict.MISMATCHED, None, remedy))
    if not shifts:
        return judged(verdicts)
    doubt = ": the machine may be the cause" if abs(shift) > MAX_SHIFT else ""
    rows = f"(median of {len(shifts)} rows)"
    shifted = f"the op on plain tensors shifted by {100 * shift:+.1f} % {rows}{doubt}"
    return judged(verdicts, remarks=(shifted,))


def compare_rows(base: Sequence[TimedRow], head: Sequence[TimedRow]) -> list[RowVerdict]:
    """Compare every row with the saved one, without thresholds: slower or faster by a tenth, or no change."""
    then, now = ({row.row: row for row in rows if row.state is not State.LOCAL} for rows in (base, head))
    verdicts, tenth = [], Threshold("", "min", NOISY)
    for name in {**then, **now}:
        verdict = judge_row(name, then.get(name), now.get(name), tenth)
        verdicts.append(replace(verdict, criterion="", remedy="" if verdict.change else verdict.remedy))
    return name_renamed(verdicts, _unsaved(then, now))


def _unsaved(then: Iterable[RowId], now: Iterable[RowId]) -> list[RowId]:
    """Return rows that the saved run has in no state."""
    saved = {row._replace(state=None) for row in then}
    return [row for row in now if row._replace(state=None) not in saved]


def name_renamed(verdicts: Iterable[RowVerdict], new: Iterable[RowId]) -> list[RowVerdict]:
    """Name new rows with the label and state of a missing row, whose test may have another id now.

    Args:
        verdicts: verdicts of a gate.
        new: rows of the run that the baseline lacks.

    Returns:
        The verdicts. The details of a missing row name the tests of such rows, the most similar first.
    """
    by_label = grouped((row.label.rpartition("::")[2], row) for row in new)
    named = []
    for verdict in verdicts:
        row, name = verdict.row, f"{verdict.row.test}::{verdict.row.label}"
        rows = by_label.get(row.label.rpartition("::")[2], ())
        # Where the test of a row in an expected file is unknown, its label may be longer.
        tests = {each.test for each in rows if each.state == row.state and name.endswith(f"::{each.label}")}
        if verdict.verdict is Verdict.MISSING and tests:
            starts = (row.test.partition("[")[0], row.test.partition("::")[0], "")  # its function, its file
            ordered = sorted(tests)
            closest = dict.fromkeys(each for start in starts for each in ordered if each.startswith(start))
            ids = ", ".join(first_of([shorten(row_key(test)) for test in closest], 2))
            details = (*filter(None, [verdict.criterion]), f"the same signature under another id: {ids}")
            verdict = replace(verdict, details=details)
        named.append(verdict)
    return named
