"""Samples of one state, and the measurement of one signature or one call."""

from __future__ import annotations

import itertools
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_dtdispatch.core.plain_data import MAX_NUMBER, Natural, Size
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.text import TextEnum

PASSES = 8
LONG_CALL_NS = 500_000  # the CPU time of these is read too, which makes a call about 5 us longer
NOISY = 0.1  # a row whose halves differ by more is marked as noisy
MIN_PASSES = 4  # of fewer, the least sample is not reproducible
INSTRUCTIONS_SHIFT = 0.02  # smallest shift of a count of instructions that is a change
MIN_WAITED = 0.1  # minimum share of waiting for a core that a row reports
SIMULATED = ("fake", "local")  # backends whose ranks are simulated in one process


def traced_text(tracers: Sequence[str]) -> str:
    """Return why no gate judges figures from under these tools."""
    return f"a tracer or profiler ran ({', '.join(tracers)}), and makes calls longer"


class State(TextEnum):
    """State of the caches during a call, proved by counters."""

    MISS = "miss"
    HIT = "hit"
    COLD = "cold"
    CALL = "call"
    LOCAL = "local"
    COMPILE_COLD = "compile-cold"
    COMPILE_WARM = "compile-warm"
    EAGER = "eager"


class Clock(TextEnum):
    """Clock of a figure."""

    WALL = "wall"
    CPU = "cpu"  # of the calling thread
    METRIC = "metric"  # that of a registered sampler


class Contains(TextEnum):
    """Scope of a timed call: where its clock starts."""

    DISPATCH = "dispatch from below autograd"
    END_TO_END = "end to end from Python, autograd included"
    COMPILED = "torch.compile with the first call; later calls; end to end from Python"
    COMPARED = "variants in turn; end to end from Python, autograd included"


class Proof(TextEnum):
    """Result of checking the samples of a row against the cache counters."""

    PROVED = "proved"
    UNPROPAGATED = "unpropagated"
    REFUSED = "refused"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Refused:
    """Samples that were not recorded because the counters disproved their state."""

    reason: str
    count: Natural

    def __str__(self) -> str:
        return f"{self.reason} ({self.count}x)"


