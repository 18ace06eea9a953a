"""Passes: which calls are made, timed and proved by the counters. All caches are scripted."""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Clock, Figures, Samples, State, merge
from pytest_dtdispatch.core.text import progress_to
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.rounds import rounds
from pytest_dtdispatch.rounds.core_waits import CoreWaits
from pytest_dtdispatch.rounds.plan import Effort, Plan
from pytest_dtdispatch.rounds.rounds import (
    PROPAGATED_AGAIN,
    Propagation,
)
from pytest_dtdispatch.rounds.sampler import Meter
from pytest_dtdispatch.rounds.timing import Series, Subject
from tests.scripted_bench import Bench, FakeClock, FakeOp, figures_of

REHEARSAL = 4  # calls before the first pass
WARMUP = 10
FIRST_MISS = REHEARSAL
FIRST_HIT = REHEARSAL + 1 + WARMUP


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


@pytest.mark.parametrize(
    ("rounds", "passes", "misses"), [(1, 1, 1), (3, 3, 1), (4, 4, 1), (8, 8, 1), (9, 8, 2), (40, 8, 5)]
)
def test_passes_have_equal_numbers_of_calls(bench: Bench, rounds: int, passes: int, misses: int) -> None:
    local = FakeOp(bench.clock, lambda number: None)
    figures = bench.take(Plan(rounds, repeat=2, cold=True), local=Subject(local, tuple))
    assert {samples.state: samples.lengths for samples in figures.samples} == {
        **dict.fromkeys((State.COLD, State.MISS), (misses,) * passes),
        **dict.fromkeys((State.HIT, State.LOCAL), (2 * misses,) * passes),
    }
    assert figures.rounds == passes * misses
    is_first_discarded = passes >= 4
    assert bench.op.calls == REHEARSAL + (is_first_discarded + passes) * (4 * misses + WARMUP)


@pytest.mark.parametrize(("hit_ms", "discarded"), [(0.008, 200), (0.2, 10), (2.0, 10)])
def test_quick_hits_may_have_more_warmup_calls(hit_ms: float, discarded: int) -> None:
    bench = slow_bench(1, hit_ms)
    bench.take(Plan(rounds=2, repeat=3, warmup=200))
    assert bench.op.calls == REHEARSAL + 2 * (1 + discarded + 3)


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
    figures = bench.take(Plan(rounds=1, repeat=4))
    assert calls_of(figures, State.HIT) == recorded
    assert refused(figures, State.HIT) == ({reason: 1} if reason else {})


@pytest.mark.parametrize(("hit", "other"), [("native", "python"), ("python", "native")])
def test_miss_of_other_cache_refuses_whole_block(bench: Bench, hit: str, other: str) -> None:
    def effect(number: int) -> None:
        getattr(bench.caches, hit).ask()
        getattr(bench.caches, other).misses += number == FIRST_HIT + 1

    bench.op_that(effect)
    figures = bench.take(Plan(rounds=2, repeat=3))
    assert calls_of(figures, State.HIT) == [29, 30, 31], "the second pass is unaffected"
    assert refused(figures, State.HIT) == {PROPAGATED_AGAIN: 3}
    assert calls_of(figures, State.MISS) == [4, 18]


@pytest.mark.parametrize(("passes", "count"), [([0], 0), ([0, 2], 1), (range(5), 4)])
def test_refusals_of_discarded_pass_are_dropped(bench: Bench, passes: Sequence[int], count: int) -> None:
    refusing = [FIRST_HIT + number * (1 + WARMUP + 1) for number in passes]

    def effect(number: int) -> None:
        bench.caches.native.is_filled &= number not in refusing
        bench.caches.native.ask()

    bench.op_that(effect)
    figures = bench.take(Plan(rounds=4, repeat=1))
    assert refused(figures, State.HIT) == ({PROPAGATED_AGAIN: count} if count else {})
    assert samples_of(figures, State.HIT).lengths == (1,) * (4 - count)


# Ops that use the propagator differently


