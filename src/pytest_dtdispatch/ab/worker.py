"""One measuring process of a side, and what it answers."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtdispatch.ab.model import ProcessSample, RowSample, row_samples
from pytest_dtdispatch.ab.passes import FORMAT, OUTPUT, PASSES
from pytest_dtdispatch.ab.process import Ended, run_to_end
from pytest_dtdispatch.ab.sides import MOST_SHOWN, Arm, last_lines
from pytest_dtdispatch.core.files import read_text
from pytest_dtdispatch.errors import ProcessError

# 10 signatures, in each pass 20 misses and 600 hits of each, and their plain tensors, which are the control.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
EFFORT = ("--dtdispatch", "--dtdispatch-rounds=20", "--dtdispatch-repeat=30")
PLUGINS = ("-p", "pytest_dtdispatch.ab.passes", "-p", "no:cacheprovider")
NO_TESTS, TESTS_FAILED = 5, 1
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Job:
    """What each process is asked to do.

    Args:
        arguments: of pytest.
        passes: over all tests.
        time_limit_s: seconds that it may take.
        workspace: folder for its log and its answer.
        environment: set for it beside what its side has.
    """

    arguments: tuple[str, ...]
    passes: int
    time_limit_s: float
    workspace: Path
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What a process measured.

    Args:
        rows: by name.
        misses_per_step: of each step that it counted, by name.
        seconds: that it took.
    """

    rows: Mapping[str, RowSample]
    misses_per_step: Mapping[str, float]
    seconds: float


def run_process(arm: Arm, job: Job) -> Answer:
    """Start a process of a side, and read what it measured."""
    log, output = job.workspace / f"{arm.name}.log", job.workspace / "passes.json"
    output.unlink(missing_ok=True)
    told = {**job.environment, OUTPUT: str(output), PASSES: str(job.passes)}
    command = [arm.python, "-m", "pytest", *PLUGINS, *EFFORT, *job.arguments]
    start = time.monotonic()
    try:
        ended = run_to_end(command, arm.folder, arm.environment(told), log, job.time_limit_s)
    except OSError as error:
        raise ProcessError(f"{arm}: cannot be run: {error.strerror or error}") from None
    seconds = time.monotonic() - start
    if ended.is_late:
        raise ProcessError(
            f"{arm}: not over after {job.time_limit_s:g} s, and was ended: --time-limit; log: {log}"
        )
    if ended.status or not output.exists():
        raise ProcessError(f"{arm}: {_why(ended, last_lines(log))}; log: {log}")
    rows, misses = _read(arm, output, log)
    return Answer(rows, misses, seconds)


def sample(arm: Arm, job: Job, stage: str) -> ProcessSample:
    """Take one sample of a side: a fresh process that measured at least one row."""
    answer = run_process(arm, job)
    if not answer.rows:
        raise ProcessError(
            f"{arm}: measured nothing: no test of it makes calls on DTensors through the dtdispatch fixture; "
            f"log: {job.workspace / f'{arm.name}.log'}"
        )
    return ProcessSample(stage, arm.name, answer.seconds, answer.rows)


def _read(arm: Arm, output: Path, log: Path) -> tuple[Mapping[str, RowSample], Mapping[str, float]]:
    try:
        content = json.loads(read_text(output, MOST_BYTES, f"more than {MOST_BYTES:,} bytes"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        misses = {str(name): float(count) for name, count in content["misses_per_step"].items()}
        return row_samples(content["rows"]), misses
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProcessError(f"{arm}: wrote something else than its rows: {error}; log: {log}") from None


def _why(ended: Ended, lines: Sequence[str]) -> str:
    """Say why a process has no answer: by its status, and by what it said last."""
    said = next((line for line in reversed(lines) if not line.startswith("=")), "")[:MOST_SHOWN]
    if ended.status < 0:
        return f"died of {_signal_name(-ended.status)}"
    if ended.status == NO_TESTS:
        return "no test was collected"
    if ended.status == TESTS_FAILED:
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return f"tests failed: {failed[0][:MOST_SHOWN] if failed else said}"
    if ended.status:
        errors = [line for line in lines if line.startswith(("ERROR: ", "E   "))]
        return f"exit status {ended.status}: {errors[0][:MOST_SHOWN] if errors else said}"
    return f"measured nothing, and said last: {said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
