"""``dtdispatch ab``: screen, confirm what tripped, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.recording import Recorder, check_asked, check_sides, read_run
from pytest_dtdispatch.ab.sides import probe
from pytest_dtdispatch.ab.stages import run_confirmation, run_screen
from pytest_dtdispatch.ab.workplace import Workplace
from pytest_dtdispatch.files import checked_target
from pytest_dtdispatch.judging.interleaved import Stage, judge
from pytest_dtdispatch.judging.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.records.interleaved import Run, Side

PASSED, REGRESSED, INCONCLUSIVE, CONTAMINATED = 0, 1, 3, 4
STATUS = (  # the first that a row has is the run's
    ({Verdict.REGRESSED, Verdict.MISSING}, REGRESSED),
    ({Verdict.CONTAMINATED}, CONTAMINATED),
    ({Verdict.INCONCLUSIVE}, INCONCLUSIVE),
)


@dataclass(frozen=True)
class Result:
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

    Args:
        path: its file.
        command: that wrote it.
        given: what was typed now, by field.

    Raises:
        DtDispatchError: it cannot be read, or something else is asked for now.
    """
    run = read_run("--resume", path, command)
    check_asked(path, run, given)
    return replace(run, processes=run.processes[: len(run.processes) // 2 * 2])


def recorder_of(place: Workplace, known: Run, cpu: str, output: Path | None, resume: Path | None) -> Recorder:
    """Ask both sides what they are, and begin or go on with a file.

    Args:
        place: both sides.
        known: what is known of the run; where its sides are known, they must still be what they were.
        cpu: model of this machine's CPU.
        output: file to write, if any.
        resume: file to go on with, if any; it is written where no other is given.

    Raises:
        DtDispatchError: a side cannot measure, or is not what it was, or the file cannot be written.
    """
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


def compare(place: Workplace, recorder: Recorder) -> Result:
    """Measure and judge; confirm only where something tripped.

    Raises:
        ProcessError: a process could not measure.
    """
    screen = run_screen(place, recorder)
    tripped = screen.tripped()
    confirmation = run_confirmation(place, recorder, tripped) if tripped else None
    verdicts = judge(screen, confirmation)
    recorder.finish(verdicts)
    return Result(recorder.run, screen, confirmation, verdicts)