Way = tuple[Callable[[Any, int], object], Propagation, dict[State, list[int]], dict[str, int]]
NOTHING: list[int] = []
NONE, NEVER_CACHED, CACHED = Propagation.NONE, Propagation.NEVER_CACHED, Propagation.CACHED
ONCE = {"propagation did not run": 2, "no cache counter moved": 4}


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
        *(NONE, {State.CALL: [15, 26, 27]}, {"a cache counter moved": 1}),
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
    figures = bench.take(Plan(rounds=2, repeat=2))
    assert propagation_of(figures) is propagation
    assert {samples.state: calls_of(figures, samples.state) for samples in figures.samples} == recorded
    assert {
        reason: count for state in recorded for reason, count in refused(figures, state).items()
    } == reasons
    assert bench.op.calls == 30 or recorded is not USUAL_CALLS, "the rehearsal and the warm-up are discarded"


def test_uncached_propagations_are_counted_only_in_rehearsal(bench: Bench) -> None:
    watched = seen_in_calls(bench, lambda: bench.caches.uncached is not None)
    bench.take(Plan(rounds=1, repeat=2))
    assert watched == [True] * REHEARSAL + [False] * (1 + WARMUP + 2)


def test_figures_record_an_active_tracer(bench: Bench) -> None:
    before = bench.take(Plan(rounds=1, repeat=1))
    sys.settrace(lambda *_: None)
    try:
        traced = bench.take(Plan(rounds=1, repeat=1))
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
        Plan(rounds=1, repeat=1), local=Subject(FakeOp(bench.clock, lambda number: None), tuple)
    )
    assert {samples.state: samples.waited for samples in figures.samples} == dict.fromkeys(
        (State.MISS, State.HIT, State.LOCAL), float(is_counted)
    )
    assert ("not on a core" in str(figures.notes)) is not is_counted
    assert merge([Figures(), figures]).samples[0].waited == float(is_counted)


def test_impossible_reading_is_refused() -> None:
    series = Series(State.HIT, Subject(int, tuple), Meter(int, int), INSTRUCTIONS)
    for reading in (0, 46_104, 2**64 - 1):
        series.record(reading)
    samples = series.samples()
    assert samples.values == (46_104,)
    assert [str(each) for each in samples.refused] == ["the meter did not count (2x)"]


# CPU time of long calls


