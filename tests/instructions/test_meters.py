"""The hardware counter, scripted because most machines that run the tests have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_dtdispatch.core.measurement import FunctionShare, Profile
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.meters import CallProfiler, hardware_meter, largest

pytestmark = pytest.mark.torch


class ScriptedCounter:
    """A counter with torch's interface and scripted readings."""

    def __init__(self, *readings: int) -> None:
        self._readings = iter(readings)
        self._runs = 0

    def start(self) -> int:
        self._runs += 1
        return self._runs

    def end(self, run: int) -> int:
        assert run == self._runs, "it ends the run that it started"
        return next(self._readings)


def test_working_counter_is_a_meter() -> None:
    meter = hardware_meter(ScriptedCounter(60_000, 600_000, 45_000, 445_000, 46_104))
    begun = meter.begin()
    assert meter.end() - begun == 46_104


@pytest.mark.parametrize("reading", [0, 2**64 - 1])
def test_missing_counter_is_refused(reading: int) -> None:
    with pytest.raises(MeterError, match=f"the hardware counter reads {reading}"):
        hardware_meter(ScriptedCounter(*[reading] * 4))


def test_torch_without_hardware_counter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_instruction_counter")
    with pytest.raises(MeterError, match="this torch has no access to the hardware counter"):
        hardware_meter()


# Instructions of a call by function


def test_functions_with_most_instructions_are_listed() -> None:
    shares = largest({f"f{n:02}": n for n in range(50)})
    assert len(shares) == 20
    assert shares[0] == FunctionShare("f49", 49)
    assert shares[-1] == FunctionShare("f30", 30)


class ScriptedCallgrind:
    """A callgrind with scripted counts, plus 10 for each reading."""

    def __init__(self) -> None:
        self.spent = 0

    def toggle(self) -> int:
        return 0

    def total(self) -> int:
        return self.spent + 10

    def zero(self) -> int:
        self.spent = 0
        return 0


def test_function_sums_own_instructions_over_calls() -> None:
    callgrind: Any = ScriptedCallgrind()

    def inner() -> None:
        callgrind.spent += 7

    def outer(*_: Any) -> None:
        callgrind.spent += 3
        inner()
        inner()

    profile = CallProfiler(callgrind)(outer, lambda: (1,), {})
    shares = {name.rpartition(".<locals>.")[2].split(" ")[0]: count for name, count in named(profile)}
    assert shares == {"inner": 14, "outer": 3}


def named(profile: Profile) -> list[tuple[str, int]]:
    return [(share.function, share.instructions) for share in profile.functions]
