"""``dtdispatch ab``: screen, confirm what tripped, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_dtdispatch.ab.judge import CONFIRM_LEVEL, SCREEN_LEVEL, Stage, compare_sides, judge
from pytest_dtdispatch.ab.model import BASE, CONFIRM, HEAD, SCREEN, Run, abba
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


def recorder_of(place: Workplace, known: Run, output: Path | None, resume: Path | None) -> Recorder:
    """Ask both sides what they are, and begin or go on with a file."""
    target = output or resume
    if target is not None:
        checked_target(target)
    base, head = place.arms[BASE], place.arms[HEAD]
    sides = {BASE: probe(base, place.folder)}
    is_same = (base.python, base.import_path) == (head.python, head.import_path)
    sides[HEAD] = sides[BASE] if is_same else probe(head, place.folder)
    if resume is not None:
        check_sides(resume, known.sides, sides)
    return Recorder(replace(known, sides=sides), target)


def compare(place: Workplace, recorder: Recorder) -> tuple[dict[str, Stage], list[RowVerdict]]:
    """Measure and judge; confirm only what tripped, if something did."""
    asked = recorder.run.asked
    screen = _run_stage(place, recorder, SCREEN, asked.pairs, SCREEN_LEVEL)
    stages = {SCREEN: screen}
    if tripped := screen.tripped():
        stages[CONFIRM] = _run_stage(place, recorder, CONFIRM, asked.confirm, CONFIRM_LEVEL, tripped)
    verdicts = judge(screen, stages.get(CONFIRM))
    recorder.finish(verdicts)
    return stages, verdicts


def exit_status(screen: Stage, verdicts: Sequence[RowVerdict]) -> int:
    """Give the status of the worst verdict; nothing compared is no success."""
    found = {verdict.verdict for verdict in verdicts}
    if not screen.comparisons and Verdict.MISSING not in found:
        return INCONCLUSIVE
    return next((status for worst, status in STATUS if found & worst), PASSED)


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
