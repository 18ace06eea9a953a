"""Count instructions: as many calls as make a count repeat, whatever ran before.

Two things move a count that are not of the call. CPython replaces byte code by faster byte code while it
runs, for hundreds of calls. And its method cache has 4,096 slots, chosen by addresses and by versions of
types: where two methods of a call fall into one slot, each call searches classes for both, 300 to 600
instructions a time. Which ones do depends on all that the process ever allocated: on the length of an
environment variable, or on a line of code elsewhere. So types get new versions before each block of calls,
calls that are not counted follow, and the least of several blocks is a count without such accidents.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from pytest_dtdispatch.core.measurement import INSTRUCTIONS
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.measuring.sampler import Meter, Pace, Profiler, Sampler

SHORT, LONG = 1_000, 11_000
FEWEST, MOST = 1, 1_000  # instructions that Python takes for a turn of an empty loop


def check(meter: Meter, name: str) -> None:
    """Count two loops, of which one is longer by 10,000 turns."""
    for turns in (SHORT, LONG):  # the first calls of a function specialise its byte code
        count_loop(meter, turns)
    short, long = count_loop(meter, SHORT), count_loop(meter, LONG)
    for reading in (short, long):
        if not INSTRUCTIONS.holds(reading):
            raise MeterError(f"{name} reads {reading}")
    per_turn = (long - short) / (LONG - SHORT)
    if not FEWEST <= per_turn <= MOST:
        raise MeterError(f"{name} reads {short:,} for {SHORT:,} turns of a loop and {long:,} for {LONG:,}")


def count_loop(meter: Meter, turns: int) -> int:
    """Count an empty loop."""
    begun = meter.begin()
    for _ in range(turns):
        pass
    return meter.end() - begun


WARMUP_MISSES = 45
WARMUP_CALLS = 200  # in a block; with 100 a count is up to 1.5 % higher
LEAST_CALLS = 5  # of each kind, however many instructions they take
AFFORDABLE_MISSES = 300_000_000  # instructions of misses that are not counted: 6 to 10 s under callgrind
AFFORDABLE = 100_000_000  # of hits
# From CPython 3.13 on a class has no more than 1,000 versions in a process, and then is not cached at all.
MOST_LAYOUTS = 600
IN_ONE_LAYOUT = "counted in one layout of CPython's method cache: this process has made too many"


class MethodCache:
    """Make CPython choose new slots of its method cache, by versions of types that it has not had.

    Source: ``PyType_Modified`` of CPython's stable interface, "Invalidate the internal lookup cache for the
    type and all of its subtypes". It tells CPython that ``object`` has changed, which it has not: every type
    then gets another version as soon as it is asked for a method.
    """

    def __init__(self, most_layouts: int = MOST_LAYOUTS) -> None:
        self._modified = ctypes.pythonapi.PyType_Modified
        self._modified.argtypes, self._modified.restype = (ctypes.py_object,), None
        self._left = most_layouts

    def forget(self) -> bool:
        """Forget all versions; false, and nothing is done, where there were too many in this process."""
        if not self._left:
            return False
        self._left -= 1
        self._modified(object)
        return True


class InstructionSampler(Sampler):
    """Instructions of this process; every round is taken, however long it lasts.

    Args:
        make_meter: begins to count; called once, by the first row: whatever runs before it, imports included,
            runs at full speed. It returns what counts, and what tells where the instructions of one call more
            went, if that was asked for.
        forget_methods: makes CPython fill its method cache anew, in other slots; false where it cannot.
    """

    name, unit, is_exact = "instructions", INSTRUCTIONS, True

    def __init__(
        self,
        make_meter: Callable[[], tuple[Meter, Profiler | None]],
        forget_methods: Callable[[], bool] | None = None,
    ) -> None:
        self._make_meter = make_meter
        self._meter: Meter | None = None
        self._forget_methods = forget_methods or MethodCache().forget
        self._has_layouts = True

    @property
    def meter(self) -> Meter:
        """What counts; the first who asks for it begins to count."""
        if self._meter is None:
            self._meter, self.profiler = self._make_meter()
        return self._meter

    def refresh(self) -> None:
        """Let calls that follow have other slots of the method cache."""
        self._has_layouts = self._forget_methods()

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace:
        """Make as many calls as can be afforded before those that are counted."""
        affordable = AFFORDABLE // max(hit, 1)
        blocks = min(max(affordable // WARMUP_CALLS, 1), rounds)
        return Pace(
            warmup_misses=min(max(AFFORDABLE_MISSES // max(miss, 1), LEAST_CALLS), WARMUP_MISSES),
            blocks=blocks,
            warmup=min(max(affordable // blocks, LEAST_CALLS), WARMUP_CALLS),
            repeat=max(repeat, math.ceil(LEAST_CALLS / blocks)),
        )

    def remarks(self) -> tuple[str, ...]:
        """Return a line where the method cache could not be changed any more."""
        return () if self._has_layouts else (IN_ONE_LAYOUT,)
