"""A run of ``dtdispatch ab``: the request, samples of its processes, verdicts, and the file of a run."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_dtdispatch.ab.answer import CONTROL, Answer, AnswerKind, Variable
from pytest_dtdispatch.ab.process import Arm, Versions, interpreter, probe, run_pytest
from pytest_dtdispatch.ab.rule import (
    CONFIRM,
    PROFILE,
    SCREEN,
    Metric,
    Rule,
    Sides,
    Stage,
    compare_sides,
    compare_stages,
    is_suspect,
    judge,
)
from pytest_dtdispatch.ab.worktrees import import_from_checkout, workspace, worktrees
from pytest_dtdispatch.core.files import checked_target, read_json, write_atomic
from pytest_dtdispatch.core.plain_data import decode, encode, select
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import NOTHING, brief, show_progress
from pytest_dtdispatch.core.verdicts import NumberShift, RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.screen import is_watched, say, shown_progress

# Pytest runs of one sample. Counting repeats no call, so a second run proves which calls hit.
PYTEST_RUNS: Mapping[Metric, Mapping[AnswerKind, tuple[str, ...]]] = {
    Metric.TIME: {AnswerKind.TIMES: ("--dtdispatch-rounds=20", "--dtdispatch-repeat=30")},
    Metric.COUNTS: {
        AnswerKind.COUNTS: ("--dtdispatch-metric=counts",),
        AnswerKind.PROOFS: ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2"),
    },
    Metric.INSTRUCTIONS: {AnswerKind.INSTRUCTIONS: ("--dtdispatch-metric=instructions",)},
}
# 10 signatures, each with 20 misses, 600 hits, and plain ops in each pass.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
# For rows whose instructions differ: a profile of one takes about 10 s, and its counts are not judged.
PROFILING = ("-odtdispatch_profile=true", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1")
ONE_SIDE = "interrupted before both sides had measured it"
TOO_FEW = "interrupted before enough processes had measured it"
MAX_SHARE = 10.0  # maximum of floors and of the control: 1000 %
FORMAT, VERSION = "pytest-dtdispatch ab", 4
CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.CHANGED)
Pair = tuple[str, str]  # names of two compared sides


@dataclass(frozen=True)
class Request:
    """Arguments of a run.

    Args:
        pythons: interpreters: a base and a head, or several; all others are compared with the first.
        revisions: commits of the base and the head; empty if interpreters are compared.
        arguments: arguments of pytest; the built-in suite if empty.
        passes: number of passes over all tests in each process.
        rule: metric, number of processes and thresholds.
        install: whether each commit is installed into its own folder.
        labels: names of sides in reports.
    """

    pythons: tuple[str, ...]
    revisions: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    passes: int = 5
    rule: Rule = field(default_factory=Rule)
    install: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the sides.

        Example:
            >>> Request(("old", "new")).sides, Request(("a", "b", "c")).sides
            (('base', 'head'), ('python-1', 'python-2', 'python-3'))
        """
        if len(self.pythons) == 2:
            return ("base", "head")
        return tuple(f"python-{number}" for number, _ in enumerate(self.pythons, 1))

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Compared pairs of sides: the first with each of the others."""
        first, *others = self.sides
        return tuple((first, other) for other in others)


@dataclass(frozen=True)
class ProcessSample(Answer):
    """A sample of a side in a stage, measured by one fresh process, or one for each pytest run."""

    stage: str = ""
    side: str = ""
    seconds: float = 0.0  # including process start


@dataclass(frozen=True)
class Run:
    """State of a run, with processes in the order in which they ran."""

    request: Request
    sides: Mapping[str, Versions]
    processes: tuple[ProcessSample, ...] = ()

    def values(self, pair: Pair, *stages: str) -> Sides:
        """Return the values of two sides in some stages."""
        processes = [process for process in self.processes if process.stage in stages]
        base, head = ([p.values for p in processes if p.side == side] for side in pair)
        return base, head


@dataclass(frozen=True)
class PairResult:
    """Result of comparing two sides: stages, and a verdict for each row."""

    stages: Mapping[str, Stage]
    verdicts: Sequence[RowVerdict]


Results = Mapping[Pair, PairResult]


def each_verdict(found: Results) -> list[tuple[Pair, RowVerdict]]:
    """Return the verdicts of all rows, each with the compared sides."""
    return [(pair, one) for pair, compared in found.items() for one in compared.verdicts]


def interleaved(sides: Sequence[str], rounds: int) -> tuple[str, ...]:
    """Return the side of each process: all sides in each round, in reverse order every second round.

    A machine that slows down at a constant rate then slows down all sides equally.

    Example:
        >>> interleaved(("base", "head"), 3)
        ('base', 'head', 'head', 'base', 'base', 'head')
    """
    return tuple(side for turn in range(rounds) for side in (sides if turn % 2 == 0 else sides[::-1]))


def judge_pairs(run: Run) -> Results:
    """Judge the samples of a complete run."""
    rule = run.request.rule
    stages = {pair: compare_stages(rule, partial(run.values, pair)) for pair in run.request.pairs}
    return {pair: PairResult(of_pair, judge(rule, of_pair)) for pair, of_pair in stages.items()}


def judge_interrupted(run: Run) -> Results:
    """Judge the samples of an interrupted run: rows that more processes would have measured are inconclusive.

    A count is exact, so that one process of each side is enough.
    """
    return {pair: _judge_begun(run, pair) for pair in run.request.pairs}


def _judge_begun(run: Run, pair: Pair) -> PairResult:
    rule = run.request.rule
    base, head = run.values(pair, SCREEN)
    if not base or not head:
        begun = dict.fromkeys(row for values in (*base, *head) for row in values if row.state != CONTROL)
        return PairResult({}, [RowVerdict(row, Verdict.INCONCLUSIVE, None, ONE_SIDE) for row in begun])
    is_exact = rule.metric == Metric.COUNTS
    is_screened = len(base) + len(head) == 2 * rule.pairs
    is_confirmed = sum(map(len, run.values(pair, CONFIRM))) == 2 * rule.confirm
    ran = run.processes if is_exact or is_confirmed else [p for p in run.processes if p.stage == SCREEN]
    stages = compare_stages(rule, partial(replace(run, processes=tuple(ran)).values, pair))
    verdicts = judge(rule, stages)
    if not is_exact and not is_confirmed:
        rows = {*(stages[SCREEN].tripped() if is_screened else stages[SCREEN].rows)}
        verdicts = [
            replace(one, verdict=Verdict.INCONCLUSIVE, remedy=TOO_FEW) if one.row in rows else one
            for one in verdicts
        ]
    return PairResult(stages, verdicts)


class Measured(NamedTuple):
    """A run with its verdicts, complete or interrupted."""

    run: Run
    found: Results
    is_interrupted: bool = False


def measure_run(request: Request, time_limit_s: float, output: Path | None) -> Measured:
    """Measure all sides in fresh processes, and judge the samples, also of an interrupted run.

    Raises:
        DtDispatchError: the request is invalid.
        ProcessError: a process measured nothing; the message has the path of its log.
    """
    with _workplace(request, output) as (arms, folder):
        imported = {(arm.python, arm.import_path): arm for arm in arms}  # each is probed once
        probed = {imports: probe(arm, folder) for imports, arm in imported.items()}
        of_arms = [(arm, probed[arm.python, arm.import_path]) for arm in arms]
        sides = {arm.name: each.versions for arm, each in of_arms}
        ready = {arm.name: import_from_checkout(arm, each, folder, request.install) for arm, each in of_arms}
        runner = Runner(Run(request, sides), ready, folder, time_limit_s, output)
        is_interrupted = False
        try:
            found = runner.run_stages()
        except KeyboardInterrupt:
            found, is_interrupted = judge_interrupted(runner.run), True
        runner.write(found)
        return Measured(runner.run, found, is_interrupted)


def _most_changed(found: Results) -> list[RowId]:
    """Return the three rows with the largest changes, for profiling."""
    shifts = [
        (abs(one.change.shift_percent or 0.0), one.row)
        for _, one in each_verdict(found)
        if one.verdict in CHANGED and isinstance(one.change, NumberShift)
    ]
    shifts.sort(key=lambda each: each[0], reverse=True)
    return [row for _, row in shifts[:3]]


@contextlib.contextmanager
def _workplace(request: Request, output: Path | None) -> Iterator[tuple[Sequence[Arm], Path]]:
    """Prepare all sides, and a folder for logs and answers.

    Tests of the user run in the current folder or a worktree of it. The built-in suite runs in an empty
    folder, without ini files and modules of other projects.
    """
    pythons = [*map(interpreter, request.sides, request.pythons)]
    if output is not None:
        checked_target(output, rf'\s*\{{\s*"format": *"{FORMAT}"')
    revisions = dict(zip(request.sides, request.revisions, strict=True)) if request.revisions else {}
    with workspace() as folder, worktrees(revisions, Path.cwd(), folder, request.install) as checkouts:
        (empty := folder / "empty").mkdir()
        arms = []
        for side, python in zip(request.sides, pythons, strict=True):
            project, checkout = checkouts.get(side, (Path.cwd(), None))
            tops = (project, Path(checkout.top)) if checkout else ()
            roots = (root for top in tops for root in (top / "src", top) if root.is_dir())
            import_path = tuple(dict.fromkeys(roots))
            arms.append(Arm(side, python, project if request.arguments else empty, import_path, checkout))
        yield arms, folder


@dataclass
class Runner:
    """Runner of the processes of a run; it writes each sample to the output file, if any."""

    run: Run
    arms: Mapping[str, Arm]
    folder: Path
    time_limit_s: float
    output: Path | None
    profiled: Sequence[RowId] = ()

    def run_stages(self) -> Results:
        """Run the processes of all stages, and judge their samples."""
        request, rule = self.run.request, self.run.request.rule
        if rule.metric == Metric.INSTRUCTIONS:  # each takes minutes
            sides = len(request.sides)
            more = f"up to {sides * (rule.confirm + 1)} more if a row differs"
            say(f"{sides * rule.pairs} processes count instructions, and {more}", stream=sys.stderr)
        self.run_stage(SCREEN, request.sides, rule.pairs)
        screens = {pair: compare_sides(*self.run.values(pair, SCREEN), rule) for pair in request.pairs}
        suspects = {side for pair, screen in screens.items() if is_suspect(screen, rule) for side in pair}
        self.run_stage(CONFIRM, [side for side in request.sides if side in suspects], rule.confirm)
        found = judge_pairs(self.run)
        if rule.metric == Metric.INSTRUCTIONS and (rows := _most_changed(found)):
            self.profile(rows, [side for side in request.sides if side in suspects])
        return found

    def profile(self, rows: Sequence[RowId], sides: Sequence[str]) -> None:
        """Profile rows on some sides; a failure of profiling does not change the verdicts of the run."""
        self.profiled, judged = rows, self.run
        try:
            self.run_stage(PROFILE, sides, 1)
        except ProcessError as error:
            self.run = judged
            say(f"functions are unknown: {error}", stream=sys.stderr)

    def run_stage(self, stage: str, sides: Sequence[str], rounds: int) -> None:
        """Run the processes of a stage, and write the file before each of them."""
        order = interleaved(sides, rounds)
        seconds: list[float] = []
        left = ""
        with shown_progress():
            for number, side in enumerate(order, 1):
                self.write({})
                process = f"{stage}: process {number} of {len(order)} ({side})"
                show_progress("{}{}", process, left)
                sample = self.sample(self.arms[side], stage)
                self.run = replace(self.run, processes=(*self.run.processes, sample))
                seconds.append(sample.seconds)
                remaining = statistics.mean(seconds) * (len(order) - number)
                left = f", about {remaining:.0f} s left" if remaining else ""
                is_first = self.run.request.rule.metric == Metric.INSTRUCTIONS and number == 1
                if is_first or not is_watched(sys.stderr.isatty()):
                    show_progress(NOTHING)
                    say(f"{process} took {sample.seconds:.1f} s{left}", stream=sys.stderr)

    def sample(self, arm: Arm, stage: str) -> ProcessSample:
        """Run the processes of one sample of a side."""
        request, variables = self.run.request, self._variables(arm.name)
        merged: dict[str, Any] = {"values": {}, "details": {}, "lines": {}, "absent": {}}
        start = time.monotonic()
        for kind, flags in PYTEST_RUNS[request.rule.metric].items():
            words = [*flags, *(PROFILING if self.profiled else ()), *(request.arguments or DEFAULT_TESTS)]
            variables[Variable.KIND] = kind
            answer = run_pytest(arm, words, variables, self.folder, self.time_limit_s)
            for name, values in merged.items():
                values |= getattr(answer, name)
        seconds = time.monotonic() - start
        # A failed test has values of fewer passes than on other sides.
        absent = [row for row in merged["absent"] if row.state is None]
        values = merged.pop("values")
        rows = [row for row in values if not any(each.contains(row) for each in absent)]
        values = {row: values[row] for row in rows}
        if not values:
            no_calls = "no test of it makes calls on DTensors through the dtdispatch fixture"
            reason = next(("{}: {}".format(*each) for each in merged["absent"].items()), no_calls)
            raise ProcessError(f"{arm}: measured nothing: {reason}; log: {self.folder / f'{arm.name}.log'}")
        return ProcessSample(
            values, **merged, folders=answer.folders, stage=stage, side=arm.name, seconds=seconds
        )

    def _variables(self, side: str) -> dict[str, str]:
        """Return the environment variables of a process of a side.

        With more than two sides, a test that fails on one is excluded there, and the others are compared.
        Counts of instructions depend on the memory layout, which would be equal in all processes: the size of
        the environment varies with the sample (Mytkowicz et al., 2009,
        https://doi.org/10.1145/1508244.1508275).
        """
        passes, tests = str(self.run.request.passes), json.dumps([row.test for row in self.profiled])
        variables: dict[str, str] = {Variable.PASSES: passes, Variable.ONLY: tests}
        if len(self.run.sides) > 2:
            variables[Variable.GO_ON] = "1"
        if self.run.request.rule.metric == Metric.INSTRUCTIONS:
            samples = sum(one.side == side for one in self.run.processes)
            variables[Variable.PADDING] = "x" * (136 * samples)
        return variables

    def write(self, found: Results) -> None:
        """Write the file of the run, with null for infinite numbers, which JSON does not have."""
        if self.output is None:
            return
        verdicts = []
        for (base, head), one in each_verdict(found):
            sides = {"base": base, "head": head}
            row = {"row": row_key(str(one.row)), **select(one.row, "test", "label", "state")}
            figures = {
                name: value if math.isfinite(value) else None
                for name, value in (vars(one.change) if one.change else {}).items()
                if value is not None
            }
            judged = {"verdict": str(one.verdict), "figures": figures, "remedy": one.remedy}
            verdicts.append({**sides, **row, **judged})
        content = {"format": FORMAT, "version": VERSION, **encode(self.run), "verdicts": verdicts}
        write_atomic(self.output, json.dumps(content, indent=1) + "\n")


def read_ab_run(path: Path) -> Run:
    """Read and validate the file of a run.

    Raises:
        DtDispatchError: the file cannot be read, has another format, or is incomplete.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DtDispatchError(f'{path}: not a file of dtdispatch ab: it has no "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        saved = f"saved in format {brief(repr(content.get('version')))}; this version reads {VERSION}"
        raise DtDispatchError(f"{path}: {saved}: compare again, or judge with the version that wrote it")
    try:
        members = {name: content[name] for name in content.keys() - {"format", "version", "verdicts"}}
        run: Run = decode(Run, members)
        _check_complete(run)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DtDispatchError(f"{path}: not whole: {brief(error)}") from None
    return run


def _check_complete(run: Run) -> None:
    """Check that the values of a run are valid, and that it has all its processes, in order."""
    rule, sides = run.request.rule, run.request.sides
    if min(rule.pairs, rule.confirm, run.request.passes) < 1:
        raise ValueError("pairs, confirm and passes are at least 1")
    for name in ("floor_hit", "floor_miss", "control", "threshold"):
        share = getattr(rule, name)
        if not (0 < share <= MAX_SHARE or (name == "control" and share == 0)):
            raise ValueError(f"{name} of {share!r}")
    if len(sides) < 2 or tuple(run.sides) != sides:
        raise ValueError(f"versions of {', '.join(run.sides) or 'no side'}, and interpreters of {len(sides)}")
    values = [value for process in run.processes for value in process.values.values()]
    if rule.metric != Metric.COUNTS and not all(value > 0 for value in values):
        raise ValueError(f"{rule.metric} of {min(values)!r}")
    fresh = {process.side for process in run.processes if process.stage == CONFIRM}
    suspects = [side for side in sides if side in fresh]
    stages = [(SCREEN, sides, rule.pairs), *([(CONFIRM, suspects, rule.confirm)] if suspects else ())]
    stages += [(PROFILE, suspects, 1)] if any(each.stage == PROFILE for each in run.processes) else []
    # Compare numbers first: a corrupt one might need more memory than there is.
    is_complete = len(run.processes) == sum(len(of_stage) * rounds for _, of_stage, rounds in stages)
    if not is_complete or [(process.stage, process.side) for process in run.processes] != [
        (stage, side) for stage, of_stage, rounds in stages for side in interleaved(of_stage, rounds)
    ]:
        rounds_text = f"{rule.pairs} pairs, and of {rule.confirm} fresh ones where something tripped"
        raise ValueError(f"it is incomplete or modified: its processes are not those of {rounds_text}")
