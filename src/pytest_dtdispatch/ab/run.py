"""An A/B run: processes of both sides run alternately, and the runs that they save are judged."""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.process import Arm, Variable, interpreter, probe, run_pytest
from pytest_dtdispatch.ab.rule import Comparison, Rule, Values, compare, is_undecided, judge
from pytest_dtdispatch.ab.values import CONTROL, Metric, Sample, metric_of, samples_of
from pytest_dtdispatch.ab.worktrees import import_from_checkout, workspace, worktrees
from pytest_dtdispatch.core.files import write_atomic
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.judgements import badness
from pytest_dtdispatch.report.run import ReportedRun, Turn, read_run, saved_text
from pytest_dtdispatch.report.screen import say

# Flags of the pytest runs of one sample, by their metric.
PYTEST_RUNS: Mapping[Metric, Mapping[str, tuple[str, ...]]] = {
    Metric.TIME: {"time": ("--dtdispatch-rounds=40", "--dtdispatch-repeat=10")},
    Metric.COUNTS: {
        "counts": ("--dtdispatch-metric=counts",),
        "time": ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2"),
    },
    Metric.INSTRUCTIONS: {"instructions": ("--dtdispatch-metric=instructions",)},
}
SIDES = ("base", "head")
CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.CHANGED)


@dataclass(frozen=True)
class Judged:
    """Comparison of two sides, with a verdict for each row.

    Args:
        rule: the rule.
        sides: compared samples of ``base`` and ``head``, then profiles.
        comparison: the comparison.
        verdicts: verdicts of all rows.
    """

    rule: Rule
    sides: Mapping[str, Sequence[Sample]]
    comparison: Comparison
    verdicts: Sequence[RowVerdict]


def judge_runs(base: Sequence[ReportedRun], head: Sequence[ReportedRun], rule: Rule) -> Judged:
    """Judge saved runs of two sides, also of an interrupted run.

    Args:
        base: runs of the base, in the order of their turns.
        head: runs of the head.
        rule: the rule.

    Raises:
        DtDispatchError: a side measured nothing.
    """
    both = base, head
    proves_hits = all(any(metric_of(run) == Metric.TIME for run in runs) for runs in both)
    sides = {side: samples_of(runs, rule.metric, proves_hits) for side, runs in zip(SIDES, both, strict=True)}
    for side, samples in sides.items():
        if not any(sample.numbers for sample in samples):
            why = f"no run has values of --metric {rule.metric}"
            raise DtDispatchError(f"{side}: {why}: nothing was compared")
    if rule.metric == Metric.TIME:  # a process without a partner is left out
        pairs = min(map(len, sides.values()))
        sides = {side: samples[:pairs] for side, samples in sides.items()}
    found = compare(_numbers(sides["base"]), _numbers(sides["head"]), rule)
    if rule.metric == Metric.TIME and not are_in_turn(base, head):  # the control differs between machines
        found = replace(found, is_in_turn=False, is_contaminated=False)
    return Judged(rule, sides, found, judge(rule, found))


def _numbers(samples: Sequence[Sample]) -> list[Values]:
    """Return the numbers of judged samples."""
    return [sample.numbers for sample in samples if not sample.is_profile]


def are_in_turn(base: Sequence[ReportedRun], head: Sequence[ReportedRun]) -> bool:
    """Return whether all runs are of one A/B run, whose processes alternated on one machine."""
    ab_runs = {run.turn.ab_run if run.turn else "" for run in (*base, *head)}
    return len(ab_runs) == 1 and ab_runs != {""}


def _create_sides(folder: Path) -> None:
    """Create the folder of saved runs, and a folder for each side in it."""
    try:
        for side in SIDES:
            (folder / side).mkdir(parents=True, exist_ok=True)
            if any((folder / side).glob("*.json")):
                raise DtDispatchError(f"--keep {folder}: it has runs: name another folder")
    except OSError as error:
        raise DtDispatchError(f"--keep {folder}: cannot be created: {error.strerror}") from None


