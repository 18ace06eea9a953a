"""Results against expected ones: their files, the rule, and taking over what a run found.

Files are as PyTorch's pr_time_benchmarks has them: CSV without a header. Its reader takes the first four
fields of a line and leaves a fifth alone: there stands why a value was changed. A comment line would stop it.
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
from pytest_dtdispatch.core.measurement import FEW_SAMPLES, INSTRUCTIONS, NOISY, TRACED, UNITS
from pytest_dtdispatch.core.parsing import read_decimal
from pytest_dtdispatch.core.plain_data import MOST
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
from pytest_dtdispatch.core.text import plural, shown
from pytest_dtdispatch.core.verdicts import CountChange, Judgement, RowVerdict, Verdict, judged
from pytest_dtdispatch.errors import DtDispatchError

T = TypeVar("T")

LONGEST_LINE = 10_000
LONGEST_REASON = 500
RESULTS_FORM = "name,metric,value[,signature]"
REPORTED = ("calls",)  # metrics that fail a run only where a file lists them


@dataclass(frozen=True)
class ExpectedRow:
    """What one metric is expected to be.

    Args:
        name: as results have it.
        metric: one of the known ones.
        expected: a whole number of at least 0, in the metric's unit.
        noise_margin: how far from it a result may be, either way, as a fraction of it: 0.1 is 10 %.
        reason: why it was last changed; may be empty.
        line: number of its line in the file, from 1; 0 where it is in none.
    """

    name: str
    metric: str
    expected: int
    noise_margin: float
    reason: str = ""
    line: int = 0

    def __str__(self) -> str:
        """One line of the file."""
        reason = [self.reason] if self.reason else []
        return _csv_line([self.name, self.metric, str(self.expected), repr(self.noise_margin), *reason])


@dataclass(frozen=True)
class ExpectedFile:
    """A file of expected results.

    Args:
        where: its path.
        text: all of it.
        rows: in the order of their lines.
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
    """Read the text of a file of expected results.

    Blank lines, and comment lines that begin with ``#``, are kept and mean nothing.
    """

    def read(line: int, name: str, metric: str, value: str, margin: str, reason: str = "") -> ExpectedRow:
        expected, noise_margin = _whole(value, "expected"), read_margin(margin, "noise_margin")
        return ExpectedRow(name, metric, expected, noise_margin, plain_name(reason), line)

    form = "name,metric,expected,noise_margin[,reason]"
    return ExpectedFile(where, text, _rows(text, where, form, metrics, read))


def read_results(path: Path, metrics: MetricNames) -> tuple[MetricValue, ...]:
    """Read a file of results."""

    def read(line: int, name: str, metric: str, value: str, signature: str = "") -> MetricValue:
        if signature and not name.endswith(f"::{cut_name(signature)}"):
            raise ValueError(f"4 fields, and a row is {RESULTS_FORM} of that name")
        return MetricValue(parse_row(name), metric, _whole(value, "value"), signature=signature)

    return _rows(read_text(path), str(path), RESULTS_FORM, metrics, read)


def results_text(results: Iterable[MetricValue]) -> str:
    """Write a line for each result, and no blank one, at which PyTorch's reader stops.

    A signature that its name has cut is the last field, unless a line with it is too long to be read.
    """
    lines = []
    for result in results:
        fields = [name_in_files(result.row), result.metric, str(result.value)]
        whole = _csv_line([*fields, result.signature])
        lines.append(whole if result.signature and len(whole) <= LONGEST_LINE else _csv_line(fields))
    return "".join(f"{line}\n" for line in lines)


def checked_reason(text: str) -> str:
    """Check a reason for a change, and make it one line."""
    reason = plain_name(text)
    if not 0 < len(reason) <= LONGEST_REASON:
        raise ValueError(f"a reason has 1 to {LONGEST_REASON} characters, not {len(reason)}")
    return reason


