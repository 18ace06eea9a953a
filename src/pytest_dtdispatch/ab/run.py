"""An A/B run: processes of both sides run alternately, and the runs that they save are judged."""

from __future__ import annotations

import contextlib
import json
import secrets
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pytest_dtdispatch.ab.process import Arm, Variable, interpreter, probe, run_pytest
from pytest_dtdispatch.ab.rule import PAIRS, Comparison, Rule, Values, compare, is_undecided, judge
from pytest_dtdispatch.ab.values import CONTROL, Metric, Sample, metric_of, samples_of
from pytest_dtdispatch.ab.worktrees import import_from_checkout, workspace, worktrees
from pytest_dtdispatch.core.files import read_json, write_atomic
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import NOTHING, show_progress
from pytest_dtdispatch.core.verdicts import NumberShift, RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.run import ReportedRun, Turn, read_run, saved_text
from pytest_dtdispatch.report.screen import is_watched, say, shown_progress

# Flags of the pytest runs of one sample, by their metric. Counting repeats no call, so a second run proves
# which calls hit.
PYTEST_RUNS: Mapping[Metric, Mapping[str, tuple[str, ...]]] = {
    Metric.TIME: {"time": ("--dtdispatch-rounds=40", "--dtdispatch-repeat=10")},
    Metric.COUNTS: {
        "counts": ("--dtdispatch-metric=counts",),
        "time": ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2"),
    },
    Metric.INSTRUCTIONS: {"instructions": ("--dtdispatch-metric=instructions",)},
}
# 10 signatures.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
SIDES = ("base", "head")
RULE_FILE = "rule.json"  # in a folder of saved runs
CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.CHANGED)


@dataclass(frozen=True)
class Request:
    """Arguments of a run that measures.

    Args:
        pythons: interpreters of base and head.
        revisions: commits of base and head; empty if interpreters are compared.
        arguments: arguments of pytest; the built-in suite if empty.
        rule: metric, number of processes and thresholds.
        install: whether each commit is installed into its own folder.
        keep: folder that keeps the saved runs; None if they are removed.
        time_limit_s: seconds after which a process is killed.
    """

    pythons: tuple[str, str]
    revisions: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    rule: Rule = field(default_factory=Rule)
    install: bool = False
    keep: Path | None = None
    time_limit_s: float = 300.0


class SavedRuns(NamedTuple):
    """Saved runs of both sides, in the order of their turns, and the rule that judges them."""

    base: Sequence[ReportedRun]
    head: Sequence[ReportedRun]
    rule: Rule
    is_interrupted: bool = False


