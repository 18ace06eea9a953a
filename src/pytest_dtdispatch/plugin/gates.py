"""Gates of a run: limits, comparison with a saved run, and with files of expected results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import name_of_any_dim
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    Judgement,
    RowVerdict,
    Threshold,
    Verdict,
    not_judged,
    over,
    thresholds_of,
    unjudged,
)
from pytest_dtdispatch.gates.expected import ExpectedFile, by_name, judge_results, parse_row
from pytest_dtdispatch.gates.saved_run import (
    compare_rows,
    environment_differences,
    judge_run,
    possible_causes,
)
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.gates.times import TimedRow, timed_rows
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Kind
from pytest_dtdispatch.report.run import ReportedRun, Results
from pytest_dtdispatch.rounds.sampler import SAMPLERS


@dataclass(frozen=True)
class Baseline:
    """Saved run that a run is compared with.

    Args:
        run: the saved run; None if there is none.
        why_none: why there is none; empty if there is one.
        passed_over: messages about skipped newer saved runs.
    """

    run: ReportedRun | None
    why_none: str = ""
    passed_over: tuple[str, ...] = ()

    def rows(self) -> list[TimedRow]:
        """Return its rows by state, with its saved thresholds."""
        if self.run is None:
            return []
        thresholds = self.run.thresholds
        return _rows_of(self.run, lambda test: thresholds.get(test, ()))


def _rows_of(
    run: ReportedRun, thresholds: Callable[[str], Sequence[Threshold]] = lambda test: ()
) -> list[TimedRow]:
    by_test = run.rows_by_test().items()
    return [row for test, rows in by_test for row in timed_rows(test, rows, thresholds(test))]


@dataclass(eq=False)
class Gates:
    """Gates of a run.

    Args:
        settings: settings of the run.
        skip_reason: why nothing is measured although it was requested; empty if it is measured.
        baseline: baseline of the gate of saved runs; None if no comparison was requested.
        expected: files of expected results.
    """

    settings: Settings
    skip_reason: str = ""
    baseline: Baseline | None = None
    expected: Sequence[ExpectedFile] = ()

    def judges_captures(self, settings: Settings) -> bool:
        """Return whether results of captures are judged in a test with these settings."""
        of_counts = settings.metric == "counts" and limits_text(settings.limits, KINDS["steps"].limits)
        return bool(settings.expected or (settings.threshold and self.baseline) or of_counts)

    def judge(self, run: ReportedRun, records: Mapping[str, TestRecord], selection: Selection) -> ReportedRun:
        """Return the run with the judgements of all gates, and with earlier results for comparison.

        Args:
            run: finished run.
            records: records of its tests, by name in rows.
            selection: tests of baselines that the run selects.
        """
        if not self.settings.judges:
            return run
        gates = (
            *self._judge_limits(records),
            *self._judge_saved_run(run, selection),
            *self._judge_expected(run, selection),
        )
        earlier, about_earlier = self._earlier(run.results)
        return replace(run, gates=gates, earlier=earlier, about_earlier=about_earlier)

    # Limits

    def _judge_limits(self, records: Mapping[str, TestRecord]) -> Iterator[Judgement]:
        """Yield the judgement of limits: verdicts in tests, and limits of the run that judged nothing."""
        verdicts: list[RowVerdict] = []
        for kind in KINDS.values():
            if kind.limits and not any(record.results.get(kind.name) for record in records.values()):
                for limit in limit_texts(self.settings.limits, kind.limits):
                    of_run = f"--dtdispatch-max {limit}"
                    verdicts.append(judged_nothing(RowId("", of_run), of_run, kind, self.skip_reason))
        verdicts += [verdict for record in records.values() for verdict in record.verdicts]
        if verdicts:
            yield Judgement(tuple(verdicts), LIMITS, tuple(over(verdicts)))

    # A saved run

    def refusal(self, has_rows: bool) -> Judgement | None:
        """Return why the run cannot be compared with the saved run, as a judgement; None if it can."""
        if self.baseline is None:
            return None
        settings, base = self.settings, self.baseline.run
        is_timed = settings.metric in SAMPLERS and SAMPLERS[settings.metric].unit.is_time
        times_nothing = "" if is_timed else f"this run measures {settings.metric}, and no times"
        if reason := self.skip_reason or times_nothing:
            return not_judged(Verdict.DISABLED, reason)
        if base is None:
            remedy = "save one with --benchmark-save=NAME or --benchmark-autosave"
            return not_judged(Verdict.MISSING, self.baseline.why_none, remedy)
        if base.stopped:
            why = f"the saved run is incomplete: {base.stopped}"
            return not_judged(Verdict.MISMATCHED, why, "save a complete run")
        if not has_rows:  # the mesh may not exist, so that the run has no environment
            return None
        then, now = base.environment, settings.environment_texts()
        if then.get("metric") != now["metric"]:
            metrics = f"metric: {then.get('metric')} then, {now['metric']} now"
            return not_judged(Verdict.MISMATCHED, metrics, "save a run with the same --dtdispatch-metric")
        if not settings.any_machine and (differ := environment_differences(then, now)):
            remedy = "save a run on this machine, or compare anyway with --dtdispatch-any-machine"
            return not_judged(Verdict.MISMATCHED, "; ".join(differ), remedy)
        return None

    def _thresholds_of(self, row: TimedRow, of_marker: tuple[Threshold, ...] | None) -> tuple[Threshold, ...]:
        """Return thresholds of a saved row: those of the marker, or else of the run, or else saved ones."""
        limits = (self.settings.threshold or ()) if of_marker is None else of_marker
        return thresholds_of(str(row.state), limits) or thresholds_of(str(row.state), row.thresholds)

    def _judge_saved_run(self, run: ReportedRun, selection: Selection) -> Iterator[Judgement]:
        """Yield the judgement against the saved run, if there is any threshold."""
        if self.baseline is None:
            return

        def limits_of(row: TimedRow) -> tuple[Threshold, ...]:
            test = row.row.test
            return self._thresholds_of(row, run.thresholds.get(test)) if selection.has(test) else ()

        saved, rows = self.baseline.rows(), _rows_of(run)
        has_own = self.settings.threshold or any(run.thresholds.values())
        if has_own or any(map(limits_of, saved)):
            base = self.baseline.run or ReportedRun("no saved run")
            judgement = self.refusal(bool(rows)) or judge_run(saved, rows, limits_of)
            if judgement.has_failed and base.environment and run.environment:
                causes = possible_causes(base.environment, run.environment, self.settings.any_machine)
                judgement = replace(judgement, remarks=(*judgement.remarks, *causes))
            rest = [row for row in saved if not selection.has(row.row.test)]
            excluded = sum(row.state is not State.LOCAL for row in rest)
            judgement = replace(judgement, where=base.where, since=base.taken[:10], excluded=excluded)
            yield replace(judgement, remarks=(*judgement.remarks, *self._changed_pytest(judgement, base)))

    def slower_tests(self, run: ReportedRun, selection: Selection) -> set[str]:
        """Return the tests with rows for whose times the gate of the saved run fails."""
        rows = (row for gate in self._judge_saved_run(run, selection) for row in over(gate.verdicts))
        return {row.row.test for row in rows if row.change}

    def _changed_pytest(self, judgement: Judgement, base: ReportedRun) -> Iterator[str]:
        """Yield the versions of pytest if rows are missing: pytest 9.2 shortens long ids of tests."""
        then, now = base.environment.get("pytest"), self.settings.environment_texts()["pytest"]
        if then not in (None, now) and any(row.verdict is Verdict.MISSING for row in judgement.verdicts):
            yield f"pytest {then} then, {now} now: it may have changed the ids of tests"

    def compared(self, run: ReportedRun, selection: Selection) -> tuple[RowVerdict, ...]:
        """Return the verdicts on rows compared with the saved run: those of a gate, and of all other rows."""
        if self.baseline is None:
            return ()
        judged = tuple(row for gate in run.gates for row in gate.verdicts if row.row.state)
        ids, head = {row.row for row in judged}, _rows_of(run)
        if self.refusal(bool(head)):
            return judged
        free = [row for row in self.baseline.rows() if row.row not in ids and selection.has(row.row.test)]
        return (*judged, *compare_rows(free, [row for row in head if row.row not in ids]))

    def reason_not_compared(self, run: ReportedRun) -> str:
        """Return why the run is not compared with the requested saved run; empty if it is."""
        refused = self.refusal(any(True for _ in run.rows()))
        return refused.verdicts[0].row.label if refused else ""

    def _earlier(self, results: Results) -> tuple[Results, str]:
        """Return results of the saved run to render next to those of this run, and their caption."""
        if self.baseline is None or (base := self.baseline.run) is None:
            return {}, ""
        found = {}
        for kind in KINDS.values():
            before, now = (each.get(kind.name, {}) for each in (base.results, results))
            if kind.shows_earlier and (of_kind := {test: before[test] for test in now if test in before}):
                found[kind.name] = of_kind
        if not found:
            return {}, ""
        differ = environment_differences(base.environment, self.settings.environment_texts())
        return found, base.as_earlier("".join(f"; {each}" for each in differ))

    # Files of expected results

    def _judge_expected(self, run: ReportedRun, selection: Selection) -> Iterator[Judgement]:
        """Yield a judgement for each file; rows that no file has are new only in the first judgement."""
        if self.skip_reason:
            disabled = not_judged(Verdict.DISABLED, self.skip_reason)
            yield from (replace(disabled, where=file.where) for file in self.expected)
            return
        found = by_name(run.metrics()) if self.expected else {}
        keys_of_files = [{(row.name, row.metric) for row in file.rows} for file in self.expected]
        new = [number for key, number in found.items() if not any(key in keys for keys in keys_of_files)]
        names = {name for keys in keys_of_files for name, _ in keys}
        unlisted = [number.row for (name, _), number in found.items() if name not in names]
        csv = (str(each.path) for each in self.settings.export if each.format == "csv" and not each.is_stdout)
        written, tests = next(csv, "RESULTS.csv"), selection.tests
        for file, keys in zip(self.expected, keys_of_files, strict=True):
            rows = [row for row in file.rows if selection.has(parse_row(row.name, tests).test)]
            of_file = [number for key, number in found.items() if key in keys]
            fails = self.settings.improved == "fail"
            judgement = judge_results(rows, [*of_file, *new], fails, tests, unlisted)
            command = shlex.join(["dtdispatch", "expected", "update", file.where, "--results", written])
            excluded = len(file.rows) - len(rows)
            remedy = f'{command} --reason "..."'
            yield replace(judgement, where=file.where, command=remedy, excluded=excluded)
            new = []


def judged_nothing(row: RowId, criterion: str, kind: Kind, skip_reason: str) -> RowVerdict:
    """Return the verdict on limits whose kind has no result, with the reason if nothing was measured."""
    verdict = Verdict.DISABLED if skip_reason else Verdict.MISSING
    return unjudged(row, criterion, skip_reason or kind.nothing, verdict)


def limit_texts(limits: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """Format the limits with these names, in the order of the names."""
    valid = (name for name in limits if name_of_any_dim(name) in names)
    ordered = sorted(valid, key=lambda name: names.index(name_of_any_dim(name)))
    return [f"{name}={limits[name]}" for name in ordered]


def limits_text(limits: Mapping[str, int], names: Sequence[str]) -> str:
    """Format the limits with these names as one text."""
    return ", ".join(limit_texts(limits, names))
