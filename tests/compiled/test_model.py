"""What compiling gave, to assert on: what is not counted equals nothing."""

from __future__ import annotations

import math

import pytest

from pytest_dtdispatch.compiled.model import (
    CompileCounts,
    Compiled,
    CompiledFunction,
    GraphBreak,
    Recompile,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.core.results import Count

BREAK = GraphBreak("print", "t.py:3")
AGAIN = Recompile("f", "t.py:1", "size mismatch")


def compiled(counts: CompileCounts) -> Compiled:
    measurement = Measurement("f", "f", "f", "4", Contains.COMPILED, 1, Figures())
    return Compiled((1, 2), (1, 2), CompiledFunction("f", "eager", counts, measurement))


def test_counts_and_the_result_of_the_first_call_can_be_asserted_on() -> None:
    found = compiled(CompileCounts(2, (), 22, (AGAIN, AGAIN), 1))
    counts = (found.graphs, found.graph_breaks, found.guards, found.recompiles, found.propagations)
    assert counts == (2, 0, 22, 2, 1)
    assert (found.result, found.eager_result) == (1, 1)


def test_lists_are_known_to_what_fails_on_them() -> None:
    found = compiled(CompileCounts(1, (BREAK,), 20, (AGAIN,)))
    assert isinstance(found.graph_breaks, Count)
    assert isinstance(found.recompiles, Count)
    assert found.graph_breaks.details == ("t.py:3: print",)
    assert found.recompiles.details == ("f (t.py:1): size mismatch",)


@pytest.mark.parametrize("name", ["graphs", "graph_breaks", "guards", "recompiles", "propagations"])
def test_what_is_not_counted_equals_nothing(name: str) -> None:
    count = getattr(compiled(CompileCounts()), name)
    assert math.isnan(count)
    assert count != 0