@dataclass(frozen=True)
class Unit:
    """Unit of samples, and the names of their metrics in files. A metric with an empty name is not written.

    Args:
        name: plural of the counted thing, such as ``instructions``; ``ns`` for times.
        is_time: whether samples are nanoseconds.
        steady: metric of hits, or of calls whose op never reaches the propagator.
        hit: metric of hits only.
        miss: metric of misses.
        compile: metric of a first call that compiles, minus a later call.
        call: metric of calls without misses and hits: unpropagated ops and compared variants.
        least: minimum valid reading.
    """

    name: str = "ns"
    is_time: bool = True
    steady: str = ""
    hit: str = ""
    miss: str = ""
    compile: str = ""
    call: str = ""
    least: int = 0

    def __post_init__(self) -> None:
        if self.name == "ns" and not self.is_time:
            raise ValueError("Unit(is_time=False) needs the plural of what it counts as its name=, not ns")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its metrics in files."""
        return tuple(name for name in (self.steady, self.hit, self.miss, self.compile, self.call) if name)

    def holds(self, reading: int) -> bool:
        """Return whether a reading is valid; an absent counter reads 2**64 - 1."""
        return self.least <= reading < MAX_NUMBER


TIME = Unit(hit="dispatch_hit_ns", miss="dispatch_miss_ns", call="call_ns")
INSTRUCTIONS = Unit(
    "instructions",
    is_time=False,
    steady="instruction_count",
    miss="instruction_count_miss",
    compile="compile_time_instruction_count",
    least=1,
)
UNITS = [INSTRUCTIONS, TIME]  # registered samplers append theirs


@dataclass(frozen=True)
class FunctionShare:
    """Instructions of one function, without those of other functions that it calls.

    Args:
        function: name and source line of the function.
        instructions: total over all its calls.
    """

    function: str
    instructions: Natural


@dataclass(frozen=True)
class Profile:
    """Instructions of one call by function.

    Args:
        functions: Python functions, including the machine code that each called, sorted by instructions.
        total: instructions of the call, including functions that are not listed.
    """

    functions: tuple[FunctionShare, ...]
    total: Natural


@dataclass(frozen=True)
class Samples:
    """Samples that were proved to be of one state. Values that no clock or counter can produce are rejected.

    Args:
        state: the proved state.
        values: samples in their unit, in the order of measurement. On many ranks: the samples of the rank
            whose median is the statistic, or of the two ranks whose medians enclose it.
        lengths: number of samples of each pass of consecutive calls; empty if each sample is a pass.
        refused: samples of this state that were not recorded, by reason.
        unit: unit of the samples; nanoseconds by default.
        profile: instructions of a call in this state by function, if requested.
        by_rank: ranks and their samples; empty for one process.
        stat: statistic over the ranks: ``median`` of the rank medians, or ``max``.
        waited: share of the time of all calls in which the thread waited for a core; maximum over the ranks.
        cpu: CPU time of the calling thread during each sample, in nanoseconds; empty if it was not read.

    Example:
        >>> hits = Samples(State.HIT, (7, 9), by_rank=((0, (7,)), (1, (9,))))
        >>> hits.median_ns, hits.slowest, hits.spread
        (8.0, (1, 9), 0.25)
    """

    state: State
    values: tuple[int, ...]
    refused: tuple[Refused, ...] = ()
    unit: Unit = TIME
    profile: Profile | None = None
    by_rank: tuple[tuple[Natural, tuple[Natural, ...]], ...] = ()
    stat: str = "median"
    waited: Size = 0.0
    lengths: tuple[Natural, ...] = ()
    cpu: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        if self.cpu and len(self.cpu) != len(self.values):
            raise ValueError(f"CPU times of {len(self.cpu)} samples, but {len(self.values)} samples")
        for value in self.values:
            if not self.unit.holds(value):
                form = "a latency of {0} ns" if self.unit.is_time else "no count of {1}: {0}"
                raise ValueError(form.format(value, self.unit.name))

    @property
    def ns(self) -> tuple[int, ...]:
        """Latencies in nanoseconds; empty if the samples are counts."""
        return self.values if self.unit.is_time else ()

    @property
    def count(self) -> int:
        """Number of samples, on all ranks."""
        return sum(len(values) for _, values in self.by_rank) or len(self.values)

    @property
    def figure_name(self) -> str:
        """Name of the statistic that ``figure`` is."""
        return f"least {self.stat} of rank medians" if self.by_rank else "least"

    @property
    def clock(self) -> Clock:
        """Clock of the figure: CPU time, which other programs do not make longer, if it was read."""
        return Clock.CPU if self.cpu else Clock.WALL if self.unit == TIME else Clock.METRIC

    def passes(self, clock: Clock) -> tuple[tuple[float, ...], ...]:
        """Return the samples of each pass by a clock; over ranks, one statistic of each pass.

        The rank that comes last waits least, so that a least sample over ranks says nothing.
        """
        if not self.by_rank:
            return passes_of(self.cpu if clock is Clock.CPU else self.values, self.lengths)
        passes = zip(*(passes_of(values, self.lengths) for _, values in self.by_rank), strict=False)
        statistic = max if self.stat == "max" else statistics.median
        return tuple((statistic(map(statistics.median, of_ranks)),) for of_ranks in passes)

    @property
    def figure(self) -> float:
        """Least sample, as interference only adds time; over ranks, the least statistic of a pass."""
        return self.least(self.clock)

    def least(self, clock: Clock) -> float:
        """Return the least sample by a clock; over ranks, the least statistic of a pass."""
        return min(map(min, self.passes(clock)))

    @property
    def scatter(self) -> float | None:
        """Gap between the least samples of both halves of the passes, on the worst rank; None for counts."""
        every = [values for _, values in self.by_rank] or [self.cpu or self.ns]
        gaps = [gap_of_halves(passes_of(values, self.lengths)) for values in every]
        return max((gap for gap in gaps if gap is not None), default=None)

    @property
    def median_ns(self) -> float:
        """Median latency in nanoseconds, or the statistic over the ranks; there must be a latency."""
        if self.by_rank:
            medians = self.rank_medians.values()
            return max(medians) if self.stat == "max" else float(statistics.median(medians))
        return statistics.median(self.ns)

    @property
    def rank_medians(self) -> dict[int, float]:
        """Median of each rank."""
        return {rank: statistics.median(values) for rank, values in self.by_rank}

    @property
    def slowest(self) -> tuple[int, float]:
        """Rank with the largest median, and that median; there must be several ranks."""
        return max(self.rank_medians.items(), key=operator.itemgetter(1))

    @property
    def spread(self) -> float:
        """Difference between the slowest and the fastest rank, as a fraction of the median over ranks."""
        medians = self.rank_medians.values()
        middle = statistics.median(medians)
        return (max(medians) - min(medians)) / middle if middle else 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether the samples scatter too much for their figure to be judged."""
        return (self.scatter or 0) > NOISY

    @property
    def span(self) -> int:
        """Difference between the largest and the smallest sample."""
        return max(self.values) - min(self.values)