@dataclass(eq=False)
class Runner:
    """Runner of the processes of both sides.

    Args:
        pythons: interpreter of each side.
        revisions: commit of each side; empty if interpreters are compared.
        arguments: arguments of pytest; the built-in suite if empty.
        rule: metric, number of processes and thresholds.
        install: whether each commit is installed into its own folder.
        keep: folder that keeps the saved runs; None if they are removed.
        time_limit_s: seconds after which a process is killed.

    Attributes:
        runs: saved runs of each side, in the order of their turns.
    """

    pythons: Mapping[str, str]
    revisions: Mapping[str, str]
    arguments: Sequence[str]
    rule: Rule
    install: bool
    keep: Path | None
    time_limit_s: float

    def __post_init__(self) -> None:
        self.runs: dict[str, list[ReportedRun]] = {side: [] for side in SIDES}
        self._arms: dict[str, Arm] = {}
        self._ab_run = secrets.token_hex(8)
        self._seconds: list[float] = []  # of each sample
        self._profiled: list[str] = []  # tests whose rows are profiled

    def run(self) -> None:
        """Measure both sides in fresh processes.

        Tests of the user run in the current folder or a worktree of it. The built-in suite runs in an empty
        folder, without ini files and modules of other projects.

        Raises:
            DtDispatchError: the request is invalid.
            ProcessError: a process measured nothing; the message has the path of its log.
        """
        pythons = {side: interpreter(side, typed) for side, typed in self.pythons.items()}
        project, revisions = Path.cwd(), self.revisions
        with workspace() as folder, worktrees(revisions, project, folder, self.install) as checkouts:
            if self.keep is not None:  # a mistyped commit leaves no folder
                _create_sides(self.keep)
            (folder / "empty").mkdir()
            for side, python in pythons.items():
                checkout = checkouts.get(side)
                here = Path(checkout.project) if checkout else project
                arm = probe(Arm(side, python, here if self.arguments else folder / "empty", folder, python))
                if checkout:
                    typed = "" if checkout.commit.startswith(revisions[side]) else f"{revisions[side]} "
                    arm = replace(arm, source=f"{typed}{checkout.commit[:10]} ({python})")
                    arm = import_from_checkout(arm, checkout, self.install)
                self._arms[side] = arm
            self.run_pairs()

    def run_pairs(self) -> None:
        """Run pairs of processes until every row is decided, or no pairs are left.

        Every second pair is in reverse order: a machine that slows down at a constant rate then slows down
        both sides equally. Whether counts and instructions need further pairs depends on the first ones.
        """
        rule = self.rule
        if rule.metric == Metric.INSTRUCTIONS:  # each takes minutes
            more = f"up to {2 * (rule.confirm + 1)} more if a row differs"
            say(f"{2 * rule.pairs} processes count instructions, and {more}", stream=sys.stderr)
        for pairs in range(rule.max_pairs):
            judged = pairs if rule.metric == Metric.TIME else rule.pairs
            base, head = (_numbers(samples_of(self.runs[side], rule.metric)[:judged]) for side in SIDES)
            if pairs >= rule.pairs and not is_undecided(compare(base, head, rule)):
                break
            self._run_pair(SIDES if pairs % 2 == 0 else SIDES[::-1])
        if rule.metric == Metric.INSTRUCTIONS:
            verdicts = judge_runs(self.runs["base"], self.runs["head"], rule).verdicts
            changed = [one for one in verdicts if one.verdict in CHANGED]
            self._profiled = [one.row.test for one in sorted(changed, key=badness)[:3]]
        if self._profiled:
            try:
                self._run_pair(SIDES)
            except ProcessError as error:  # which does not change the verdicts
                say(f"functions are unknown: {error}", stream=sys.stderr)

    def _run_pair(self, sides: Sequence[str]) -> None:
        """Run the processes of one sample of each side, and keep their runs."""
        planned = max(2 * self.rule.pairs, len(self._seconds) + 2)
        for side in sides:
            number = len(self._seconds) + 1
            left = statistics.mean(self._seconds or [0.0]) * (planned - number + 1)
            text = f"process {number} of {planned} ({side})" + (f", about {left:.0f} s left" if left else "")
            say(f"profile: {text}" if self._profiled else text, stream=sys.stderr)
            arm = self._arms[side]
            runs = self.sample(arm, number)
            [sample] = samples_of(runs, self.rule.metric)
            if all(row.state == CONTROL for row in sample.numbers):
                reasons = ["{}: {}".format(*each) for each in sample.absent.items()]
                reasons += ["no test of it makes calls on DTensors through the dtdispatch fixture"]
                log = arm.workspace / f"{side}.log"
                raise ProcessError(f"{arm}: measured nothing: {reasons[0]}; log: {log}")
            if self.keep is not None:
                for name, run in zip(PYTEST_RUNS[self.rule.metric], runs, strict=True):
                    write_atomic(self.keep / side / f"{number:02}-{name}.json", saved_text(run))
            self.runs[side] += runs
            self._seconds.append(sum(run.turn.seconds for run in runs if run.turn))

    def sample(self, arm: Arm, number: int) -> list[ReportedRun]:
        """Run the processes of one sample of a side, and return their runs."""
        default_tests = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")  # 10 signatures
        metric, arguments = self.rule.metric, self.arguments or default_tests
        variables: dict[str, str] = {Variable.ONLY: json.dumps(self._profiled)}
        if metric == Metric.INSTRUCTIONS:
            # Counts depend on the memory layout, which would be equal in all processes: the size of the
            # environment varies with the sample (Mytkowicz et al., 2009, https://doi.org/10.1145/1508244.1508275).
            variables[Variable.PADDING] = "x" * (136 * len(self.runs[arm.name]))
        if self._profiled:  # a profile of one row takes about 10 s, and its counts are not judged
            profiling = ("-odtdispatch_profile=true", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1")
            arguments = (*profiling, *arguments)
        runs = []
        for of_run, flags in PYTEST_RUNS[metric].items():
            variables[Variable.METRIC] = of_run
            start = time.monotonic()
            run = run_pytest(arm, [*flags, *arguments], variables, self.time_limit_s)
            seconds = time.monotonic() - start
            turn = Turn(self._ab_run, number, arm.source, seconds, bool(self._profiled))
            runs.append(replace(run, where="", turn=turn))
        return runs


def read_folder(folder: Path) -> dict[str, list[ReportedRun]]:
    """Read the saved runs of both sides from a folder: ``base/*.json`` and ``head/*.json``.

    Args:
        folder: folder of ``--keep``, or of files that other runs saved.

    Returns:
        The runs of each side, in the order of their turns.

    Raises:
        DtDispatchError: a file is not a complete saved run, a side has none, or several builds of torch.
    """
    sides = {}
    for side in SIDES:
        try:
            runs = [read_run(path, allows_empty=True) for path in sorted((folder / side).glob("*.json"))]
        except OSError as error:
            raise DtDispatchError(f"--judge {folder}: cannot be read: {error.strerror}") from None
        except (ValueError, OverflowError, RecursionError) as error:
            raise DtDispatchError(str(error)) from None
        if not runs:
            raise DtDispatchError(f"--judge {folder}: it has no {side}/*.json, as --keep leaves them")
        for run in runs:
            if run.stopped:
                raise DtDispatchError(f"{run.where}: the saved run is incomplete: {run.stopped}")
        names = ("torch version", "torch build")
        builds = {" ".join(run.environment.get(name, "") for name in names).strip() for run in runs}
        builds.discard("")  # of runs that measured nothing
        if len(builds) > 1:
            builds_text = ", ".join(sorted(builds))
            raise DtDispatchError(f"{folder / side}: runs of several builds of torch: {builds_text}")
        sides[side] = sorted(runs, key=lambda run: (run.turn.number if run.turn else 0, run.order()))
    return sides
