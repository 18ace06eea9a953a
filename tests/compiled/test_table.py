"""Limits on compile counts, and the table."""

from __future__ import annotations

import math
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
from pytest_dtdispatch.report.document import View, plain
from tests.rendered import line_of, table_of, titles_of


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


def cells(function: CompiledFunction) -> dict[str, str]:
    shown_as = document({"t.py::test": [function]}, View())
    line, titles = line_of(shown_as), titles_of(table_of(shown_as))
    return {**dict(zip(titles, map(plain, line.cells.values()), strict=True)), "proof": line.status}


def test_line_has_times_and_counts() -> None:
    found = cells(shown(samples=TIMED))
    assert "|".join(found) == (
        "cold s|warm ms|call us|eager us|graphs|breaks|guards|recompiles|propagations|fake|samples|proof"
    )
    assert "|".join(found.values()) == "2.000|250.0|100.00|40.00|1|0|22|0|8|37+65|2+1+4|"


def test_instructions_have_the_same_columns() -> None:
    cold = Samples(State.COMPILE_COLD, (5_000_000,), unit=INSTRUCTIONS)
    found = cells(shown(samples=(cold, Samples(State.CALL, (1_000, 900), unit=INSTRUCTIONS))))
    assert [*found.items()][:2] == [("cold", "5,000,000"), ("call", "900")]
    assert found["samples"] == "1+0+2"


def test_untimed_compile_has_only_counts() -> None:
    found = cells(shown())
    assert "|".join(found) == "graphs|breaks|guards|recompiles|propagations|fake|proof"
    assert found["proof"] == ""


def test_missing_counts_are_question_marks() -> None:
    found = cells(shown(CompileCounts(), samples=TIMED))
    assert {found[name] for name in ("graphs", "breaks", "guards", "recompiles", "propagations")} == {"?"}
    assert found["fake"] == "?+?"


def test_refused_compile_has_a_reason() -> None:
    refused = Samples(State.COMPILE_COLD, (), (Refused("a hit in a cache of compiled code", 5),))
    assert cells(shown(samples=(refused, *TIMED[1:])))["proof"] == "a hit in a cache of compiled code (5x)"


def notes(verbose: bool, count: int) -> tuple[str, ...]:
    return tuple(line_of(document({"t": [breaks(count)]}, View(verbose))).notes)


def test_breaks_and_recompiles_are_listed_below() -> None:
    broken, again = "graph break at t.py:{}: print", "recompiled f (t.py:1): size (2x)"
    assert notes(False, 2) == (broken.format(0), broken.format(1), again)
    assert notes(False, 9)[-1] == "and 5 more; -v lists them"
    assert len(notes(True, 9)) == 10
