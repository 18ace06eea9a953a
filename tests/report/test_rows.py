"""The table of rows: outputs compared with a file, and the most expensive rows first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    FunctionShare,
    Measurement,
    Profile,
    Refused,
    Samples,
    State,
    Unit,
)
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.text import column_scale
from pytest_dtdispatch.plugin.kinds import MEASURED
from pytest_dtdispatch.report.document import Column, Document, View
from pytest_dtdispatch.report.markdown import document_text
from pytest_dtdispatch.report.rows import document, scatter_text, timed_document
from pytest_dtdispatch.report.terminal import NO_EDGE, document_lines, plain_text
from tests.rendered import line_of, lines_of, table_of, titles_of
from tests.reported_runs import measured

# Equal figures in every output

EXPECTED_OUTPUTS = Path(__file__).with_name("row_outputs.txt")
Values = Mapping[State, Sequence[int]]
QUIET: Values = {
    State.COLD: (2_500_000,) * 6,
    State.MISS: (1_610_000, 1_615_000, 1_620_000, 1_611_000, 1_612_000, 1_640_000),
    State.HIT: tuple(15_200 + n % 7 for n in range(60)),
    State.LOCAL: (7_310,) * 20,
}
WILD: Values = {State.MISS: (900_000, 5_000_000) * 10, State.HIT: (9_000, 9_100, 9_050) * 7}
CALL: Values = {State.CALL: (4_000,) * 7}
REFUSED = Samples(State.HIT, (), (Refused("propagation ran again", 3),))


def row(label: str, values: Values, calls: int = 1, **more: Any) -> Measurement:
    samples = (Samples(state, tuple(each)) for state, each in values.items())
    return measured(label, *samples, calls=calls, rounds=20, **more)


TIMES = {
    "t.py::test_a": [
        row("add.Tensor(f32[512,512]S0, f32[512,512]S0)@4", QUIET, 3),
        row("mm.default(f32[8,256]S1, f32[256,64]S0)@4", WILD, 12, notes=("redistributes f32[8,64]R -> P",)),
        row("is_same_size.default(f32[8]R)@4", CALL, remarks=("no local row: it communicates",)),
        row("a whole call", {State.HIT: (120_000,) * 6}, contains=Contains.END_TO_END),
    ],
    "t.py::test_b": [
        row("sub.Tensor(f32[8]S0)@4", {State.MISS: (480_900,)}),
        replace(row("mul.Tensor(f32[8]S0)@4", {}), figures=Figures(3, (REFUSED,))),
        row("once.default(f32[8]S0)@4", {}, notes=("it runs once",)),
    ],
}


def counted(measurement: Measurement) -> Measurement:
    samples = tuple(replace(each, unit=INSTRUCTIONS) for each in measurement.figures.samples)
    return replace(measurement, figures=replace(measurement.figures, samples=samples))


def on_ranks(measurement: Measurement) -> Measurement:
    """Derive three ranks from a measurement, each slower than the previous one."""
    samples = []
    for each in measurement.figures.samples:
        ranks = tuple((rank, tuple(value + value * rank // 10 for value in each.values)) for rank in range(3))
        samples.append(replace(each, by_rank=ranks if each.values else ()))
    return replace(measurement, figures=replace(measurement.figures, samples=tuple(samples)))


COUNTED = View(counted="instructions")
RUNS = {
    "times": (TIMES, View()),
    "instructions": ({test: [*map(counted, rows)] for test, rows in TIMES.items()}, COUNTED),
    "ranks": ({test: [*map(on_ranks, rows)] for test, rows in TIMES.items()}, View(is_many=True)),
}


def lines(document: Document, width: int, view: View) -> list[str]:
    output = [
        "".join(piece.text for piece in line).rstrip() for line in document_lines(document, width, view)
    ]
    return [*output, document.legend_of(), document.worst]


def outputs() -> str:
    text: list[str] = []
    for name, (rows, view) in RUNS.items():
        for width, is_verbose in ((80, False), (120, False), (200, True)):
            shown = replace(view, verbose=is_verbose)
            text += [f"=== {name}, {width} columns{', -v' * is_verbose}"]
            text += lines(MEASURED.document(rows, shown), width, shown)
        text += [f"=== {name}, Markdown", document_text(MEASURED.document(rows, view))]
    return "\n".join(text)


def test_outputs_match_the_saved_text() -> None:
    assert outputs() == EXPECTED_OUTPUTS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("miss", "hit", "cells"),
    [
        (95_000, 10_000, ["0.095", "10.00", "9.5"]),
        (100_000, 10_000, ["0.100", "10.00", "10"]),
        (370_000_000, 1_100_000, ["370.000", "1,100.00", "336"]),
        (12_345_000, 1_000, ["12.345", "1.00", "12,345"]),
    ],
)
def test_column_unit_is_equal_in_every_run(miss: int, hit: int, cells: list[str]) -> None:
    line = line_of(document({"test_a": [row("add", {State.MISS: [miss], State.HIT: [hit]})]}, View()))
    assert [*line.cells.values()][:3] == cells


@pytest.mark.parametrize(
    ("ns", "text"),
    [((100,) * 6, "0"), ((100, 1099) * 6, "999"), ((100, 1100) * 6, ">999"), ((1, 900_000) * 6, ">999")],
)
def test_scatter_has_at_most_four_characters(ns: tuple[int, ...], text: str) -> None:
    assert scatter_text(Samples(State.HIT, ns)) == text


def test_empty_table_has_no_groups() -> None:
    assert not table_of(document({}, View())).groups


def test_profile_lists_functions_with_count_share_and_file() -> None:
    long = FunctionShare("torch::" + "x" * 200 + "::dispatch", 250)
    profile = Profile((FunctionShare("rule (a.py:3)", 750), long), 1_000)
    misses = Samples(State.MISS, (1_000,), unit=INSTRUCTIONS, profile=profile)
    one = measured("add@4", misses, calls=3)
    [*_, heads, title, whole, first, second] = lines_of(document({"t::a": [one]}, COUNTED), 100)
    assert title == "profile of a miss: t::a::add@4"
    assert heads.split() == ["function", "instructions", "part", "%", "where"]
    assert whole.split()[-2:] == ["1,000", "100.0"]
    assert first.split() == ["rule", "750", "75.0", "a.py:3"]
    assert second.split()[-2:] == ["250", "25.0"]
    assert "torch::x" in second
    assert len(second) <= 100


@pytest.mark.parametrize(
    ("values_ns", "name", "texts"),
    [
        ([], "us", []),
        ([None, 0.0], "us", ["-", "0.0"]),
        ([0.5], "ns", ["0.500"]),
        ([1.0, 999.0], "ns", ["1.00", "999.00"]),
        ([6_940, 12_800, None], "us", ["6.94", "12.80", "-"]),
        ([300_000, 412_345], "us", ["300", "412"]),
        ([40, 12_000, 13_000], "us", ["0.040", "12.000", "13.000"]),
        ([484_900, 1_697_100, 61_133_400], "ms", ["0.485", "1.697", "61.133"]),
        ([2e9, 3e9], "s", ["2.00", "3.00"]),
        ([-5_000.0, 2_000.0], "us", ["-5.00", "2.00"]),
    ],
)
def test_column_has_unit_and_digits(values_ns: list[float | None], name: str, texts: list[str]) -> None:
    """A column has the unit of its median, and its minimum has three digits."""
    unit = column_scale(values_ns)
    assert (unit.name, [unit.text(value) for value in values_ns]) == (name, texts)


# The most expensive rows first, and the number of omitted rows


def costly(label: str, calls: int, hit: int, local: int = 0, **more: Any) -> Measurement:
    """Build a row; a local latency of 0 means that it is absent."""
    latencies = {State.MISS: 1_000_000, State.HIT: hit, State.LOCAL: local}
    values = {state: (ns,) * 20 for state, ns in latencies.items() if ns}
    return row(label, values, calls, **more)


# Three expensive rows, and twenty that cost 1 us each.
EXPENSIVE = [costly("add", 100, 7_000, 2_000), costly("mm", 10, 40_000, 10_000), costly("cat", 2, 50_000)]
CHEAP = [costly(f"cheap {number}", 1, 2_000, 1_000) for number in range(20)]
DECAY = [costly(f"op {number}", 1, 1_000 + int(1e6 * 0.75**number), 1_000) for number in range(100)]
COUNT = Unit("instructions", is_time=False)
TROUBLED = [
    measured("noisy", Samples(State.HIT, tuple(range(1, 4_000, 100)))),
    measured("refused", Samples(State.HIT, (10,) * 20, (Refused("it moved", 3),))),
    costly("noted", 1, 1_000, 900, notes=("timed in the program's 4 threads",)),
    measured("once", calls=3, notes=("runs once",)),
]
CALLS = [costly(f"call {n}", 1, 1_000 * (n + 1), contains=Contains.END_TO_END) for n in range(9)]


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([EXPENSIVE[2], EXPENSIVE[0], EXPENSIVE[1]], ["add", "mm", "cat"]),
        ([*CHEAP, *EXPENSIVE], ["add", "mm", "cat"]),
        # Few rows are shown completely.
        ([*EXPENSIVE, *CHEAP[:2]], ["add", "mm", "cat", "cheap 0", "cheap 1"]),
        (DECAY, [f"op {number}" for number in range(10)]),  # at most ten
        (  # a single row is not replaced by a line that counts it
            [*(costly(f"op {n}", 1, 20_000 - n) for n in range(8)), costly("cheapest", 1, 1_010, 1_000)],
            [*(f"op {n}" for n in range(8)), "cheapest"],
        ),
        ([*CHEAP, *TROUBLED, *EXPENSIVE], ["add", "mm", "cat", "refused", "once"]),
        (CALLS, [f"call {n}" for n in range(9)]),  # calls may be nested
        (
            [
                measured("few", Samples(State.HIT, (5_000,), unit=COUNT)),
                measured("many", Samples(State.HIT, (1_000,), unit=COUNT), calls=10),
            ],
            ["many", "few"],
        ),
    ],
)
def test_rows_are_sorted_by_calls_times_overhead(rows: list[Measurement], labels: list[str]) -> None:
    [group] = table_of(document({"test_a": rows}, View())).groups
    assert [line.label for line in group.lines] == labels
    [whole] = table_of(document({"test_a": rows}, View(verbose=True))).groups
    assert {line.label for line in whole.lines} == {each.label for each in rows}


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        (
            EXPENSIVE,
            {
                "add": ("100", "55.6", "55.6"),  # 500 us of 900 us
                "mm": ("10", "33.3", "88.9"),
                "cat": ("2", "11.1", "100.0"),  # without a local row, the whole call
            },
        ),
        (  # an op that never hits costs a miss per call
            [costly("add", 10, 10_000), measured("never", Samples(State.MISS, (300_000,) * 20), calls=3)],
            {"never": ("3", "90.0", "90.0"), "add": ("10", "10.0", "100.0")},
        ),
        (  # a hit faster than the local op does not reduce the total
            [EXPENSIVE[0], costly("lucky", 5, 1_000, 1_200)],
            {"add": ("100", "100.0", "100.0"), "lucky": ("5", "0.0", "100.0")},
        ),
        ([TROUBLED[3], EXPENSIVE[0]], {"add": ("100", "100.0", "100.0"), "once": ("3", "-", "-")}),
    ],
)
def test_row_has_share_and_running_total(rows: list[Measurement], cells: dict[str, tuple[str, ...]]) -> None:
    """The share and the running total refer to the region."""
    table = table_of(document({"test_a": rows, "test_b": [CHEAP[0]]}, View()))
    assert titles_of(table)[:3] == ("calls", "share %", "total %")
    assert {line.label: tuple(line.cells.values())[:3] for line in table.groups[0].lines} == cells
    assert table.groups[1].lines[0].cells[Column("total", "%")] == "100.0", "each region has a separate total"


def test_waits_above_ten_percent_are_noted() -> None:
    samples = [Samples(State.MISS, (9_000,) * 20, waited=0.1), Samples(State.HIT, (700,) * 20, waited=0.34)]
    [line] = table_of(document({"test_a": [measured("add", *samples)]}, View())).groups[0].lines
    assert line.notes == ("waited for a core: hit 34% of the time",)


def test_op_that_never_hits_costs_its_miss() -> None:
    never = row("never", {State.MISS: (300_000,) * 20, State.LOCAL: (5_000,) * 20})
    laid_out = document({"test_a": [costly("add", 10, 10_000), never]}, View())
    table = table_of(laid_out)
    overhead = Column("overhead", "us")
    assert [line.cells[overhead] for line in table.groups[0].lines if line.label == "never"] == ["295.00"]
    assert laid_out.worst.startswith("worst: never in test_a, 295.00 us")


def test_omitted_rows_are_summarized_in_one_line() -> None:
    of = document({"test_a": [*CHEAP, *EXPENSIVE]}, View())
    output = "and 20 more rows, together 2.2%; -v lists them"
    assert f"  {output}" in lines_of(of)
    assert output.partition(";")[0] in document_text(of)
    assert any("23 of 23 rows are proved" in line for line in lines_of(of)), "includes omitted rows"
    assert "share %" not in titles_of(table_of(document({"test_a": CALLS}, View())))


def test_narrow_terminal_drops_share_column_last() -> None:
    long = [costly(f"{'x' * 60} {number}", 3, 2_000 + number, 1_000) for number in range(3)]
    heads = [lines_of(document({"test_a": long}, View()), width)[0] for width in (80, 120, 200)]
    titles = ["calls", "share %", "total %", "overhead us"]
    shown = [[title for title in titles if title in head] for head in heads]
    assert all(set(fewer) <= set(more) for fewer, more in pairwise(shown))
    assert "share %" in shown[0], "rows are sorted by it"
    assert shown[2] == titles


# Regions timed call by call

ADD = Signature("add.Tensor", ("f32[8,8]S0", "f32[8,8]S0"), (2, 4), "cpu")
SAME = Signature("is_same_size.default", ("f32[8,8]S0",), (4,), "cpu")
HITS = Samples(State.HIT, (10_000, 10_000, 12_000, 10_000, 10_000))


def adds(*misses_ns: int) -> list[Figures]:
    return [Figures(1, (Samples(State.MISS, (ns,)), HITS)) for ns in misses_ns]


def timed_lines(timed: dict[Signature, list[Figures]]) -> list[str]:
    return plain_text(timed_document("mode", timed), NO_EDGE).splitlines()


def test_calls_of_one_signature_share_a_line() -> None:
    refused = Figures(1, (Samples(State.MISS, (), (Refused("did not propagate", 1),)),))
    quiet = adds(2_000_000, 1_000_000, 1_000_000, 1_000_000, 1_500_000)
    head, title, one, two, proved, legend = timed_lines({ADD: quiet, SAME: [refused, refused]})
    titles = "signature calls share % total % miss ms +-% median hit us +-% median miss/hit samples"
    assert head.split() == [*titles.split(), "rounds", "mark"]
    assert title == "mode (dispatch from below autograd)"
    assert one.startswith("  add.Tensor(f32[8,8]S0, f32[8,8]S0)@2x4 ")
    miss, hit = ("1.000", "0", "1.000"), ("10.00", "0", "10.00")
    assert one.split()[2:] == ["5", "100.0", "100.0", *miss, *hit, "100", "5+25", "5"]
    assert two.split()[1:] == ["2", *"---------", "0+0", "2", "did", "not", "propagate", "(2x)"]
    assert proved.strip().startswith("1 of 2 rows are proved by the cache counters, 5 of 7 calls explained")
    assert all(f"{column}: " in legend for column in ("miss", "hit", "+-%"))
    assert timed_lines({ADD: adds(1_000, 9_000, 1_000, 90_000)})[2].endswith("  noisy miss")
    assert timed_lines({}) == ["nothing was timed: no op on DTensors ran in the region"]
