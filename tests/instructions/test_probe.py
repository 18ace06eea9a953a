"""A meter is believed when it counts loops as they are long. Every meter here is scripted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.instruction_sampler import check
from pytest_dtdispatch.measuring.sampler import Meter


def reading(*readings: int) -> Meter:
    """Read these, in turn, of a short and a long loop that warm up, and of a short and a long one."""
    script: Iterator[int] = iter(readings)
    return Meter(lambda: 0, lambda: next(script))


def test_a_meter_that_counts_is_believed() -> None:
    check(reading(60_000, 600_000, 45_000, 445_000), "a meter")


@pytest.mark.parametrize(
    ("meter", "says"),
    [
        (reading(1, 1, 0, 0), "a meter reads 0"),
        (reading(1, 1, 2**64 - 1, 2**64 - 1), "a meter reads 18446744073709551615"),
        (reading(1, 1, 45_000, 2**64 - 1), "a meter reads 18446744073709551615"),
        (reading(1, 1, 5, 5), "a meter reads 5 for 1,000 turns of a loop and 5 for 11,000"),
        (reading(1, 1, 445_000, 45_000), "a meter reads 445,000 for 1,000 turns"),
        (reading(1, 1, 1_000, 2**40), "a meter reads 1,000 for 1,000 turns"),
    ],
)
def test_a_meter_that_does_not_count_is_refused_in_one_line(meter: Meter, says: str) -> None:
    with pytest.raises(MeterError) as raised:
        check(meter, "a meter")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_a_meter_begins_with_is_subtracted() -> None:
    counts = iter((60_000, 600_000, 45_000, 445_000))
    check(Meter(lambda: 7, lambda: next(counts) + 7), "a meter")
