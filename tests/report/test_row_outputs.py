"""What every output says of the same rows, held against a file: figures stay equal wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.plugin.kinds import MEASURED
from pytest_dtdispatch.report.document import Document, View
from pytest_dtdispatch.report.markdown import document_text
from pytest_dtdispatch.report.terminal import document_lines, legend_text

SAID = Path(__file__).with_name("row_outputs.txt")
Values = Mapping[State, Sequence[int]]
QUIET: Values = {
    State.COLD: (2_500_000,) * 6,
    State.MISS: (1_610_000, 1_615_000, 1_620_000, 1_611_000, 1_612_000, 1_640_000),
    State.HIT: tuple(15_200 + n % 7 for n in range(60)),
    State.LOCAL: (7_310,) * 20,
}
NOISY: Values = {State.MISS: (900_000, 5_000_000, 4_000_000) * 7, State.HIT: (9_000, 9_100, 9_050) * 7}
CALL: Values = {State.CALL: (4_000,) * 7}


def row(
    label: str, values: Values, calls: int = 1, contains: Contains = Contains.DISPATCH, **more: object
) -> Measurement:
    samples = tuple(Samples(state, tuple(each)) for state, each in values.items())
    figures = Figures(20, samples, **more)  # type: ignore[arg-type]
    return Measurement(label, label, label.partition("(")[0], "4", contains, calls, figures)


REFUSED = Samples(State.HIT, (), (Refused("propagation ran again", 3),))
TIMES = {
    "t.py::test_a": [
        row("add.Tensor(f32[512,512]S0, f32[512,512]S0)@4", QUIET, 3),
        row("mm.default(f32[8,256]S1, f32[256,64]S0)@4", NOISY, 12, notes=("redistributes f32[8,64]R -> P",)),
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
    samples = tuple(replace(each, unit=INSTRUCTIONS) for each in measurement.samples)
    return replace(measurement, figures=replace(measurement.figures, samples=samples))


def on_ranks(measurement: Measurement) -> Measurement:
    """Make three ranks of one, each slower than the one before."""
    samples = []
    for each in measurement.samples:
        ranks = tuple((rank, tuple(value + value * rank // 10 for value in each.values)) for rank in range(3))
        samples.append(replace(each, by_rank=ranks if each.values else ()))
    return replace(measurement, figures=replace(measurement.figures, samples=tuple(samples)))


RUNS = {
    "times": (TIMES, View()),
    "instructions": (
        {test: [*map(counted, rows)] for test, rows in TIMES.items()},
        View(counted="instructions"),
    ),
    "ranks": ({test: [*map(on_ranks, rows)] for test, rows in TIMES.items()}, View(is_many=True)),
}


def lines(document: Document, width: int, view: View) -> list[str]:
    said = ["".join(piece.text for piece in line).rstrip() for line in document_lines(document, width, view)]
    return [*said, legend_text(document, width, view)]


def outputs() -> str:
    text: list[str] = []
    for name, (measured, view) in RUNS.items():
        for width, is_verbose in ((80, False), (120, False), (200, True)):
            shown = replace(view, verbose=is_verbose)
            text += [f"=== {name}, {width} columns{', -v' * is_verbose}"]
            text += lines(MEASURED.document(measured, shown), width, shown)
        text += [f"=== {name}, Markdown", document_text(MEASURED.document(measured, view))]
    return "\n".join(text)


def test_outputs_say_what_they_said() -> None:
    assert outputs() == SAID.read_text(encoding="utf-8")