def half_on_core(bench: Bench, miss_ns: int, hit_ns: int) -> Bench:
    """Make calls longer by this wall time, with half as much CPU time."""
    bench.cpu = cpu = FakeClock()

    def effect(number: int) -> None:
        ns = hit_ns if bench.caches.native.is_filled else miss_ns
        bench.caches.native.ask()
        bench.clock.passes(ns)
        cpu.passes(ns // 2)

    bench.op_that(effect)
    return bench


@pytest.mark.parametrize(
    ("miss_ns", "hit_ns", "has_cpu"),
    [
        (498_000, 498_000, set()),
        (499_000, 498_000, {State.COLD, State.MISS}),
        (498_000, 499_000, {State.HIT, State.LOCAL}),
        (499_000, 499_000, {State.COLD, State.MISS, State.HIT, State.LOCAL}),
    ],
)
def test_cpu_time_of_long_calls_is_recorded(
    bench: Bench, miss_ns: int, hit_ns: int, has_cpu: set[State]
) -> None:
    """Each call takes 1,000 ns more, and one for each call before it."""
    local = Subject(FakeOp(bench.clock, lambda number: None), tuple)
    figures = half_on_core(bench, miss_ns, hit_ns).take(Plan(4, 2, cold=True), local=local)
    cpu_ns = {State.COLD: miss_ns // 2, State.MISS: miss_ns // 2, State.HIT: hit_ns // 2, State.LOCAL: 0}
    assert {samples.state: samples.cpu for samples in figures.samples} == {
        each.state: (cpu_ns[each.state],) * len(each.ns) if each.state in has_cpu else ()
        for each in figures.samples
    }


def test_interrupted_rehearsal_makes_no_call_long(bench: Bench) -> None:
    def effect(number: int) -> None:
        bench.caches.native.ask()
        bench.clock.passes(10**6 if number < 4 else 0)

    bench.op_that(effect)
    assert not any(samples.cpu for samples in bench.take(Plan(4, 2, max_time_s=60.0)).samples)


class OfProgram(NamedTuple):
    """Threads of a subject and of its plan, whether there are ranks, and whether CPU time is read."""

    is_one_thread: bool = True
    one_thread: bool = True
    are_ranks: bool = False
    is_read: bool = False


@pytest.mark.parametrize(
    "case",
    [
        OfProgram(is_read=True),
        OfProgram(is_one_thread=False),
        OfProgram(one_thread=False),
        OfProgram(are_ranks=True),
    ],
)
def test_cpu_time_of_one_thread_without_ranks_is_read(bench: Bench, case: OfProgram) -> None:
    half_on_core(bench, 10**6, 10**6)
    agreement = Settled(None) if case.are_ranks else None
    subject = Subject(bench.op, tuple, is_one_thread=case.is_one_thread)
    plan = Plan(4, 2, one_thread=case.one_thread, agreement=agreement)
    figures = figures_of(bench.rounds(subject, plan))
    clock = Clock.CPU if case.is_read else Clock.WALL
    assert {samples.clock for samples in figures.samples} == {clock}


def test_refused_call_has_no_cpu_time(bench: Bench) -> None:
    bench.cpu = cpu = FakeClock()

    def effect(number: int) -> None:
        bench.caches.native.is_filled &= number != FIRST_HIT + 1
        bench.caches.native.ask()
        bench.clock.passes(10**6)
        cpu.passes(number)

    bench.op_that(effect)
    hits = samples_of(bench.take(Plan(rounds=1, repeat=4)), State.HIT)
    assert hits.cpu == (FIRST_HIT, FIRST_HIT + 2, FIRST_HIT + 3)


# Cold calls


def test_cold_call_with_empty_caches_precedes_the_miss(bench: Bench) -> None:
    def grow() -> int:
        bench.caches.cold_size += 7
        return int(bench.caches.cold_size)

    sizes = seen_in_calls(bench, grow)
    figures = bench.take(Plan(rounds=2, repeat=1, cold=True))
    assert calls_of(figures, State.COLD) == [4, 17]
    assert calls_of(figures, State.MISS) == [5, 18]
    assert calls_of(figures, State.HIT) == [16, 29]
    assert [sizes[4], sizes[17]] == [7, 7]
    assert sizes[5] == sizes[18] == 14, "a miss sees the caches left by the cold call"
    assert bench.caches.log == ["clear", *["clear", "clear cold", "clear"] * 2]


def test_cold_call_with_nonempty_cache_is_refused(bench: Bench) -> None:
    bench.caches.cold_size = 1
    bench.caches.cold_clear_works = False
    figures = bench.take(Plan(rounds=2, repeat=1, cold=True))
    assert (calls_of(figures, State.COLD), refused(figures, State.COLD)) == ([], {"a cache was not empty": 2})
    assert calls_of(figures, State.MISS) == [5, 18]


# The local op


@pytest.mark.parametrize("uses", ["cached", "unpropagated", "never cached"])
def test_local_calls_have_a_warmup_of_two(bench: Bench, uses: str) -> None:
    ask = {"cached": bench.caches.native.ask, "never cached": bench.caches.propagate_uncached}
    bench.op_that(lambda number: ask[uses]() if uses in ask else None)
    local = FakeOp(bench.clock, lambda number: None)
    figures = bench.take(Plan(rounds=2, repeat=3), local=Subject(local, tuple))
    assert calls_of(figures, State.LOCAL) == [2, 3, 4, 7, 8, 9]
    assert local.calls == 10


# Timed section


@pytest.mark.parametrize(
    ("is_released", "call_ns"),
    [(False, 7), (True, 7), (False, 10**6)],
    ids=["dropped", "released", "with CPU time"],
)
def test_only_the_call_is_timed(bench: Bench, is_released: bool, call_ns: int) -> None:
    """All else takes a second each, outside of all samples: preparation, release, counters, CPU time."""
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
        bench.clock.passes(call_ns)
        bench.caches.native.ask()
        return Result()

    def read_cpu() -> int:
        bench.clock.passes(second)
        return 0

    bench.cpu = read_cpu
    bench.caches.reading = lambda: bench.clock.passes(second)
    release = (lambda result: done(f"release {type(result).__name__}")) if is_released else None
    subject = Subject(op, prepare, {"keyword": "keyword"}, release=release)
    figures = figures_of(bench.rounds(subject, Plan(rounds=2, repeat=3, max_time_s=1e9)))
    assert samples_of(figures, State.MISS).ns == (call_ns,) * 2
    assert samples_of(figures, State.HIT).ns == (call_ns,) * 6
    each = ["prepare", "call", *["release Result"] * is_released, "drop"]
    assert log == each * (REHEARSAL + 2 * (1 + WARMUP + 3))


def test_calls_are_timed_two_frames_below_their_caller(bench: Bench) -> None:
    """Torch walks the stack in each propagation: every additional frame makes a miss slower."""
    depths = seen_in_calls(bench, lambda: len(inspect.stack(0)))
    bench.rounds(Subject(bench.op, tuple), Plan(rounds=6, repeat=2)).run()
    run, time_row, op, effect, observe = 1, 1, 1, 1, 1
    assert set(depths) == {len(inspect.stack(0)) + run + time_row + op + effect + observe}


def test_device_is_synchronized_only_between_passes(bench: Bench) -> None:
    at_call: list[tuple[int, bool]] = []
    three = Plan(rounds=3, repeat=2)
    bench.take(three, synchronize=lambda: at_call.append((bench.op.calls, gc.isenabled())))
    assert at_call == [(REHEARSAL + number * (1 + WARMUP + 2), gc.isenabled()) for number in range(3)]


# Time limit: each pass takes a second


@pytest.mark.parametrize(
    ("planned", "limit_s", "first_s", "passes"),
    [
        (20, 20.0, 10, 8),
        (20, 20.0, 16, 4),  # the rehearsal is included
        (20, 7.0, 0, 7),
        (20, 4e-6, 0, 4),
        (20, 1e-9, 0, 1),
        (20, 5.1, 0, 6),
        (3, 4e-6, 0, 3),
        (7, 1e300, 0, 7),
    ],
)
def test_time_limit_ends_passes_after_at_least_four(
    bench: Bench, planned: int, limit_s: float, first_s: int, passes: int
) -> None:
    longer = iter([0, 0, first_s * 10**9])
    seen_in_calls(bench, lambda: bench.clock.passes(next(longer, 0)))
    limited = Plan(planned, repeat=1, max_time_s=limit_s)
    figures = bench.take(limited, synchronize=lambda: bench.clock.passes(10**9))
    assert len(samples_of(figures, State.MISS).lengths) == passes
    assert len(calls_of(figures, State.MISS)) == figures.rounds


# Slow calls: the plan is reduced to the time limit


def slow_bench(miss_ms: float, hit_ms: float) -> Bench:
    bench = Bench()
    filled = bench.caches.native
    seen_in_calls(bench, lambda: bench.clock.passes(int(1e6 * (hit_ms if filled.is_filled else miss_ms))))
    return bench


def counts_of(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples}


def test_miss_longer_than_limit_is_measured_once() -> None:
    bench, progress = slow_bench(11_600, 0.02), list[str]()
    with progress_to(progress.append):
        figures = bench.take(Plan())
    assert (figures.rounds, counts_of(figures)) == (1, {State.MISS: 1, State.HIT: 50})
    assert bench.clock.now < 2 * 11.7e9, "the first miss is discarded"
    assert figures.notes == ("few passes: one call takes longer than the time limit of 1 s (11.6 s here)",)
    assert progress == ["a miss takes 11.6 s: its row takes about 12 s more"]
    cold = slow_bench(11_600, 0.02).take(Plan(cold=True))
    assert counts_of(cold) == {State.MISS: 1, State.COLD: 1, State.HIT: 50}


def test_call_below_limit_has_four_passes() -> None:
    """A cold call or a local one beside it does not make it longer."""
    bench = slow_bench(600, 600)
    local = Subject(FakeOp(bench.clock, lambda number: None), tuple)
    figures = bench.take(Plan(cold=True), local=local)
    assert counts_of(figures) == dict.fromkeys((State.MISS, State.HIT, State.COLD, State.LOCAL), 4)
    assert figures.notes == ()


def test_rehearsal_continues_after_slow_propagating_hit() -> None:
    bench = Bench()

    def second_propagates(number: int) -> None:
        bench.caches.native.is_filled &= number != 1
        bench.clock.passes(200_000_000)
        bench.caches.native.ask()

    bench.op_that(second_propagates)
    figures = bench.take(Plan())
    assert propagation_of(figures) is Propagation.CACHED
    assert bench.op.calls == 1 + 2 + (1 + 4) * 2


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(("miss_ms", "hit_ms"), [(2, 2), (5, 5), (10, 10), (30, 20), (40, 40), (80, 4)])
def test_slow_calls_use_most_of_the_limit(miss_ms: float, hit_ms: float, cold: bool) -> None:
    bench = slow_bench(miss_ms, hit_ms)
    figures = bench.take(Plan(cold=cold))
    assert 0.6e9 <= bench.clock.now <= 1.05e9
    assert len(samples_of(figures, State.MISS).lengths) >= 4


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
    bench.take(Plan(rounds=2, repeat=2), local=local)
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
        bench.take(Plan(rounds=2, repeat=2))
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
        bench.take(Plan(rounds=2, repeat=2))
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
PLANS = st.builds(Plan, rounds=st.integers(1, 9), repeat=st.integers(1, 4), cold=st.booleans())


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
    passes, misses, hits, _ = plan.effort
    cold = {State.COLD: passes * misses} if plan.cold else {}
    cleared = misses * (1 + plan.cold)
    expected, calls = {
        Propagation.CACHED: (
            {State.MISS: passes * misses, State.HIT: passes * hits, **cold},
            cleared + WARMUP + hits,
        ),
        # The refused hit is that of the rehearsal, which detected that hits do not occur.
        Propagation.NEVER_CACHED: ({State.MISS: passes * misses, State.HIT: 1, **cold}, cleared),
        Propagation.NONE: ({State.CALL: passes * hits}, WARMUP + hits),
    }[propagation_of(figures)]
    is_first_discarded = passes >= 4
    assert count == expected
    assert figures.rounds == passes * misses
    assert bench.op.calls == REHEARSAL + (is_first_discarded + passes) * calls
    assert all(number >= REHEARSAL + is_first_discarded * calls for number in numbers)


# Numbers agreed by ranks


class Settled:
    """Agreement with other ranks on the given numbers."""

    def __init__(self, numbers: tuple[int, ...] | None) -> None:
        self.numbers = numbers
        self.proposed: list[tuple[Sequence[int], str]] = []

    def sync(self, subject: str) -> None:
        raise AssertionError("the caller synchronizes, not the passes")

    def note(self, trail: Trail) -> None:
        raise AssertionError("the caller notes ops, not the passes")

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        self.proposed.append((numbers, step))
        return self.numbers


@pytest.mark.parametrize("max_time_s", [1e-9, 1e9])
def test_ranks_use_agreed_numbers_regardless_of_time(bench: Bench, max_time_s: float) -> None:
    settled = Settled((7, 3, 2, 4))
    figures = bench.take(Plan(20, 2, max_time_s, agreement=settled))
    assert (figures.rounds, counts_of(figures)) == (21, {State.MISS: 21, State.HIT: 14})
    own = Effort(8, 3, 6, WARMUP) if max_time_s == 1e9 else Effort(1, 1, 1, 0)
    assert settled.proposed == [(own, "the calls (propagation: cached)")]
    assert bench.op.calls == REHEARSAL + (1 + 7) * (3 + 4 + 2)
    alone = Bench().take(Plan(20, 2, max_time_s, agreement=Settled(None)))
    assert alone.rounds == own.passes * own.misses, "a rank alone uses its own time limit"


@pytest.mark.parametrize(("miss_ms", "hit_ms", "here"), [(3000, 2000, " (3.0 s here)"), (300, 0.02, "")])
def test_few_agreed_passes_are_noted(miss_ms: float, hit_ms: float, here: str) -> None:
    figures = slow_bench(miss_ms, hit_ms).take(Plan(agreement=Settled((1, 1, 1, 0))))
    assert counts_of(figures) == {State.MISS: 1, State.HIT: 1}
    assert figures.notes == (f"few passes: one call takes longer than the time limit of 1 s{here}",)
