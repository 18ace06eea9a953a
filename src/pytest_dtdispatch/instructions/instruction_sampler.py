"""Sampler of instructions, with enough warm-up calls for a reproducible count.

Two effects outside the call change a count. First, CPython specializes byte code during hundreds of calls.
Second, its method cache has 4,096 slots, indexed by addresses and versions of types: if two methods of a call
share a slot, each call searches classes for both, which takes 300 to 600 instructions. Collisions depend on
all earlier allocations of the process, for example on the length of an environment variable or on a line of
unrelated code.

Callgrind excludes method lookups, unless the compiler inlined them. The hardware counter includes them:
before each block of calls, types get new versions, warm-up calls follow, and the minimum over several blocks
is a count without collisions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from pytest_dtdispatch.core.measurement import INSTRUCTIONS
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.rounds.sampler import Meter, Pace, Profiler, Sampler


def check(meter: Meter, name: str) -> None:
    """Check that a meter reads a plausible difference between loops of 1,000 and 11,000 iterations."""
    for turns in (1_000, 11_000):  # the first calls of a function specialize its byte code
        count_loop(meter, turns)
    short, long = count_loop(meter, 1_000), count_loop(meter, 11_000)
    for reading in (short, long):
        if not INSTRUCTIONS.holds(reading):
            raise MeterError(f"{name} reads {reading}")
    if not 1 <= (long - short) / 10_000 <= 1_000:  # instructions of an iteration of an empty loop in Python
        raise MeterError(f"{name} reads {short:,} for 1,000 turns of a loop and {long:,} for 11,000")


def count_loop(meter: Meter, turns: int) -> int:
    """Return the number of instructions of an empty loop."""
    begun = meter.begin()
    for _ in range(turns):
        pass
    return meter.end() - begun


WARMUP_MISSES = 52  # CPython specializes byte code again after 53 calls that do not match it
WARMUP_CALLS = 200  # per block; with 100, a count in new slots is up to 1.5 % higher
MIN_CALLS = 5  # minimum of warm-up and counted calls, regardless of their instructions
AFFORDABLE_MISSES = 300_000_000  # instructions of misses: 6 to 10 s under callgrind
AFFORDABLE = 100_000_000  # instructions of warm-up hits
HIT_BLOCKS = 5  # maximum number of blocks of hits
# In CPython 3.13 and later, a class has at most 1,000 versions in a process, and is not cached after that.
MAX_LAYOUTS = 600


def forget_methods(of: type = object) -> None:
    """Mark a type and its subtypes as changed: at its next method lookup, each gets a new version.

    Source: ``PyType_Modified`` of CPython's stable interface, "Invalidate the internal lookup cache for the
    type and all of its subtypes".
    """
    modified = ctypes.pythonapi.PyType_Modified
    modified.argtypes, modified.restype = (ctypes.py_object,), None
    modified(of)


def counts_lookups(meter: Meter) -> bool:
    """Return whether a meter counts CPython's search of many classes for a name, after an invalidation."""
    derived: type = object
    depth = 40
    for _ in range(depth):
        derived = type("Derived", (derived,), {})
    unrelated = type("Unrelated", (), {})  # its modification changes no other class

    def minimum(of: type) -> int:
        counts = []
        for _ in range(MIN_CALLS):
            forget_methods(of)
            begun = meter.begin()
            hasattr(derived, "no_such_name")
            counts.append(meter.end() - begun)
        return min(counts)

    minimum(unrelated)  # specializes the byte code
    return minimum(derived) - minimum(unrelated) > 10 * depth  # at least 10 instructions for each class


class InstructionSampler(Sampler):
    """Sampler of instructions of this process; all rounds are measured, regardless of the time limit.

    Args:
        make_meter: function that starts counting, and returns the meter, and a profiler if requested. It is
            called once, for the first row, so that earlier code such as imports runs at full speed.
        forget_methods: function that moves methods to other slots of CPython's method cache. By default
            types get new versions if the meter counts lookups; if not, hits have one block.
    """

    name, unit, is_exact = "instructions", INSTRUCTIONS, True

    def __init__(
        self,
        make_meter: Callable[[], tuple[Meter, Profiler | None]],
        forget_methods: Callable[[], object] | None = None,
    ) -> None:
        self._make_meter = make_meter
        self._meter: Meter | None = None
        self._forget_methods = forget_methods
        self._layouts = 0  # of the method cache that were requested so far

    @property
    def meter(self) -> Meter:
        """Meter; the first access starts counting."""
        if self._meter is None:
            self._meter, self.profiler = self._make_meter()
            if self._forget_methods is None and counts_lookups(self._meter):
                self._forget_methods = forget_methods
        return self._meter

    def refresh(self) -> None:
        """Move the following calls to other slots of the method cache, unless it has had too many layouts."""
        if self._forget_methods is None:
            return
        self._layouts += 1
        if self._layouts <= MAX_LAYOUTS:
            self._forget_methods()

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace:
        """Return the affordable numbers of warm-up and counted calls."""
        affordable = AFFORDABLE // max(hit, 1)
        max_blocks = 1 if self._forget_methods is None else HIT_BLOCKS
        blocks = min(max(affordable // WARMUP_CALLS, 1), rounds, max_blocks)
        return Pace(
            warmup_misses=min(max(AFFORDABLE_MISSES // max(miss, 1) - rounds, MIN_CALLS), WARMUP_MISSES),
            blocks=blocks,
            warmup=min(max(affordable // blocks, MIN_CALLS), WARMUP_CALLS),
            repeat=max(min(rounds * repeat, affordable) // blocks, math.ceil(MIN_CALLS / blocks)),
        )

    def remarks(self) -> tuple[str, ...]:
        """Return a remark if the method cache can no longer be invalidated."""
        if self._layouts <= MAX_LAYOUTS:
            return ()
        return ("counted in one layout of CPython's method cache: this process has made too many",)
