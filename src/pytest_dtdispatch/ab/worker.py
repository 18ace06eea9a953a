"""The processes of a run: where they work, one after the other, and what each answers."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pytest_dtdispatch.ab.errands import ERRANDS, Errand
from pytest_dtdispatch.ab.model import (
    BASE,
    HEAD,
    INSTRUCTIONS,
    TIME,
    ProcessSample,
    Request,
    RowSample,
    read_absent,
    read_details,
    read_numbers,
    row_samples,
)
from pytest_dtdispatch.ab.process import run_to_end
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.sides import MOST_SHOWN, Arm, interpreter, last_lines, worktrees
from pytest_dtdispatch.core.files import read_text
from pytest_dtdispatch.core.pass_rows import ASKED, FORMAT, GO_ON, OUTPUT, PASSES
from pytest_dtdispatch.errors import ProcessError
from pytest_dtdispatch.report.progress_line import is_watched

# 10 signatures, in each pass 20 misses and 600 hits of each, and their plain tensors, which are the control.
DEFAULT_TESTS = ("--pyargs", "pytest_dtdispatch.suite.ab_ops", "-k", "test_core")
PLUGINS = ("-p", "pytest_dtdispatch.plugin.passes", "-p", "no:cacheprovider")
NO_TESTS, TESTS_FAILED = 5, 1
MOST_BYTES = 64 * 2**20
PADDING, STEP_BYTES = "DTDISPATCH_AB_PADDING", 136
T = TypeVar("T")


@dataclass(frozen=True)
class Workplace:
    """All sides of a run, and what each of their processes is asked to do."""

    arms: Mapping[str, Arm]
    folder: Path  # for logs and answers
    arguments: tuple[str, ...]  # of pytest
    passes: int
    time_limit_s: float  # of each process
    metric: str = TIME
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what its side has

    def log(self, side: str) -> Path:
        """What the last process of a side said."""
        return self.folder / f"{side}.log"


@contextmanager
def workplace(asked: Request, time_limit_s: float) -> Iterator[Workplace]:
    """Prepare all sides of a run.

    Tests of the user's run in the current folder, or in a checkout of it; the built-in suite runs in an empty
    folder, where no ini file and no module of anybody's gets in its way.
    """
    pythons = {side: interpreter(side, given) for side, given in asked.interpreters.items()}
    folder = Path(tempfile.mkdtemp(prefix="dtdispatch-ab-"))
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            with _arms(asked, pythons, folder) as arms:
                arguments = asked.arguments or DEFAULT_TESTS
                # Of many versions some lack what a test needs: it is told, and the others are compared.
                told = {GO_ON: "1"} if asked.pythons else {}
                yield Workplace(arms, folder, arguments, asked.passes, time_limit_s, asked.metric, told)
        except ProcessError:  # its message names a log in there
            cleanup.pop_all()
            raise


@contextmanager
def _arms(asked: Request, pythons: Mapping[str, str], folder: Path) -> Iterator[dict[str, Arm]]:
    empty = folder / "empty"
    empty.mkdir()
    if not asked.base_rev:
        own = Path.cwd() if asked.arguments else empty
        yield {side: Arm(side, python, own) for side, python in pythons.items()}
        return
    with worktrees({BASE: asked.base_rev, HEAD: asked.head_rev}, Path.cwd(), folder) as checkouts:
        arms = {}
        for side, path in checkouts.items():
            source = path / "src" if (path / "src").is_dir() else path
            arms[side] = Arm(side, pythons[side], path if asked.arguments else empty, (source,))
        yield arms


class Progress:
    """Say on stderr how far a stage is: one line that is written over on a terminal, else one a process."""

    def __init__(self, stage: str, total: int, done: int = 0) -> None:
        self._stage, self._total, self._done = stage, total, done
        self._seconds: list[float] = []
        self._is_terminal = is_watched(sys.stderr.isatty())

    def begin(self, side: str) -> None:
        """Say which process runs now; only a terminal hears of it."""
        if self._is_terminal:
            self._say(self._done + 1, f"({side})")

    def end(self, side: str, seconds: float) -> None:
        """Say that a process is over, and how long the rest will take."""
        self._done += 1
        self._seconds.append(seconds)
        if not self._is_terminal:
            self._say(self._done, f"({side}) took {seconds:.1f} s")

    def close(self) -> None:
        """Leave an empty line where the next word goes."""
        if self._is_terminal:
            self._write("")

    def _say(self, number: int, what: str) -> None:
        remaining = self._total - self._done
        text = f"{self._stage}: process {number} of {self._total} {what}"
        if self._seconds and remaining:
            text += f", about {statistics.mean(self._seconds) * remaining:.0f} s left"
        self._write(text)

    def _write(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n", end="", file=sys.stderr, flush=True)


class Answer(NamedTuple):
    """What a process measured: its rows, its numbers, its time.

    Its details say what numbers consist of, and what is absent has a reason.
    """

    rows: Mapping[str, RowSample]
    numbers: Mapping[str, float]
    details: Mapping[str, tuple[str, ...]]
    absent: Mapping[str, str]
    seconds: float


def run_process(place: Workplace, side: str, errand: Errand = ERRANDS[TIME][0]) -> Answer:
    """Start a process of a side, and read what it measured."""
    arm, log, output = place.arms[side], place.log(side), place.folder / "passes.json"
    output.unlink(missing_ok=True)
    told = {**place.environment, OUTPUT: str(output), PASSES: str(place.passes), ASKED: str(errand.asked)}
    command = [arm.python, "-m", "pytest", *PLUGINS, "--dtdispatch", *errand.flags, *place.arguments]
    start = time.monotonic()
    try:
        status = run_to_end(command, arm.folder, arm.environment(told), log, place.time_limit_s)
    except OSError as error:
        raise ProcessError(f"{arm}: cannot be run: {error.strerror or error}") from None
    seconds = time.monotonic() - start
    if status is None:
        raise ProcessError(
            f"{arm}: not over after {place.time_limit_s:g} s, and was ended: --time-limit; log: {log}"
        )
    if status or not output.exists():
        raise ProcessError(f"{arm}: {_failure(status, last_lines(log))}; log: {log}")
    try:
        return _read_answer(read_text(output, MOST_BYTES, f"more than {MOST_BYTES:,} bytes"), seconds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ProcessError(f"{arm}: wrote something else than its rows: {error}; log: {log}") from None


def _read_answer(text: str, seconds: float) -> Answer:
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}")
    numbers, details = read_numbers(content.get("numbers", {})), read_details(content.get("details", {}))
    absent = read_absent(content.get("absent", {}))
    return Answer(row_samples(content["rows"]), numbers, details, absent, seconds)


def sample(place: Workplace, side: str, stage: str, progress: Progress) -> ProcessSample:
    """Take one sample of a side: fresh processes, mostly one, that measured at least one row."""
    progress.begin(side)
    rows: dict[str, RowSample] = {}
    numbers: dict[str, float] = {}
    details: dict[str, tuple[str, ...]] = {}
    absent: dict[str, str] = {}
    seconds = 0.0
    for errand in ERRANDS[place.metric]:
        answer = run_process(place, side, errand)
        rows |= answer.rows
        numbers |= answer.numbers
        details |= answer.details
        absent |= answer.absent
        seconds += answer.seconds
    # What a test measured before it failed was measured in fewer passes than elsewhere.
    rows, numbers = _without(rows, absent), _without(numbers, absent)
    if not rows and not numbers:
        no_calls = "no test of it makes calls on DTensors through the dtdispatch fixture"
        why = next(("{}: {}".format(*one) for one in absent.items()), no_calls)
        raise ProcessError(f"{place.arms[side]}: measured nothing: {why}; log: {place.log(side)}")
    progress.end(side, seconds)
    return ProcessSample(stage, side, seconds, rows, numbers, details, absent)


def _without(found: Mapping[str, T], absent: Mapping[str, str]) -> dict[str, T]:
    """Leave out what belongs to an absent test or row."""
    return {
        name: one for name, one in found.items() if not any(name.startswith(f"{less}::") for less in absent)
    }


def run_processes(place: Workplace, recorder: Recorder, stage: str, rounds: Sequence[Sequence[str]]) -> None:
    """Run those rounds of a stage that are not in the file yet; one that was cut off is run again."""
    whole = recorder.keep_whole_rounds(stage, rounds)
    order = [side for each in rounds for side in each]
    done = sum(map(len, rounds[:whole]))
    with closing(Progress(stage, len(order), done)) as progress:
        for side in order[done:]:
            recorder.add(sample(laid_out(place, recorder, side), side, stage, progress))


def laid_out(place: Workplace, recorder: Recorder, side: str) -> Workplace:
    """Let each round that counts instructions lie differently in memory, by how many samples a side has.

    All else is the same in every process, so that one that lies badly would lie badly each time (Mytkowicz
    et al., 2009, https://doi.org/10.1145/1508244.1508275).
    """
    if place.metric != INSTRUCTIONS:
        return place
    taken = sum(one.side == side for one in recorder.run.processes)
    return replace(place, environment={**place.environment, PADDING: "x" * (STEP_BYTES * taken)})


def _failure(status: int, lines: Sequence[str]) -> str:
    """Say why a process has no answer: by its status, and by what it said last."""
    said = next((line for line in reversed(lines) if not line.startswith("=")), "")[:MOST_SHOWN]
    if status < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"died of {names.get(-status, f'signal {-status}')}"
    if status == NO_TESTS:
        return "no test was collected"
    if status == TESTS_FAILED:
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return f"tests failed: {failed[0][:MOST_SHOWN] if failed else said}"
    if status:
        errors = [line for line in lines if line.startswith(("ERROR: ", "E   "))]
        return f"exit status {status}: {errors[0][:MOST_SHOWN] if errors else said}"
    return f"measured nothing, and said last: {said}"
