"""Gates of a run: limits, comparison with a saved run, and with files of expected results."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_dtdispatch.core.measurement import UNITS, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import first_of, grouped, name_of_any_dim, shorten_path
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    CountChange,
    Judgement,
    RowVerdict,
    Threshold,
    Verdict,
    not_judged,
    over,
    thresholds_of,
    unjudged,
)
from pytest_dtdispatch.gates.expected import ExpectedFile, ExpectedRow, by_name, judge_results, parse_row
from pytest_dtdispatch.gates.saved_run import (
    compare_rows,
    environment_differences,
    judge_run,
    possible_causes,
)
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.gates.times import timed_rows
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Kind
from pytest_dtdispatch.report.run import Baseline, ReportedRun
from pytest_dtdispatch.rounds.sampler import SAMPLERS
from pytest_dtdispatch.steps.model import COUNTS, Steps, causes_since


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
        of_counts = settings.metric == "counts" and limit_texts(settings.limits, KINDS["steps"].limits)
        return bool(settings.expected or (settings.threshold and self.baseline) or of_counts)

    def judge(self, run: ReportedRun, records: Mapping[str, TestRecord], selection: Selection) -> ReportedRun:
        """Return the run with the judgements of all gates, and compared with the saved run.

        Args:
            run: finished run.
            records: records of its tests, by name in rows.
            selection: tests of baselines that the run selects.
        """
        if not self.settings.judges:
            return run
        verdicts: list[RowVerdict] = []
        for kind in KINDS.values():  # limits of the run that judged nothing
            if not any(record.results.get(kind.name) for record in records.values()):
                for limit in limit_texts(self.settings.limits, kind.limits):
                    of_run = f"--dtdispatch-max {limit}"
                    verdicts.append(judged_nothing(RowId("", of_run), of_run, kind, self.skip_reason))
        verdicts += [verdict for record in records.values() for verdict in record.verdicts]
        gates = [Judgement(tuple(verdicts), LIMITS, tuple(over(verdicts)))] if verdicts else []
        if self.baseline is not None:
            run = self._compare(run, self.baseline, selection)
            gates += run.gates
        gates += self._judge_expected(run, selection)
        metrics = {metric for unit in UNITS for metric in unit.metrics}
        timed = {number.row for number in run.metrics() if number.metric in metrics}
        base = self.baseline.run if self.baseline else None
        return replace(run, gates=tuple(_with_causes_and_command(gates, timed, run, base)))

    # A saved run

    def _compare(self, run: ReportedRun, baseline: Baseline, selection: Selection) -> ReportedRun:
        """Return the run with a judgement of rows with thresholds, if there are any, and all other rows."""
        base = baseline.run or ReportedRun("no saved run")
        saved, found = timed_rows(base.each_row()), timed_rows(run.each_row())

        def limits_of(row: RowId) -> tuple[Threshold, ...]:
            """Return the thresholds of the marker, or else of the run, or else of the saved run."""
            if not selection.has(row.test):
                return ()
            limits = run.thresholds.get(row.test, self.settings.threshold or ())
            of_saved = base.thresholds.get(row.test, ())
            return thresholds_of(row.state, limits) or thresholds_of(row.state, of_saved)

        refused = self._refusal(baseline, bool(found))
        gates: tuple[Judgement, ...] = ()
        judged = set[RowId]()
        has_limits = self.settings.threshold or any(run.thresholds.values())
        if has_limits or any(limits_of(row.row) for row in saved):
            judgement = refused or judge_run(saved, found, limits_of)
            judged = {verdict.row for verdict in judgement.verdicts if verdict.row.state}
            remarks = [*judgement.remarks]
            if judgement.has_failed and base.environment and run.environment:
                remarks += possible_causes(base.environment, run.environment, self.settings.any_machine)
            other, ours = base.environment.get("pytest"), self.settings.environment_texts()["pytest"]
            is_missing = any(row.verdict is Verdict.MISSING for row in judgement.verdicts)
            if is_missing and other not in (None, ours):  # pytest 9.2 shortens long ids of tests
                remarks.append(f"pytest {other} then, {ours} now: it may have changed the ids of tests")
            of_ops = (row for row in saved if row.state is not State.LOCAL)
            excluded = sum(not selection.has(row.row.test) for row in of_ops)
            judgement = replace(judgement, where=base.where, since=base.started[:10])
            gates = (replace(judgement, excluded=excluded, remarks=tuple(remarks)),)
        compared: tuple[RowVerdict, ...] = ()
        if not refused:
            free = [row for row in saved if row.row not in judged and selection.has(row.row.test)]
            others = compare_rows(free, [row for row in found if row.row not in judged])
            compared = (*(row for gate in gates for row in gate.verdicts if row.row.state), *others)
        uncompared = refused.verdicts[0].row.label if refused else ""
        run = replace(run, gates=gates, compared=compared, uncompared=uncompared)
        earlier = {}  # saved results that are rendered next to those of this run
        for kind in KINDS.values():
            before, now = base.results.get(kind.name, {}), run.results.get(kind.name, {})
            of_kind = {test: before[test] for test in now if test in before}
            if kind.shows_earlier and of_kind:
                earlier[kind.name] = of_kind
        if not earlier:
            return run
        about_earlier = base.as_earlier(self.settings.environment_texts())
        return replace(run, earlier=earlier, about_earlier=about_earlier)

    def _refusal(self, baseline: Baseline, has_rows: bool) -> Judgement | None:
        """Return why the run cannot be compared with the saved run, as a judgement; None if it can."""
        settings, base = self.settings, baseline.run
        if self.skip_reason:
            return not_judged(Verdict.DISABLED, self.skip_reason)
        if settings.metric not in SAMPLERS or not SAMPLERS[settings.metric].unit.is_time:
            return not_judged(Verdict.DISABLED, f"this run measures {settings.metric}, and no times")
        if base is None:
            remedy = "save one with --benchmark-save=NAME or --benchmark-autosave"
            return not_judged(Verdict.MISSING, baseline.why_none, remedy)
        if base.stopped:
            why = f"the saved run is incomplete: {base.stopped}"
            return not_judged(Verdict.MISMATCHED, why, "save a complete run")
        if not has_rows:  # the mesh may not exist, so that the run has no environment
            return None
        then, now = base.environment, settings.environment_texts()
        if then.get("metric") != now["metric"]:
            metrics = f"metric: {then.get('metric')} then, {now['metric']} now"
            return not_judged(Verdict.MISMATCHED, metrics, "save a run with the same --dtdispatch-metric")
        differ = environment_differences(then, now)
        if differ and not settings.any_machine:
            remedy = "save a run on this machine, or compare anyway with --dtdispatch-any-machine"
            return not_judged(Verdict.MISMATCHED, "; ".join(differ), remedy)
        return None

    # Files of expected results

    def _judge_expected(self, run: ReportedRun, selection: Selection) -> Iterator[Judgement]:
        """Yield a judgement for each file; rows that no file has are new only in the first judgement."""
        if self.skip_reason:
            disabled = not_judged(Verdict.DISABLED, self.skip_reason)
            yield from (replace(disabled, where=file.where) for file in self.expected)
            return
        found = by_name(run.metrics()) if self.expected else {}
        keys_of_files = [{row.key for row in file.rows} for file in self.expected]
        new = [number for key, number in found.items() if not any(key in keys for keys in keys_of_files)]
        names = {name for keys in keys_of_files for name, _ in keys}
        unlisted = [number.row for (name, _), number in found.items() if name not in names]
        csv = (str(each.path) for each in self.settings.export if each.format == "csv" and not each.is_stdout)
        written, tests = next(csv, "RESULTS.csv"), selection.tests
        for file, keys in zip(self.expected, keys_of_files, strict=True):
            rows = [row for row in file.rows if selection.has(parse_row(row.name, tests).test)]
            of_file = [number for key, number in found.items() if key in keys]
            fails = self.settings.improved == "fail"
            explain = partial(_with_causes, run)
            judgement = judge_results(rows, [*of_file, *new], fails, tests, unlisted, explain)
            command = shlex.join(["dtdispatch", "expected", "update", file.where, "--results", written])
            excluded = len(file.rows) - len(rows)
            command += " --limits" if all(row.is_limit for row in rows) else ' --reason "..."'
            yield replace(judgement, where=file.where, command=command, excluded=excluded)
            new = []


def _with_causes(run: ReportedRun, verdict: RowVerdict, row: ExpectedRow) -> RowVerdict:
    """Return the verdict on a count of a step with its causes, and unchanged for other numbers."""
    limits = {kind.metric: kind.limit for kind in COUNTS}
    limit = limits.get(row.metric, row.metric)
    steps = run.results_by_row(Steps.kind).get(verdict.row)
    for limited in KINDS[Steps.kind].judge(steps, {limit: row.expected}) if steps else ():
        verdict = replace(verdict, details=limited.details[1:], lines=limited.lines)
    return verdict


def _with_causes_and_command(
    gates: Sequence[Judgement], timed: Collection[RowId], run: ReportedRun, base: ReportedRun | None
) -> list[Judgement]:
    """Add new causes of counts, and a command that finds them, to the last gate that failed by counts."""
    failed: dict[RowId, None] = {}
    last = None
    for gate in gates:
        for row in gate.failed:
            if isinstance(row.change, CountChange) and row.row not in timed:
                failed[row.row] = None
                last = gate
    rev = os.environ.get("GITHUB_BASE_REF")
    base_rev = f"origin/{rev}" if rev else "main"
    words = ["dtdispatch", "ab", "--metric", "counts", "--base-rev", base_rev, "--head-rev", "HEAD", "--"]
    words += dict.fromkeys(row.test for row in failed)
    remarks: list[str] = []
    if base is not None:
        now, then = run.results_by_row(Steps.kind), base.results_by_row(Steps.kind)
        counted = [row for row in failed if row in now and row in then]
        causes = [cause for row in counted for cause in causes_since(now[row], then[row])]
        remarks += first_of([f"not in {shorten_path(base.where)}: {cause}" for cause in causes], 5)
    remarks.append(f"what changed since the base: {shlex.join(words)}")
    return [replace(gate, remarks=(*gate.remarks, *remarks)) if gate is last else gate for gate in gates]


def judged_nothing(row: RowId, criterion: str, kind: Kind, skip_reason: str) -> RowVerdict:
    """Return the verdict on limits whose kind has no result, with the reason if nothing was measured."""
    verdict = Verdict.DISABLED if skip_reason else Verdict.MISSING
    return unjudged(row, criterion, skip_reason or kind.nothing, verdict)


def limit_texts(limits: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """Format the limits with these names, in the order of the names."""
    names_of = grouped((name_of_any_dim(limit), limit) for limit in limits)
    return [f"{limit}={limits[limit]}" for name in names for limit in names_of.get(name, ())]
