"""Runs of the plugin are shown wide, if a test asks for nothing else: no line of a table is cut."""

from __future__ import annotations

import sys
import types

import pytest

from pytest_dtdispatch.measuring.sampler import SAMPLERS, WallClock
from tests.scripted_clock import ScriptedClock


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Let each run have the same latencies, and a test add to those of its callable, and to its counts."""
    control = types.SimpleNamespace(clock=ScriptedClock(), extra_ns=0)
    monkeypatch.setitem(sys.modules, "scripted", control)
    monkeypatch.setitem(SAMPLERS, "time", WallClock(control.clock))
    return control
