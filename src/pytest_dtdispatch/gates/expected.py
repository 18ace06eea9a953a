"""Gate of expected results: file format, rule, and update from the results of a run.

The format is that of PyTorch's pr_time_benchmarks: CSV without a header. Its reader ignores the fifth field
of a line, which has the reason for the last change here. It does not accept comment lines.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_dtdispatch.core.environment import ranks_text
from pytest_dtdispatch.core.files import checked_target, read_text, write_atomic
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, UNITS, traced_text
from pytest_dtdispatch.core.parsing import read_decimal
from pytest_dtdispatch.core.plain_data import MAX_NUMBER
from pytest_dtdispatch.core.results import (
    LONGEST_NAME,
    MetricNames,
    MetricValue,
    name_in_files,
    plain_name,
    row_key,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import name_of_any_dim, nearest, plural, shown
from pytest_dtdispatch.core.verdicts import CountChange, Judgement, RowVerdict, Verdict, judged
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.saved_run import name_renamed

T = TypeVar("T")
Key = tuple[str, str]  # name and metric

LONGEST_LINE = 10_000
LONGEST_REASON = 500
LIMIT = "max"  # margin of a row that may fall
# Metrics without verdicts unless the expected file has a row for them.
REPORTED = ("calls", "collective_bytes", "collectives[DIM]", "collective_bytes[DIM]")


@dataclass(frozen=True)
class ExpectedRow:
    """Expected value of one metric of one row.

    Args:
        name: name of the row in files.
        metric: name of a registered metric.
        expected: expected value, a whole number of at least 0 in the metric's unit.
        noise_margin: maximum difference in either direction, as a fraction of the expected value: 0.1 is 10
            %.
        reason: reason for the last change; may be empty.
        line: line number in the file, from 1; 0 if it is not in a file.
        is_limit: whether only a larger result fails.
    """

    name: str
    metric: str
    expected: int
    noise_margin: float
    reason: str = ""
    line: int = 0
    is_limit: bool = False

    @property
    def key(self) -> Key:
        """Its name and metric, which no other row of a file has."""
        return self.name, self.metric

    def __str__(self) -> str:
        """Return its line of the file."""
        margin = LIMIT if self.is_limit else repr(self.noise_margin)
        reason = [self.reason] if self.reason else []
        return _csv_line([self.name, self.metric, str(self.expected), margin, *reason])


@dataclass(frozen=True)
class ExpectedFile:
    """A file of expected results.

    Args:
        where: path of the file.
        text: full text of the file.
        rows: rows in the order of their lines.
    """

    where: str
    text: str
    rows: tuple[ExpectedRow, ...]

    def with_rows(self, rows: Iterable[ExpectedRow]) -> str:
        """Return the text with some rows replaced or appended."""
        lines = self.text.removesuffix("\n").split("\n") if self.text else []
        end = "\r" if lines and lines[0].endswith("\r") else ""
        for row in rows:
            line = row.line - 1 if row.line else len(lines)
            lines[line : line + 1] = [f"{row}{end}"]
        return "".join(f"{line}\n" for line in lines)


def read_expected(path: Path, metrics: MetricNames) -> ExpectedFile:
    """Read a file of expected results."""
    return parse_expected(read_text(path), str(path), metrics)


def parse_expected(text: str, where: str, metrics: MetricNames) -> ExpectedFile:
    """Parse the text of a file of expected results; ignore blank lines and comments that begin with ``#``."""

    def read(line: int, name: str, metric: str, value: str, margin: str, reason: str = "") -> ExpectedRow:
        is_limit = margin == LIMIT
        valid = f"a fraction from 0 to 1, or {LIMIT}"
        noise_margin = 0.0 if is_limit else read_margin(margin, "noise_margin", valid)
        expected = _whole(value, "expected")
        return ExpectedRow(name, metric, expected, noise_margin, plain_name(reason), line, is_limit)

    form = "name,metric,expected,noise_margin[,reason]"
    return ExpectedFile(where, text, _rows(text, where, form, metrics, read))


