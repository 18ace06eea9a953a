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
from pathlib import Path
from typing import Any, NamedTuple

from pytest_dtdispatch.ab.answer import CONTROL, Answer, AnswerKind, Variable
from pytest_dtdispatch.ab.process import Arm, Versions, interpreter, probe, run_pytest
from pytest_dtdispatch.ab.rule import Comparison, Metric, Rule, Sides, compare, is_undecided, judge
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
    Metric.TIME: {AnswerKind.TIMES: ("--dtdispatch-rounds=40", "--dtdispatch-repeat=10")},
    Metric.COUNTS: {
        AnswerKind.COUNTS: ("--dtdispatch-metric=counts",),
        AnswerKind.PROOFS: ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2"),
    },
    Metric.INSTRUCTIONS: {AnswerKind.INSTRUCTIONS: ("--dtdispatch-metric=instructions",)},
}
# 10 signatures.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
MAX_SHARE = 10.0  # maximum of floors and of the control: 1000 %
FORMAT, VERSION = "pytest-dtdispatch ab", 5
CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.CHANGED)
Pair = tuple[str, str]  # names of two compared sides


@dataclass(frozen=True)
class Request:
    """Arguments of a run.

    Args:
        pythons: interpreters: a base and a head, or several; all others are compared with the first.
        revisions: commits of the base and the head; empty if interpreters are compared.
        arguments: arguments of pytest; the built-in suite if empty.
        rule: metric, number of processes and thresholds.
        install: whether each commit is installed into its own folder.
        labels: names of sides in reports.
    """

    pythons: tuple[str, ...]
    revisions: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
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
    """A sample of a side, measured by one fresh process, or one for each pytest run."""

    side: str = ""
    seconds: float = 0.0  # including process start
    is_profile: bool = False  # whether it profiled rows, and is not judged


@dataclass(frozen=True)
class Run:
    """State of a run, with processes in the order in which they ran."""

    request: Request
    sides: Mapping[str, Versions]
    processes: tuple[ProcessSample, ...] = ()

    def samples(self, side: str) -> tuple[ProcessSample, ...]:
        """Return the judged samples of a side."""
        return tuple(one for one in self.processes if one.side == side and not one.is_profile)

    def values(self, pair: Pair) -> Sides:
        """Return the values of all judged samples of two sides."""
        base, head = ([one.values for one in self.samples(side)] for side in pair)
        return base, head


@dataclass(frozen=True)
class PairResult:
    """Result of comparing two sides, with a verdict for each row; no comparison if one side has no sample."""

    comparison: Comparison | None
    verdicts: Sequence[RowVerdict]


Results = Mapping[Pair, PairResult]


def each_verdict(found: Results) -> list[tuple[Pair, RowVerdict]]:
    """Return the verdicts of all rows, each with the compared sides."""
    return [(pair, one) for pair, compared in found.items() for one in compared.verdicts]


def next_round(run: Run) -> tuple[str, ...]:
    """Return the sides that run next, in order; empty if every row is decided, or no pairs are left.

    Every second round is in reverse order: a machine that slows down at a constant rate then slows down all
    sides equally. Further rounds have only sides with undecided rows. Whether counts and instructions need
    further rounds depends on their first ones.

    Example:
        >>> next_round(Run(Request(("old", "new")), {}))
        ('base', 'head')
    """
    rule, sides = run.request.rule, run.request.sides
    rounds = len(run.samples(sides[0]))
    if rounds >= rule.pairs:
        judged = None if rule.metric == Metric.TIME else rule.pairs
        undecided: set[str] = set()
        for pair in run.request.pairs if rounds < rule.max_pairs else ():
            base, head = run.values(pair)
            if is_undecided(compare(base[:judged], head[:judged], rule), rule):
                undecided.update(pair)
        sides = tuple(side for side in sides if side in undecided)
    return sides if rounds % 2 == 0 else sides[::-1]


def judge_pairs(run: Run) -> Results:
    """Judge the samples of a complete run."""
    results = {}
    for pair in run.request.pairs:
        found = compare(*run.values(pair), run.request.rule)
        results[pair] = PairResult(found, judge(run.request.rule, found))
    return results


