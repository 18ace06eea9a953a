"""``dtdispatch ab``: screen, confirm what tripped, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.judge import CONFIRM_LEVEL, SCREEN_LEVEL, Stage, compare_sides, judge
from pytest_dtdispatch.ab.model import BASE, CONFIRM, HEAD, SCREEN, ProcessSample, Run, Side, abba
from pytest_dtdispatch.ab.recording import Recorder, check_asked, check_sides, read_run
from pytest_dtdispatch.ab.sides import probe
from pytest_dtdispatch.ab.worker import Workplace, run_processes
from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

PASSED, REGRESSED, INCONCLUSIVE, CONTAMINATED = 0, 1, 3, 4
STATUS = (  # the first that a row has is the run's
    ({Verdict.REGRESSED, Verdict.MISSING}, REGRESSED),
    ({Verdict.CONTAMINATED}, CONTAMINATED),
    ({Verdict.INCONCLUSIVE}, INCONCLUSIVE),
)


@dataclass(frozen=True)
class ABResult:
    """What an A/B run found.

    Args:
        run: every sample.
        screen: the first stage.
        confirmation: the second one, where something tripped.
        verdicts: of every row.
    """

    run: Run
    screen: Stage
    confirmation: Stage | None
    verdicts: Sequence[RowVerdict]

    @property
    def status(self) -> int:
        """Exit status: of the worst verdict. Nothing compared is no success."""
        found = {verdict.verdict for verdict in self.verdicts}
        if not self.screen.comparisons and not found & {Verdict.MISSING}:
            return INCONCLUSIVE
        return next((status for verdicts, status in STATUS if found & verdicts), PASSED)


def resumed(path: Path, command: str, given: Mapping[str, object]) -> Run:
    """Read an interrupted run.

    The half of a pair whose other half is missing is left out: halves of a pair run one after the other.
    """
    run = read_run("--resume", path, command)
    check_asked(path, run, given)
    return replace(run, processes=run.processes[: len(run.processes) // 2 * 2])


def recorder_of(place: Workplace, known: Run, cpu: str, output: Path | None, resume: Path | None) -> Recorder:
    """Ask both sides what they are, and begin or go on with a file."""
    target = output or resume
    if target is not None:
        checked_target(target)
    answers: dict[tuple[object, ...], Side] = {}
    sides: dict[str, Side] = {}
    for name, arm in place.arms.items():
        same = (arm.python, arm.import_path)
        if same not in answers:
            answers[same] = probe(arm, cpu, place.job.workspace)
        sides[name] = answers[same]
    if resume is not None:
        check_sides(resume, known.sides, sides)
    return Recorder(replace(known, sides=sides), target)


def compare(place: Workplace, recorder: Recorder) -> ABResult:
    """Measure and judge; confirm only where something tripped."""
    screen = _run_screen(place, recorder)
    tripped = screen.tripped()
    confirmation = _run_confirmation(place, recorder, tripped) if tripped else None
    verdicts = judge(screen, confirmation)
    recorder.finish(verdicts)
    return ABResult(recorder.run, screen, confirmation, verdicts)


def _run_screen(place: Workplace, recorder: Recorder) -> Stage:
    """Run what is missing of the screen, and compare."""
    run_processes(place, recorder, SCREEN, abba(recorder.run.asked.pairs))
    return _compare(recorder, SCREEN, SCREEN_LEVEL)


def _run_confirmation(place: Workplace, recorder: Recorder, tripped: Sequence[str]) -> Stage:
    """Run what is missing of the confirmation, and compare what tripped."""
    run_processes(place, recorder, CONFIRM, abba(recorder.run.asked.confirm))
    return _compare(recorder, CONFIRM, CONFIRM_LEVEL, tripped)


def _compare(recorder: Recorder, stage: str, level: float, only: Sequence[str] | None = None) -> Stage:
    processes = recorder.run.of(stage)
    return compare_sides(_of(processes, BASE), _of(processes, HEAD), recorder.run.asked.floors, level, only)


def _of(processes: Sequence[ProcessSample], side: str) -> list[dict[str, float]]:
    return [process.quietest_ns for process in processes if process.side == side]
