"""Samples of one state, and all that was measured of one signature or one call."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.plain_data import MOST, Natural, Size
from pytest_dtdispatch.core.text import TextEnum
from pytest_dtdispatch.stats.intervals import quietest_block, scatter

# Scatter past which a row is marked, and not judged: of 120 rows of a quiet machine none has more.
NOISY = 1.0
# Above the fastest reading of the core's speed. Another machine on the same physical core slows all code, and
# no wait or steal is counted here: in 20 s on two virtual cores, 320 of 530 times the loop took 1.6 to 1.9
# times as long, a hit 1.4 to 2.1 times and a miss 1.4 to 1.9 times. In the other 210 the loop took 0.95 to
# 1.05 times its median.
SLOWED = 1.2
MIN_WAITED = 0.1  # share of the time of calls from which on a row says that they waited for a core
FEW_SAMPLES = "few samples"
TRACED = "a tracer of Python ran, such as a debugger or coverage, and makes calls longer"


class State(TextEnum):
    """What a sample was proved to be."""

    MISS = "miss"
    HIT = "hit"
    COLD = "cold"
    CALL = "call"
    LOCAL = "local"
    COMPILE_COLD = "compile-cold"
    COMPILE_WARM = "compile-warm"
    EAGER = "eager"


class Contains(TextEnum):
    """Where the clock of a figure starts."""

    DISPATCH = "dispatch from below autograd"
    END_TO_END = "end to end from Python, autograd included"
    COMPILED = "torch.compile with the first call; later calls; end to end from Python"
    COMPARED = "variants in turn; end to end from Python, autograd included"


class Proof(TextEnum):
    """What the cache counters proved of the samples of a row."""

    PROVED = "proved"
    UNPROPAGATED = "unpropagated"
    REFUSED = "refused"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Refused:
    """Samples that were taken and not recorded, because the counters said something else happened."""

    reason: str
    count: Natural

    def __str__(self) -> str:
        return f"{self.reason} ({self.count}x)"


@dataclass(frozen=True)
class Unit:
    """Unit of samples, and the names of their figures in files.

    Args:
        name: what is counted, as a plural: ``instructions``; of times ``ns``.
        is_time: whether samples are nanoseconds; their quietest block stands for them, else the least.
        steady: metric of hits, and of calls where the op never asks the propagator; empty for none.
        hit: metric of hits alone.
        miss: metric of misses.
        compile: metric of a first call that compiles, less a later call.
        call: metric of calls that have no miss and no hit: of unpropagated ops, and of what was compared.
        least: the least reading that can be one.
    """

    name: str = "ns"
    is_time: bool = True
    steady: str = ""
    hit: str = ""
    miss: str = ""
    compile: str = ""
    call: str = ""
    least: int = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names that the figures have in files."""
        return tuple(name for name in (self.steady, self.hit, self.miss, self.compile, self.call) if name)

    def holds(self, reading: int) -> bool:
        """Whether a counter can read this; one that is absent reads 2**64 - 1."""
        return self.least <= reading < MOST

    @property
    def figure_name(self) -> str:
        """What stands for samples."""
        return "quietest block" if self.is_time else "least"


TIME = Unit(hit="dispatch_hit_ns", miss="dispatch_miss_ns", call="call_ns")
INSTRUCTIONS = Unit(
    "instructions",
    is_time=False,
    steady="instruction_count",
    miss="instruction_count_miss",
    compile="compile_time_instruction_count",
    least=1,
)
UNITS = [INSTRUCTIONS, TIME]  # those of registered samplers follow


@dataclass(frozen=True)
class Share:
    """Instructions of one function, without those of other functions that it calls.

    Args:
        function: its name, and where it is.
        instructions: of all its calls together.
    """

    function: str
    instructions: Natural


@dataclass(frozen=True)
class Profile:
    """Where the instructions of one call went.

    Args:
        functions: of Python, each with the machine code that it called, those with most instructions first.
        total: instructions of the call, in functions listed and not.
    """

    functions: tuple[Share, ...]
    total: Natural


