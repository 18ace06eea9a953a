"""Rounds of compiles: what is cleared, what is timed, what torch's counters let through. All scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_dtdispatch.compiled.measure import (
    COMPILED_AGAIN,
    FROM_CACHE,
    NO_GRAPH,
    NOT_EMPTY,
    CompileRounds,
)
from pytest_dtdispatch.compiled.model import CompilePlan
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State
from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.measuring.rounds import NOT_COUNTED, Subject
from pytest_dtdispatch.measuring.sampler import Meter, WallClock

pytestmark = pytest.mark.torch

COMPILE_NS, CALL_NS, EAGER_NS = 1_000_000, 50, 7
WARMUP = 10


class Clock:
    """A clock that only calls move."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class FakeCompiler:
    """Compiles a function whose calls take known times, and counts as torch does."""

    def __init__(self, clock: Clock) -> None:
        self.events: list[str] = []
        self.has_graph = True
        self.hits_when_cold = 0
        self.hits_when_warm = 1
        self.misses_when_warm = 0
        self.is_emptied = True
        self.recompiling_calls = 0
        self.compiled = False
        self._clock = clock
        self._state = ""
        self._graphs = self._hits = self._misses = 0

    def compile(self) -> Callable[..., Any]:
        return self._call

    def _call(self, *args: Any) -> str:
        if not self.compiled:
            self.events.append(f"compile {self._state}")
            self.compiled = True
            self._clock.now += COMPILE_NS
            self._graphs += self.has_graph
            is_cold = self._state == "cold"
            self._hits += self.hits_when_cold if is_cold else self.hits_when_warm
            self._misses += 0 if is_cold else self.misses_when_warm
        elif self.recompiling_calls:
            self.recompiling_calls -= 1
            self._graphs += 1
        self._clock.now += CALL_NS
        return f"{self._state} {args}"

    @contextmanager
    def cold(self) -> Iterator[None]:
        self._state = "cold"
        yield
        self._state = ""

    @contextmanager
    def warm(self) -> Iterator[None]:
        self._state = "warm"
        yield
        self._state = ""

    def forget(self) -> None:
        self.compiled = False

    def forget_all(self) -> bool:
        self.forget()
        self.events.append("empty")
        return self.is_emptied

    def look_ups(self) -> Sequence[int]:
        return self._graphs, self._hits, self._misses

    def graphs(self) -> tuple[int]:
        return (self._graphs,)

    def note_cold(self, compiled: Callable[..., Any]) -> None:
        self.events.append(f"noted {compiled(9)}")

    def begin_calls(self) -> None:
        self.events.append("calls")

    def note_calls(self) -> None:
        self.events.append("called")

    def call_others(self, compiled: Callable[..., Any]) -> tuple[Any, ...]:
        return (compiled("other"),)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def compiler(clock: Clock) -> FakeCompiler:
    return FakeCompiler(clock)


def rounds_of(compiler: Any, clock: Clock, **more: Any) -> CompileRounds:
    def eager(*args: Any) -> None:
        clock.now += EAGER_NS

    subject = Subject(eager, lambda: (1, 2))
    plan = CompilePlan(calls=3, **{"sampler": WallClock(clock), **more})
    return CompileRounds(compiler, subject, plan)


def counting(begin: Callable[[], int], end: Callable[[], int]) -> InstructionSampler:
    sampler = InstructionSampler(lambda: (Meter(begin, end), None))
    sampler.start()
    return sampler


def take(compiler: FakeCompiler, clock: Clock, rounds: int = 1) -> dict[State, Samples]:
    taking = rounds_of(compiler, clock)
    for _ in range(rounds):
        taking.take_round()
    return {samples.state: samples for samples in taking.figures().samples}


def refusals(samples: Samples) -> list[str]:
    return [str(refused) for refused in samples.refused]


def test_the_rehearsal_compiles_warm_and_gives_every_result(compiler: FakeCompiler, clock: Clock) -> None:
    taking = rounds_of(compiler, clock)
    assert taking.rehearse() == ("warm (1, 2)", "warm ('other',)")
    assert compiler.events == ["compile warm"]
    assert not taking.figures().samples


