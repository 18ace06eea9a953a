"""What compiling gave, to assert on: the setting that has most counts, what is not counted equals nothing."""

from __future__ import annotations

import math

import pytest

from pytest_dtdispatch.compiled.model import (
    CompileCounts,
    Compiled,
    CompiledVariant,
    GraphBreak,
    Recompile,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.core.metrics import Count

BREAK = GraphBreak("print", "t.py:3")
AGAIN = Recompile("f", "t.py:1", "size mismatch")


def variant(counts: CompileCounts, name: str = "f") -> CompiledVariant:
    measurement = Measurement(name, name, "f", "4", Contains.COMPILED, 1, Figures())
    return CompiledVariant(name, "f", "eager", None, counts, measurement)


def compiled(*counts: CompileCounts) -> Compiled:
    return Compiled("f", (1, 2), (1, 2), tuple(map(variant, counts)))


def test_results_begin_with_that_of_the_first_call() -> None:
    assert (compiled().result, compiled().eager_result) == (1, 1)


def test_the_setting_that_has_most_counts() -> None:
    few = CompileCounts(1, (BREAK,), 20, (), 3)
    many = CompileCounts(2, (), 22, (AGAIN, AGAIN), 1)
    both = compiled(few, many)
    counts = (both.graphs, both.graph_breaks, both.guards, both.recompiles, both.propagations)
    assert counts == (2, 1, 22, 2, 3)


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
