"""Rounds of compiles: cold, warm, then calls; and what torch's counters prove of each. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.measuring.plan import WARMUP_HITS
from pytest_dtdispatch.measuring.proof import Reader, SampleRecorder, TimedCalls, gc_paused, nothing_to_do
from pytest_dtdispatch.measuring.rounds import Subject, samples_of, time_row
from pytest_dtdispatch.measuring.sampler import SAMPLERS, Sampler

NO_GRAPH = "no graph was compiled"
FROM_CACHE = "a cache of compiled code answered"
NOT_EMPTY = "a cache was not empty"
COMPILED_AGAIN = "something was compiled"


@dataclass(frozen=True)
class CompilePlan:
    """How much is compiled, and by what, where a test does not say.

    Args:
        backend: of torch.compile.
        rounds: cold compiles, and as many warm ones.
        calls: of the compiled function in each round, and of the uncompiled one.
        fake_tensor_cache: settings that are compared; empty to keep torch's own.
        sampler: reads each call; where all read alike there are no warm compiles.
    """

    backend: str = "inductor"
    rounds: int = 5
    calls: int = 40
    fake_tensor_cache: tuple[bool, ...] = ()
    sampler: Sampler = field(default_factory=lambda: SAMPLERS["time"])


class Compiler(Protocol):
    """What the rounds ask of a compiler."""

    def compile(self) -> Callable[..., Any]:
        """Make the compiled function; its first call compiles."""

    def cold(self) -> AbstractContextManager[None]:
        """Keep caches of compiled code empty and off."""

    def warm(self) -> AbstractContextManager[None]:
        """Give the caches of compiled code that earlier warm compiles filled."""

    def forget(self) -> None:
        """Forget compiled programs."""

    def forget_all(self) -> bool:
        """Forget compiled programs, and all that makes tracing cheaper; tell whether nothing is left."""

    def look_ups(self) -> Sequence[int]:
        """Read graphs compiled so far, and hits and misses of caches of compiled code."""

    def graphs(self) -> int:
        """Read graphs compiled so far."""

    def note_cold(self, compiled: Callable[..., Any]) -> None:
        """Note what the cold compile that has just ended did, before anything else is called."""

    def begin_calls(self) -> None:
        """Take what is compiled by now as known."""

    def note_calls(self) -> None:
        """Note what the calls of a compiled function did."""

    def call_others(self, compiled: Callable[..., Any]) -> tuple[Any, ...]:
        """Call the compiled function with every other arguments that were given."""


class CompileRounds:
    """Take rounds of one function in one setting."""

    def __init__(
        self,
        compiler: Compiler,
        subject: Subject,
        plan: CompilePlan,
        synchronize: Callable[[], None] = nothing_to_do,
    ) -> None:
        self._compiler = compiler
        self._subject = subject
        self._plan = plan
        self._meter = plan.sampler.meter
        self._synchronize = synchronize
        self._compiled: Callable[..., Any] = subject.fn
        self._recorder = SampleRecorder(plan.sampler.unit)
        self._why_no_program = NO_GRAPH
        self._warm_look_ups = (0, 0)
        self._rounds = 0

    def rehearse(self) -> tuple[Any, ...]:
        """Compile once and discard the figure: it pays for imports, and fills the caches of warm compiles."""
        __tracebackhide__ = True
        with self._compiler.warm():
            self._compiler.forget()
            result = self._first_call(*self._subject.prepare())
            return (result, *self._compiler.call_others(self._compiled))

    def take_round(self) -> None:
        """Compile cold, compile warm, call."""
        with self._compiler.cold():
            self._cold()
            if self._plan.sampler.is_exact:
                self._compiled_calls()
        if not self._plan.sampler.is_exact:
            with self._compiler.warm():
                self._warm()
                self._compiled_calls()
        self._calls(State.EAGER, self._subject.fn)
        self._rounds += 1

    def figures(self) -> Figures:
        """What the rounds gave."""
        return Figures(self._rounds, samples_of(self._recorder), self._warm_notes())

    def _first_call(self, *args: Any) -> Any:
        __tracebackhide__ = True
        self._compiled = self._compiler.compile()
        return self._compiled(*args)

    def _cold(self) -> None:
        emptied: list[bool] = []
        figure, (graphs, hits, _) = self._compile(lambda: emptied.append(self._compiler.forget_all()))
        self._compiler.note_cold(self._compiled)
        why_not = NO_GRAPH if not graphs else FROM_CACHE if hits else "" if emptied[0] else NOT_EMPTY
        self._recorder.record(State.COMPILE_COLD, figure, why_not)

    def _warm(self) -> None:
        figure, (graphs, hits, misses) = self._compile(self._compiler.forget)
        self._recorder.record(State.COMPILE_WARM, figure, "" if graphs else NO_GRAPH)
        self._warm_look_ups = (hits, misses)

    def _compile(self, forget: Callable[[], None]) -> tuple[int, tuple[int, int, int]]:
        """Time one compile, and tell how far torch's counters moved."""
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = self._subject.prepare()
                collect()
                forget()
                return args

            self._synchronize()
            subject = replace(self._subject, fn=self._first_call)
            [(figure, before, after)] = time_row(subject, self._meter, prepare, self._compiler.look_ups, 1)
        graphs, hits, misses = (new - old for old, new in zip(before, after, strict=True))
        self._why_no_program = "" if graphs else NO_GRAPH
        return figure, (graphs, hits, misses)

    def _compiled_calls(self) -> None:
        self._compiler.begin_calls()
        self._calls(State.CALL, self._compiled, self._why_no_program)
        self._compiler.note_calls()

    def _calls(self, state: State, fn: Callable[..., Any], why_not: str = "") -> None:
        with gc_paused():
            self._timed(fn, WARMUP_HITS)
            for figure, before, after in self._timed(fn, self._plan.calls):
                again = COMPILED_AGAIN if after != before else ""
                self._recorder.record(state, figure, why_not or again)

    def _timed(self, fn: Callable[..., Any], calls: int) -> TimedCalls:
        self._synchronize()
        read: Reader = lambda: (self._compiler.graphs(),)  # noqa: E731 (a name of its type)
        subject = replace(self._subject, fn=fn)
        return time_row(subject, self._meter, subject.prepare, read, calls)

    def _warm_notes(self) -> tuple[str, ...]:
        hits, misses = self._warm_look_ups
        if hits or not self._recorder.recorded(State.COMPILE_WARM):
            return ()
        asked = f"{misses} look-ups found nothing" if misses else "none was asked"
        return (f"compile-warm: no cache of compiled code answered: {asked}",)
