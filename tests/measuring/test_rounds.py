"""Rounds: which calls are made, timed and proved by the counters. All caches are scripted."""

from __future__ import annotations

import gc
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Figures, Samples, State, merge
from pytest_dtdispatch.core.text import progress_to
from pytest_dtdispatch.rounds import rounds
from pytest_dtdispatch.rounds.core_speed import CoreSpeed
from pytest_dtdispatch.rounds.core_waits import CoreWaits
from pytest_dtdispatch.rounds.plan import SHORT_NS, Plan, Propagation
from pytest_dtdispatch.rounds.recorder import SampleRecorder
from pytest_dtdispatch.rounds.rounds import (
    A_COUNTER_MOVED,
    NO_COUNTER_MOVED,
    NOT_COLD,
    NOT_PROPAGATED,
    PROPAGATED_AGAIN,
)
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench, FakeOp

REHEARSAL = 4  # calls before the first round
WARMUP = 10
FIRST_MISS = REHEARSAL
FIRST_HIT = REHEARSAL + 1 + WARMUP


def scripted(*numbers: Any, **more: Any) -> Plan:
    """Plan calls of a few nanoseconds, without the extra warm-up of quick calls."""
    return Plan(*numbers, **{"quick_warmup": 0, **more})


def plan(rounds: int, repeat: int, **more: Any) -> Plan:
    """Plan rounds whose hits run directly after their miss."""
    return scripted(rounds, repeat, in_a_row=1, **more)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def samples_of(figures: Figures, state: State) -> Samples:
    return next((samples for samples in figures.samples if samples.state is state), Samples(state, ()))


def calls_of(figures: Figures, state: State) -> list[int]:
    """Return the numbers of the calls whose latencies were recorded."""
    return [ns - 1000 for ns in samples_of(figures, state).ns]


def propagation_of(figures: Figures) -> Propagation:
    """Return the propagation that the notes and remarks describe."""
    if figures.notes == ("never hits: torch does not cache this op, and each call propagates",):
        return Propagation.NEVER_CACHED
    texts = (figures.notes, figures.remarks)
    if texts == ((), ("unpropagated: it never queries the sharding propagator, so it has no miss",)):
        return Propagation.NONE
    assert texts == ((), ())
    return Propagation.CACHED


def seen_in_calls(bench: Bench, observe: Callable[[], Any]) -> list[Any]:
    """Return a list that records an observation in each call of an op; the native cache handles the op."""
    seen: list[Any] = []

    def effect(number: int) -> None:
        seen.append(observe())
        bench.caches.native.ask()

    bench.op_that(effect)
    return seen


def refused(figures: Figures, state: State) -> dict[str, int]:
    return {refusal.reason: refusal.count for refusal in samples_of(figures, state).refused}


# Calls made and calls recorded


def test_first_fifth_of_misses_is_discarded(bench: Bench) -> None:
    figures = bench.take(scripted(rounds=20, repeat=2))
    warm_up = 5
    first = REHEARSAL + warm_up
    first_hit = first + 20 + WARMUP
    assert calls_of(figures, State.MISS) == list(range(first, first + 20))
    assert calls_of(figures, State.HIT) == list(range(first_hit, first_hit + 40))
    assert bench.caches.log == ["clear"] * (1 + warm_up + 20)


@pytest.mark.parametrize(("hit_ms", "discarded"), [(0.008, 200), (0.2, 10), (2.0, 10)])
def test_quick_hits_have_more_warmup_calls(hit_ms: float, discarded: int) -> None:
    bench = slow_bench(1, hit_ms)
    assert bench.take(Plan(rounds=2, repeat=3)).rounds == 2
    assert bench.op.calls == REHEARSAL + 2 + discarded + 2 * 3


def test_slow_misses_run_in_rows_of_five() -> None:
    figures = slow_bench(10, 0).take(scripted(rounds=10, repeat=1, max_time_s=0.1))
    row = list(range(REHEARSAL, REHEARSAL + 5))
    next_row = [number + 5 + WARMUP + 5 for number in row]
    assert [number % 10**7 for number in calls_of(figures, State.MISS)] == [*row, *next_row]
    assert figures.rounds == 10


# Samples refused by the counters


