"""Figures do not depend on the stack depth of the program."""

from __future__ import annotations

import linecache
import os
import resource
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import pytest_dtdispatch
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import WallClock
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench, figures_of


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def nest(depth: int) -> int:
    return nest(depth - 1) if depth else 0


def median_faults_of_a_call() -> float:
    plan = Plan(rounds=1, repeat=20, sampler=WallClock(page_faults))
    [samples] = figures_of(Rounds(Subject(nest, lambda: (10,)), Bench().caches, plan)).samples
    return samples.median_ns


def at_depth(depth: int, measure: Callable[[], float]) -> float:
    return at_depth(depth - 1, measure) if depth else measure()


def test_call_maps_no_frame_memory_at_any_depth() -> None:
    # A chunk of CPython's stack has room for about 150 of these frames: the depths cross two chunk ends.
    assert {at_depth(depth, median_faults_of_a_call) for depth in range(300)} == {0}


def test_stack_reading_call_never_stats_plugin_files(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    [ours] = pytest_dtdispatch.__path__

    stat = os.stat

    def recorded(path: Any, **kwargs: Any) -> os.stat_result:
        paths.append(str(path))
        return stat(path, **kwargs)

    monkeypatch.setattr(linecache, "cache", {})
    monkeypatch.setattr(os, "stat", recorded)  # in Python 3.13, linecache imports os when called
    plan = Plan(rounds=1, repeat=2)
    Rounds(Subject(traceback.extract_stack, tuple), Bench().caches, plan).run()
    after_the_first = paths[paths.index(__file__) + 1 :]
    assert __file__ in after_the_first
    assert not [path for path in after_the_first if path.startswith(ours)]
