"""Table of comparisons, with one line for each variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from pytest_dtdispatch.comparing.model import COUNTS, ComparedVariant, Outcome, ratio_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.plain_data import select
from pytest_dtdispatch.core.text import MICROSECONDS
from pytest_dtdispatch.report.document import Column, Document, Group, Kind, Line, Table, Tone, View
from pytest_dtdispatch.report.notes import notes_of, traced
from pytest_dtdispatch.report.rows import SCATTER, scatter_text

TONES = {Outcome.FASTER: Tone.GOOD, Outcome.SLOWER: Tone.NOTICE}
MEANINGS = {
    "times": "ratio to the first variant, and its 99.9 % interval",
    "median": "of the rounds",
    "least": "of the rounds",
    "rounds": "every variant runs once in each",
}


def document(compared: Mapping[str, Sequence[ComparedVariant]], view: View) -> Document:
    """Render comparisons, each as a group of lines."""
    every = [variant for of_test in compared.values() for variant in of_test]
    counted = [variant.counts for variant in every if variant.counts]
    counts = COUNTS if counted else ()
    if not any(each.reads for each in counted):
        counts = tuple(name for name in counts if name != "reads")
    groups = []
    for test, of_test in compared.items():
        for name in dict.fromkeys(variant.base_name for variant in of_test):
            of_name = [variant for variant in of_test if variant.base_name == name]
            lines = tuple(_line(variant, of_name[0], counts, view) for variant in of_name)
            groups.append(Group(f"{test}: {name} ({of_name[0].measurement.contains})", lines))
    times = [Column(title, MICROSECONDS.name) for title in ("median", "least")]
    columns = (*times, *map(Column, (SCATTER, "times", *counts, "rounds")))
    expendable = ("rounds", "collectives", "least", SCATTER, "wraps", "redistributes", "reads")
    table = Table(columns, tuple(groups), "variant", "outcome", expendable, least_label=20)
    legend = (
        "Variants run in turn. One is faster or slower if the whole interval of its ratio (99.9 %, over "
        "rounds) is more than 3 % from 1."
    )
    return Document((table,), legend, MEANINGS, _worst_text(every))


def _worst_text(every: Sequence[ComparedVariant]) -> str:
    """Return the text on the slowest variant; empty if no variant was measured."""
    timed = [(variant.samples.figure, variant.name) for variant in every if variant.samples]
    return f"worst: {max(timed)[1]}, {MICROSECONDS.text(max(timed)[0])} us" if timed else ""


def _line(variant: ComparedVariant, first: ComparedVariant, counts: Sequence[str], view: View) -> Line:
    row = variant.measurement
    ratio = None if variant is first else ratio_of(variant, first)
    times = (row.median_ns(State.CALL), row.figure(State.CALL))
    cells = (
        *map(MICROSECONDS.text, times),
        scatter_text(variant.samples),
        str(ratio or ("1" if variant is first and variant.samples else "-")),
        *(f"{getattr(variant.counts, name):,}" if variant.counts else "-" for name in counts),
        str(row.figures.rounds),
    )
    if variant.samples is None:
        text, tone = "not measured", Tone.NOTICE
    elif variant is first:
        text, tone = "first", Tone.PLAIN
    elif ratio is None:
        text, tone = "too few rounds" if first.samples else "first not measured", Tone.NOTICE
    else:
        outcome = ratio.outcome()
        text, tone = outcome.value, TONES.get(outcome, Tone.PLAIN)
    text = ", ".join(filter(None, (text, traced(row))))
    advice = [line for each in variant.advice for line in each.lines if not view.for_page]
    return Line(variant.name, cells, text, (*notes_of(row, view), *advice), tone)


def variants_data(variants: Sequence[ComparedVariant]) -> list[dict[str, Any]]:
    """Return the counts of a test's variants, and their ratios to the first variant of their comparison."""
    first = {one.base_name: one for one in reversed(variants)}
    ratios = [ratio_of(one, first[one.base_name]) for one in variants]
    return [
        {
            **select(one, "base_name", "label"),
            "counts": one.counts and asdict(one.counts),
            "ratio": ratio and {**asdict(ratio), "outcome": ratio.outcome()},
        }
        for one, ratio in zip(variants, ratios, strict=True)
    ]


KIND = Kind(
    ComparedVariant.kind,
    document,
    tuple(f"{name}_per_call" for name in COUNTS),
    title="Comparisons",
    type=ComparedVariant,
    has_own_table=True,
    data=variants_data,
    advice=attrgetter("advice"),
)
