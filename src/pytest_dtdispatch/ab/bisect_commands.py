"""``dtdispatch bisect``: what is typed, and what is printed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_dtdispatch.ab import runs
from pytest_dtdispatch.ab.bisect_search import Between, BisectAnswer, search
from pytest_dtdispatch.ab.bisecting import AgainstFirst, FirstCompared
from pytest_dtdispatch.ab.command_flags import (
    METRIC,
    OF_METRIC,
    RULE,
    TIME_LIMIT,
    checked_pythons,
    declare,
    declare_pythons,
    refuse_of_another_metric,
    resumable,
    typed_rule,
)
from pytest_dtdispatch.ab.errands import TIME_LIMITS_S, usual_request
from pytest_dtdispatch.ab.matrix_report import why_absent
from pytest_dtdispatch.ab.model import COUNTS, INSTRUCTIONS, TIME, Request, Run
from pytest_dtdispatch.ab.versions import headings
from pytest_dtdispatch.ab.worker import Workplace
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import ProcessError
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.scales import MICROSECONDS
from pytest_dtdispatch.report.screen import say

BISECT = "bisect"
BISECT_HELP = "find the first of several interpreters that regressed against the first one"
CHEAPEST_FIRST = (COUNTS, INSTRUCTIONS, TIME)
MOST_ROWS = 3  # that the last line names
TONES = {BisectAnswer.PASSED: Tone.GOOD, BisectAnswer.REGRESSED: Tone.BAD, BisectAnswer.UNKNOWN: Tone.NOTICE}


def add_bisect_parser(commands: Any) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(BISECT, help=BISECT_HELP)
    declare_pythons(parser)
    declare(parser, (*METRIC, *RULE, TIME_LIMIT))


def obey_bisect(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Find the first interpreter that regressed, by the cheapest metric that shows it."""
    typed = typed_rule(given, tuple(arguments))
    if given.metric:
        refuse_of_another_metric(given.metric, typed)
    asked = checked_pythons(Request(command=BISECT, pythons=tuple(given.python), arguments=tuple(arguments)))
    metrics = (given.metric,) if given.metric else CHEAPEST_FIRST
    with resumable(None), runs.recorded(Run(asked, {}), 1.0, None, None) as (place, recorder):
        bisection = Bisection(place, recorder.run, typed, given.time_limit)
        return bisection.run_with(metrics)


