"""The hardware counter, scripted: most machines that run this have none."""

from __future__ import annotations

import pytest
import torch

from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.meters import hardware_meter

pytestmark = pytest.mark.torch


class ScriptedCounter:
    """Starts and ends as torch's does, and reads what it is told, in turn."""

    def __init__(self, *readings: int) -> None:
        self._readings = iter(readings)
        self._runs = 0

    def start(self) -> int:
        self._runs += 1
        return self._runs

    def end(self, run: int) -> int:
        assert run == self._runs, "it ends what it started"
        return next(self._readings)


def test_a_counter_that_counts_is_a_meter() -> None:
    meter = hardware_meter(ScriptedCounter(60_000, 600_000, 45_000, 445_000, 46_104))
    begun = meter.begin()
    assert meter.end() - begun == 46_104


def test_a_torch_without_the_counter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_instruction_counter")
    with pytest.raises(MeterError, match="this torch has no access to the hardware counter"):
        hardware_meter()