def read_results(path: Path, metrics: MetricNames) -> tuple[MetricValue, ...]:
    """Read a file of results."""
    form = "name,metric,value[,signature]"

    def read(line: int, name: str, metric: str, value: str, signature: str = "") -> MetricValue:
        if signature and not name.endswith(f"::{cut_name(signature)}"):
            raise ValueError(f"4 fields, and a row is {form} of that name")
        return MetricValue(parse_row(name), metric, _whole(value, "value"), signature=signature)

    return _rows(read_text(path), str(path), form, metrics, read)


def results_text(results: Iterable[MetricValue], *more: str) -> str:
    """Render one line per result. There are no blank lines, because PyTorch's reader stops at one.

    The last field is the signature if the name has a shortened one, unless the line would exceed
    :data:`LONGEST_LINE`.

    Args:
        results: the results.
        more: further fields of each line, after the value.
    """
    lines = []
    for result in results:
        fields = [name_in_files(result.row), result.metric, str(result.value), *more]
        whole = _csv_line([*fields, result.signature])
        lines.append(whole if result.signature and len(whole) <= LONGEST_LINE else _csv_line(fields))
    return "".join(f"{line}\n" for line in lines)


def checked_reason(text: str) -> str:
    """Check the length of a reason for a change, and return it as one line."""
    reason = plain_name(text)
    if not 0 < len(reason) <= LONGEST_REASON:
        raise ValueError(f"a reason has 1 to {LONGEST_REASON} characters, not {len(reason)}")
    return reason


def read_margin(text: str, field: str, valid: str = "a fraction from 0 to 1") -> float:
    """Parse a noise margin.

    Args:
        text: text of the margin.
        field: name of the field or flag, for the error message.
        valid: valid values, for the error message.

    Raises:
        ValueError: it is not a fraction from 0 to 1.
    """
    try:
        margin = read_decimal(text)
    except ValueError:
        margin = math.nan
    if not 0 <= margin <= 1:
        meant = f"; {margin:g} % is {margin / 100:g}" if 1 < margin <= 100 else ""
        raise ValueError(f"{field} {shown(text)} is not {valid}{meant}")
    return margin


def _rows(text: str, where: str, form: str, metrics: MetricNames, read: Callable[..., T]) -> tuple[T, ...]:
    """Parse all rows by ``read``; raise if two rows have the same name and metric."""
    rows: dict[Key, T] = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            fields = _fields(content, form, metrics)
            if fields:
                name, metric, *_ = fields
                if (name, metric) in rows:
                    raise ValueError(f"a second row of {metric} of {shown(name)}")
                rows[name, metric] = read(line, *fields)
        except csv.Error as error:
            raise ValueError(f"{where}:{line}: {error}; a row is one line, quoted as CSV") from None
        except ValueError as error:
            raise ValueError(f"{where}:{line}: {error}") from None
    return tuple(rows.values())


def _fields(line: str, form: str, metrics: MetricNames) -> list[str]:
    """Split a line into fields; return an empty list for a blank line or a comment."""
    if "\0" in line:
        raise ValueError("this is not text: it has a zero byte")
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line of more than {LONGEST_LINE:,} characters")
    if not line.strip() or line.lstrip().startswith("#"):
        return []
    fields = next(csv.reader([line.removesuffix("\r")], strict=True))
    most = form.count(",") + 1  # the last one may be absent
    if len(fields) not in (most - 1, most):
        number = plural(len(fields), "field")
        raise ValueError(f"{number}, and a row is {form}; quote a name that has commas")
    name, metric, *others = row_key(fields[0]), *map(str.strip, fields[1:])
    if not name:
        raise ValueError("the name is empty")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of more than {LONGEST_NAME:,} characters")
    if name_of_any_dim(metric) not in metrics:
        valid = f"{', '.join(metrics)}{nearest(metric, metrics)}"
        raise ValueError(f"unknown metric {shown(metric)}; valid: {valid}")
    return [name, metric, *others]


