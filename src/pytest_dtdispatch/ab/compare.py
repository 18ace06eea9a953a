"""``dtdispatch ab``: screen, confirm what tripped, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.judge import CONFIRM_LEVEL, SCREEN_LEVEL, Stage, compare_sides, judge
from pytest_dtdispatch.ab.model import BASE, CONFIRM, HEAD, SCREEN, Run, Side, abba
from pytest_dtdispatch.ab.recording import Recorder, check_sides
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
        stages: the screen, and the confirmation if something tripped, by name.
        verdicts: of every row.
    """

    run: Run
    stages: Mapping[str, Stage]
    verdicts: Sequence[RowVerdict]

    @property
    def status(self) -> int:
        """Exit status: of the worst verdict. Nothing compared is no success."""
        found = {verdict.verdict for verdict in self.verdicts}
        if not self.stages[SCREEN].comparisons and Verdict.MISSING not in found:
            return INCONCLUSIVE
        return next((status for verdicts, status in STATUS if found & verdicts), PASSED)


def recorder_of(place: Workplace, known: Run, output: Path | None, resume: Path | None) -> Recorder:
    """Ask both sides what they are, and begin or go on with a file."""
    target = output or resume
    if target is not None:
        checked_target(target)
    answers: dict[tuple[object, ...], Side] = {}
    sides: dict[str, Side] = {}
    for name, arm in place.arms.items():
        same = (arm.python, arm.import_path)
        if same not in answers:
            answers[same] = probe(arm, place.folder)
        sides[name] = answers[same]
    if resume is not None:
        check_sides(resume, known.sides, sides)
    return Recorder(replace(known, sides=sides), target)


def compare(place: Workplace, recorder: Recorder) -> ABResult:
    """Measure and judge; confirm only what tripped, if something did."""
    asked = recorder.run.asked
    screen = _run_stage(place, recorder, SCREEN, asked.pairs, SCREEN_LEVEL)
    stages = {SCREEN: screen}
    if tripped := screen.tripped():
        stages[CONFIRM] = _run_stage(place, recorder, CONFIRM, asked.confirm, CONFIRM_LEVEL, tripped)
    verdicts = judge(screen, stages.get(CONFIRM))
    recorder.finish(verdicts)
    return ABResult(recorder.run, stages, verdicts)


def _run_stage(
    place: Workplace,
    recorder: Recorder,
    stage: str,
    pairs: int,
    level: float,
    only: Sequence[str] | None = None,
) -> Stage:
    """Run what is missing of a stage, and compare."""
    run_processes(place, recorder, stage, abba(pairs))
    processes = recorder.run.of(stage)
    base, head = ([p.quietest_ns for p in processes if p.side == side] for side in (BASE, HEAD))
    return compare_sides(base, head, recorder.run.asked, level, only)
