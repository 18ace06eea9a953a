"""Results of a comparison of variants, and claims on them to assert."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any, ClassVar

from pytest_dtdispatch.core.checks import check_callable, signature_mismatch
from pytest_dtdispatch.core.measurement import (
    Clock,
    Measurement,
    Samples,
    State,
    common_clock,
    traced_text,
)
from pytest_dtdispatch.core.plain_data import Size
from pytest_dtdispatch.core.results import Advice, OneRow
from pytest_dtdispatch.core.text import TextEnum, escape_controls, nearest, plural, shown
from pytest_dtdispatch.errors import GateError, MeasurementError
from pytest_dtdispatch.stats.intervals import paired_ratio, repeated_confidence

__tracebackhide__ = True  # a test that fails here shows its own line

# Two variants differ if the whole interval of their ratio is farther from 1 than this. The interval of equal
# functions never was: see benchmarks/compare.py.
FLOOR = 0.03
MIN_ROUNDS = 21  # the interval of these excludes one disturbed round
NOT_MEASURED = "nothing is measured in this run"
USAGE = 'dtdispatch.compare({"dtensor": f, "plain": g})'
Equal = Callable[[Any, Any], object]


@dataclass(frozen=True)
class Variants:
    """Callables to compare.

    Args:
        name: name of the comparison.
        functions: callables by label; all others are compared with the first.
        equal: function that returns whether two results are equal; None to compare them bit for bit.
    """

    name: str
    functions: Mapping[str, Callable[[], Any]]
    equal: Equal | None = None


@dataclass(frozen=True)
class CallCounts:
    """Counts of one call.

    Args:
        misses: number of ops whose sharding was propagated.
        redistributes: number of redistributions, explicit or implicit.
        collectives: number of collectives of all kinds.
        wraps: number of conversions of local tensors to DTensors.
        reads: number of reads of tensors by the host.
    """

    misses: int = 0
    redistributes: int = 0
    collectives: int = 0
    wraps: int = 0
    reads: int = 0


COUNTS = tuple(field.name for field in fields(CallCounts))


class Outcome(TextEnum):
    """Outcome of comparing two variants."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_APART = "not told apart"


@dataclass(frozen=True)
class Ratio:
    """Ratio of the times of two variants, with its interval.

    Args:
        ratio: median of the ratios of any two rounds.
        low: lower end of its 99.9 % interval.
        high: upper end of its 99.9 % interval.
        rounds: number of rounds.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def margin(self) -> float:
        """Half of the interval as a share of the ratio."""
        return (self.high - self.low) / 2 / self.ratio

    @property
    def is_decided(self) -> bool:
        """Whether more rounds are not needed: its outcome is certain, and the interval is narrow."""
        is_equal = 1 - FLOOR <= self.low <= self.high <= 1 + FLOOR
        is_narrow = self.margin <= max(FLOOR, abs(self.ratio - 1) / 8)  # claims may name other differences
        return is_equal or (is_narrow and self.outcome() is not Outcome.NOT_APART)

    def outcome(self, by: float = FLOOR) -> Outcome:
        """Return ``faster`` or ``slower`` if the whole interval is beyond this share, else neither."""
        if self.high < 1 - by:
            return Outcome.FASTER
        return Outcome.SLOWER if self.low > 1 + by else Outcome.NOT_APART

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class ComparedVariant(OneRow):
    """Result of one variant.

    Args:
        name: name of its row, ``mlp[plain]``.
        label: label from the user, ``plain``.
        base_name: name of the comparison, ``mlp``.
        measurement: its row; a sample is the trimmed mean of the block of calls in a round.
        counts: counts of one call; None if it cannot be repeated.
        advice: advice on a call.
        max_time_s: time limit of its rounds in seconds; 0 if their number was agreed on by ranks.
        spent_s: seconds that its rounds took.
    """

    kind: ClassVar[str] = "compared"
    name: str
    label: str
    base_name: str
    measurement: Measurement
    counts: CallCounts | None = None
    advice: tuple[Advice, ...] = ()
    max_time_s: Size = 0.0
    spent_s: Size = 0.0

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Yield each count."""
        if self.counts is not None:
            for name in COUNTS:
                yield f"{name}_per_call", getattr(self.counts, name)

    @property
    def samples(self) -> Samples | None:
        """Its samples, one per round; None if there are none."""
        return self.measurement.of(State.CALL)

    @property
    def median_ns(self) -> float | None:
        """Median of its rounds in nanoseconds, by the clock of its ratios; None if unknown."""
        cpu = self.samples.cpu if self.samples else ()
        return statistics.median(cpu) if cpu else self.measurement.median_ns(State.CALL)


