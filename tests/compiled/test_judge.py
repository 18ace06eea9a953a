"""Limits on what compiling does, and what the FakeTensor cache is worth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.compiled.judge import LIMITS, cache_effects, complaint
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant, GraphBreak, Recompile
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State

NS = st.lists(st.integers(1_000, 10**9), min_size=4, max_size=8)


def variant(is_on: bool | None, cold: list[int], warm: list[int] | None = None) -> CompiledVariant:
    samples = [Samples(State.COMPILE_COLD, tuple(cold)), Samples(State.COMPILE_WARM, tuple(warm or []))]
    measurement = Measurement(f"f {is_on}", "", "f", "", Contains.COMPILED, 1, Figures(1, tuple(samples)))
    return CompiledVariant(f"f {is_on}", "f", "eager", is_on, CompileCounts(), measurement)


def breaks(count: int) -> CompiledVariant:
    listed = tuple(GraphBreak("print", f"t.py:{line}") for line in range(count))
    recompiles = tuple(Recompile("f", "t.py:1", "size") for _ in range(count))
    return replace(variant(None, []), counts=CompileCounts(1, listed, 1, recompiles))


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_limit_holds_up_to_its_value(count: int, limit: int) -> None:
    for name in LIMITS:
        assert bool(complaint(breaks(count), {name: limit})) == (count > limit)
    assert not complaint(breaks(count), dict.fromkeys(LIMITS))


def test_what_is_over_its_limit_is_listed() -> None:
    title, first, *listed = complaint(breaks(22), {"max_graph_breaks": 1}).splitlines()
    assert (title, first) == ("f None: over its limits", "max_graph_breaks=1, and there are 22")
    assert listed[0] == "    t.py:0: print"
    assert listed[-1] == "    and 2 more"
    assert len(listed) == 21


def test_what_is_not_counted_cannot_pass() -> None:
    _, *cannot = complaint(variant(None, []), dict.fromkeys(LIMITS, 9)).splitlines()
    assert cannot == [f"{limit}=9 cannot be judged: this torch does not count them" for limit in LIMITS]


@given(NS, st.integers(2, 50))
def test_the_effect_is_the_ratio_of_compiles_that_differ_by_a_factor(ns: list[int], factor: int) -> None:
    [effect] = cache_effects([variant(True, ns), variant(False, [factor * each for each in ns])])
    assert effect.low <= effect.ratio <= effect.high
    assert (effect.name, effect.state, effect.samples) == ("f", State.COMPILE_COLD, (len(ns), len(ns)))
    if len(set(ns)) == 1:
        assert math.isclose(effect.ratio, factor)


@pytest.mark.parametrize(("count", "has_interval"), [(3, False), (4, True), (5, True)])
def test_an_interval_needs_four_compiles_of_each(count: int, has_interval: bool) -> None:
    [effect] = cache_effects([variant(False, [2_000] * count), variant(True, [1_000] * count)])
    assert effect.has_interval is has_interval
    assert math.isclose(effect.ratio, 2)


def test_states_are_compared_each_with_its_own() -> None:
    both = [variant(False, [3_000] * 4, [400] * 4), variant(True, [1_000] * 4, [200] * 4)]
    effects = list(cache_effects(both))
    assert [(effect.state, round(effect.ratio, 3)) for effect in effects] == [
        (State.COMPILE_COLD, 3.0),
        (State.COMPILE_WARM, 2.0),
    ]


@pytest.mark.parametrize("settings", [[True], [False], [None], []])
def test_one_setting_has_no_effect(settings: list[bool | None]) -> None:
    assert not list(cache_effects([variant(is_on, [1_000] * 5) for is_on in settings]))