@dataclass(frozen=True)
class Judged:
    """Comparison of two sides, with a verdict for each row.

    Args:
        rule: the rule.
        sides: samples of ``base`` and ``head``, profiles last.
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
    sides = {side: samples_of(runs, rule.metric) for side, runs in zip(SIDES, (base, head), strict=True)}
    for side, samples in sides.items():
        if not any(sample.numbers for sample in samples):
            raise DtDispatchError(f"{side}: no run of it has {rule.metric}: nothing was compared")
    found = compare(_numbers(sides["base"]), _numbers(sides["head"]), rule)
    found = replace(found, is_in_turn=are_in_turn(base, head))
    return Judged(rule, sides, found, judge(rule, found))


def _numbers(samples: Sequence[Sample]) -> list[Values]:
    """Return the numbers of judged samples."""
    return [sample.numbers for sample in samples if not sample.is_profile]


def are_in_turn(base: Sequence[ReportedRun], head: Sequence[ReportedRun]) -> bool:
    """Return whether runs of two sides alternated in one A/B run."""
    turns = set()
    for side, runs in ((0, base), (1, head)):
        for run in runs:
            if run.turn is None:
                return False
            turns.add((run.turn.ab_run, run.turn.number, side))
    order = sorted(turns)
    alternate = all(first[2] != second[2] for first, second in zip(order[::2], order[1::2], strict=False))
    return alternate and len({ab_run for ab_run, _, _ in turns}) == 1


def measure_runs(request: Request) -> SavedRuns:
    """Measure both sides in fresh processes.

    Raises:
        DtDispatchError: the request is invalid.
        ProcessError: a process measured nothing; the message has the path of its log.
    """
    pythons = [*map(interpreter, SIDES, request.pythons)]
    with _workplace(request, pythons) as (arms, folder):
        imported = {(arm.python, arm.import_path): arm for arm in arms}  # each is probed once
        probed = {imports: probe(arm, folder) for imports, arm in imported.items()}
        ready = {}
        for arm in arms:
            of_arm = probed[arm.python, arm.import_path]
            ready[arm.name] = import_from_checkout(arm, of_arm, folder, request.install)
        runner = Runner(request, ready, folder)
        is_interrupted = False
        try:
            runner.run_pairs()
        except KeyboardInterrupt:
            is_interrupted = True
        base, head = (runner.runs[side] for side in SIDES)
        return SavedRuns(base, head, request.rule, is_interrupted)


@contextlib.contextmanager
def _workplace(request: Request, pythons: Sequence[str]) -> Iterator[tuple[Sequence[Arm], Path]]:
    """Prepare both sides, and a folder for logs and saved runs.

    Tests of the user run in the current folder or a worktree of it. The built-in suite runs in an empty
    folder, without ini files and modules of other projects.
    """
    if request.keep is not None:
        try:
            for side in SIDES:
                (request.keep / side).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DtDispatchError(f"--keep {request.keep}: cannot be created: {error.strerror}") from None
        if any(request.keep.glob("*/*.json")):
            raise DtDispatchError(f"--keep {request.keep}: it has runs: name another folder")
        write_atomic(request.keep / RULE_FILE, json.dumps(encode(request.rule), indent=1) + "\n")
    revisions = dict(zip(SIDES, request.revisions, strict=True)) if request.revisions else {}
    with workspace() as folder, worktrees(revisions, Path.cwd(), folder, request.install) as checkouts:
        empty = folder / "empty"
        empty.mkdir()
        arms = []
        for side, python in zip(SIDES, pythons, strict=True):
            project, checkout = checkouts.get(side, (Path.cwd(), None))
            tops = (project, Path(checkout.top)) if checkout else ()
            roots = (root for top in tops for root in (top / "src", top) if root.is_dir())
            import_path = tuple(dict.fromkeys(roots))
            source = python
            if checkout:
                typed = "" if checkout.commit.startswith(revisions[side]) else f"{revisions[side]} "
                source = f"{typed}{checkout.commit[:10]} ({python})"
            project = project if request.arguments else empty
            arms.append(Arm(side, python, project, source, import_path, checkout))
        yield arms, folder


class Runner:
    """Runner of the processes of a run.

    Attributes:
        runs: saved runs of each side.
    """

    def __init__(self, request: Request, arms: Mapping[str, Arm], folder: Path) -> None:
        self.runs: dict[str, list[ReportedRun]] = {side: [] for side in SIDES}
        self._request, self._arms, self._folder = request, arms, folder
        self._name = secrets.token_hex(8)
        self._samples: dict[str, list[Sample]] = {side: [] for side in SIDES}
        self._seconds: list[float] = []
        self._profiled: list[str] = []  # tests whose rows are profiled

    def run_pairs(self) -> None:
        """Run pairs of processes until every row is decided, or no pairs are left.

        Every second pair is in reverse order: a machine that slows down at a constant rate then slows down
        both sides equally. Whether counts and instructions need further pairs depends on the first ones.
        """
        rule = self._request.rule
        if rule.metric == Metric.INSTRUCTIONS:  # each takes minutes
            more = f"up to {2 * (rule.confirm + 1)} more if a row differs"
            say(f"{2 * rule.pairs} processes count instructions, and {more}", stream=sys.stderr)
        for pairs in range(rule.max_pairs):
            judged = pairs if rule.metric == Metric.TIME else rule.pairs
            base, head = (_numbers(self._samples[side][:judged]) for side in SIDES)
            if pairs >= rule.pairs and not is_undecided(compare(base, head, rule), rule):
                break
            self._run_pair(SIDES if pairs % 2 == 0 else SIDES[::-1])
        if rule.metric == Metric.INSTRUCTIONS:
            self._profile_most_changed()

    def _profile_most_changed(self) -> None:
        """Profile the three rows with the largest changes; a failure of it does not change the verdicts."""
        shifts: dict[RowId, float] = {}
        for one in judge_runs(self.runs["base"], self.runs["head"], self._request.rule).verdicts:
            if one.verdict in CHANGED and isinstance(one.change, NumberShift):
                shifts[one.row] = abs(one.change.shift_percent or 0.0)
        most = sorted(shifts, key=shifts.__getitem__, reverse=True)[:3]
        self._profiled = [row.test for row in most]
        if most:
            try:
                self._run_pair(SIDES)
            except ProcessError as error:
                say(f"functions are unknown: {error}", stream=sys.stderr)

    def _run_pair(self, sides: Sequence[str]) -> None:
        """Run one process of each side."""
        rule, ran = self._request.rule, len(self._seconds)
        planned = max(2 * rule.pairs, ran + 2)
        is_slow = rule.metric == Metric.INSTRUCTIONS
        with shown_progress():
            for number, side in enumerate(sides, ran + 1):
                process = f"process {number} of {planned} ({side})"
                if self._profiled:
                    process = f"profile: {process}"
                show_progress("{}{}", process, self._time_left(planned))
                self._add(self._arms[side], self.sample(self._arms[side], number))
                if (is_slow and number == 1) or not is_watched(sys.stderr.isatty()):
                    show_progress(NOTHING)
                    took = f"{process} took {self._seconds[-1]:.1f} s"
                    say(f"{took}{self._time_left(planned)}", stream=sys.stderr)

    def _time_left(self, planned: int) -> str:
        """Estimate the duration of the remaining processes; empty if unknown or 0."""
        remaining = statistics.mean(self._seconds or [0.0]) * (planned - len(self._seconds))
        return f", about {remaining:.0f} s left" if remaining else ""

    def sample(self, arm: Arm, number: int) -> list[ReportedRun]:
        """Run the processes of one sample of a side, and return their runs."""
        request, arguments = self._request, self._request.arguments or DEFAULT_TESTS
        variables: dict[str, str] = {Variable.ONLY: json.dumps(self._profiled)}
        if request.rule.metric == Metric.INSTRUCTIONS:
            # Counts depend on the memory layout, which would be equal in all processes: the size of the
            # environment varies with the sample (Mytkowicz et al., 2009, https://doi.org/10.1145/1508244.1508275).
            variables[Variable.PADDING] = "x" * (136 * len(self.runs[arm.name]))
        if self._profiled:  # a profile of one row takes about 10 s, and its counts are not judged
            profiling = ("-odtdispatch_profile=true", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1")
            arguments = (*profiling, *arguments)
        runs = []
        for metric, flags in PYTEST_RUNS[request.rule.metric].items():
            variables[Variable.METRIC] = metric
            start = time.monotonic()
            run = run_pytest(arm, [*flags, *arguments], variables, self._folder, request.time_limit_s)
            seconds = time.monotonic() - start
            turn = Turn(self._name, number, arm.source, seconds, bool(self._profiled))
            runs.append(replace(run, where="", turn=turn))
            if request.keep is not None:
                write_atomic(request.keep / arm.name / f"{number:02}-{metric}.json", saved_text(runs[-1]))
        return runs

    def _add(self, arm: Arm, runs: Sequence[ReportedRun]) -> None:
        """Add the runs of one sample; raise if they measured nothing."""
        [sample] = samples_of(runs, self._request.rule.metric)
        if all(row.state == CONTROL for row in sample.numbers):
            reasons = ["{}: {}".format(*each) for each in sample.absent.items()]
            reason = (reasons or ["no test of it makes calls on DTensors through the dtdispatch fixture"])[0]
            log = self._folder / f"{arm.name}.log"
            raise ProcessError(f"{arm}: measured nothing: {reason}; log: {log}")
        self.runs[arm.name] += runs
        self._seconds.append(sum(run.turn.seconds for run in runs if run.turn))
        self._samples[arm.name].append(sample)


def read_folder(folder: Path, metric: Metric | None) -> SavedRuns:
    """Read the saved runs of both sides from a folder: ``base/*.json`` and ``head/*.json``.

    Args:
        folder: folder of ``--keep``, or of files that other runs saved.
        metric: metric to compare; None for that of the folder.

    Raises:
        DtDispatchError: a file is not a saved run, a side has none, or several builds of torch.
    """
    sides = []
    for side in SIDES:
        try:
            paths = sorted((folder / side).glob("*.json"))
            runs = [read_run(path, allows_empty=True) for path in paths]
        except OSError as error:
            raise DtDispatchError(f"--judge {folder}: cannot be read: {error.strerror}") from None
        except (ValueError, OverflowError, RecursionError) as error:
            raise DtDispatchError(str(error)) from None
        if not runs:
            raise DtDispatchError(f"--judge {folder}: it has no {side}/*.json, as --keep leaves them")
        runs.sort(key=lambda run: (run.turn.number if run.turn else 0, run.order()))
        names = ("torch version", "torch build")
        builds = {" ".join(run.environment.get(name, "") for name in names) for run in runs}
        if len(builds) > 1:
            listed = ", ".join(sorted(builds))
            raise DtDispatchError(f"{folder / side}: runs of several builds of torch: {listed}")
        sides.append(runs)
    base, head = sides
    found = {metric_of(run) for run in base}
    default = next(each for each in (Metric.COUNTS, Metric.INSTRUCTIONS, Metric.TIME) if each in found)
    rule = default_rule(metric or default)
    path = folder / RULE_FILE
    if path.exists():
        try:
            saved_rule: Rule = decode(Rule, read_json(path))
        except (ValueError, OverflowError, RecursionError) as error:
            raise DtDispatchError(f"{path}: {error}") from None
        if metric in (None, saved_rule.metric):
            rule = saved_rule
    return SavedRuns(base, head, rule)


def default_rule(metric: Metric) -> Rule:
    """Return the rule of a metric with the default numbers of pairs."""
    pairs, confirm = PAIRS[metric]
    return Rule(metric, pairs, confirm)