def ratio_of(one: ComparedVariant, other: ComparedVariant) -> Ratio | None:
    """Return the ratio of the time of one variant to that of another; None if unknown."""
    if not (one.samples and other.samples):
        return None
    is_cpu = common_clock(one.samples, other.samples) is Clock.CPU
    base, head = (each.cpu if is_cpu else each.values for each in (other.samples, one.samples))
    return ratio_after(one.spent_s / one.max_time_s if one.max_time_s else 1.0, base, head)


def ratio_after(share: float, base: Sequence[int], head: Sequence[int]) -> Ratio | None:
    """Return the ratio of paired samples after a share of the time limit; None if they are too few.

    Args:
        share: time as a fraction of the limit, at least 0.25, for the :func:`repeated_confidence`.
        base: samples of one variant.
        head: samples of the other, each measured next to the base sample of the same index.
    """
    found = paired_ratio(base, head, repeated_confidence(share)) if all(base) and all(head) else None
    return None if found is None else Ratio(*found, rounds=len(base))


def verdict_text(one: ComparedVariant, other: ComparedVariant, ratio: Ratio, by: float = FLOOR) -> str:
    """Describe how a variant differs: by its counts, which are exact, and by its time.

    A time that is not told apart is followed by the interval that a longer time limit would give.
    """
    texts, outcome = [], ratio.outcome()
    if one.counts and other.counts and one.counts != other.counts:
        nouns = (("miss", "es"), ("redistribution",), ("collective",), ("wrap",), ("read",))
        pairs = zip(nouns, astuple(one.counts), astuple(other.counts), strict=True)
        texts.append(", ".join(f"{plural(n, *noun)} for {of:,}" for noun, n, of in pairs if n != of))
    subject = "time " if outcome is Outcome.NOT_APART else ""
    texts.append(f"{subject}{outcome}, {ratio} times as long in {ratio.rounds} rounds")
    is_inside = 1 - by <= ratio.low <= ratio.high <= 1 + by
    if one.max_time_s and ratio.outcome(by) is Outcome.NOT_APART and not is_inside:
        gap = abs(ratio.ratio - 1) - by
        factor = min(max(1.2 * ratio.margin / gap, 2.0), 5.0) if gap > 0 else 2.0
        limit_s = math.ceil(max(one.max_time_s, one.spent_s) * factor**2)
        margins = f"+-{ratio.margin / factor:.1%} instead of +-{ratio.margin:.1%}"
        texts.append(f"--dtdispatch-max-time {limit_s} would give about {margins}")
    return "; ".join(texts)


@dataclass(frozen=True, repr=False)
class Claim:
    """Claim that one variant is faster or slower than another: a truth value, and its figures as text."""

    holds: bool
    text: str

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Compared:
    """Result of ``dtdispatch.compare``: one entry for each variant, by label.

    If nothing is measured, it has no variants, ``faster_than`` is true, and ``slower_than`` is false.

    Args:
        name: name of the comparison.
        labels: labels of the variants, in order.
        variants: results of the variants; empty if nothing was measured.
        reason: why nothing was measured.
        is_gate: whether a claim fails the test if nothing was measured, in a run that measures.

    Example:
        >>> compared = Compared("mlp", ("dtensor", "plain"), reason=NOT_MEASURED)
        >>> compared["plain"].faster_than("dtensor", by=0.2)
        plain against dtensor: nothing is measured in this run
        >>> bool(compared["plain"].slower_than("dtensor"))
        False
    """

    name: str
    labels: tuple[str, ...]
    variants: tuple[ComparedVariant, ...] = field(default=(), repr=False)
    reason: str = ""
    is_gate: bool = False

    def __getitem__(self, label: str) -> VariantResult:
        if label not in self.labels:
            valid = escape_controls(f"{', '.join(self.labels)}{nearest(label, self.labels)}")
            raise MeasurementError(f"compare {self.name!r} has no variant {shown(label)}; valid: {valid}")
        return VariantResult(self, label)

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)