def test_each_figure_is_that_of_its_state(compiler: FakeCompiler, clock: Clock) -> None:
    taken = take(compiler, clock, rounds=2)
    first = COMPILE_NS + CALL_NS
    assert {state: samples.ns for state, samples in taken.items()} == {
        State.COMPILE_COLD: (first,) * 2,
        State.COMPILE_WARM: (first,) * 2,
        State.CALL: (CALL_NS,) * 6,
        State.EAGER: (EAGER_NS,) * 6,
    }
    assert not any(samples.refused for samples in taken.values())


def test_caches_are_emptied_right_before_a_cold_compile_and_noted_right_after(
    compiler: FakeCompiler, clock: Clock
) -> None:
    take(compiler, clock)
    assert compiler.events == ["empty", "compile cold", "noted cold (9,)", "compile warm", "calls", "called"]


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [("hits_when_cold", 1, FROM_CACHE), ("is_emptied", False, NOT_EMPTY), ("has_graph", False, NO_GRAPH)],
)
def test_a_cold_compile_that_was_none_is_refused(
    compiler: FakeCompiler, clock: Clock, attribute: str, value: Any, reason: str
) -> None:
    setattr(compiler, attribute, value)
    cold = take(compiler, clock)[State.COMPILE_COLD]
    assert (cold.ns, refusals(cold)) == ((), [f"{reason} (1x)"])


def test_where_nothing_is_compiled_no_call_is_one_of_a_compiled_function(
    compiler: FakeCompiler, clock: Clock
) -> None:
    compiler.has_graph = False
    taken = take(compiler, clock)
    assert refusals(taken[State.COMPILE_WARM]) == [f"{NO_GRAPH} (1x)"]
    assert refusals(taken[State.CALL]) == [f"{NO_GRAPH} (3x)"]
    assert len(taken[State.EAGER].ns) == 3


def test_a_call_that_compiles_is_refused(compiler: FakeCompiler, clock: Clock) -> None:
    compiler.recompiling_calls = WARMUP + 3  # one was taken right after the cold compile
    call = take(compiler, clock)[State.CALL]
    assert (len(call.ns), refusals(call)) == (1, [f"{COMPILED_AGAIN} (2x)"])


@pytest.mark.parametrize(
    ("hits", "misses", "says"),
    [(1, 0, ""), (1, 1, ""), (0, 2, "2 look-ups found nothing"), (0, 0, "none was asked")],
)
def test_a_warm_compile_says_where_no_cache_answered(
    compiler: FakeCompiler, clock: Clock, hits: int, misses: int, says: str
) -> None:
    compiler.hits_when_warm, compiler.misses_when_warm = hits, misses
    taking = rounds_of(compiler, clock)
    taking.take_round()
    notes = taking.figures().notes
    assert notes == ((f"compile-warm: no cache of compiled code answered: {says}",) if says else ())


def test_instructions_are_counted_of_cold_compiles_and_of_calls(compiler: FakeCompiler, clock: Clock) -> None:
    taking = rounds_of(compiler, clock, sampler=counting(lambda: clock.now, lambda: clock.now))
    taking.take_round()
    figures = taking.figures()
    counts = {counted.state: counted.values for counted in figures.samples}
    assert counts == {
        State.COMPILE_COLD: (COMPILE_NS + CALL_NS,),
        State.CALL: (CALL_NS,) * 3,
        State.EAGER: (EAGER_NS,) * 3,
    }
    assert {counted.unit for counted in figures.samples} == {INSTRUCTIONS}
    assert "compile warm" not in compiler.events


def test_a_meter_that_does_not_count_gives_no_count(compiler: FakeCompiler, clock: Clock) -> None:
    taking = rounds_of(compiler, clock, sampler=counting(lambda: 0, lambda: 2**64 - 1))
    taking.take_round()
    for counted in taking.figures().samples:
        assert not counted.values
        assert str(counted.refused[0]).startswith(NOT_COUNTED)
