"""``dtdispatch ab``: screen, confirm what tripped, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.judge import Stage, judge
from pytest_dtdispatch.ab.model import Run, Side
from pytest_dtdispatch.ab.recording import Recorder, check_asked, check_sides, read_run
from pytest_dtdispatch.ab.sides import probe
from pytest_dtdispatch.ab.stages import run_confirmation, run_screen
from pytest_dtdispatch.ab.workplace import Workplace
from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

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


def compare(place: Workplace, recorder: Recorder) -> Result:
    """Measure and judge; confirm only where something tripped."""
    screen = run_screen(place, recorder)
    tripped = screen.tripped()
    confirmation = run_confirmation(place, recorder, tripped) if tripped else None
    verdicts = judge(screen, confirmation)
    recorder.finish(verdicts)
    return Result(recorder.run, screen, confirmation, verdicts)
