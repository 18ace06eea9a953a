"""Check that a meter counts, by what it reads of loops of known lengths."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import INSTRUCTIONS
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.measuring.sampler import Meter

SHORT, LONG = 1_000, 11_000
FEWEST, MOST = 1, 1_000  # instructions that Python takes for a turn of an empty loop


def check(meter: Meter, name: str) -> None:
    """Count two loops, of which one is longer by 10,000 turns.

    Example:
        >>> check(Meter(lambda: 0, lambda: 2**64 - 1), "the hardware counter")
        Traceback (most recent call last):
        pytest_dtdispatch.errors.MeterError: the hardware counter reads 18446744073709551615
    """
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