@dataclass(frozen=True)
class Samples:
    """All samples of one state that were proved to be in it; it takes none that no clock or counter can give.

    Args:
        state: the state they were proved to be in.
        values: in their unit, in the order they were taken; on many ranks those of the rank whose median is
            the statistic, or of the two between which it lies.
        refused: what was taken for this state and not recorded.
        unit: what they are in: nanoseconds, if not said.
        profile: instructions of a call in this state by function, if requested.
        by_rank: on many ranks, each rank with its samples; else empty.
        stat: what stands for all ranks: the ``median`` of the rank medians, or the ``max``.
        waited: share of the time of all calls that the thread waited for a core, on the rank with the most.
        blocks: blocks that were measured; these are the samples of the quietest.
        slow_blocks: blocks of them that a core measured far slower than that of these samples.
        speed_ns: nanoseconds of a fixed Python loop beside these calls; 0 if unknown.

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
    blocks: Natural = 1
    speed_ns: Natural = 0
    slow_blocks: Natural = 0

    def __post_init__(self) -> None:
        for value in self.values:
            if not self.unit.holds(value):
                form = "a latency of {0} ns" if self.unit.is_time else "no count of {1}: {0}"
                raise ValueError(form.format(value, self.unit.name))

    @property
    def ns(self) -> tuple[int, ...]:
        """Latencies in nanoseconds; none where the samples are no times."""
        return self.values if self.unit.is_time else ()

    @property
    def count(self) -> int:
        """How many samples there are; on many ranks, of all of them."""
        return sum(len(values) for _, values in self.by_rank) or len(self.values)

    @property
    def figure_name(self) -> str:
        """What the figure is called."""
        return f"{self.stat} of rank medians" if self.by_rank else self.unit.figure_name

    @property
    def figure(self) -> float:
        """What stands for the samples, if there are any: of times the quietest block, else the least."""
        if self.by_rank:
            return self.median_ns
        return quietest_block(self.values) if self.unit.is_time else min(self.values)

    @property
    def scatter(self) -> float | None:
        """How far they scatter, as a share, on the worst rank; None of counts, and of few samples."""
        if self.by_rank:
            return max(scatter(values) or 0.0 for _, values in self.by_rank)
        return scatter(self.ns)

    @property
    def median_ns(self) -> float:
        """Median latency in nanoseconds, on many ranks their statistic; there must be a latency."""
        if self.by_rank:
            return self.slowest[1] if self.stat == "max" else self.middle_ns
        return statistics.median(self.ns)

    @property
    def rank_medians(self) -> dict[int, float]:
        """Median of each rank."""
        return {rank: statistics.median(values) for rank, values in self.by_rank}

    @property
    def middle_ns(self) -> float:
        """Median over ranks of the rank medians; of one rank its median."""
        return float(statistics.median(self.rank_medians.values())) if self.by_rank else self.median_ns

    @property
    def slowest(self) -> tuple[int, float]:
        """The rank with the greatest median, and that median; there must be many ranks."""
        return max(self.rank_medians.items(), key=lambda one: one[1])

    @property
    def spread(self) -> float:
        """How much slower the slowest rank is than the fastest, as a fraction of the median over ranks."""
        least = min(self.rank_medians.values())
        return (self.slowest[1] - least) / self.middle_ns if self.middle_ns else 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether the samples scatter too far for their figure to be judged."""
        return (self.scatter or 0) > NOISY

    @property
    def span(self) -> int:
        """How much greater the greatest sample is than the least."""
        return max(self.values) - min(self.values)


def refused_of(every: Iterable[Samples]) -> tuple[Refused, ...]:
    """Add up, reason by reason, what was refused of several samples."""
    refused: Counter[str] = Counter()
    for one in (one for samples in every for one in samples.refused):
        refused[one.reason] += one.count
    return tuple(Refused(*each) for each in refused.items())