@dataclass(frozen=True)
class Bisection:
    """A search over versions, told step by step.

    Args:
        place: where processes run.
        known: what was asked for, and what the versions are.
        typed: of the rule, by field.
        time_limit_s: of each process, if one was typed.
    """

    place: Workplace
    known: Run
    typed: Mapping[str, Any]
    time_limit_s: float | None

    def run_with(self, metrics: Sequence[str]) -> int:
        """Search by the first metric in which the last version regressed."""
        last = len(self.known.asked.pythons) - 1
        statuses = []
        for metric in metrics:
            compared = self._compared(metric)
            try:
                ends = compared.with_version(last)
            except ProcessError as error:
                if metric != INSTRUCTIONS or len(metrics) == 1:
                    raise
                say(f"{metric}: cannot be compared: {_shortened(error)}", Tone.NOTICE)
                continue
            if ends.regressed:
                self._tell(metric, last, ends, {one.row for one in ends.regressed})
                return self._search(metric, compared, ends)
            statuses.append(self._tell_ends(metric, last, ends))
        # The dearest metric that could be asked has the last word: what it clears, nothing has slowed.
        if statuses[-1] == runs.PASSED:
            say("nothing to find: the last did not regress against the first", Tone.GOOD)
        return statuses[-1]

    def _compared(self, metric: str) -> FirstCompared:
        """Prepare comparisons in a metric; what was typed for another one is left out."""
        theirs = {name: value for name, value in self.typed.items() if OF_METRIC.get(name, metric) == metric}
        usual = usual_request(metric)
        asked = replace(
            usual, command=BISECT, pythons=self.known.asked.pythons, **{**theirs, "metric": metric}
        )
        limit_s = self.time_limit_s or TIME_LIMITS_S[metric]
        place = replace(self.place, metric=metric, passes=asked.passes, time_limit_s=limit_s)
        return FirstCompared(place, replace(self.known, asked=asked))

    def _search(self, metric: str, compared: FirstCompared, ends: AgainstFirst) -> int:
        rows = {one.row for one in ends.regressed}
        found = {len(self._names) - 1: ends}

        def ask(index: int) -> BisectAnswer:
            try:
                found[index] = compared.with_version(index)
            except ProcessError as error:
                say(f"{self._name(index)}: skipped: {_shortened(error)}", Tone.NOTICE)
                return BisectAnswer.UNKNOWN
            self._tell(metric, index, found[index], rows)
            return found[index].answer(rows)

        between = search(len(self._names), ask)
        self._tell_found(metric, between, found[between.regressed])
        return runs.REGRESSED

    @property
    def _names(self) -> list[str]:
        return list(headings(self.known.asked, self.known.sides).values())

    def _name(self, index: int) -> str:
        return f"torch {self._names[index]}"

    def _tell(self, metric: str, index: int, one: AgainstFirst, rows: set[str]) -> None:
        """Say what one step found."""
        answer = one.answer(rows)
        told = f"{self._name(index)}: {answer.value}"
        if answer is BisectAnswer.REGRESSED:
            told += f": {many(sum(each.row in rows for each in one.regressed), 'row')} by {metric}"
        elif unclear := one.unanswered(rows):
            told += f": {_unclear_text(one, unclear, list(self.known.sides)[index])}"
        say(told, TONES[answer])

    def _tell_ends(self, metric: str, last: int, ends: AgainstFirst) -> int:
        """Say why there is nothing to search for by a metric, and give the exit status."""
        told = f"{metric}: {self._name(last)} against {self._names[0]}"
        unclear = ends.unanswered({one.row for one in ends.verdicts})
        if not ends.has_compared:
            say(f"{told}: not comparable: no row is in both", Tone.NOTICE)
        elif unclear:
            why = _unclear_text(ends, unclear, list(self.known.sides)[last])
            say(f"{told}: not comparable: {why}", Tone.NOTICE)
        else:
            rows = many(len(ends.verdicts), "number" if metric == COUNTS else "row")
            say(f"{told}: did not regress: {rows}", Tone.GOOD)
            return runs.PASSED
        is_contaminated = unclear is not None and unclear.verdict is Verdict.CONTAMINATED
        return runs.CONTAMINATED if is_contaminated else runs.INCONCLUSIVE

    def _tell_found(self, metric: str, between: Between, found: AgainstFirst) -> None:
        """Say, in one line, which version is the first that regressed, and in what."""
        side = self.known.sides[list(self.known.sides)[between.regressed]]
        python = self.known.asked.pythons[between.regressed]
        versions = f"torch {side.torch}, build {side.build[:12] or 'unknown'}, Python {side.python}, {python}"
        regressed = sorted(found.regressed, key=_growth, reverse=True)
        rows = "; ".join(f"{one.row} {_shift_text(metric, one)}" for one in regressed[:MOST_ROWS])
        rows += f"; and {many(len(regressed) - MOST_ROWS, 'more row')}" if len(regressed) > MOST_ROWS else ""
        what = f"first regressed: {versions}"
        if between.skipped:
            skipped = ", ".join(self._names[n] for n in between.skipped)
            what = f"first regressed: one of {skipped}, which were skipped, or {versions}"
        say(f"{what}; {self._name(between.passed)} passed; by {metric}: {rows}", Tone.BAD)


def _growth(one: RowVerdict) -> float:
    """Give by how much a row grew: of counts the number, as some begin at 0."""
    figures = dict(one.figures)
    return figures.get("shift_percent", figures.get("head_least", 0.0) - figures.get("base_most", 0.0))


def _shift_text(metric: str, one: RowVerdict) -> str:
    """Say by how much a row regressed against the first version."""
    figures = dict(one.figures)
    if metric == COUNTS:
        return f"{figures['base_most']:,g} -> {figures['head_least']:,g}"
    if metric == TIME:
        sides = " -> ".join(MICROSECONDS.text(figures[name]) for name in ("base_ns", "head_ns"))
        return f"{sides} {MICROSECONDS.name} ({figures['shift_percent']:+.1f} %)"
    sides = " -> ".join(f"{figures[name]:,.0f}" for name in ("base_least", "head_least"))
    return f"{sides} ({figures['shift_percent']:+.1f} %)"


def _unclear_text(one: AgainstFirst, unclear: RowVerdict, side: str) -> str:
    """Say why a row gives no answer."""
    if unclear.verdict is Verdict.MISSING:
        return "it has no {}: {}".format(*why_absent(one.run, side, unclear.row))
    return f"{unclear.row} is {unclear.verdict}: {unclear.remedy}"


def _shortened(error: ProcessError) -> str:
    """Leave out the log: it goes with the folder of the run."""
    return str(error).partition("; log: ")[0]
