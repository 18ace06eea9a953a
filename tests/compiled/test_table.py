"""The table of compiled functions, and what it says below a line."""

from __future__ import annotations

import re
from typing import Any

from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant, GraphBreak, Recompile
from pytest_dtdispatch.compiled.table import document
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.report.document import View, plain
from tests.rendered import line_of, lines_of, table_of, titles_of

COUNTS = CompileCounts(1, (), 22, (), 8, 2, 37, 65, 15)
TIMED = (
    Samples(State.COMPILE_COLD, (2_000_000_000, 2_000_000_000)),
    Samples(State.COMPILE_WARM, (250_000_000,)),
    Samples(State.CALL, (100_000,) * 4),
    Samples(State.EAGER, (40_000,)),
)


def variant(counts: CompileCounts = COUNTS, is_on: bool | None = None, **figures: Any) -> CompiledVariant:
    name = "embedding" if is_on is None else f"embedding {is_on}"
    measurement = Measurement(name, name, "embedding", "4", Contains.COMPILED, 1, Figures(2, **figures))
    return CompiledVariant(name, "embedding", "inductor", is_on, counts, measurement)


def cells(made: CompiledVariant, **kwargs: Any) -> dict[str, str]:
    table = table_of(document({"t.py::test": [made]}, View(**kwargs)))
    [[line]] = [group.lines for group in table.groups]
    return {**dict(zip(titles_of(table), map(plain, line.cells), strict=True)), "proof": line.proof}


def test_a_line_has_times_ratio_and_counts() -> None:
    assert cells(variant(samples=TIMED)) == {
        "cold s": "2.00",
        "warm ms": "250",
        "call us": "100",
        "eager us": "40.0",
        "cold/call": "20,000",
        "graphs": "1",
        "breaks": "0",
        "guards": "22",
        "recompiles": "0",
        "propagations": "8",
        "fake": "37+65",
        "samples": "2+1+4",
        "proof": "proved",
    }


def test_instructions_stand_in_the_same_columns() -> None:
    counted = (
        Samples(State.COMPILE_COLD, (5_000_000,), unit=INSTRUCTIONS),
        Samples(State.CALL, (1_000, 900), unit=INSTRUCTIONS),
    )
    found = cells(variant(samples=counted))
    assert (found["cold"], found["call"], found["cold/call"], found["samples"]) == (
        "5,000,000",
        "900",
        "5,556",
        "1+0+2",
    )
    assert "warm" not in found


def test_where_nothing_is_timed_there_are_counts_alone() -> None:
    assert list(cells(variant())) == [
        *("graphs", "breaks", "guards", "recompiles", "propagations", "fake", "proof")
    ]
    assert cells(variant())["proof"] == "counted"


def test_what_torch_does_not_count_is_a_question_mark() -> None:
    found = cells(variant(CompileCounts(), samples=TIMED))
    assert {found[name] for name in ("graphs", "breaks", "guards", "recompiles", "propagations")} == {"?"}
    assert found["fake"] == "?+?"


def test_a_refused_compile_says_why() -> None:
    refused = Samples(State.COMPILE_COLD, (), (Refused("a cache of compiled code answered", 5),))
    assert cells(variant(samples=(refused, *TIMED[1:])))["proof"] == "a cache of compiled code answered (5x)"


def notes(verbose: bool, count: int) -> tuple[str, ...]:
    breaks = tuple(GraphBreak("print", f"t.py:{line}") for line in range(count))
    again = (Recompile("f", "t.py:1", "size mismatch"),) * 2
    broken = variant(CompileCounts(2, breaks, 3, again), samples=TIMED)
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
    both = [variant(is_on=False, samples=off), variant(is_on=True, samples=on)]
    *_, line = lines_of(document({"t.py::test": both}, View()))
    found = re.fullmatch(
        r"t\.py::test: embedding compile-cold takes 1\.99 times as long with the FakeTensor cache off "
        r"\(95 %: 1\.9\d to 2\.0\d\)",
        line,
    )
    assert found


def test_too_few_samples_have_no_interval() -> None:
    few = [variant(is_on=is_on, samples=(Samples(State.COMPILE_COLD, (9, 9)),)) for is_on in (False, True)]
    *_, line = lines_of(document({"t.py::test": few}, View()))
    assert line.endswith("(no interval from 2 and 2 samples)")
