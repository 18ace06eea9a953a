"""``dtdispatch aa`` and ``selftest``: one interpreter, many processes, and what the rule says of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtdispatch.ab.error_rates import TRIPPED, VerdictCounts, count_runs, count_screens
from pytest_dtdispatch.ab.judge import Values
from pytest_dtdispatch.ab.model import BASE, HEAD, POOL, SLOWER_BY, ProcessSample, Request, dealt, state_of
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.worker import Progress, Workplace, run_process, run_processes, sample
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import ProcessError

SHARES = (0.05, 0.10, 0.15, 0.20)
EXTRA_MISS = ("--pyargs", "pytest_dtdispatch.suite.extra_miss")
CLEAN, SPOILED = "clean", "with an extra miss"  # names of its steps


@dataclass(frozen=True)
class Injected:
    """What a slow-down that was made for real looked like, in one pair of processes.

    Args:
        share: that was added to each call.
        found: by state, the median over rows of head over base, less 1, of their values.
    """

    share: float
    found: Mapping[str, float]


@dataclass(frozen=True)
class ExtraMisses:
    """Steps with a miss too many, and the same steps without.

    Args:
        caught: spoiled steps that counts show misses of.
        spoiled: all of them.
        alarms: clean steps that counts show misses of.
        clean: all of them.
    """

    caught: int
    spoiled: int
    alarms: int
    clean: int


def run_pool(place: Workplace, recorder: Recorder) -> list[Values]:
    """Run what is missing of the pool."""
    run_processes(place, recorder, POOL, [BASE] * recorder.run.asked.processes)
    return [process.quietest_ns for process in recorder.run.of(POOL)]


def false_alarms(pool: Sequence[Values], asked: Request) -> Iterator[tuple[VerdictCounts, tuple[str, ...]]]:
    """Count what the screen and the whole rule say of processes that are all alike; nothing differs."""
    floors = asked.floors
    yield count_screens(pool, asked.pairs, floors, dealt), (TRIPPED, Verdict.CONTAMINATED)
    verdicts = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.CONTAMINATED)
    yield count_runs(pool, asked.pairs, asked.confirm, floors, dealt), verdicts


def caught(pool: Sequence[Values], asked: Request) -> Iterator[tuple[float, VerdictCounts]]:
    """Count what the whole rule says where one side of a pool is multiplied by a known amount."""
    for share in SHARES:
        yield share, count_runs(pool, asked.pairs, asked.confirm, asked.floors, dealt, share)


def inject(place: Workplace) -> Iterator[Injected]:
    """Slow calls for real, in one process of each pair."""
    progress = Progress("injection", 2 * len(SHARES))
    try:
        for share in SHARES:
            loaded = ("-p", "pytest_dtdispatch.ab.slowdown", *place.job.arguments)
            slowed = replace(place.job, arguments=loaded, environment={SLOWER_BY: str(share)})
            pair = []
            for side, job in ((BASE, place.job), (HEAD, slowed)):
                progress.begin(side)
                process = sample(place.arms[side], job, POOL)
                progress.end(side, process.seconds)
                pair.append(process)
            yield Injected(share, _ratios(*pair))
    finally:
        progress.close()


def extra_misses(place: Workplace) -> ExtraMisses:
    """Count steps with a miss too many, for real."""
    job = replace(place.job, arguments=EXTRA_MISS, passes=1)
    answer = run_process(replace(place.arms[BASE], folder=job.workspace / "empty"), job)
    spoiled = [count for name, count in answer.misses_per_step.items() if name.endswith(f"::{SPOILED}")]
    clean = [count for name, count in answer.misses_per_step.items() if name.endswith(f"::{CLEAN}")]
    if not spoiled or not clean:
        raise ProcessError("selftest: the steps with an extra miss counted nothing")
    return ExtraMisses(sum(n > 0 for n in spoiled), len(spoiled), sum(n > 0 for n in clean), len(clean))


def _ratios(base: ProcessSample, head: ProcessSample) -> dict[str, float]:
    before, after = base.quietest_ns, head.quietest_ns
    by_state: dict[str, list[float]] = {}
    for row in before.keys() & after.keys():
        by_state.setdefault(state_of(row), []).append(after[row] / before[row] - 1)
    order = [str(state) for state in State]
    return {state: statistics.median(by_state[state]) for state in order if state in by_state}