@pytest.mark.parametrize(
    ("number", "happens", "recorded", "reason"),
    [
        (FIRST_HIT + 1, "propagates", [15, 17, 18], "propagation ran again"),
        (FIRST_HIT, "also propagates", [16, 17, 18], "propagation ran again"),
        (FIRST_HIT + 2, "asks nothing", [15, 16, 18], "no cache counter moved"),
        (FIRST_HIT - 1, "also propagates", [15, 16, 17, 18], ""),  # in the warm-up
    ],
)
def test_unproved_hit_is_refused(
    bench: Bench, number: int, happens: str, recorded: list[int], reason: str
) -> None:
    native = bench.caches.native

    def effect(at: int) -> None:
        event = happens if at == number else ""
        if event != "asks nothing":
            native.is_filled &= event != "propagates"
            native.ask()
            native.misses += event == "also propagates"

    bench.op_that(effect)
    figures = bench.take(plan(rounds=1, repeat=4))
    assert calls_of(figures, State.HIT) == recorded
    assert refused(figures, State.HIT) == ({reason: 1} if reason else {})


@pytest.mark.parametrize(("hit", "other"), [("native", "python"), ("python", "native")])
def test_miss_of_other_cache_refuses_whole_block(bench: Bench, hit: str, other: str) -> None:
    def effect(number: int) -> None:
        getattr(bench.caches, hit).ask()
        getattr(bench.caches, other).misses += number == FIRST_HIT + 1

    bench.op_that(effect)
    figures = bench.take(plan(rounds=2, repeat=3))
    assert calls_of(figures, State.HIT) == [29, 30, 31], "the block of the second round is unaffected"
    assert refused(figures, State.HIT) == {PROPAGATED_AGAIN: 3}
    assert calls_of(figures, State.MISS) == [4, 18]


# Ops that use the propagator differently


Way = tuple[Callable[[Any, int], object], Propagation, dict[State, list[int]], dict[str, int]]
NOTHING: list[int] = []
NONE, NEVER_CACHED, CACHED = Propagation.NONE, Propagation.NEVER_CACHED, Propagation.CACHED
ONCE = {NOT_PROPAGATED: 2, NO_COUNTER_MOVED: 4}


def query_empty_cache(caches: Any) -> None:
    caches.native.is_filled = False
    caches.native.ask()


def propagate_at_first(caches: Any, number: int) -> None:
    caches.native.ask()
    if number < REHEARSAL - 1:
        caches.propagate_uncached()


def query_both_on_a_miss(caches: Any, number: int) -> None:
    if not caches.native.is_filled:
        caches.python.ask()
    caches.native.ask()