@dataclass(frozen=True)
class Figures:
    """What was measured of one call.

    Args:
        rounds: rounds done, not rounds planned.
        samples: one entry for each state that was tried.
        notes: what every reader must know: why there are no figures, what was done differently.
        remarks: what explains the figures to who asks: why there is no local row.
        is_traced: whether a tracer of Python ran.
        few_misses: whether its misses are too few to be judged.
    """

    rounds: Natural = 0
    samples: tuple[Samples, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    is_traced: bool = False
    few_misses: bool = False


def merge(calls: Sequence[Figures]) -> Figures:
    """Put together what was measured of a call several times.

    Example:
        >>> hits = Figures(1, (Samples(State.HIT, (7, 9)),))
        >>> merge([hits, hits]).samples[0].values
        (7, 9, 7, 9)
    """
    merged = []
    for state in State:
        if of := [samples for figures in calls for samples in figures.samples if samples.state is state]:
            values = tuple(value for each in of for value in each.values)
            waited, speed_ns = max(each.waited for each in of), max(each.speed_ns for each in of)
            unit = of[0].unit
            merged.append(Samples(state, values, refused_of(of), unit, waited=waited, speed_ns=speed_ns))
    return Figures(
        sum(figures.rounds for figures in calls),
        tuple(merged),
        tuple(dict.fromkeys(note for figures in calls for note in figures.notes)),
        tuple(dict.fromkeys(remark for figures in calls for remark in figures.remarks)),
        any(figures.is_traced for figures in calls),
        any(figures.few_misses for figures in calls),
    )


@dataclass(frozen=True)
class Measurement:
    """Everything measured of one signature, or of one named call, in one test.

    Args:
        label: the signature as text, or the name of the call.
        full_label: the same, never shortened.
        op: the op overload, or the name of the call.
        mesh: mesh and device as text, ``4`` or ``2x4:cuda``; empty where no mesh is known.
        contains: where the clock starts.
        calls: how often the program made this call.
        figures: what was measured.
    """

    label: str
    full_label: str
    op: str
    mesh: str
    contains: Contains
    calls: Natural
    figures: Figures

    def of(self, state: State) -> Samples | None:
        """Samples of one state, or None where none was recorded."""
        return next((s for s in self.figures.samples if s.state is state and s.values), None)

    def figure(self, state: State) -> float | None:
        """What stands for one state, or None where none was recorded."""
        samples = self.of(state)
        return samples.figure if samples else None

    def median_ns(self, state: State) -> float | None:
        """Median of one state in nanoseconds, or None where no time was recorded."""
        samples = self.of(state)
        return samples.median_ns if samples and samples.ns else None

    @property
    def steady(self) -> Samples | None:
        """Samples of calls in the steady state: hits, else unpropagated calls."""
        return self.of(State.HIT) or self.of(State.CALL)

    @property
    def steady_ns(self) -> float | None:
        """What stands for calls in the steady state, in nanoseconds: hits, else unpropagated calls."""
        return self.steady.figure if self.steady and self.steady.ns else None

    @property
    def overhead_ns(self) -> float | None:
        """What dispatch adds to the op on the local shards, in nanoseconds: steady minus local."""
        steady, local = self.steady_ns, self.of(State.LOCAL)
        return steady - local.figure if steady is not None and local else None

    @property
    def miss_over_hit(self) -> float | None:
        """How many hits one miss costs."""
        miss, hit = self.figure(State.MISS), self.figure(State.HIT)
        return miss / hit if miss is not None and hit else None

    @property
    def proof_kind(self) -> Proof:
        """What the cache counters proved of these samples."""
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
        """The proof in one phrase: of refused samples, their reasons."""
        reasons = [str(each) for samples in self.figures.samples for each in samples.refused]
        return ", ".join(reasons) or self.proof_kind.value

    @property
    def noisy(self) -> tuple[State, ...]:
        """States whose samples scatter too far for their figure to be judged."""
        return tuple(samples.state for samples in self.figures.samples if samples.is_noisy)

    def recorded(self) -> Iterator[Samples]:
        """Every state that has samples."""
        return (samples for samples in self.figures.samples if samples.values)

    def times(self) -> Iterator[Samples]:
        """Every state that has latencies: the rows of this measurement."""
        return (samples for samples in self.figures.samples if samples.ns)
