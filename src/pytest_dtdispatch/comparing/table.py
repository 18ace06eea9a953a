"""Table of comparisons, with one line for each variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from pytest_dtdispatch.comparing.model import COUNTS, ComparedVariant, Outcome, ratio_of, verdict_text
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.plain_data import select
from pytest_dtdispatch.core.text import MICROSECONDS, grouped
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
    counts = [name for name in COUNTS if counted and (name != "reads" or any(each.reads for each in counted))]
    groups, apart = [], list[ComparedVariant]()
    for test, of_test in compared.items():
        for name, variants in grouped((variant.base_name, variant) for variant in of_test).items():
            lines = [_line(variant, variants[0], counts, view) for variant in variants]
            groups.append(Group(f"{test}: {name} ({variants[0].measurement.contains})", lines))
            ratios = [ratio_of(variant, variants[0]) for variant in variants[1:]]
            apart += variants if any(ratio and ratio.outcome() in TONES for ratio in ratios) else []
    optional = ("collectives", "least", SCATTER, "rounds", "wraps", "redistributes", "reads")
    table = Table(groups, "variant", "outcome", optional, min_label=20)
    legend = (
        "Variants run in turn. One is faster or slower if the whole interval of its ratio (99.9 %, over "
        "rounds) is more than 3 % from 1."
    )
    if any(variant.samples and variant.samples.cpu for variant in every):
        legend += " Calls of at least 0.5 ms are timed by CPU time."
    costs = [(variant.samples.figure, variant.name) for variant in apart if variant.samples]
    cost, slowest = max(costs, default=(0.0, ""))
    worst = f"worst: {slowest}, {MICROSECONDS.text(cost)} us" if costs else ""
    return Document((table,), legend, MEANINGS, worst)


def _line(variant: ComparedVariant, first: ComparedVariant, counts: Sequence[str], view: View) -> Line:
    row, notes = variant.measurement, [*notes_of(variant.measurement, view)]
    ratio = None if variant is first else ratio_of(variant, first)
    tone = Tone.NOTICE
    if variant.samples is None:
        status = "not measured"
    elif variant is first:
        status, tone = "first", Tone.PLAIN
    elif ratio is None:
        status = "too few rounds" if first.samples else "first not measured"
    else:
        outcome = ratio.outcome()
        status, tone = outcome.value, TONES.get(outcome, Tone.PLAIN)
        if outcome is Outcome.NOT_APART:
            notes.append(verdict_text(variant, first, ratio))
    cells = {
        Column("median", MICROSECONDS.name): MICROSECONDS.text(variant.median_ns),
        Column("least", MICROSECONDS.name): MICROSECONDS.text(row.figure(State.CALL)),
        Column(SCATTER): scatter_text(variant.samples),
        Column("times"): "1" if status == "first" else "-" if ratio is None else str(ratio),
    }
    for name in counts:
        cells[Column(name)] = f"{getattr(variant.counts, name):,}" if variant.counts else "-"
    cells[Column("rounds")] = str(row.figures.rounds)
    status = ", ".join(filter(None, (status, traced(row))))
    advice = [line for each in variant.advice for line in each.lines if not view.for_page]
    return Line(variant.name, cells, status, (*notes, *advice), tone)


def variants_data(variants: Sequence[ComparedVariant]) -> list[dict[str, Any]]:
    """Return the counts of a test's variants, and their ratios to the first variant of their comparison."""
    first = {one.base_name: one for one in reversed(variants)}
    ratios = [ratio_of(one, first[one.base_name]) for one in variants]
    return [
        {
            **select(one, "base_name", "label", "max_time_s", "spent_s"),
            "counts": one.counts and asdict(one.counts),
            "ratio": ratio and {**asdict(ratio), "margin": ratio.margin, "outcome": ratio.outcome()},
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