def _whole(text: str, column: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{column} {shown(text)} is not a whole number from 0 to 2**63-1")
    return value


def _csv_line(fields: list[str]) -> str:
    """Join fields; quote the first one if it begins like a comment."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(fields)
    line = buffer.getvalue()
    return f'"{fields[0]}"{line[len(fields[0]) :]}' if line.startswith("#") else line


def parse_row(name: str, tests: Collection[str] = ()) -> RowId:
    """Parse the name of a row in a file of expected results.

    The name of the test and the label may both contain ``::``. The test is the longest known one that the
    name begins with, or else everything before the last ``::``.

    Args:
        name: name of the row in the file.
        tests: names of known tests, as in files.

    Example:
        >>> parse_row("t.py::test_a[x::y]::block::add", {"t.py::test_a[x::y]"})
        RowId(test='t.py::test_a[x::y]', label='block::add', state=None)
    """
    parts = name.split("::")
    last = len(parts) - 1
    end = next((n for n in range(last, 0, -1) if "::".join(parts[:n]) in tests), last)
    test, label = "::".join(parts[:end]), "::".join(parts[end:])
    return RowId(test, label) if test and label else RowId("", name)


def judge_results(
    expected: Sequence[ExpectedRow],
    results: Sequence[MetricValue],
    improved_fails: bool = True,
    tests: Collection[str] = (),
    unlisted: Iterable[RowId] = (),
    explain: Callable[[RowVerdict, ExpectedRow], RowVerdict] | None = None,
) -> Judgement:
    """Compare results with expected ones.

    A result above ``expected * (1 + noise_margin)`` is regressed, and one below ``expected * (1 -
    noise_margin)`` is improved, as in PyTorch's ``check_results.py``. A result of a traced run is
    inconclusive.

    Args:
        expected: rows of the file that the run selects.
        results: results of the run.
        improved_fails: whether improved rows also fail the run.
        tests: names of the tests of the run, as in files.
        unlisted: rows of the run that no file has, which may be renamed rows of this file.
        explain: function that adds the causes to the verdict on a regressed row.
    """
    found = by_name(results)
    verdicts = []
    for row in expected:
        verdict = _judge_row(row, found.pop(row.key, None), tests)
        if explain and verdict.verdict is Verdict.REGRESSED:
            verdict = explain(verdict, row)
        verdicts.append(verdict)
    add = "the expected file has no such row: add one to gate it"
    reported = {*REPORTED}
    if expected and all(row.is_limit for row in expected):  # limits are on counts only
        reported.update(metric for unit in UNITS for metric in unit.metrics)
    new = [result for result in found.values() if name_of_any_dim(result.metric) not in reported]
    verdicts += [
        RowVerdict(result.row, Verdict.NEW, None, add, f"{result.metric} {result.value:,}") for result in new
    ]
    judgement = judged(name_renamed(verdicts, unlisted), improved_fails)
    if not judgement.has_failed and all(row.verdict is not Verdict.IMPROVED for row in verdicts):
        return judgement
    quiet = [result for result in results if not result.tracers]
    return replace(judgement, to_paste=tuple(map(str, corrections(expected, quiet))))


def by_name(results: Iterable[MetricValue]) -> dict[Key, MetricValue]:
    """Return results by their name in files and metric."""
    return {(name_in_files(result.row), result.metric): result for result in results}


def corrections(expected: Sequence[ExpectedRow], results: Iterable[MetricValue]) -> Iterator[ExpectedRow]:
    """Yield rows that differ by more than a third of their margin, with the new value and an empty reason."""
    found = by_name(results)
    for row in expected:
        result = found.get(row.key)
        if result is not None and _is_off(row.expected, result.value, row.noise_margin):
            yield replace(row, expected=shortened(result.value, row.noise_margin), reason="")


def shortened(value: int, noise_margin: float) -> int:
    """Truncate a value to four significant digits, if that changes it by at most a third of its margin."""
    unit = 10 ** max(len(str(value)) - 4, 0)
    cut = value // unit * unit
    return value if _is_off(value, cut, noise_margin) else cut


def update_expected(
    path: Path,
    results_path: Path,
    reason: str,
    new_margin: str | None,
    metrics: MetricNames,
    has_limits: bool = False,
) -> str:
    """Update the values and reasons of rows that differ by more than a third of their margin.

    Order, comments, blank lines and all other rows are unchanged.

    Args:
        path: file of expected results.
        results_path: file of results.
        reason: reason for the change.
        new_margin: margin of times without a row, which are then added (counts with margin 0); None to add
            none.
        metrics: registered metrics.
        has_limits: whether exact counts, also those without a row, become limits.

    Returns:
        One line for the user with the number of changes.

    Raises:
        DtDispatchError: a file or a value is not valid.
    """
    checked_target(path)
    try:
        reason = checked_reason(reason)
        margin = None if new_margin is None else read_margin(new_margin, "--new-margin")
        is_new = (has_limits or margin is not None) and not path.exists()
        file = ExpectedFile(str(path), "", ()) if is_new else read_expected(path, metrics)
        found = by_name(read_results(results_path, metrics))
        rows, listed = file.rows, {row.key for row in file.rows}
        counts = {(name, metric) for name, metric in found if metrics[name_of_any_dim(metric)]}
        limits = counts if has_limits else set[Key]()
        now = [replace(row, noise_margin=0.0, is_limit=True) if row.key in limits else row for row in rows]
        corrected = {row.key: replace(row, reason=reason) for row in corrections(now, found.values())}
        updated = [corrected.get(row.key, row) for row in now]
        changed = [row for row, before in zip(updated, rows, strict=True) if row != before]
        new = [key for key in found if key not in listed and name_of_any_dim(key[1]) not in REPORTED]
        added = []
        for key in new:
            if margin is not None or key in limits:
                room = margin if margin and key not in counts else 0.0
                value = shortened(found[key].value, room)
                added.append(ExpectedRow(*key, value, room, reason, is_limit=key in limits))
        if not added and not listed & found.keys():
            missing = "counts to limit" if has_limits else f"result for any row of {path}"
            raise ValueError(f"{results_path} has no {missing}")
        text = file.with_rows([*changed, *added])
        parse_expected(text, str(path), metrics)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    if changed or added:
        write_atomic(path, text)
    left = 0 if has_limits else len(new) - len(added)  # beside limits, times need no row
    others = (
        (len(added), "added"),
        (len(listed - found.keys()), "unchanged, because the results do not have them"),
        (left, "without a row: --new-margin adds them"),
    )
    texts = [f"{len(changed):,} of {len(rows) + len(added):,} rows changed"]
    texts += [f"{count:,} {text}" for count, text in others if count]
    done = ", ".join(texts)
    return f"{done}; pytest --dtdispatch --dtdispatch-expected {path} judges them" if is_new else done


def _is_off(expected: int, value: int, noise_margin: float) -> bool:
    return 3 * abs(value - expected) > _room(expected, noise_margin)


def _room(expected: int, noise_margin: float) -> Fraction:
    """Return the margin in the unit of the value, as a Fraction: floats round whole numbers above 2**53."""
    return expected * Fraction(repr(noise_margin))


def _judge_row(row: ExpectedRow, result: MetricValue | None, tests: Collection[str]) -> RowVerdict:
    figure = ", least" if any(row.metric in unit.metrics for unit in UNITS) else ""
    criterion = f"{row.metric} {row.expected:,} +-{100 * row.noise_margin:g} %{figure}"
    if row.is_limit:
        criterion = f"{row.metric} at most {row.expected:,}"
    if result is not None and result.ranks:
        criterion += f" on {ranks_text(result.ranks)}"
    judged_row = result.row if result else parse_row(row.name, tests)
    verdict_of = partial(RowVerdict, judged_row, criterion=criterion)
    if result is None:
        remedy = (
            "this run has no row of that name: restore the test, or remove the row from the expected file"
        )
        if row.metric in INSTRUCTIONS.metrics:
            remedy = "count with --dtdispatch-metric instructions, restore the test, or remove the row"
        return verdict_of(Verdict.MISSING, None, remedy)
    value = result.value
    if result.tracers:
        remedy = traced_text(result.tracers)
        return verdict_of(Verdict.INCONCLUSIVE, None, remedy, criterion=f"{criterion}: found {value:,}")
    percent = 100 * (value / row.expected - 1) if row.expected else None if value else 0.0
    change = CountChange(row.expected, value, percent, 100 * row.noise_margin)
    room = _room(row.expected, row.noise_margin)
    if value > row.expected + room:
        remedy = "find what made it grow, or update the expected file if the cost is wanted"
        return verdict_of(Verdict.REGRESSED, change, remedy)
    if value < row.expected - room and not row.is_limit:
        return verdict_of(Verdict.IMPROVED, change, "update the expected file to keep the gain")
    return verdict_of(Verdict.PASSED, change)