def passes_of(values: Sequence[int], lengths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split samples into passes of these lengths; without lengths, each sample is a pass.

    Example:
        >>> passes_of([7, 9, 8], [2, 1])
        ((7, 9), (8,))
    """
    if sum(lengths) != len(values):
        return tuple((value,) for value in values)
    ends = itertools.accumulate(lengths)
    return tuple(tuple(values[end - length : end]) for length, end in zip(lengths, ends, strict=True))


def gap_of_halves(passes: Sequence[Sequence[float]]) -> float | None:
    """Return the relative gap between the least samples of even and of odd passes; None with one pass.

    Example:
        >>> gap_of_halves([(7, 10), (11, 12), (9, 9), (14, 15)])
        0.5714285714285714
    """
    if len(passes) < 2:
        return None
    low, high = sorted(min(map(min, passes[first::2])) for first in (0, 1))
    return high / low - 1 if low else None


def common_clock(first: Samples, second: Samples) -> Clock:
    """Return the clock by which two samples can be compared: CPU time if both have it."""
    return first.clock if first.clock is second.clock else Clock.WALL


def excess(samples: Samples, local: Samples) -> float:
    """Return the figure of calls minus that of the op on local shards, both by one clock."""
    clock = common_clock(samples, local)
    return samples.least(clock) - local.least(clock)


def refused_of(every: Iterable[Samples]) -> tuple[Refused, ...]:
    """Sum refused samples by reason."""
    counts: Counter[str] = Counter()
    for samples in every:
        for refused in samples.refused:
            counts[refused.reason] += refused.count
    return tuple(Refused(reason, count) for reason, count in counts.items())


@dataclass(frozen=True)
class Figures:
    """Figures of one call.

    Args:
        rounds: number of completed rounds, which may be fewer than planned.
        samples: one entry for each attempted state.
        notes: notes that are always printed, such as why there are no figures.
        remarks: notes that only verbose output has, such as why there is no local row.
        tracers: names of tools that made the calls longer, such as coverage; no gate judges such figures.
        call: the call of an op in Python, as parts of a script by name; empty if it was not recorded.
    """

    rounds: Natural = 0
    samples: tuple[Samples, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    tracers: tuple[str, ...] = ()
    call: Mapping[str, str] = field(default_factory=dict)


def merge(calls: Sequence[Figures]) -> Figures:
    """Merge the figures of repeated measurements of one call.

    Example:
        >>> hits = Figures(1, (Samples(State.HIT, (7, 9)),))
        >>> merge([hits, hits]).samples[0].values
        (7, 9, 7, 9)
    """
    merged = []
    for state in State:
        of = [samples for figures in calls for samples in figures.samples if samples.state is state]
        if of:
            values = tuple(value for each in of for value in each.values)
            lengths = tuple(length for each in of for length in each.lengths)
            waited = max(each.waited for each in of)
            cpu = tuple(ns for each in of for ns in each.cpu) if all(each.cpu for each in of) else ()
            both = Samples(state, values, refused_of(of), of[0].unit, waited=waited, lengths=lengths, cpu=cpu)
            merged.append(both)
    return Figures(
        sum(figures.rounds for figures in calls),
        tuple(merged),
        tuple(dict.fromkeys(note for figures in calls for note in figures.notes)),
        tuple(dict.fromkeys(remark for figures in calls for remark in figures.remarks)),
        tuple(dict.fromkeys(name for figures in calls for name in figures.tracers)),
    )


def fastest(first: Figures, second: Figures) -> Figures:
    """Return the second figures of a call, in each state with the samples of the lower figure of both.

    Example:
        >>> slow, quick = (Figures(1, (Samples(State.HIT, (ns,)),)) for ns in (9, 7))
        >>> fastest(quick, slow) == fastest(slow, quick) == quick
        True
    """
    samples = {each.state: each for each in first.samples}
    for each in second.samples:
        earlier = samples.get(each.state)
        if earlier is None or not earlier.values or (each.values and each.figure < earlier.figure):
            samples[each.state] = each
    return replace(second, samples=tuple(samples.values()))


@dataclass(frozen=True)
class Measurement:
    """Measurement of one signature, or of one named call, in one test.

    Args:
        label: signature as text, or name of the call.
        full_label: the label without a limit of its length.
        op: op overload, or name of the call.
        mesh: mesh and device as text, ``4`` or ``2x4:cuda``; empty if there is no known mesh.
        contains: scope of the timed call.
        calls: number of calls by the program.
        figures: figures of the call.
        backend: backend of the process group, such as ``fake`` or ``gloo``; empty if there was none.
    """

    label: str
    full_label: str
    op: str
    mesh: str
    contains: Contains
    calls: Natural
    figures: Figures
    backend: str = ""

    @classmethod
    def of_signature(
        cls, signature: Signature, calls: int, figures: Figures, backend: str = ""
    ) -> Measurement:
        """Return the measurement of the calls of a signature."""
        names = str(signature), signature.full, signature.op, signature.mesh_device
        return cls(*names, Contains.DISPATCH, calls, figures, backend)

    @property
    def key(self) -> tuple[str, Contains]:
        """Its identity among the rows of a test."""
        return self.full_label, self.contains

    def of(self, state: State) -> Samples | None:
        """Return the samples of a state, or None if none was recorded."""
        return next((samples for samples in self.recorded() if samples.state is state), None)

    def figure(self, state: State) -> float | None:
        """Return the figure of a state, or None if none was recorded."""
        samples = self.of(state)
        return samples.figure if samples else None

    def median_ns(self, state: State) -> float | None:
        """Return the median of a state in nanoseconds, or None if no time was recorded."""
        samples = self.of(state)
        return samples.median_ns if samples and samples.ns else None

    @property
    def steady(self) -> Samples | None:
        """Samples of calls in the steady state: hits, or else unpropagated calls."""
        return self.of(State.HIT) or self.of(State.CALL)

    @property
    def overhead(self) -> float | None:
        """What dispatch adds to the op on local shards, in the unit of the samples: steady minus local."""
        steady, local = self.steady, self.of(State.LOCAL)
        return excess(steady, local) if steady and local else None

    @property
    def overhead_ns(self) -> float | None:
        """The overhead in nanoseconds; None if the samples are no times."""
        return self.overhead if self.steady and self.steady.ns else None

    @property
    def miss_over_hit(self) -> float | None:
        """Cost of a miss divided by that of a hit; None unless both were recorded."""
        miss, hit = self.figure(State.MISS), self.figure(State.HIT)
        return miss / hit if miss is not None and hit else None

    @property
    def proof_kind(self) -> Proof:
        """Whether the cache counters proved the samples."""
        if any(samples.refused for samples in self.figures.samples):
            return Proof.REFUSED
        recorded = {samples.state for samples in self.recorded()}
        if self.contains in (Contains.COMPILED, Contains.COMPARED):
            return Proof.PROVED if recorded else Proof.NOT_MEASURED
        if State.CALL in recorded:
            return Proof.UNPROPAGATED
        return Proof.PROVED if recorded & {State.MISS, State.HIT} else Proof.NOT_MEASURED

    @property
    def proof(self) -> str:
        """Text of the proof: the reasons of refused samples, or else the value of ``proof_kind``."""
        reasons = [str(each) for samples in self.figures.samples for each in samples.refused]
        return ", ".join(reasons) or self.proof_kind.value

    @property
    def noisy(self) -> tuple[State, ...]:
        """States whose samples scatter too much to be judged."""
        return tuple(samples.state for samples in self.figures.samples if samples.is_noisy)

    def recorded(self) -> Iterator[Samples]:
        """Yield the samples of every state that has any."""
        return (samples for samples in self.figures.samples if samples.values)

    def times(self) -> Iterator[Samples]:
        """Yield the samples of every state that has latencies."""
        return (samples for samples in self.figures.samples if samples.ns)