@dataclass(frozen=True)
class VariantResult:
    """One variant of a comparison.

    Args:
        compared: the comparison.
        label: label of the variant.
    """

    compared: Compared = field(repr=False)
    label: str

    @property
    def measured(self) -> ComparedVariant | None:
        """Its result; None if nothing was measured."""
        return next((one for one in self.compared.variants if one.label == self.label), None)

    @property
    def counts(self) -> CallCounts:
        """Counts of one call; all 0 if nothing was counted."""
        return (self.measured and self.measured.counts) or CallCounts()

    @property
    def median_ns(self) -> float | None:
        """Median of its rounds in nanoseconds; None if nothing was measured."""
        return self.measured.median_ns if self.measured else None

    def ratio_to(self, other: str) -> Ratio | None:
        """Return the ratio of its time to that of another variant; None if unknown.

        Args:
            other: label of the other variant.

        Returns:
            The ratio with its interval.

        Raises:
            MeasurementError: there is no such variant, or it is this one.
        """
        one, against = self.measured, self.compared[other].measured
        if other == self.label:
            raise MeasurementError(f"{self.label!r} is compared with itself: name another variant")
        return ratio_of(one, against) if one and against else None

    def faster_than(self, other: str, by: float = 0.0) -> Claim:
        """Return whether it is faster than another variant, by the whole interval of their ratio.

        Args:
            other: label of the other variant.
            by: minimum share of the other's time that it saves: 0.2 is 20 %. At least 3 % is required.

        Returns:
            A true or false value. Its text has the ratio, the interval and the outcome. If nothing is
            measured, it is true.

        Raises:
            MeasurementError: there is no such variant, or ``by`` is not a share.
            GateError: the run measures, and these two were not measured.
        """
        return self._claim(Outcome.FASTER, other, by)

    def slower_than(self, other: str, by: float = 0.0) -> Claim:
        """Return whether it is slower than another variant, by the whole interval of their ratio.

        Args:
            other: label of the other variant.
            by: minimum share of the other's time that it adds: 0.2 is 20 %. At least 3 % is required.

        Returns:
            A true or false value. Its text has the ratio, the interval and the outcome. If nothing is
            measured, it is false.

        Raises:
            MeasurementError: there is no such variant, or ``by`` is not a share.
            GateError: the run measures, and these two were not measured.
        """
        return self._claim(Outcome.SLOWER, other, by)

    def _claim(self, claimed: Outcome, other: str, by: float) -> Claim:
        """Compare the whole interval with the claim.

        Raises:
            MeasurementError: ``other`` or ``by`` is invalid.
            GateError: the run measures, but there is no ratio.
        """
        is_faster = claimed is Outcome.FASTER
        is_number = isinstance(by, (int, float)) and not isinstance(by, bool)
        if not is_number or not 0 <= by < (1 if is_faster else math.inf):
            valid = "a number from 0 to below 1" if is_faster else "a number of at least 0"
            raise MeasurementError(f"by={shown(by)} is not {valid}: 0.2 is 20 %")
        ratio, compared, share = self.ratio_to(other), self.compared, max(by, FLOOR)
        pair = escape_controls(f"{self.label} against {other}")
        either = [one for one in (self.measured, compared[other].measured) if one]
        if ratio is None and (compared.variants or compared.is_gate):
            claim = f"{self.label} {claimed}_than({other!r}, by={by:g})"
            unsampled = [one.measurement for one in either if not one.samples]
            notes = dict.fromkeys(note for row in unsampled for note in row.figures.notes)
            reason = compared.reason or "; ".join(notes) or "there are too few rounds"
            raise GateError(f"{compared.name!r}: {claim} is disabled: {reason}")
        if ratio is None:
            return Claim(is_faster, f"{pair}: {compared.reason}")
        wanted = f"below {1 - share:g}" if is_faster else f"above {1 + share:g}"
        mine, theirs = either
        found = verdict_text(mine, theirs, ratio, share)
        text = f"{pair}: {found}; {claimed} needs the whole interval {wanted}"
        names = dict.fromkeys(name for one in either for name in one.measurement.figures.tracers)
        text += f"; {traced_text([*names])}" if names else ""
        return Claim(ratio.outcome(share) is claimed, text)


def check_variants(variants: object, equal: object, name: object) -> None:
    """Validate the arguments of ``compare()``."""
    if not isinstance(variants, Mapping):
        valid = f"callables by their names, as in {USAGE}"
        raise MeasurementError(f"compare({shown(variants)}): it takes {valid}")
    if not isinstance(name, str) or not name.strip():
        raise MeasurementError(f"compare(name={shown(name)}): the name must be a non-empty string")
    if len(variants) < 2:
        raise MeasurementError(f"compare() of {len(variants)} variants: it needs at least two, as in {USAGE}")
    for label, fn in variants.items():
        if not isinstance(label, str) or not label or label != label.strip():
            why = "is not a string, is empty, or begins or ends with a space"
            raise MeasurementError(f"compare(): the name {shown(label)} of a variant {why}")
        check_callable(f"compare: {label!r}", fn, None)
        mismatch = signature_mismatch(fn)
        if mismatch:
            remedy = f"wrap each, as in {{{label!r}: lambda: f(x)}}"
            raise MeasurementError(f"the variant {label!r} {mismatch}, and compare() passes none: {remedy}")
    if equal is not None and not callable(equal):
        raise MeasurementError(f"compare(equal={shown(equal)}): it takes a function of two results")
