"""Compiled functions: a line for each, in each setting of the FakeTensor cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_dtdispatch.compiled.judge import LIMITS, CacheEffect, cache_effects, complaint
from pytest_dtdispatch.compiled.model import METRICS, CompileCounts, CompiledVariant
from pytest_dtdispatch.core.itemized import repeated
from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.report.document import (
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Table,
    View,
    paragraph,
)
from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.report.measurements import proof_tone
from pytest_dtdispatch.report.scales import column_scale

NOT_COUNTED = "?"
STATES = (
    ("cold", State.COMPILE_COLD),
    ("warm", State.COMPILE_WARM),
    ("call", State.CALL),
    ("eager", State.EAGER),
)
COUNTS: tuple[tuple[str, Callable[[CompileCounts], int | None]], ...] = (
    ("graphs", lambda counts: counts.graphs),
    ("breaks", lambda counts: _length(counts.graph_breaks)),
    ("guards", lambda counts: counts.guards),
    ("recompiles", lambda counts: _length(counts.recompiles)),
    ("propagations", lambda counts: counts.propagations),
)
EXPENDABLE = ("samples", "fake", "propagations", "guards", "warm", "cold/call")
LEGEND = (
    "Compiled: medians, of instructions the least. cold: torch.compile and the first call, every cache "
    "empty; warm: the same with caches of compiled code filled; call: guards and the compiled program; "
    "eager: the same call uncompiled. Counts of one cold compile by torch's counters, ? where it has none; "
    "fake: hits + misses of the FakeTensor cache. samples: cold + warm + calls. More with -v."
)


def document(compiled: Mapping[str, Sequence[CompiledVariant]], view: View) -> Document:
    """Lay out what was compiled, and what the FakeTensor cache is worth, where it was off and on."""
    return Document((_table(compiled, view), *_effects(compiled)), LEGEND)


def _table(compiled: Mapping[str, Sequence[CompiledVariant]], view: View) -> Table:
    everything = [variant.measurement for of_test in compiled.values() for variant in of_test]
    columns = [
        (title, texts) for title, state in STATES if any((texts := _texts(state, everything))[1].values())
    ]

    def line(variant: CompiledVariant) -> Line:
        measurement, counts = variant.measurement, variant.counts
        cells = [texts[1][id(measurement)] or "-" for _, texts in columns]
        cells += [_ratio(measurement)] * bool(columns)
        cells += [_number(of(counts)) for _, of in COUNTS]
        cells += [_sum(counts.fake_tensor_hits, counts.fake_tensor_misses)]
        cells += [_samples(measurement)] * bool(columns)
        proof = measurement.proof if columns else "counted"
        return Line(variant.name, tuple(cells), proof, tuple(_notes(variant, view)), proof_tone(proof))

    groups = tuple(
        Group(f"{test} (compiled by {backend})", tuple(line(v) for v in of_test if v.backend == backend))
        for test, of_test in compiled.items()
        for backend in dict.fromkeys(variant.backend for variant in of_test)
    )
    times = [Column(title, texts[0]) for title, texts in columns]
    titles = [*["cold/call"] * bool(columns), *(title for title, _ in COUNTS), "fake"]
    titles += ["samples"] * bool(columns)
    return Table((*times, *map(Column, titles)), groups, label_title="compiled", expendable=EXPENDABLE)


def _effects(compiled: Mapping[str, Sequence[CompiledVariant]]) -> Iterator[Paragraph]:
    for test, variants in compiled.items():
        for effect in cache_effects(variants):
            yield paragraph(f"{test}: {effect_text(effect)}", hanging=2)


def effect_text(effect: CacheEffect) -> str:
    """Write the ratio with its interval.

    Example:
        >>> effect_text(CacheEffect("embedding", State.COMPILE_COLD, 1.082, 1.04, 1.13, (5, 5)))
        'embedding compile-cold takes 1.08 times as long with the FakeTensor cache off (95 %: 1.04 to 1.13)'
    """
    off, on = effect.samples
    interval = (
        f"95 %: {effect.low:.2f} to {effect.high:.2f}"
        if effect.has_interval
        else f"no interval from {off} and {on} samples"
    )
    return (
        f"{effect.name} {effect.state} takes {effect.ratio:.2f} times as long with the FakeTensor cache off "
        f"({interval})"
    )


def _texts(state: State, measurements: Sequence[Measurement]) -> tuple[str, dict[int, str]]:
    """Write a column: its unit, and its texts by measurement."""
    figures = {id(measurement): measurement.figure(state) for measurement in measurements}
    if not any(samples.ns for measurement in measurements for samples in measurement.samples):
        return "", {key: "" if value is None else f"{value:,.0f}" for key, value in figures.items()}
    unit = column_scale(figures.values())
    return unit.name, {key: "" if value is None else unit.text(value) for key, value in figures.items()}


def _ratio(measurement: Measurement) -> str:
    cold, call = (measurement.figure(state) for state in (State.COMPILE_COLD, State.CALL))
    return f"{cold / call:,.0f}" if cold and call else "-"


def _samples(measurement: Measurement) -> str:
    taken = (measurement.of(state) for state in (State.COMPILE_COLD, State.COMPILE_WARM, State.CALL))
    return "+".join(str(len(samples.values) if samples else 0) for samples in taken)


def _notes(variant: CompiledVariant, view: View) -> Iterator[str]:
    counts = variant.counts
    yield from variant.measurement.notes
    listed = [f"graph break at {text}" for text in repeated(counts.graph_breaks or ())]
    listed += [f"recompiled {text}" for text in repeated(counts.recompiles or ())]
    yield from view.listed(listed)
    if view.verbose:
        yield (
            f"tracing: {_number(counts.propagations)} propagations, {_number(counts.sharding_misses)} misses "
            f"of the sharding caches; FakeTensor cache: {_number(counts.fake_tensor_hits)} hits, "
            f"{_number(counts.fake_tensor_misses)} misses, {_number(counts.fake_tensor_bypasses)} not asked"
        )


def _length(listed: Sequence[object] | None) -> int | None:
    return None if listed is None else len(listed)


def _number(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"{count:,}"


def _sum(one: int | None, other: int | None) -> str:
    return f"{_number(one)}+{_number(other)}"


KIND = Kind(
    CompiledVariant.kind,
    document,
    tuple(METRICS),
    complaint,
    LIMITS,
    "nothing was compiled; call dtdispatch.compile(fn, *args) in the test",
)