def read_margin(text: str, what: str) -> float:
    """Parse a noise margin; an error describes valid ones."""
    try:
        margin = read_decimal(text)
    except ValueError:
        margin = math.nan
    if not 0 <= margin <= 1:
        meant = f"; {margin:g} % is {margin / 100:g}" if 1 < margin <= 100 else ""
        raise ValueError(f"{what} {shown(text)} is not a fraction from 0 to 1{meant}")
    return margin


def _rows(text: str, where: str, form: str, metrics: MetricNames, read: Callable[..., T]) -> tuple[T, ...]:
    """Read each row by its line and its fields; no two are of one metric of one name."""
    rows: dict[tuple[str, str], T] = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            if fields := _fields(content, form, metrics):
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
    """Split a line into fields; a blank line and a comment have none."""
    if "\0" in line:
        raise ValueError("this is no text: it has a zero byte")
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
    if metric not in metrics:
        raise ValueError(f"unknown metric {shown(metric)}; valid: {', '.join(metrics)}")
    return [name, metric, *others]


def _whole(text: str, column: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= value < MOST:
        raise ValueError(f"{column} {shown(text)} is not a whole number from 0 to 2**63-1")
    return value


def _csv_line(fields: list[str]) -> str:
    """Join fields; a first one that would read as a comment is quoted."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(fields)
    line = buffer.getvalue()
    return f'"{fields[0]}"{line[len(fields[0]) :]}' if line.startswith("#") else line


def parse_row(name: str, tests: Collection[str] = ()) -> RowId:
    """Parse the name of a row in a file of expected results.

    The name of the test and the label may both contain ``::``. The test is the longest known one that the
    name begins with; of an unknown test it is everything before the last ``::``.

    Args:
        name: as the file has it.
        tests: names of known tests, as files have them.

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
) -> Judgement:
    """Judge results against expected ones.

    Regressed is a result above ``expected * (1 + noise_margin)``, improved one below
    ``expected * (1 - noise_margin)``: the rule of PyTorch's ``check_results.py``. One whose samples scatter
    too far is inconclusive.

    Args:
        expected: rows of the file that the run selects.
        results: of the run.
        improved_fails: whether the run fails by improved rows too.
        tests: names of the tests of the run, as files have them.
    """
    found = by_name(results)
    verdicts = [_judge_row(row, found.pop((row.name, row.metric), None), tests) for row in expected]
    add = "the expected file has no such row: add one to gate it"
    new = [one for one in found.values() if one.metric not in REPORTED]
    verdicts += [RowVerdict(one.row, Verdict.NEW, None, add, f"{one.metric} {one.value:,}") for one in new]
    judgement = judged(verdicts, improved_fails)
    if not judgement.has_failed and all(row.verdict is not Verdict.IMPROVED for row in verdicts):
        return judgement
    quiet = [result for result in results if not (result.scatter or result.is_traced)]
    return replace(judgement, to_paste=tuple(map(str, corrections(expected, quiet))))


def by_name(results: Iterable[MetricValue]) -> dict[tuple[str, str], MetricValue]:
    """Return results by the name in files and the metric."""
    return {(name_in_files(result.row), result.metric): result for result in results}


def corrections(expected: Sequence[ExpectedRow], results: Sequence[MetricValue]) -> Iterator[ExpectedRow]:
    """Give the rows that are off by more than a third of their margin, with the value found and no reason."""
    found = by_name(results)
    for row in expected:
        result = found.get((row.name, row.metric))
        if result is not None and _is_off(row.expected, result.value, row.noise_margin):
            yield replace(row, expected=shortened(result.value, row.noise_margin), reason="")


def shortened(value: int, noise_margin: float) -> int:
    """Cut a value to four digits, unless that alone moves it by more than a third of its margin."""
    unit = 10 ** max(len(str(value)) - 4, 0)
    cut = value // unit * unit
    return value if _is_off(value, cut, noise_margin) else cut


