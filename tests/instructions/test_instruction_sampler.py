"""Rounds that count instructions: warm-up, counted calls and refused samples. All scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Figures, Profile, State
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions import instruction_sampler
from pytest_dtdispatch.instructions.instruction_sampler import (
    AFFORDABLE,
    AFFORDABLE_MISSES,
    HIT_BLOCKS,
    MAX_LAYOUTS,
    MIN_CALLS,
    WARMUP_CALLS,
    WARMUP_MISSES,
    InstructionSampler,
    check,
    counts_lookups,
    forget_methods,
)
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import Meter, Profiler
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench, figures_of

REHEARSAL = 4  # calls before the first round
SHORT = 1000  # instructions of a call whose planned number fits the limit
FIRST_MISS = REHEARSAL + WARMUP_MISSES


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Script:
    """A meter that reads the number of the call plus a constant, and a method cache that logs.

    Args:
        bench: provides the counted op.
        instructions: instructions of every call, without its number.
    """

    def __init__(self, bench: Bench, instructions: int = SHORT) -> None:
        self.bench = bench
        self.instructions = instructions
        self.readings: dict[int, int] = {}
        self.forgotten_at: list[int] = []
        self.profiler: Profiler | None = None
        self.sampler = InstructionSampler(lambda: (Meter(lambda: 0, self.end), self.profiler), self.forget)

    def forget(self) -> None:
        self.forgotten_at.append(self.bench.op.calls)

    def end(self) -> int:
        number = self.bench.op.calls - 1
        return self.readings.get(number, self.instructions + number)

    def take(self, rounds: int, repeat: int) -> Figures:
        self.sampler.start()
        plan = Plan(rounds, repeat, max_time_s=0.0, sampler=self.sampler)
        return figures_of(Rounds(Subject(self.bench.op, tuple), self.bench.caches, plan))

    def calls_of(self, figures: Figures, state: State) -> list[int]:
        """Return the numbers of the calls whose counts were recorded."""
        [counted] = [one for one in figures.samples if one.state is state]
        return [count - self.instructions for count in counted.values]


def test_nothing_is_counted_before_the_first_row() -> None:
    meters: list[Meter] = []

    def make() -> tuple[Meter, None]:
        meters.append(Meter(lambda: 0, lambda: 0))
        return meters[-1], None

    sampler = InstructionSampler(make, lambda: True)
    sampler.start()
    assert not meters
    assert sampler.meter is sampler.meter is meters[0]
    assert len(meters) == 1


def test_first_misses_are_discarded_before_counting(bench: Bench) -> None:
    script = Script(bench)
    figures = script.take(rounds=3, repeat=2)
    assert {one.unit for one in figures.samples} == {INSTRUCTIONS}
    assert script.calls_of(figures, State.MISS) == [FIRST_MISS, FIRST_MISS + 1, FIRST_MISS + 2]


def test_each_round_clears_methods_before_counting_hits(bench: Bench) -> None:
    script = Script(bench)
    figures = script.take(rounds=3, repeat=2)
    first_hit = FIRST_MISS + 3
    starts = [first_hit + n * (WARMUP_CALLS + 2) for n in range(3)]
    assert script.forgotten_at == [0, *starts[1:]]  # every row starts the same way
    expected = [start + WARMUP_CALLS + n for start in starts for n in range(2)]
    assert script.calls_of(figures, State.HIT) == expected


@pytest.mark.parametrize(
    ("instructions", "misses", "layouts", "hits"),
    [
        (SHORT, WARMUP_MISSES, 5, 10),
        (AFFORDABLE_MISSES // 30, 30 - 5, 1, 9),
        (AFFORDABLE // (WARMUP_CALLS * 3), WARMUP_MISSES, 2, 10),
        (AFFORDABLE * 10, MIN_CALLS, 1, MIN_CALLS),
    ],
)
def test_uncounted_calls_are_limited_by_instructions(
    bench: Bench, instructions: int, misses: int, layouts: int, hits: int
) -> None:
    script = Script(bench, instructions)
    figures = script.take(rounds=5, repeat=2)
    assert figures.rounds == 5  # although the time budget of the plan is 0
    assert script.calls_of(figures, State.MISS)[0] == REHEARSAL + misses
    assert len(script.calls_of(figures, State.MISS)) == 5
    assert len(script.forgotten_at) == layouts
    assert len(script.calls_of(figures, State.HIT)) == hits


def test_hit_blocks_are_limited_in_many_rounds(bench: Bench) -> None:
    script = Script(bench)
    figures = script.take(rounds=12, repeat=3)
    assert len(script.calls_of(figures, State.MISS)) == 12
    assert len(script.forgotten_at) == HIT_BLOCKS
    assert len(script.calls_of(figures, State.HIT)) == 12 * 3 // HIT_BLOCKS * HIT_BLOCKS


def test_without_counted_lookups_hits_have_one_block(bench: Bench) -> None:
    script = Script(bench)
    script.sampler = InstructionSampler(lambda: (Meter(lambda: 0, script.end), None))
    figures = script.take(rounds=3, repeat=2)
    first_hit = FIRST_MISS + 3 + WARMUP_CALLS
    assert script.calls_of(figures, State.HIT) == [first_hit + n for n in range(6)]
    assert figures.remarks == ()


def test_expensive_hits_are_counted_fewer_times(bench: Bench) -> None:
    figures = (script := Script(bench, AFFORDABLE // 7)).take(rounds=12, repeat=3)
    assert len(script.calls_of(figures, State.HIT)) == 6  # the first hit reads slightly more


def test_unpropagated_calls_are_counted_like_hits(bench: Bench) -> None:
    bench.op_that(lambda number: None)
    script = Script(bench)
    figures = script.take(rounds=2, repeat=5)
    start = REHEARSAL + WARMUP_CALLS
    second = start + 5 + WARMUP_CALLS
    assert script.calls_of(figures, State.CALL) == [*range(start, start + 5), *range(second, second + 5)]


@pytest.mark.parametrize("reading", [0, 2**64 - 1])
def test_invalid_counter_readings_are_refused(bench: Bench, reading: int) -> None:
    script = Script(bench)
    first_hit = FIRST_MISS + 1 + WARMUP_CALLS
    script.readings = {FIRST_MISS: reading, first_hit: reading}
    figures = script.take(rounds=1, repeat=5)
    by_state = {one.state: one for one in figures.samples}
    assert by_state[State.MISS].values == ()
    assert script.calls_of(figures, State.HIT) == [first_hit + n for n in range(1, 5)]
    for counted in by_state.values():
        assert [str(reason) for reason in counted.refused] == ["the meter did not count (1x)"]


def test_exhausted_method_cache_versions_add_a_remark(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(bench)
    assert script.take(rounds=2, repeat=2).remarks == ()
    monkeypatch.setattr(instruction_sampler, "MAX_LAYOUTS", 2)
    [remark] = script.take(rounds=2, repeat=2).remarks
    assert remark.startswith("counted in one layout")
    assert len(script.forgotten_at) == 2
    assert 0 < MAX_LAYOUTS < 1000, "versions of a type in a process"


def test_each_counted_state_is_profiled(bench: Bench) -> None:
    seen: list[int] = []

    def profile(fn: Callable[..., None], prepare: Callable[[], tuple[()]], kwargs: object) -> Profile:
        args = prepare()
        misses = bench.caches.native.misses
        fn(*args)
        seen.append(bench.caches.native.misses - misses)
        return Profile((), 1)

    script = Script(bench)
    script.profiler = profile
    figures = script.take(rounds=1, repeat=1)
    assert seen == [1, 0]
    assert [each.state for each in figures.samples if each.profile] == [State.MISS, State.HIT]


def test_methods_that_share_a_slot_are_forgotten(bench: Bench) -> None:
    """In every second layout a call takes 600 more instructions: the minimum excludes them."""
    script = Script(bench)
    even: Callable[[], int] = lambda: 36_000 + 600 * (len(script.forgotten_at) % 2)  # noqa: E731
    script.end = even  # type: ignore[method-assign]
    figures = script.take(rounds=4, repeat=2)
    [hits] = [one for one in figures.samples if one.state is State.HIT]
    assert (hits.figure, hits.span) == (36_000, 600)


# CPython's method cache


class Base:
    def method(self) -> str:
        return "base"


class Derived(Base):
    pass


def test_cleared_method_cache_finds_methods_and_changes() -> None:
    derived = Derived()
    for _ in range(3):
        forget_methods()
        assert derived.method() == "base"
        assert str(1) + repr([2]) == "1[2]"
    Derived.method = lambda self: "derived"  # type: ignore[method-assign]
    try:
        assert derived.method() == "derived"
    finally:
        del Derived.method
    assert derived.method() == "base"


@pytest.mark.parametrize(("searched", "counts"), [(3_000, False), (3_300, False), (5_900, True)])
def test_lookup_counting_of_a_meter_is_detected(searched: int, counts: bool) -> None:
    script = iter([3_000] * MIN_CALLS + [searched] * MIN_CALLS + [3_000] * MIN_CALLS)
    assert counts_lookups(Meter(lambda: 0, lambda: next(script))) is counts


def test_hits_have_more_blocks_if_lookups_are_counted(bench: Bench) -> None:
    script = Script(bench)
    costs = iter([3_000] * MIN_CALLS + [5_900] * MIN_CALLS + [3_000] * MIN_CALLS)
    script.sampler = InstructionSampler(
        lambda: (Meter(lambda: 0, lambda: next(costs, None) or script.end()), None)
    )
    figures = script.take(rounds=3, repeat=2)
    starts = [FIRST_MISS + 3 + n * (WARMUP_CALLS + 2) + WARMUP_CALLS for n in range(3)]
    assert script.calls_of(figures, State.HIT) == [start + n for start in starts for n in range(2)]


def reading(*readings: int) -> Meter:
    """Return a meter with these readings: a short and a long warm-up loop, then a short and a long loop."""
    script: Iterator[int] = iter(readings)
    return Meter(lambda: 0, lambda: next(script))


@pytest.mark.parametrize(
    ("meter", "message"),
    [
        (reading(1, 1, 0, 0), "a meter reads 0"),
        (reading(1, 1, 2**64 - 1, 2**64 - 1), "a meter reads 18446744073709551615"),
        (reading(1, 1, 5, 5), "a meter reads 5 for 1,000 turns of a loop and 5 for 11,000"),
        (reading(1, 1, 445_000, 45_000), "a meter reads 445,000 for 1,000 turns"),
        (reading(1, 1, 1_000, 2**40), "a meter reads 1,000 for 1,000 turns"),
    ],
)
def test_broken_meter_is_refused_in_one_line(meter: Meter, message: str) -> None:
    with pytest.raises(MeterError) as raised:
        check(meter, "a meter")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_meter_overhead_is_subtracted_in_its_check() -> None:
    counts = iter((60_000, 600_000, 45_000, 445_000))
    check(Meter(lambda: 7, lambda: next(counts) + 7), "a meter")