USUAL_CALLS = {State.MISS: [4, 17], State.HIT: [15, 16, 28, 29]}
WAYS: dict[str, Way] = {
    "the native cache answers": (lambda caches, n: caches.native.ask(), CACHED, USUAL_CALLS, {}),
    "the Python cache answers": (lambda caches, n: caches.python.ask(), CACHED, USUAL_CALLS, {}),
    "both are queried on a miss": (query_both_on_a_miss, CACHED, USUAL_CALLS, {}),
    "no cache is queried": (lambda caches, n: None, NONE, {State.CALL: [14, 15, 26, 27]}, {}),
    "a cache is queried once": (
        lambda caches, number: number == 14 and caches.python.ask(),
        *(NONE, {State.CALL: [15, 26, 27]}, {A_COUNTER_MOVED: 1}),
    ),
    "it always propagates": (
        lambda caches, number: query_empty_cache(caches),
        *(NEVER_CACHED, {State.MISS: [4, 5], State.HIT: NOTHING}, {PROPAGATED_AGAIN: 1}),
    ),
    "it always propagates and queries no cache": (
        lambda caches, number: caches.propagate_uncached(),
        *(NEVER_CACHED, {State.MISS: [4, 5], State.HIT: NOTHING}, {PROPAGATED_AGAIN: 1}),
    ),
    "it propagated once": (
        lambda caches, number: number or caches.propagate_uncached(),
        *(CACHED, {State.MISS: NOTHING, State.HIT: NOTHING}, ONCE),
    ),
    "it propagates uncached at first": (propagate_at_first, CACHED, USUAL_CALLS, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_rehearsal_detects_how_an_op_propagates(bench: Bench, way: str) -> None:
    effect, propagation, recorded, reasons = WAYS[way]
    bench.op_that(lambda number: effect(bench.caches, number))
    figures = bench.take(plan(rounds=2, repeat=2))
    assert propagation_of(figures) is propagation
    assert {samples.state: calls_of(figures, samples.state) for samples in figures.samples} == recorded
    assert {
        reason: count for state in recorded for reason, count in refused(figures, state).items()
    } == reasons
    assert bench.op.calls == 30 or recorded is not USUAL_CALLS, (
        "the first round and the warm-up are discarded"
    )


def test_uncached_propagations_are_counted_only_in_rehearsal(bench: Bench) -> None:
    watched = seen_in_calls(bench, lambda: bench.caches.uncached is not None)
    bench.take(plan(rounds=1, repeat=2))
    assert watched == [True] * REHEARSAL + [False] * (1 + WARMUP + 2)


def test_figures_record_an_active_tracer(bench: Bench) -> None:
    before = bench.take(plan(rounds=1, repeat=1))
    sys.settrace(lambda *_: None)
    try:
        traced = bench.take(plan(rounds=1, repeat=1))
    finally:
        sys.settrace(None)
    own = (__name__.partition(".")[0],)
    assert [each.tracers for each in (before, traced, merge([before, traced, traced]))] == [(), own, own]


@pytest.mark.parametrize("is_counted", [True, False])
def test_time_off_core_is_a_share_or_note(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    """For calls of microseconds, a wait of a second is practically all of the time."""
    readings = itertools.count(step=10**9)

    @contextmanager
    def scripted() -> Iterator[CoreWaits]:
        yield CoreWaits(lambda: next(readings), is_counted)

    monkeypatch.setattr(rounds, "core_waits", scripted)
    figures = bench.take(
        plan(rounds=1, repeat=1), local=Subject(FakeOp(bench.clock, lambda number: None), tuple)
    )
    assert {samples.state: samples.waited for samples in figures.samples} == dict.fromkeys(
        (State.MISS, State.HIT, State.LOCAL), float(is_counted)
    )
    assert ("not on a core" in str(figures.notes)) is not is_counted
    assert merge([Figures(), figures]).samples[0].waited == float(is_counted)


def test_speed_of_the_core_is_recorded_with_samples(bench: Bench) -> None:
    speed = CoreSpeed(work=lambda: None, clock=itertools.count(step=70).__next__)
    local = Subject(FakeOp(bench.clock, lambda number: None), tuple)
    figures = bench.take(replace(plan(rounds=2, repeat=3), speed=speed), local=local)
    assert {samples.state: samples.speed_ns for samples in figures.samples} == dict.fromkeys(
        (State.MISS, State.HIT, State.LOCAL), 70
    )


def test_impossible_reading_is_refused() -> None:
    recorder = SampleRecorder(INSTRUCTIONS)
    for reading in (0, 46_104, 2**64 - 1):
        recorder.record(State.HIT, reading)
    assert recorder.recorded(State.HIT) == [46_104]
    assert [str(each) for each in recorder.refused(State.HIT)] == ["the meter did not count (2x)"]


# Preempted calls


def preempted(bench: Bench, *numbers: int) -> Bench:
    """Make a bench whose scheduler takes the core during the calls with these numbers."""
    preemptions = [0]

    def effect(number: int) -> None:
        bench.caches.native.ask()
        preemptions[0] += number in numbers

    bench.op_that(effect)
    bench.preemptions = lambda: preemptions[0]
    return bench


def test_preempted_misses_are_repeated(bench: Bench) -> None:
    figures = preempted(bench, 6, 8).take(scripted(rounds=4, repeat=1))
    assert calls_of(figures, State.MISS) == [5, 7, 9, 10]
    assert refused(figures, State.MISS) == {}
    assert figures.remarks == (rounds.REPEATED,)
    assert len(merge([figures, figures]).remarks) == 1


def test_number_of_repeated_misses_is_limited(bench: Bench) -> None:
    figures = preempted(bench, *range(1000)).take(scripted(rounds=4, repeat=1))
    assert calls_of(figures, State.MISS) == [21, 22, 23, 24]


def test_preempted_misses_are_recorded_after_the_time_limit(bench: Bench) -> None:
    figures = preempted(bench, *range(1000)).take(plan(rounds=4, repeat=1, max_time_s=0))
    assert len(calls_of(figures, State.MISS)) == figures.rounds == 1


def test_share_of_preempted_samples_is_recorded(bench: Bench) -> None:
    figures = preempted(bench, *range(5, 23), 40).take(scripted(rounds=4, repeat=5))
    assert len(calls_of(figures, State.HIT)) == 20
    assert {each.state: each.preempted for each in figures.samples} == {State.MISS: 0.5, State.HIT: 0.05}
    assert merge([Figures(), figures]).samples[0].preempted == 0.5


def test_preempted_misses_on_ranks_are_recorded(bench: Bench) -> None:
    figures = preempted(bench, 5, 6).take(scripted(rounds=4, repeat=1, agreement=Settled((4, 4, 1, 10))))
    assert calls_of(figures, State.MISS) == [4, 5, 6, 7]


# Calls on a slow core


class Core:
    """A core whose loop takes 100 ns, but 200 ns for some loops after a call that makes it slow."""

    def __init__(self, bench: Bench, slow_calls: Collection[int], loops: int = 2, call_ns: int = 0) -> None:
        self.bench, self.slow_loops, self.now = bench, 0, 0

        def effect(number: int) -> None:
            bench.caches.native.ask()
            bench.clock.passes(call_ns)
            self.slow_loops = loops * (number in slow_calls)

        bench.op_that(effect)

    def work(self) -> None:
        self.now += 200 if self.slow_loops else 100
        self.slow_loops -= self.slow_loops > 0

    def take(self, state: State, waits_left_s: float = 0.0, **more: Any) -> tuple[list[int], int]:
        """Return the numbers of the recorded calls of a state, and the speed of their core."""
        speed = CoreSpeed(self.work, lambda: self.now, waits_left_s=waits_left_s)
        values: dict[str, Any] = {"gate": lambda row: {}, "fewest": 20, "speed": speed, **more}
        samples = samples_of(self.bench.take(scripted(20, 1, **values)), state)
        return [value % 1000 for value in samples.values], samples.speed_ns


MISSES = list(range(9, 29))


@pytest.mark.parametrize(
    ("slow_calls", "values", "recorded"),
    [
        ([12], {}, ([*MISSES[:3], *MISSES[4:]], 100)),
        ([12], {"gate": None}, (MISSES, 105)),
        ([12], {"fewest": None}, (MISSES, 105)),
        (range(15, 28), {}, (MISSES, 165)),
        (range(15, 27), {}, ([*MISSES[:6], *MISSES[-2:]], 100)),
    ],
    ids=["excluded", "no gate", "fixed rounds", "seven others", "eight others"],
)
def test_misses_on_a_slow_core_are_excluded(
    bench: Bench, slow_calls: Collection[int], values: dict[str, Any], recorded: tuple[list[int], int]
) -> None:
    assert Core(bench, slow_calls).take(State.MISS, **values) == recorded


def test_hits_on_a_slow_core_are_excluded_in_parts(bench: Bench) -> None:
    numbers, speed_ns = Core(bench, [43], call_ns=10**5).take(State.HIT)
    assert (numbers, speed_ns) == ([number for number in range(45, 64) if number % 5 != 4], 100)


def test_discarded_hit_that_propagates_is_refused(bench: Bench) -> None:
    def effect(number: int) -> None:
        bench.caches.native.is_filled &= number % 5 != 4  # the first hit of each part of four
        bench.caches.native.ask()
        bench.clock.passes(10**5)

    bench.op_that(effect)
    speed = CoreSpeed(lambda: None, itertools.count(step=100).__next__, fastest_ns=100)
    figures = bench.take(scripted(20, 1, gate=lambda row: {}, fewest=20, speed=speed))
    assert refused(figures, State.HIT) == {PROPAGATED_AGAIN: 5}
    assert len(calls_of(figures, State.HIT)) == 20


def test_long_misses_on_a_slow_core_are_recorded(bench: Bench) -> None:
    assert Core(bench, [12], call_ns=2 * SHORT_NS).take(State.MISS, max_time_s=9.0) == (MISSES, 105)


def test_misses_wait_until_the_core_is_fast(bench: Bench) -> None:
    core = Core(bench, [12], loops=10)
    assert core.take(State.MISS, waits_left_s=9.0) == ([*MISSES[:3], *MISSES[4:], 29], 100)


# Cold calls


def test_cold_call_with_empty_caches_precedes_each_miss(bench: Bench) -> None:
    def grow() -> int:
        bench.caches.cold_size += 7
        return int(bench.caches.cold_size)

    sizes = seen_in_calls(bench, grow)
    figures = bench.take(plan(rounds=2, repeat=1, cold=True))
    assert calls_of(figures, State.COLD) == [4, 17]
    assert calls_of(figures, State.MISS) == [5, 18]
    assert calls_of(figures, State.HIT) == [16, 29]
    assert [sizes[4], sizes[17]] == [7, 7]
    assert sizes[5] == sizes[18] == 14, "a miss sees the caches left by the cold call"
    assert bench.caches.log == ["clear", *["clear", "clear cold", "clear"] * 2]


def test_cold_call_with_nonempty_cache_is_refused(bench: Bench) -> None:
    bench.caches.cold_size = 1
    bench.caches.cold_clear_works = False
    figures = bench.take(plan(rounds=2, repeat=1, cold=True))
    assert (calls_of(figures, State.COLD), refused(figures, State.COLD)) == ([], {NOT_COLD: 2})
    assert calls_of(figures, State.MISS) == [5, 18]


# The local op


@pytest.mark.parametrize("uses", ["cached", "unpropagated", "never cached"])
def test_local_calls_have_a_warmup_of_two(bench: Bench, uses: str) -> None:
    ask = {"cached": bench.caches.native.ask, "never cached": bench.caches.propagate_uncached}
    bench.op_that(lambda number: ask[uses]() if uses in ask else None)
    local = FakeOp(bench.clock, lambda number: None)
    figures = bench.take(plan(rounds=2, repeat=3), local=Subject(local, tuple))
    assert calls_of(figures, State.LOCAL) == [2, 3, 4, 7, 8, 9]
    assert local.calls == 10


# Timed section


@pytest.mark.parametrize("is_released", [False, True], ids=["dropped", "released"])
def test_only_the_call_is_timed(bench: Bench, is_released: bool) -> None:
    """Preparation, release of the result and counter reads take a second each, outside of all samples."""
    second = 10**9
    log: list[str] = []

    def done(event: str) -> None:
        log.append(event)
        bench.clock.passes(second)

    class Result:
        def __del__(self) -> None:
            done("drop")

    def prepare() -> tuple[str]:
        done("prepare")
        return ("positional",)

    def op(argument: str, *, keyword: str) -> Result:
        assert (argument, keyword) == ("positional", "keyword")
        log.append("call")
        bench.clock.passes(7)
        bench.caches.native.ask()
        return Result()

    bench.caches.reading = lambda: bench.clock.passes(second)
    release = (lambda result: done(f"release {type(result).__name__}")) if is_released else None
    subject = Subject(op, prepare, {"keyword": "keyword"}, release=release)
    figures = bench.rounds(subject, plan(rounds=2, repeat=3, max_time_s=1e9)).take()
    assert samples_of(figures, State.MISS).ns == (7, 7)
    assert samples_of(figures, State.HIT).ns == (7,) * 6
    each = ["prepare", "call", *["release Result"] * is_released, "drop"]
    assert log == each * (REHEARSAL + 2 * (1 + WARMUP + 3))


def test_calls_are_timed_two_frames_below_their_caller(bench: Bench) -> None:
    """Torch walks the stack in each propagation: every additional frame makes a miss slower."""
    depths = seen_in_calls(bench, lambda: len(inspect.stack(0)))
    bench.rounds(Subject(bench.op, tuple), scripted(rounds=6, repeat=2)).run()
    run, time_row, op, effect, observe = 1, 1, 1, 1, 1
    assert set(depths) == {len(inspect.stack(0)) + run + time_row + op + effect + observe}


def test_device_is_synchronized_only_between_rounds(bench: Bench) -> None:
    at_call: list[tuple[int, bool]] = []
    three = plan(rounds=3, repeat=2)
    bench.take(three, synchronize=lambda: at_call.append((bench.op.calls, gc.isenabled())))
    assert at_call == [(REHEARSAL + number * (1 + WARMUP + 2), gc.isenabled()) for number in range(3)]


# Time budget: each round takes a second


@pytest.mark.parametrize(
    ("planned", "budget_s", "first_s", "done"),
    [
        (20, 9.0, 10, 5),  # the rehearsal is included
        (20, 7.0, 0, 7),
        (20, 4e-6, 0, 5),
        (20, 1e-9, 0, 1),
        (20, 5.1, 0, 6),
        (3, 4e-6, 0, 3),
        (7, 1e300, 0, 7),
    ],
)
def test_time_budget_ends_rounds_after_at_least_five(
    bench: Bench, planned: int, budget_s: float, first_s: int, done: int
) -> None:
    passes = iter([first_s * 10**9])
    seen_in_calls(bench, lambda: bench.clock.passes(next(passes, 0)))
    rounds = plan(rounds=planned, repeat=1, max_time_s=budget_s)
    figures = bench.take(rounds, synchronize=lambda: bench.clock.passes(10**9))
    assert len(calls_of(figures, State.MISS)) == figures.rounds == done


def test_miss_longer_than_budget_is_measured_once() -> None:
    bench, progress = slow_bench(11_600, 0.02), list[str]()
    with progress_to(progress.append):
        figures = bench.take(scripted())
    assert (figures.rounds, counts_of(figures)) == (1, {State.MISS: 1, State.HIT: 10})
    assert bench.clock.now < 2 * 11.7e9, "the first miss is discarded"
    assert figures.few_misses
    assert figures.notes == ("few samples: a miss takes longer (11.6 s here) than the 1 s allowed",)
    assert progress == ["a miss takes 11.6 s: its row takes about 12 s more"]
    cold = slow_bench(11_600, 0.02).take(scripted(cold=True))
    assert counts_of(cold) == {State.MISS: 1, State.COLD: 1, State.HIT: 10}


def test_ranks_agree_on_few_slow_calls() -> None:
    settled = Settled((1, 1, 1, 0))
    figures = slow_bench(3000, 2000).take(scripted(agreement=settled))
    assert settled.proposed == [((1, 1, 1, 0), "the rounds (propagation: cached)")]
    assert counts_of(figures) == {State.MISS: 1, State.HIT: 1}
    assert figures.notes[0].startswith("few samples: a miss takes longer (3.0 s here)")
    other = slow_bench(300, 0.02).take(scripted(agreement=Settled((1, 1, 1, 0))))
    assert other.notes == ("few samples: a miss takes longer than the 1 s allowed",)


# Slow calls: the plan is reduced to the time budget


def slow_bench(miss_ms: float, hit_ms: float) -> Bench:
    bench = Bench()
    filled = bench.caches.native
    seen_in_calls(bench, lambda: bench.clock.passes(int(1e6 * (hit_ms if filled.is_filled else miss_ms))))
    return bench


def counts_of(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples}


@pytest.mark.parametrize(
    ("miss_ms", "hit_ms", "planned", "misses", "hits"),
    [
        (145, 140, {}, 5, 5),
        (200, 200, {"rounds": 1, "max_time_s": math.inf}, 1, 10),
        # Slow misses do not reduce fast hits; rounds that stop when precise respect the time budget too.
        (370, 0.02, {}, 5, 50),
        (370, 0.02, {"fewest": 8}, 5, 50),
        (10, 0.02, {"fewest": 8, "max_time_s": 0.5}, 8, 80),
        (0.1, 0.1, {"fewest": 8, "cold": True}, 8, 80),  # short rows end at eight rounds
    ],
)
def test_number_of_slow_calls_fits_the_budget(
    miss_ms: float, hit_ms: float, planned: dict[str, Any], misses: int, hits: int
) -> None:
    bench = slow_bench(miss_ms, hit_ms)
    local = Subject(FakeOp(bench.clock, lambda number: None), tuple) if "cold" in planned else None
    expected = [(State.MISS, misses), (State.HIT, hits)]
    others = [(State.COLD, misses), (State.LOCAL, hits)] if local else []
    assert [*counts_of(bench.take(scripted(**planned), local=local)).items()] == expected + others


def test_rehearsal_continues_after_slow_propagating_hit() -> None:
    bench = Bench()

    def second_propagates(number: int) -> None:
        bench.caches.native.is_filled &= number != 1
        bench.clock.passes(200_000_000)
        bench.caches.native.ask()

    bench.op_that(second_propagates)
    figures = bench.take(scripted())
    assert propagation_of(figures) is Propagation.CACHED
    assert bench.op.calls == 1 + 2 + 5 + 5


@pytest.mark.parametrize(("miss_ms", "hit_ms"), [(2, 2), (5, 5), (10, 10), (30, 20), (40, 40), (80, 4)])
def test_slow_calls_use_most_of_the_budget(miss_ms: float, hit_ms: float) -> None:
    bench = slow_bench(miss_ms, hit_ms)
    figures = bench.take(scripted())
    assert bench.clock.now <= 1.05e9
    assert bench.clock.now >= 0.6e9 or counts_of(figures) == {State.MISS: 20, State.HIT: 200}
    assert figures.rounds >= 5


# Rounds until medians are precise


@pytest.mark.parametrize(
    ("noise", "fewest", "rounds"),
    [
        ([0, 1, 2, 3], 8, 8),  # percent above 100 us, cycled
        ([0, 1, 2, 3], 6, 6),
        ([*[0] * 8, 30, *[0] * 20], 8, 9),  # misses are added one by one in a row
        ([0, 50, 100], 6, 20),  # never precise: all planned rounds
    ],
)
def test_rounds_end_once_medians_are_precise(noise: Sequence[int], fewest: int, rounds: int) -> None:
    bench, percent, discarded = Bench(), itertools.cycle(noise), fewest // 4
    seen_in_calls(bench, lambda: bench.clock.passes(1000 * (100 + next(percent))))
    figures = bench.take(scripted(fewest=fewest))
    assert counts_of(figures) == {State.MISS: rounds, State.HIT: 10 * rounds}
    assert figures.rounds == rounds
    assert bench.caches.log == ["clear"] * (1 + discarded + rounds)
    assert bench.op.calls == REHEARSAL + discarded + rounds + WARMUP + 10 * rounds


def test_scattered_unpropagated_calls_extend_the_rounds(bench: Bench) -> None:
    bench.op_that(lambda number: None)
    figures = bench.take(scripted(fewest=8))
    assert (counts_of(figures), figures.rounds) == ({State.CALL: 80}, 8)
    bench = Bench()
    bench.op_that(lambda number: bench.clock.passes(number % 2 * 10_000))
    figures = bench.take(scripted(fewest=8))
    assert (counts_of(figures), figures.rounds) == ({State.CALL: 200}, 20)


# Garbage collection


@pytest.fixture(autouse=True)
def _restored_gc() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("before", [True, False])
def test_garbage_collection_is_paused_and_restored(bench: Bench, before: bool) -> None:
    (gc.enable if before else gc.disable)()
    seen = seen_in_calls(bench, gc.isenabled)
    local = Subject(lambda: seen.append(gc.isenabled()), tuple)
    bench.take(plan(rounds=2, repeat=2), local=local)
    assert set(seen) == {False}
    assert gc.isenabled() is before


def test_garbage_is_collected_before_misses_and_after_blocks(bench: Bench) -> None:
    gc.enable()
    at_call: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            at_call.append(bench.op.calls)

    gc.callbacks.append(note)
    try:
        bench.take(plan(rounds=2, repeat=2))
    finally:
        gc.callbacks.remove(note)
    misses = [REHEARSAL, REHEARSAL + 13]
    ends = [REHEARSAL + 1, REHEARSAL + 13, REHEARSAL + 14, REHEARSAL + 26]
    assert [at for at in dict.fromkeys(at_call) if at] == sorted({*misses, *ends})


@pytest.mark.parametrize("number", [0, 2, FIRST_MISS, FIRST_MISS + 3, FIRST_HIT])
def test_exception_propagates_and_restores_state(bench: Bench, number: int) -> None:
    gc.enable()
    bench.op_that(lambda at: bench.caches.native.ask() if at != number else 1 // 0)
    with pytest.raises(ZeroDivisionError):
        bench.take(plan(rounds=2, repeat=2))
    assert bench.op.calls == number + 1
    assert gc.isenabled()
    assert bench.caches.uncached is None


# Invariants for arbitrary effects of an op on the counters


class Delta(NamedTuple):
    """Increments of the counters by one call."""

    native_hits: int = 0
    native_misses: int = 0
    python_hits: int = 0
    python_misses: int = 0
    uncached: int = 0

    @property
    def hits(self) -> int:
        return self.native_hits + self.python_hits

    @property
    def misses(self) -> int:
        return self.native_misses + self.python_misses


USUAL = st.sampled_from([Delta(native_hits=1), Delta(python_hits=1), Delta(native_misses=1), Delta()])
ANY = st.builds(Delta, *[st.integers(0, 2)] * 4, st.integers(0, 1))
# Mostly hits: if no two calls in a row behave normally, all samples are refused.
SCRIPTS = st.lists(st.one_of(st.just(Delta(native_hits=1)), USUAL, ANY), min_size=1, max_size=70)
PLANS = st.builds(
    scripted, in_a_row=st.just(1), rounds=st.integers(1, 4), repeat=st.integers(1, 4), cold=st.booleans()
)


def run_script(script: Sequence[Delta], plan: Plan) -> tuple[Bench, Figures]:
    bench = Bench()

    def effect(number: int) -> None:
        delta = script[number % len(script)]
        bench.caches.native.hits += delta.native_hits
        bench.caches.native.misses += delta.native_misses
        bench.caches.python.hits += delta.python_hits
        bench.caches.python.misses += delta.python_misses
        if delta.uncached:
            bench.caches.propagate_uncached()

    bench.op_that(effect)
    return bench, bench.take(plan)


@given(script=SCRIPTS, plan=PLANS)
def test_each_call_is_proved_or_refused_once(script: list[Delta], plan: Plan) -> None:
    bench, figures = run_script(script, plan)

    def deltas(state: State) -> list[Delta]:
        return [script[number % len(script)] for number in calls_of(figures, state)]

    assert all(delta.misses == 0 and delta.hits >= 1 for delta in deltas(State.HIT))
    assert all(delta.misses + delta.uncached >= 1 for delta in deltas(State.MISS) + deltas(State.COLD))
    assert all(delta.misses == delta.hits == 0 for delta in deltas(State.CALL))
    numbers = [number for samples in figures.samples for number in calls_of(figures, samples.state)]
    assert len(numbers) == len(set(numbers))
    assert all(number >= REHEARSAL for number in numbers)
    assert all(list(samples.ns) == sorted(samples.ns) for samples in figures.samples), (
        "in the order of measurement"
    )
    count = {
        each.state: len(each.ns) + sum(refused(figures, each.state).values()) for each in figures.samples
    }
    cold = {State.COLD: plan.rounds} if plan.cold else {}
    expected, calls = {
        Propagation.CACHED: (
            {State.MISS: plan.rounds, State.HIT: plan.rounds * plan.repeat, **cold},
            1 + WARMUP + plan.repeat + plan.cold,
        ),
        # The refused hit is that of the rehearsal, which detected that hits do not occur.
        Propagation.NEVER_CACHED: ({State.MISS: plan.rounds, State.HIT: 1, **cold}, 1 + plan.cold),
        Propagation.NONE: ({State.CALL: plan.rounds * plan.repeat}, WARMUP + plan.repeat),
    }[propagation_of(figures)]
    assert count == expected
    assert figures.rounds == plan.rounds
    assert bench.op.calls == REHEARSAL + plan.rounds * calls


# Rounds agreed by ranks


class Settled:
    """Agreement with other ranks on the given numbers."""

    def __init__(self, numbers: tuple[int, ...] | None) -> None:
        self.numbers = numbers
        self.proposed: list[tuple[Sequence[int], str]] = []

    def sync(self, subject: str) -> None:
        raise AssertionError("the caller synchronizes, not the rounds")

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        self.proposed.append((numbers, step))
        return self.numbers


@pytest.mark.parametrize("max_time_s", [1e-9, 1e9])
def test_ranks_use_agreed_rounds_regardless_of_time(bench: Bench, max_time_s: float) -> None:
    settled = Settled((7, 3, 2, 4))
    figures = bench.take(scripted(20, 2, max_time_s, agreement=settled))
    assert (figures.rounds, counts_of(figures)) == (7, {State.MISS: 7, State.HIT: 14})
    rounds, rows = 20 if max_time_s == 1e9 else 1, 3
    assert settled.proposed == [((rounds, rounds, 2, WARMUP), "the rounds (propagation: cached)")]
    assert bench.op.calls == REHEARSAL + 7 * (1 + 2) + rows * 4
    alone = Bench().take(scripted(20, 2, max_time_s, agreement=Settled(None)))
    assert alone.rounds == rounds, "a rank alone uses its own time budget"
