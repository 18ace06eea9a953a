"""Count instructions: as many calls as make a count repeat, whatever ran before.

Two things move a count that are not of the call. CPython replaces byte code by faster byte code while it
runs, for hundreds of calls. And its method cache has 4,096 slots, chosen by addresses and by versions of
types: where two methods of a call fall into one slot, each call searches classes for both, 300 to 600
instructions a time. Which ones do depends on all that the process ever allocated: on the length of an
environment variable, or on a line of code elsewhere. Callgrind leaves lookups of methods out, unless the
compiler inlined them. Where they are counted, as by the hardware, types get new versions before each block of
calls, calls that are not counted follow, and the least of several blocks is a count without such accidents.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from pytest_dtdispatch.core.measurement import INSTRUCTIONS
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.rounds.sampler import Meter, Pace, Profiler, Sampler

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


WARMUP_MISSES = 52  # CPython specialises byte code anew after 53 calls that it does not fit
WARMUP_CALLS = 200  # in a block; with 100 a count in new slots is up to 1.5 % higher
LEAST_CALLS = 5  # of each kind, however many instructions they take
AFFORDABLE_MISSES = 300_000_000  # instructions of misses: 6 to 10 s under callgrind
AFFORDABLE = 100_000_000  # of hits that are not counted
MOST_BLOCKS = 5
# From CPython 3.13 on a class has no more than 1,000 versions in a process, and then is not cached at all.
MOST_LAYOUTS = 600
DEPTH, LEAST_OF_CLASS = 40, 10  # classes that are searched, and instructions that a search takes for each
IN_ONE_LAYOUT = "counted in one layout of CPython's method cache: this process has made too many"


class MethodCache:
    """Make CPython choose new slots of its method cache, by versions of types that it has not had.

    Source: ``PyType_Modified`` of CPython's stable interface, "Invalidate the internal lookup cache for the
    type and all of its subtypes". It tells CPython that ``object`` has changed, which it has not: every type
    then gets another version as soon as it is asked for a method.
    """

    def __init__(self, most_layouts: int = MOST_LAYOUTS) -> None:
        self.modified = ctypes.pythonapi.PyType_Modified
        self.modified.argtypes, self.modified.restype = (ctypes.py_object,), None
        self._left = most_layouts

    def forget(self) -> bool:
        """Forget all versions; false, and nothing is done, where there were too many in this process."""
        if not self._left:
            return False
        self._left -= 1
        self.modified(object)
        return True


def counts_lookups(meter: Meter) -> bool:
    """Tell whether a meter counts how CPython searches many classes for a name, once it has to do so anew."""
    derived: type = object
    for _ in range(DEPTH):
        derived = type("Derived", (derived,), {})
    modified = MethodCache().modified

    def least(forget: type) -> int:
        counts = []
        for _ in range(LEAST_CALLS):
            modified(forget)
            begun = meter.begin()
            hasattr(derived, "no_such_name")
            counts.append(meter.end() - begun)
        return min(counts)

    least(Unrelated)  # specialises the byte code
    return least(derived) - least(Unrelated) > DEPTH * LEAST_OF_CLASS


class Unrelated:
    """To modify it changes no other class."""


class InstructionSampler(Sampler):
    """Instructions of this process; every round is taken, however long it lasts.

    Args:
        make_meter: begins to count; called once, by the first row: whatever runs before it, imports included,
            runs at full speed. It returns what counts, and what tells where the instructions of one call more
            went, if that was asked for.
        forget_methods: makes CPython fill its method cache anew, in other slots; false where it cannot. Where
            none is given, types get new versions if the meter counts lookups, and else hits have one block.
    """

    name, unit, is_exact = "instructions", INSTRUCTIONS, True

    def __init__(
        self,
        make_meter: Callable[[], tuple[Meter, Profiler | None]],
        forget_methods: Callable[[], bool] | None = None,
    ) -> None:
        self._make_meter = make_meter
        self._meter: Meter | None = None
        self._forget_methods = forget_methods
        self._has_layouts = True

    @property
    def meter(self) -> Meter:
        """What counts; the first who asks for it begins to count."""
        if self._meter is None:
            self._meter, self.profiler = self._make_meter()
            if self._forget_methods is None and counts_lookups(self._meter):
                self._forget_methods = MethodCache().forget
        return self._meter

    def refresh(self) -> None:
        """Let calls that follow have other slots of the method cache."""
        if self._forget_methods is not None:
            self._has_layouts = self._forget_methods()

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace:
        """Make as many calls as can be afforded before those that are counted."""
        affordable = AFFORDABLE // max(hit, 1)
        most = 1 if self._forget_methods is None else MOST_BLOCKS
        blocks = min(max(affordable // WARMUP_CALLS, 1), rounds, most)
        return Pace(
            warmup_misses=min(max(AFFORDABLE_MISSES // max(miss, 1) - rounds, LEAST_CALLS), WARMUP_MISSES),
            blocks=blocks,
            warmup=min(max(affordable // blocks, LEAST_CALLS), WARMUP_CALLS),
            repeat=max(min(rounds * repeat, affordable) // blocks, math.ceil(LEAST_CALLS / blocks)),
        )

    def remarks(self) -> tuple[str, ...]:
        """Return a line where the method cache could not be changed any more."""
        return () if self._has_layouts else (IN_ONE_LAYOUT,)
