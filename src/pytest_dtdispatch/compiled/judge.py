"""Judge what compiling did, by limits on counts, and show it: a line for each function, in each setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.compiled.model import METRICS, CompileCounts, CompiledVariant
from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.metrics import repeated
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.gates.limits import judge_count, unjudged
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Kind,
    Line,
    Paragraph,
    Table,
    Tone,
    View,
    paragraph,
)
from pytest_dtdispatch.report.marks import mark, proved, title_of
from pytest_dtdispatch.report.scales import MICROSECONDS, Scale
from pytest_dtdispatch.stats.rank_sums import hodges_lehmann, shift_interval

CONFIDENCE = 0.95  # five compiles each suffice for it
COMPARED = (State.COMPILE_COLD, State.COMPILE_WARM)
LIMITS = ("recompiles", "graph_breaks")  # each names what it limits
NOT_COUNTED = "?"
SCALES = {
    "cold": Scale("s", 1e9, 3),
    "warm": Scale("ms", 1e6, 1),
    "call": MICROSECONDS,
    "eager": MICROSECONDS,
}
STATES = {"cold": State.COMPILE_COLD, "warm": State.COMPILE_WARM, "call": State.CALL, "eager": State.EAGER}
COUNTS: dict[str, Callable[[CompileCounts], int | None]] = {
    "graphs": METRICS["graphs"],
    "breaks": METRICS["graph_breaks"],
    "guards": lambda counts: counts.guards,
    "recompiles": METRICS["recompiles"],
    "propagations": lambda counts: counts.propagations,
}
EXPENDABLE = ("samples", "fake", "propagations", "guards", "warm", "cold/call")
LEGEND = (
    "Compiled: quietest blocks, of instructions the least; counts of one cold compile by torch's counters, "
    "? where it has none."
)
MEANINGS = {
    "cold": "torch.compile and the first call, every cache empty",
    "warm": "the same with caches of compiled code filled",
    "call": "guards and the compiled program",
    "eager": "the same call uncompiled",
    "fake": "hits + misses of the FakeTensor cache",
    "samples": "cold + warm + calls",
}


def judge(variant: CompiledVariant, limits: Mapping[str, int]) -> Iterator[RowVerdict]:
    """Hold a compiled function against each limit."""
    for limit in LIMITS:
        if limit in limits:
            found = getattr(variant.counts, limit)
            if found is None:
                yield unjudged(variant.name, f"{limit}={limits[limit]}", "this torch does not count them")
            else:
                what = f"there are {len(found):,}"
                yield judge_count(variant.name, limit, limits[limit], len(found), what, found)


@dataclass(frozen=True)
class CacheEffect:
    """How much longer a state takes with the FakeTensor cache off.

    Args:
        name: of the function.
        state: of the samples.
        ratio: without the cache over with it.
        low: lower end of its interval, with 95 %; 0 where there are too few samples for one.
        high: upper end; infinite where there are too few samples.
        samples: with the cache off, and with it on.
    """

    name: str
    state: State
    ratio: float
    low: float
    high: float
    samples: tuple[int, int]

    @property
    def has_interval(self) -> bool:
        """Whether there were samples enough for an interval."""
        return self.low > 0 and math.isfinite(self.high)


def cache_effects(variants: Sequence[CompiledVariant]) -> Iterator[CacheEffect]:
    """Compare functions that were compiled with the FakeTensor cache off and on, samples taken in turn.

    The ratio is that of Hodges and Lehmann: of logarithms, the median of all differences.
    """
    by_name: dict[str, dict[bool | None, Measurement]] = {}
    for variant in variants:
        by_name.setdefault(variant.base_name, {})[variant.fake_tensor_cache] = variant.measurement
    for name, settings in by_name.items():
        if True not in settings or False not in settings:
            continue
        for state in COMPARED:
            off, on = settings[False].of(state), settings[True].of(state)
            if off and on:
                logs_off, logs_on = ([math.log(max(ns, 1)) for ns in each.ns] for each in (off, on))
                ratio = hodges_lehmann(logs_on, logs_off)
                ends = shift_interval(logs_on, logs_off, CONFIDENCE)
                low, high = map(math.exp, ends)
                yield CacheEffect(name, state, math.exp(ratio), low, high, (len(off.ns), len(on.ns)))


def document(compiled: Mapping[str, Sequence[CompiledVariant]], view: View) -> Document:
    """Lay out what was compiled, and what the FakeTensor cache is worth, where it was off and on."""
    return Document((*_table(compiled, view), *_effects(compiled)), LEGEND, MEANINGS)


def _table(compiled: Mapping[str, Sequence[CompiledVariant]], view: View) -> Iterator[Block]:
    everything = [variant.measurement for of_test in compiled.values() for variant in of_test]
    is_timed = any(samples.ns for measurement in everything for samples in measurement.samples)
    scales: dict[str, Scale] = {}
    for title, state in STATES.items():
        if any(measurement.of(state) for measurement in everything):
            scales[title] = SCALES[title] if is_timed else Scale("", 1, 0)

    def line(variant: CompiledVariant) -> Line:
        measurement, counts = variant.measurement, variant.counts
        cells = [scale.text(measurement.figure(STATES[title])) for title, scale in scales.items()]
        cells += [_ratio(measurement)] * bool(scales)
        cells += [_number(of(counts)) for of in COUNTS.values()]
        cells += [f"{_number(counts.fake_tensor_hits)}+{_number(counts.fake_tensor_misses)}"]
        cells += [_samples(measurement)] * bool(scales)
        text, tone = mark(measurement) if scales else ("", Tone.PLAIN)
        return Line(variant.name, tuple(cells), text, tuple(_notes(variant, view)), tone)

    groups = tuple(
        Group(f"{test} (compiled by {backend})", tuple(line(v) for v in of_test if v.backend == backend))
        for test, of_test in compiled.items()
        for backend in dict.fromkeys(variant.backend for variant in of_test)
    )
    titles = [*["cold/call"] * bool(scales), *COUNTS, "fake", *["samples"] * bool(scales)]
    columns = (*(Column(title, scale.name) for title, scale in scales.items()), *map(Column, titles))
    last = title_of([line for group in groups for line in group.lines])
    yield Table(columns, groups, label_title="compiled", proof_title=last, expendable=EXPENDABLE)
    yield from proved(everything if scales else (), by="torch's counters")


def _effects(compiled: Mapping[str, Sequence[CompiledVariant]]) -> Iterator[Paragraph]:
    for test, variants in compiled.items():
        for effect in cache_effects(variants):
            off, on = effect.samples
            interval = f"no interval from {off} and {on} samples"
            if effect.has_interval:
                interval = f"95 %: {effect.low:.2f} to {effect.high:.2f}"
            yield paragraph(
                f"{test}: {effect.name} {effect.state} takes {effect.ratio:.2f} times as long "
                f"with the FakeTensor cache off ({interval})",
                hanging=2,
            )


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


def _number(count: int | None) -> str:
    return NOT_COUNTED if count is None else f"{count:,}"


KIND = Kind(
    CompiledVariant.kind,
    document,
    tuple(METRICS),
    judge,
    LIMITS,
    "nothing was compiled; call dtdispatch.compile(fn, *args) in the test",
)
