"""A run of ``dtdispatch ab``: what was asked for, what its processes measured, and the file that keeps it."""

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
from typing import Any

from pytest_dtdispatch.ab.answer import Answer, AnswerKind, Variable
from pytest_dtdispatch.ab.checkout import Checkout
from pytest_dtdispatch.ab.process import Arm, Versions, interpreter, probe, run_pytest
from pytest_dtdispatch.ab.rule import (
    CONFIRM,
    COUNTS,
    INSTRUCTIONS,
    METRICS,
    PROFILE,
    SCREEN,
    TIME,
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
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import brief, show_progress
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.screen import is_watched, say, shown_progress

BASE, HEAD = "base", "head"
TIME_LIMITS_S = {TIME: 300.0, COUNTS: 300.0, INSTRUCTIONS: 1800.0}  # of each process
# Of a sample, one after the other. Counting repeats nothing, so another run proves which calls hit.
PYTEST_RUNS: Mapping[str, Mapping[AnswerKind, tuple[str, ...]]] = {
    TIME: {AnswerKind.TIMES: ("--dtdispatch-rounds=20", "--dtdispatch-repeat=30")},
    COUNTS: {
        AnswerKind.COUNTS: ("--dtdispatch-metric=counts",),
        AnswerKind.PROOFS: ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2"),
    },
    INSTRUCTIONS: {AnswerKind.INSTRUCTIONS: ("--dtdispatch-metric=instructions",)},
}
# 10 signatures, in each pass 20 misses and 600 hits of each, and their plain tensors.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
# Of rows whose instructions differ: a profile of one takes some ten seconds, and no count of it is judged.
PROFILING = ("-odtdispatch_profile=true", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1")
MOST_PROFILED = 3
STEP_BYTES = 136
MOST_SHARE = 10.0  # of floors and of the control: 1000 %
NOT_OF_RUN = {"format", "version", "verdicts"}  # members of the file
FORMAT, VERSION = "pytest-dtdispatch ab", 4
CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.CHANGED)
Pair = tuple[str, str]  # names of the sides that are compared


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
        pythons: interpreters; two are a base and a head, and of more each is compared with the first.
        revisions: commits of the base and of the head, where these are compared.
        arguments: of pytest; the default ones where empty.
        passes: over all tests, in each process.
        rule: what is compared, and how.
        install: whether each commit is installed into a folder of its own.
    """

    pythons: tuple[str, ...]
    revisions: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    passes: int = 5
    rule: Rule = field(default_factory=Rule)
    install: bool = False

    @property
    def sides(self) -> tuple[str, ...]:
        """Their names.

        Example:
            >>> Request(("old", "new")).sides, Request(("a", "b", "c")).sides
            (('base', 'head'), ('python-1', 'python-2', 'python-3'))
        """
        if len(self.pythons) == 2:
            return (BASE, HEAD)
        return tuple(f"python-{number}" for number, _ in enumerate(self.pythons, 1))

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The sides that are compared: the first with each other one."""
        first, *others = self.sides
        return tuple((first, other) for other in others)


@dataclass(frozen=True)
class ProcessSample(Answer):
    """A sample of a side for a stage: what fresh processes, mostly one, measured."""

    stage: str = ""
    side: str = ""
    seconds: float = 0.0  # their start included


@dataclass(frozen=True)
class Run:
    """Everything that is known of a run, at any time of it; processes in the order they ran."""

    request: Request
    sides: Mapping[str, Versions]
    processes: tuple[ProcessSample, ...] = ()

    def values(self, pair: Pair, *stages: str) -> Sides:
        """Return the values of two sides in some stages."""
        processes = [process for process in self.processes if process.stage in stages]
        base, head = ([p.values for p in processes if p.side == side] for side in pair)
        return base, head


@dataclass(frozen=True)
class Compared:
    """What a run found of two sides: by stages, and row by row."""

    stages: Mapping[str, Stage]
    verdicts: Sequence[RowVerdict]


Found = Mapping[Pair, Compared]


def interleaved(sides: Sequence[str], rounds: int) -> tuple[str, ...]:
    """Return the side of each process: all sides in each round, and each second round turned round.

    A machine that grows slower at a steady rate then slows all sides by the same amount.

    Example:
        >>> interleaved(("base", "head"), 3)
        ('base', 'head', 'head', 'base', 'base', 'head')
    """
    return tuple(side for turn in range(rounds) for side in (sides if turn % 2 == 0 else sides[::-1]))


def judge_run(run: Run) -> Found:
    """Judge what was measured, as far as it goes."""
    rule = run.request.rule
    stages = {pair: compare_stages(rule, partial(run.values, pair)) for pair in run.request.pairs}
    return {pair: Compared(of_pair, judge(rule, of_pair)) for pair, of_pair in stages.items()}


def measure_run(request: Request, time_limit_s: float, output: Path | None) -> tuple[Run, Found]:
    """Measure all sides in fresh processes, and judge them.

    Raises:
        DtDispatchError: what was asked for cannot be obeyed.
        ProcessError: a process measured nothing; the message names its log.
    """
    rule = request.rule
    with _workplace(request, output) as (arms, folder):
        imported = {(arm.python, arm.import_path): arm for arm in arms}  # each is asked once what it is
        probed = {imports: probe(arm, folder) for imports, arm in imported.items()}
        of_arms = [(arm, probed[arm.python, arm.import_path]) for arm in arms]
        sides = {arm.name: each.versions for arm, each in of_arms}
        arms = [import_from_checkout(*each, folder, request.install) for each in of_arms]
        measuring = Measuring(Run(request, sides), arms, folder, time_limit_s, output)
        measuring.run_stage(SCREEN, request.sides, rule.pairs)
        screens = {pair: compare_sides(*measuring.run.values(pair, SCREEN), rule) for pair in request.pairs}
        suspects = {side for pair, screen in screens.items() if is_suspect(screen, rule) for side in pair}
        measuring.run_stage(CONFIRM, [side for side in request.sides if side in suspects], rule.confirm)
        found = judge_run(measuring.run)
        if rows := _changed(found) if rule.metric == INSTRUCTIONS else ():
            measuring.profile(rows, [side for side in request.sides if side in suspects])
        measuring.write(found)
        return measuring.run, found


def _changed(found: Found) -> list[RowId]:
    """Choose the rows that differ most, with their functions to be found."""
    every = (one for compared in found.values() for one in compared.verdicts if one.verdict in CHANGED)
    by_shift = sorted(every, key=lambda one: -abs(dict(one.figures)["shift_percent"]))
    return [one.row for one in by_shift[:MOST_PROFILED]]


@contextlib.contextmanager
def _workplace(request: Request, output: Path | None) -> Iterator[tuple[Sequence[Arm], Path]]:
    """Prepare all sides, and a folder for logs and answers.

    Tests of the user's run in the current folder, or in a checkout of it; the built-in suite runs in an empty
    folder, where no ini file and no module of anybody's gets in its way.
    """
    pythons = {
        side: interpreter(side, typed) for side, typed in zip(request.sides, request.pythons, strict=True)
    }
    if output is not None:
        checked_target(output, rf'\s*\{{\s*"format": *"{FORMAT}"')
    revisions = dict(zip(request.sides, request.revisions, strict=True)) if request.revisions else {}
    with workspace() as folder, worktrees(revisions, Path.cwd(), folder, request.install) as checkouts:
        (empty := folder / "empty").mkdir()
        yield [_arm(*each, request, checkouts, empty) for each in pythons.items()], folder


def _arm(
    side: str, python: str, request: Request, checkouts: Mapping[str, tuple[Path, Checkout]], empty: Path
) -> Arm:
    project, checkout = checkouts.get(side, (Path.cwd(), None))
    folder = project if request.arguments else empty
    if checkout is None:
        return Arm(side, python, folder)
    around = (project / "src", project, Path(checkout.top, "src"), Path(checkout.top))
    return Arm(side, python, folder, tuple(dict.fromkeys(each for each in around if each.is_dir())), checkout)


@dataclass
class Measuring:
    """Runs the processes of a run, and keeps every sample, in a file where one was asked for."""

    run: Run
    arms: Sequence[Arm]
    folder: Path
    time_limit_s: float
    output: Path | None
    profiled: Sequence[RowId] = ()

    def profile(self, rows: Sequence[RowId], sides: Sequence[str]) -> None:
        """Find the functions of some rows on some sides; a run that cannot has its verdicts all the same."""
        self.profiled, judged = rows, self.run
        try:
            self.run_stage(PROFILE, sides, 1)
        except ProcessError as error:
            self.run = judged
            say(f"functions are not known: {error}", stream=sys.stderr)

    def run_stage(self, stage: str, sides: Sequence[str], rounds: int) -> None:
        """Run the processes of a stage; the file has each before the next one starts."""
        order = interleaved(sides, rounds)
        arms = {arm.name: arm for arm in self.arms}
        seconds: list[float] = []
        left = ""
        with shown_progress():
            for number, side in enumerate(order, 1):
                self.write({})
                what = f"{stage}: process {number} of {len(order)} ({side})"
                show_progress("{}{}", what, left)
                sample = self._sample(arms[side], stage)
                self.run = replace(self.run, processes=(*self.run.processes, sample))
                seconds.append(sample.seconds)
                remaining = statistics.mean(seconds) * (len(order) - number)
                left = f", about {remaining:.0f} s left" if remaining else ""
                if not is_watched(sys.stderr.isatty()):
                    say(f"{what} took {sample.seconds:.1f} s{left}", stream=sys.stderr)

    def _sample(self, arm: Arm, stage: str) -> ProcessSample:
        request, variables = self.run.request, self._variables(arm.name)
        merged: dict[str, Any] = {"values": {}, "details": {}, "absent": {}}
        start = time.monotonic()
        for kind, flags in PYTEST_RUNS[request.rule.metric].items():
            words = [*flags, *(PROFILING if self.profiled else ()), *(request.arguments or DEFAULT_TESTS)]
            variables[Variable.KIND] = kind
            answer = run_pytest(arm, words, variables, self.folder, self.time_limit_s)
            for name, values in merged.items():
                values |= getattr(answer, name)
        seconds = time.monotonic() - start
        # What a test measured before it failed was measured in fewer passes than elsewhere.
        absent = [row for row in merged["absent"] if row.state is None]
        values = merged.pop("values")
        rows = [row for row in values if not any(each.contains(row) for each in absent)]
        values = {row: values[row] for row in rows}
        if not values:
            no_calls = "no test of it makes calls on DTensors through the dtdispatch fixture"
            why = next(("{}: {}".format(*each) for each in merged["absent"].items()), no_calls)
            raise ProcessError(f"{arm}: measured nothing: {why}; log: {self.folder / f'{arm.name}.log'}")
        return ProcessSample(
            values, **merged, folders=answer.folders, stage=stage, side=arm.name, seconds=seconds
        )

    def _variables(self, side: str) -> dict[str, str]:
        """Return what a process finds in its environment, beside what all have.

        Of many versions some lack what a test needs: it is left out there, and the others are compared. Each
        round that counts instructions lies differently in memory, by how many samples a side has: all else is
        the same in every process, so that one that lies badly would lie badly each time (Mytkowicz et al.,
        2009, https://doi.org/10.1145/1508244.1508275).
        """
        passes, tests = str(self.run.request.passes), json.dumps([row.test for row in self.profiled])
        variables: dict[str, str] = {Variable.PASSES: passes, Variable.ONLY: tests}
        if len(self.run.sides) > 2:
            variables[Variable.GO_ON] = "1"
        if self.run.request.rule.metric == INSTRUCTIONS:
            samples = sum(one.side == side for one in self.run.processes)
            variables[Variable.PADDING] = "x" * (STEP_BYTES * samples)
        return variables

    def write(self, found: Found) -> None:
        """Write all of it; an interval without an end is no number of JSON's."""
        if self.output is None:
            return
        verdicts = [
            {
                "base": base,
                "head": head,
                "row": row_key(str(one.row)),
                "test": one.row.test,
                "label": one.row.label,
                "state": one.row.state,
                "verdict": str(one.verdict),
                "figures": {name: value if math.isfinite(value) else None for name, value in one.figures},
                "remedy": one.remedy,
            }
            for (base, head), compared in found.items()
            for one in compared.verdicts
        ]
        content = {"format": FORMAT, "version": VERSION, **encode(self.run), "verdicts": verdicts}
        write_atomic(self.output, json.dumps(content, indent=1) + "\n")


def read_run(path: Path) -> Run:
    """Read the file of a run, which may come from anywhere.

    Raises:
        DtDispatchError: it cannot be read, is something else, or is not whole.
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
        run: Run = decode(Run, {name: content[name] for name in content.keys() - NOT_OF_RUN})
        _check_whole(run)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DtDispatchError(f"{path}: not whole: {brief(error)}") from None
    return run


def _check_whole(run: Run) -> None:
    """Check that all processes of a run are there, in the order in which they are run, and can be judged."""
    rule, sides = run.request.rule, run.request.sides
    if rule.metric not in METRICS:
        raise ValueError(f"a metric {rule.metric!r}")
    if min(rule.pairs, rule.confirm, run.request.passes) < 1:
        raise ValueError("pairs, confirm and passes are at least 1")
    for name in ("floor_hit", "floor_miss", "control", "threshold"):
        share = getattr(rule, name)
        if not (0 < share <= MOST_SHARE or (name == "control" and share == 0)):
            raise ValueError(f"{name} of {share!r}")
    if len(sides) < 2 or tuple(run.sides) != sides:
        raise ValueError(f"versions of {', '.join(run.sides) or 'no side'}, and interpreters of {len(sides)}")
    values = [value for process in run.processes for value in process.values.values()]
    if rule.metric != COUNTS and not all(value > 0 for value in values):
        raise ValueError(f"{rule.metric} of {min(values)!r}")
    fresh = {process.side for process in run.processes if process.stage == CONFIRM}
    suspects = [side for side in sides if side in fresh]
    stages = [(SCREEN, sides, rule.pairs), *([(CONFIRM, suspects, rule.confirm)] if suspects else ())]
    stages += [(PROFILE, suspects, 1)] if any(each.stage == PROFILE for each in run.processes) else []
    # What is not as many may be a number that fills the memory.
    is_whole = len(run.processes) == sum(len(of_stage) * rounds for _, of_stage, rounds in stages)
    if not is_whole or [(process.stage, process.side) for process in run.processes] != [
        (stage, side) for stage, of_stage, rounds in stages for side in interleaved(of_stage, rounds)
    ]:
        rounds_text = f"{rule.pairs} pairs, and of {rule.confirm} fresh ones where something tripped"
        raise ValueError(f"it was cut off or changed: its processes are not those of {rounds_text}")
