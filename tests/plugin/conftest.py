"""Fixtures for runs of the plugin. The default terminal is wide enough for every table."""

from __future__ import annotations

import sys
import types

import pytest

# Pytester unloads modules that a run imports first: each run would import the plugin again.
from pytest_dtdispatch.core import measurement
from pytest_dtdispatch.plugin import session
from pytest_dtdispatch.report import notes
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from tests.scripted_clock import ScriptedClock


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture(autouse=True)
def no_notes_on_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Omit the note and the mark that depend on the load of the machine; both have their own tests."""
    monkeypatch.setattr(notes, "MIN_WAITED", 1.0)
    monkeypatch.setattr(measurement, "NOISY", 100.0)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses before tests run again, without sleeping."""
    lengths: list[float] = []
    monkeypatch.setattr(session, "pause", lengths.append)
    return lengths


@pytest.fixture
def no_other_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no plugin of an installed package: searching for them takes most of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Give every run the same latencies; a test may add to the time and counts of its callable."""
    control = types.SimpleNamespace(clock=ScriptedClock(), extra_ns=0)
    monkeypatch.setitem(sys.modules, "scripted", control)
    monkeypatch.setitem(SAMPLERS, "time", WallClock(control.clock))
    return control
