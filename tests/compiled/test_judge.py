"""Limits on what compiling does, what the FakeTensor cache is worth, and what is shown."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.compiled.judge import LIMITS, cache_effects, document, judge
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant, GraphBreak, Recompile
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.gates.limits import complaint
from pytest_dtdispatch.report.document import View, plain
from tests.rendered import line_of, lines_of, table_of, titles_of

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
        assert bool(complaint(judge(breaks(count), {name: limit}))) == (count > limit)
    assert not complaint(judge(breaks(count), {}))


def test_what_is_over_its_limit_is_listed() -> None:
    title, first, *listed = complaint(judge(breaks(22), {"graph_breaks": 1})).splitlines()
    assert (title, first) == ("f None: over its limits", "graph_breaks=1, and there are 22")
    assert listed[0] == "    t.py:0: print"
    assert listed[-1] == "    and 2 more"
    assert len(listed) == 21


def test_what_is_not_counted_cannot_pass() -> None:
    _, *cannot = complaint(judge(variant(None, []), dict.fromkeys(LIMITS, 9))).splitlines()
    assert cannot == [f"{limit}=9 judged nothing: this torch does not count them" for limit in LIMITS]


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


# What is shown


COUNTS = CompileCounts(1, (), 22, (), 8, 2, 37, 65, 15)
TIMED = (
    Samples(State.COMPILE_COLD, (2_000_000_000, 2_000_000_000)),
    Samples(State.COMPILE_WARM, (250_000_000,)),
    Samples(State.CALL, (100_000,) * 4),
    Samples(State.EAGER, (40_000,)),
)


def shown(counts: CompileCounts = COUNTS, is_on: bool | None = None, **figures: Any) -> CompiledVariant:
    name = "embedding" if is_on is None else f"embedding {is_on}"
    measurement = Measurement(name, name, "embedding", "4", Contains.COMPILED, 1, Figures(2, **figures))
    return CompiledVariant(name, "embedding", "inductor", is_on, counts, measurement)


def cells(made: CompiledVariant, **kwargs: Any) -> dict[str, str]:
    table = table_of(document({"t.py::test": [made]}, View(**kwargs)))
    [[line]] = [group.lines for group in table.groups]
    return {**dict(zip(titles_of(table), map(plain, line.cells), strict=True)), "proof": line.proof}


def test_a_line_has_times_ratio_and_counts() -> None:
    assert cells(shown(samples=TIMED)) == {
        "cold s": "2.000",
        "warm ms": "250.0",
        "call us": "100.00",
        "eager us": "40.00",
        "cold/call": "20,000",
        "graphs": "1",
        "breaks": "0",
        "guards": "22",
        "recompiles": "0",
        "propagations": "8",
        "fake": "37+65",
        "samples": "2+1+4",
        "proof": "",
    }


def test_instructions_stand_in_the_same_columns() -> None:
    counted = (
        Samples(State.COMPILE_COLD, (5_000_000,), unit=INSTRUCTIONS),
        Samples(State.CALL, (1_000, 900), unit=INSTRUCTIONS),
    )
    found = cells(shown(samples=counted))
    assert (found["cold"], found["call"], found["cold/call"], found["samples"]) == (
        "5,000,000",
        "900",
        "5,556",
        "1+0+2",
    )
    assert "warm" not in found


def test_where_nothing_is_timed_there_are_counts_alone() -> None:
    assert list(cells(shown())) == [
        *("graphs", "breaks", "guards", "recompiles", "propagations", "fake", "proof")
    ]
    assert cells(shown())["proof"] == ""


def test_what_torch_does_not_count_is_a_question_mark() -> None:
    found = cells(shown(CompileCounts(), samples=TIMED))
    assert {found[name] for name in ("graphs", "breaks", "guards", "recompiles", "propagations")} == {"?"}
    assert found["fake"] == "?+?"


def test_a_refused_compile_says_why() -> None:
    refused = Samples(State.COMPILE_COLD, (), (Refused("a cache of compiled code answered", 5),))
    assert cells(shown(samples=(refused, *TIMED[1:])))["proof"] == "a cache of compiled code answered (5x)"


def notes(verbose: bool, count: int) -> tuple[str, ...]:
    breaks = tuple(GraphBreak("print", f"t.py:{line}") for line in range(count))
    again = (Recompile("f", "t.py:1", "size mismatch"),) * 2
    broken = shown(CompileCounts(2, breaks, 3, again), samples=TIMED)
    return line_of(document({"t": [broken]}, View(verbose))).notes


def test_breaks_and_recompiles_are_listed_below_the_line() -> None:
    assert notes(False, 1) == (
        "graph break at t.py:0: print",
        "recompiled f (t.py:1): size mismatch (2x)",
    )
    assert notes(False, 9)[-1] == "and 5 more; -v lists them"
    assert len(notes(True, 9)) == 11  # with what tracing asked of caches


def test_the_effect_of_the_cache_has_its_interval() -> None:
    off = (Samples(State.COMPILE_COLD, (2_000, 2_010, 2_020, 2_030)),)
    on = (Samples(State.COMPILE_COLD, (1_000, 1_010, 1_020, 1_030)),)
    both = [shown(is_on=False, samples=off), shown(is_on=True, samples=on)]
    *_, line = lines_of(document({"t.py::test": both}, View()))
    found = re.fullmatch(
        r"t\.py::test: embedding compile-cold takes 1\.99 times as long with the FakeTensor cache off "
        r"\(95 %: 1\.9\d to 2\.0\d\)",
        line,
    )
    assert found


def test_too_few_samples_have_no_interval() -> None:
    few = [shown(is_on=is_on, samples=(Samples(State.COMPILE_COLD, (9, 9)),)) for is_on in (False, True)]
    *_, line = lines_of(document({"t.py::test": few}, View()))
    assert line.endswith("(no interval from 2 and 2 samples)")