def judge_interrupted(run: Run) -> Results:
    """Judge the samples of an interrupted run: rows that more processes would have measured are inconclusive.

    A count is exact, so that one process of each side is enough.
    """
    rule, results = run.request.rule, {}
    for pair in run.request.pairs:
        base, head = run.values(pair)
        if not base or not head:
            remedy = "interrupted before both sides had measured it"
            rows = dict.fromkeys(row for values in (*base, *head) for row in values if row.state != CONTROL)
            verdicts = [RowVerdict(row, Verdict.INCONCLUSIVE, None, remedy) for row in rows]
            results[pair] = PairResult(None, verdicts)
            continue
        found = compare(base, head, rule)
        verdicts = judge(rule, found)
        if rule.metric != Metric.COUNTS and found.pairs < rule.max_pairs:
            remedy = "interrupted before enough processes had measured it"
            for number, one in enumerate(verdicts):
                difference = found.rows.get(one.row)
                if difference and (difference.is_undecided or found.pairs < rule.pairs):
                    verdicts[number] = replace(one, verdict=Verdict.INCONCLUSIVE, remedy=remedy)
        results[pair] = PairResult(found, verdicts)
    return results


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
            found = runner.run_rounds()
        except KeyboardInterrupt:
            found, is_interrupted = judge_interrupted(runner.run), True
        runner.write(found)
        return Measured(runner.run, found, is_interrupted)


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
        empty = folder / "empty"
        empty.mkdir()
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

    def run_rounds(self) -> Results:
        """Run processes until every row is decided, and judge their samples."""
        rule, sides = self.run.request.rule, self.run.request.sides
        if rule.metric == Metric.INSTRUCTIONS:  # each takes minutes
            more = f"up to {len(sides) * (rule.confirm + 1)} more if a row differs"
            say(f"{len(sides) * rule.pairs} processes count instructions, and {more}", stream=sys.stderr)
        order = next_round(self.run)
        while order:
            self.run_round(order)
            order = next_round(self.run)
        found = judge_pairs(self.run)
        if rule.metric == Metric.INSTRUCTIONS:
            self.profile_most_changed(found)
        return found

    def profile_most_changed(self, found: Results) -> None:
        """Profile the three rows with the largest changes; a failure of it does not change the verdicts."""
        shifts: dict[RowId, float] = {}
        for _, one in each_verdict(found):
            if one.verdict in CHANGED and isinstance(one.change, NumberShift):
                shifts[one.row] = max(shifts.get(one.row, 0.0), abs(one.change.shift_percent or 0.0))
        if not shifts:
            return
        self.profiled, judged = sorted(shifts, key=shifts.__getitem__, reverse=True)[:3], self.run
        try:
            self.run_round(_confirmed_sides(self.run))
        except ProcessError as error:
            self.run = judged
            say(f"functions are unknown: {error}", stream=sys.stderr)

    def run_round(self, sides: Sequence[str]) -> None:
        """Run one process of each side, and write the file before each of them."""
        rule, ran = self.run.request.rule, len(self.run.processes)
        planned = max(len(sides) * rule.pairs, ran + len(sides))
        is_slow = rule.metric == Metric.INSTRUCTIONS
        with shown_progress():
            for number, side in enumerate(sides, ran + 1):
                self.write({})
                process = f"process {number} of {planned} ({side})"
                if self.profiled:
                    process = f"profile: {process}"
                show_progress("{}{}", process, self.time_left(planned))
                sample = self.sample(self.arms[side])
                self.run = replace(self.run, processes=(*self.run.processes, sample))
                if (is_slow and number == 1) or not is_watched(sys.stderr.isatty()):
                    show_progress(NOTHING)
                    took = f"{process} took {sample.seconds:.1f} s"
                    say(f"{took}{self.time_left(planned)}", stream=sys.stderr)

    def time_left(self, planned: int) -> str:
        """Estimate the duration of the remaining processes; empty if unknown or 0."""
        seconds = [one.seconds for one in self.run.processes]
        remaining = statistics.mean(seconds) * (planned - len(seconds)) if seconds else 0
        return f", about {remaining:.0f} s left" if remaining else ""

    def sample(self, arm: Arm) -> ProcessSample:
        """Run the processes of one sample of a side.

        With more than two sides, a test that fails on one is excluded there, and the others are compared.
        """
        request, arguments = self.run.request, self.run.request.arguments or DEFAULT_TESTS
        variables: dict[str, str] = {Variable.ONLY: json.dumps([row.test for row in self.profiled])}
        if len(self.run.sides) > 2:
            variables[Variable.GO_ON] = "1"
        if request.rule.metric == Metric.INSTRUCTIONS:
            # Counts depend on the memory layout, which would be equal in all processes: the size of the
            # environment varies with the sample (Mytkowicz et al., 2009, https://doi.org/10.1145/1508244.1508275).
            samples = sum(one.side == arm.name for one in self.run.processes)
            variables[Variable.PADDING] = "x" * (136 * samples)
        if self.profiled:  # a profile of one row takes about 10 s, and its counts are not judged
            profiling = ("-odtdispatch_profile=true", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1")
            arguments = (*profiling, *arguments)
        merged: dict[str, Any] = {"values": {}, "details": {}, "lines": {}, "absent": {}}
        start = time.monotonic()
        for kind, flags in PYTEST_RUNS[request.rule.metric].items():
            variables[Variable.KIND] = kind
            answer = run_pytest(arm, [*flags, *arguments], variables, self.folder, self.time_limit_s)
            for name, values in merged.items():
                values |= getattr(answer, name)
        seconds = time.monotonic() - start
        # A failed test may have values of its first calls.
        absent = [row for row in merged["absent"] if row.state is None]
        values = merged.pop("values")
        rows = [row for row in values if not any(each.contains(row) for each in absent)]
        values = {row: values[row] for row in rows}
        if all(row.state == CONTROL for row in values):
            no_calls = "no test of it makes calls on DTensors through the dtdispatch fixture"
            reason = next(("{}: {}".format(*each) for each in merged["absent"].items()), no_calls)
            raise ProcessError(f"{arm}: measured nothing: {reason}; log: {self.folder / f'{arm.name}.log'}")
        is_profile = bool(self.profiled)
        return ProcessSample(
            values, **merged, folders=answer.folders, side=arm.name, seconds=seconds, is_profile=is_profile
        )

    def write(self, found: Results) -> None:
        """Write the file of the run, with null for infinite numbers, which JSON does not have."""
        if self.output is None:
            return
        verdicts = []
        for (base, head), one in each_verdict(found):
            figures = {
                name: value if math.isfinite(value) else None
                for name, value in (vars(one.change) if one.change else {}).items()
                if value is not None
            }
            row = {"row": row_key(str(one.row)), **select(one.row, "test", "label", "state")}
            judged = {"verdict": str(one.verdict), "figures": figures, "remedy": one.remedy}
            verdicts.append({"base": base, "head": head, **row, **judged})
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


def _confirmed_sides(run: Run) -> list[str]:
    """Return the sides that ran more than the first rounds."""
    return [side for side in run.request.sides if len(run.samples(side)) > run.request.rule.pairs]


def _check_complete(run: Run) -> None:
    """Check that the values of a run are valid, and that it has all its processes, in order."""
    rule, sides = run.request.rule, run.request.sides
    rule.check_pairs()
    for name in ("floor_hit", "floor_miss", "control", "threshold"):
        share = getattr(rule, name)
        if not (0 < share <= MAX_SHARE or (name == "control" and share == 0)):
            raise ValueError(f"{name} of {share!r}")
    if len(sides) < 2 or tuple(run.sides) != sides:
        raise ValueError(f"versions of {', '.join(run.sides) or 'no side'}, and interpreters of {len(sides)}")
    values = [value for process in run.processes for value in process.values.values()]
    if rule.metric != Metric.COUNTS and not all(value > 0 for value in values):
        raise ValueError(f"{rule.metric} of {min(values)!r}")
    judged = tuple(one for one in run.processes if not one.is_profile)
    replayed = replace(run, processes=())
    order = next_round(replayed)
    while order:
        ran = judged[: len(replayed.processes) + len(order)]
        if tuple(one.side for one in ran[len(replayed.processes) :]) != order:
            break
        replayed = replace(run, processes=ran)
        order = next_round(replayed)
    profiles = run.processes[len(judged) :]
    is_profiled = all(one.is_profile for one in profiles)
    expected = _confirmed_sides(run) if profiles else []
    if replayed.processes != judged or order or not is_profiled or [one.side for one in profiles] != expected:
        most = f"{rule.pairs} pairs, and of at most {rule.max_pairs} where a row was undecided"
        raise ValueError(f"it is incomplete or modified: its processes are not those of {most}")
