"""The processor's own counter of instructions, as torch reads it.

Run as a module it says why the counter cannot be used here, or nothing where it can: torch prints to the
error stream where there is none, and a user need not see that.
"""

from __future__ import annotations

from typing import Any

from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.instruction_sampler import check
from pytest_dtdispatch.measuring.sampler import Meter
from pytest_dtdispatch.torchapi.optional import instruction_counter

NAME = "the hardware counter"


def hardware_meter(counter: Any = None) -> Meter:
    """Count instructions of this thread by the processor's counter."""
    counter = counter or instruction_counter()
    if counter is None:
        raise MeterError(f"this torch has no access to {NAME}")
    running = [0]

    def begin() -> int:
        running[0] = counter.start()
        return 0

    def end() -> int:
        return int(counter.end(running[0]))

    meter = Meter(begin, end)
    check(meter, NAME)
    return meter


if __name__ == "__main__":
    try:
        hardware_meter()
    except MeterError as error:
        print(error)