def update_expected(
    path: Path, results_path: Path, reason: str, new_margin: str | None, metrics: MetricNames
) -> str:
    """Update values that differ by more than a third of their margin, each with the reason.

    Order, comments, blank lines and every other row stay as they are.

    Returns:
        One line for the user.

    Raises:
        DtDispatchError: a file or a value is not valid.
    """
    checked_target(path)
    try:
        reason = checked_reason(reason)
        margin = None if new_margin is None else read_margin(new_margin, "--new-margin")
        is_new = margin is not None and not path.exists()
        file = ExpectedFile(str(path), "", ()) if is_new else read_expected(path, metrics)
        results = read_results(results_path, metrics)
        known = {(row.name, row.metric) for row in file.rows}
        found = by_name(results)
        if margin is None and not known & found.keys():
            raise ValueError(f"{results_path} has no result for any row of {path}")
        unknown = [one for key, one in found.items() if key not in known and one.metric not in REPORTED]
        changed = [replace(row, reason=reason) for row in corrections(file.rows, results)]
        added = []
        if margin is not None:
            for result in unknown:
                room = 0.0 if metrics[result.metric] else margin
                value = shortened(result.value, room)
                added.append(ExpectedRow(name_in_files(result.row), result.metric, value, room, reason))
        text = file.with_rows([*changed, *added])
        parse_expected(text, str(path), metrics)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    if changed or added:
        write_atomic(path, text)
    others = (
        (len(added), "added"),
        (len(known - found.keys()), "kept, because the results do not have them"),
        (len(unknown) - len(added), "results have no row: --new-margin adds them"),
    )
    counts = [f"{len(changed):,} of {len(file.rows) + len(added):,} rows changed"]
    return ", ".join(counts + [f"{count:,} {what}" for count, what in others if count])


def _is_off(expected: int, value: int, noise_margin: float) -> bool:
    return 3 * abs(value - expected) > _room(expected, noise_margin)


def _room(expected: int, noise_margin: float) -> Fraction:
    """How far a result may be from what is expected; exact, as floats round whole numbers above 2**53."""
    return expected * Fraction(repr(noise_margin))


def _judge_row(row: ExpectedRow, result: MetricValue | None, tests: Collection[str]) -> RowVerdict:
    figure = next((f", {unit.figure_name}" for unit in UNITS if row.metric in unit.metrics), "")
    criterion = f"{row.metric} {row.expected:,} +-{100 * row.noise_margin:g} %{figure}"
    if result is not None and result.ranks:
        criterion += f" on {ranks_text(result.ranks)}"
    verdict_of = partial(
        RowVerdict, result.row if result else parse_row(row.name, tests), criterion=criterion
    )
    if result is None:
        remedy = (
            "this run has no row of that name: restore the test, or remove the row from the expected file"
        )
        if row.metric in INSTRUCTIONS.metrics:
            remedy = "count with --dtdispatch-metric instructions, restore the test, or remove the row"
        return verdict_of(Verdict.MISSING, None, remedy)
    value = result.value
    if result.scatter or result.is_traced:
        if result.is_traced:
            remedy = TRACED
        elif math.isinf(result.scatter):
            remedy = f"{FEW_SAMPLES}: raise --dtdispatch-max-time"
        else:
            scatter = f"its samples scatter by {result.scatter:,.0%}, more than {NOISY:.0%}"
            remedy = f"noisy: {scatter}; run again on a quieter machine"
        return verdict_of(Verdict.INCONCLUSIVE, None, remedy, criterion=f"{criterion}: found {value:,}")
    percent = 100 * (value / row.expected - 1) if row.expected else None if value else 0.0
    change = CountChange(row.expected, value, percent, 100 * row.noise_margin)
    room = _room(row.expected, row.noise_margin)
    if value > row.expected + room:
        remedy = "find what made it grow, or update the expected file if the cost is wanted"
        return verdict_of(Verdict.REGRESSED, change, remedy)
    if value < row.expected - room:
        return verdict_of(Verdict.IMPROVED, change, "update the expected file to keep the gain")
    return verdict_of(Verdict.PASSED, change)
