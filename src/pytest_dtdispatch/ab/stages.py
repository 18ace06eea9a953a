"""Stages of a run: processes one after the other, on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dtdispatch.ab.judge import (
    CONFIRM_LEVEL,
    SCREEN_LEVEL,
    Floors,
    Stage,
    compare_sides,
    process_values,
)
from pytest_dtdispatch.ab.model import BASE, CONFIRM, HEAD, SCREEN, Asked, ProcessSample
from pytest_dtdispatch.ab.plan import abba
from pytest_dtdispatch.ab.progress import Progress
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.worker import sample
from pytest_dtdispatch.ab.workplace import Workplace


def floors_of(asked: Asked) -> Floors:
    """Give the floors that were asked for."""
    return Floors(asked.floor_hit, asked.floor_miss, asked.control)


def run_screen(place: Workplace, recorder: Recorder) -> Stage:
    """Run what is missing of the screen, and compare."""
    asked = recorder.run.asked
    run_processes(place, recorder, SCREEN, abba(asked.pairs))
    return _compare(recorder, SCREEN, SCREEN_LEVEL)


def run_confirmation(place: Workplace, recorder: Recorder, tripped: Sequence[str]) -> Stage:
    """Run what is missing of the confirmation, and compare what tripped."""
    asked = recorder.run.asked
    run_processes(place, recorder, CONFIRM, abba(asked.confirm))
    return _compare(recorder, CONFIRM, CONFIRM_LEVEL, tripped)


def run_processes(place: Workplace, recorder: Recorder, stage: str, order: Sequence[str]) -> None:
    """Run those processes of a stage that are not in the file yet."""
    done = len(recorder.run.of(stage))
    progress = Progress(stage, len(order), done)
    try:
        for side in order[done:]:
            progress.begin(side)
            process = sample(place.arms[side], place.job, stage)
            recorder.add(process)
            progress.end(side, process.seconds)
    finally:
        progress.close()


def _compare(recorder: Recorder, stage: str, level: float, only: Sequence[str] | None = None) -> Stage:
    processes = recorder.run.of(stage)
    return compare_sides(
        _of(processes, BASE), _of(processes, HEAD), floors_of(recorder.run.asked), level, only
    )


def _of(processes: Sequence[ProcessSample], side: str) -> list[dict[str, float]]:
    return [process_values(process) for process in processes if process.side == side]
