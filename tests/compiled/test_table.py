"""Limits on compile counts, and the table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.compiled.model import CompileCounts, Compiled, CompiledFunction
from pytest_dtdispatch.compiled.table import LIMITS, document, judge
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.verdicts import complaint
from pytest_dtdispatch.report.document import View
from tests.rendered import assert_outputs_match, lines_of


def breaks(count: int) -> CompiledFunction:
    listed = tuple(f"t.py:{line}: print" for line in range(count))
    return shown(CompileCounts(1, listed, 1, ("f (t.py:1): size",) * count))


@given(st.integers(0, 60), st.integers(0, 60))
def test_counts_up_to_the_limit_pass(count: int, limit: int) -> None:
    for name in LIMITS:
        assert bool(complaint(judge(breaks(count), {name: limit}))) == (count > limit)
    assert not complaint(judge(breaks(count), {}))


def test_entries_over_a_limit_are_listed() -> None:
    title, first, *listed = complaint(judge(breaks(22), {"graph_breaks": 1})).splitlines()
    assert (title, first) == ("embedding: over its limits", "graph_breaks=1, and there are 22: 21 more")
    assert listed[0] == "    t.py:0: print"
    assert listed[-1] == "    and 12 more"
    assert len(listed) == 11


def test_uncounted_limits_cannot_pass() -> None:
    _, *cannot = complaint(judge(shown(CompileCounts()), dict.fromkeys(LIMITS, 9))).splitlines()
    assert cannot == [f"{limit}=9 judged nothing: this torch does not count them" for limit in LIMITS]


def test_missing_counts_are_nan_and_lists_have_details() -> None:
    unknown, counted = (Compiled((1,), (1,), function) for function in (shown(CompileCounts()), breaks(2)))
    for name in ("graphs", "graph_breaks", "guards", "recompiles", "propagations"):
        assert math.isnan(getattr(unknown, name))
    assert (counted.graphs, counted.graph_breaks, counted.guards) == (1, 2, 1)
    assert isinstance(counted.graph_breaks, Count)
    assert counted.graph_breaks.details == ("t.py:0: print", "t.py:1: print")


# Output


COUNTS = CompileCounts(1, (), 22, (), 8, 37, 65)
TIMED = (
    Samples(State.COMPILE_COLD, (2_000_000_000, 2_000_000_000)),
    Samples(State.COMPILE_WARM, (250_000_000,)),
    Samples(State.CALL, (100_000,) * 4),
    Samples(State.EAGER, (40_000,)),
)


def shown(counts: CompileCounts = COUNTS, **figures: Any) -> CompiledFunction:
    figures_of = Figures(2, **figures)
    measurement = Measurement("embedding", "", "embedding", "4", Contains.COMPILED, 1, figures_of)
    return CompiledFunction("embedding", "inductor", counts, measurement)


COLD = Samples(State.COMPILE_COLD, (5_000_000,), unit=INSTRUCTIONS)
REFUSED = Samples(State.COMPILE_COLD, (), (Refused("a hit in a cache of compiled code", 5),))
SHOWN = {
    "times": shown(samples=TIMED),
    "instructions": shown(samples=(COLD, Samples(State.CALL, (1_000, 900), unit=INSTRUCTIONS))),
    "untimed": shown(),
    "uncounted": shown(CompileCounts(), samples=TIMED),
    "refused": shown(samples=(REFUSED, *TIMED[1:])),
    "two breaks": breaks(2),
    "nine breaks": breaks(9),
}


def test_outputs_match_the_saved_text() -> None:
    documents = {name: document({"t.py::test": [one]}, View()) for name, one in SHOWN.items()}
    documents["nine breaks, -v"] = document({"t.py::test": [breaks(9)]}, View(verbose=True))
    outputs = {name: "\n".join(lines_of(found, 140)) for name, found in documents.items()}
    assert_outputs_match(Path(__file__).with_name("compile_outputs.txt"), outputs)
