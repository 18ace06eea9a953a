"""Which of two variants is faster, to assert on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_dtdispatch.compare.model import FLOOR, CallCounts, ComparedVariant, Ratio, ratio_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.shown import printable, shown
from pytest_dtdispatch.errors import CompareError, GateError

NOT_MEASURED = "nothing is measured in this run"


@dataclass(frozen=True, repr=False)
class Claim:
    """Whether one variant is faster, or slower, than another; it is true or false, and its text says why."""

    holds: bool
    text: str

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


@dataclass(frozen=True)
class Compared:
    """What ``dtdispatch.compare`` gives: one entry for each variant, by its label.

    Where nothing is measured it has no variants: ``faster_than`` holds, and ``slower_than`` does not.

    Args:
        name: of the comparison.
        labels: of the variants, in the order given.
        variants: what was measured of them; empty where nothing was.
        why_not: why nothing was measured.
        is_gate: whether a claim fails the test where nothing was measured, as its run was to measure.

    Example:
        >>> compared = Compared("mlp", ("dtensor", "plain"), why_not=NOT_MEASURED)
        >>> compared["plain"].faster_than("dtensor", by=0.2)
        plain against dtensor: nothing is measured in this run
        >>> bool(compared["plain"].slower_than("dtensor"))
        False
    """

    name: str
    labels: tuple[str, ...]
    variants: tuple[ComparedVariant, ...] = field(default=(), repr=False)
    why_not: str = ""
    is_gate: bool = False

    def __getitem__(self, label: str) -> Contender:
        return Contender(self, self.known(label))

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def known(self, label: str) -> str:
        """Give a label back; one that no variant has is an error."""
        __tracebackhide__ = True
        if label not in self.labels:
            valid = ", ".join(map(printable, self.labels))
            raise CompareError(f"compare {self.name!r} has no variant {shown(label)}; valid: {valid}")
        return label

    def of(self, label: str) -> ComparedVariant | None:
        """Give what was measured of a variant; None where nothing was."""
        return next((variant for variant in self.variants if variant.label == label), None)

    def __str__(self) -> str:
        told = [f"{one.label}: {one.to_first or '1'}" for one in self.variants]
        return "\n  ".join((self.name, *told, *filter(None, (self.why_not,))))


@dataclass(frozen=True, repr=False)
class Contender:
    """One variant beside the others that it was compared with.

    Args:
        compared: all of them.
        label: which of them it is.
    """

    compared: Compared
    label: str

    @property
    def counts(self) -> CallCounts:
        """What one call makes the dispatcher do; all 0 where nothing was counted."""
        variant = self.compared.of(self.label)
        return (variant and variant.counts) or CallCounts()

    @property
    def median_ns(self) -> float | None:
        """Median of its rounds in nanoseconds; None where nothing was measured."""
        variant = self.compared.of(self.label)
        return variant.measurement.median_ns(State.CALL) if variant else None

    def ratio_to(self, other: str) -> Ratio | None:
        """Give how many times as long it takes as another variant; None where that is not known.

        Args:
            other: label of the other variant.

        Returns:
            The ratio with its interval.

        Raises:
            CompareError: there is no such variant, or it is this one.
        """
        __tracebackhide__ = True
        if self.compared.known(other) == self.label:
            raise CompareError(f"{self.label!r} is held against itself: name another variant")
        one, against = self.compared.of(self.label), self.compared.of(other)
        return ratio_of(one, against) if one and against else None

    def faster_than(self, other: str, by: float = 0.0) -> Claim:
        """Tell whether it is faster than another variant, by the whole interval of their ratio.

        Args:
            other: label of the other variant.
            by: share of the other's time that it saves at the least: 0.2 is 20 %. Below 3 % nothing is told.

        Returns:
            Something true or false, whose text says ratio, interval and what they tell. Where nothing is
            measured it is true.

        Raises:
            CompareError: there is no such variant, or ``by`` is no share.
            GateError: the run measures, and these two were not measured.
        """
        __tracebackhide__ = True
        check_share(by, most=1.0)
        ratio = self._held_against(other, f"faster_than({other!r}, by={by:g})")
        wanted = f"faster asks for all of it below {1 - max(by, FLOOR):g}"
        return self._claim(other, ratio, ratio is None or ratio.is_below(by), wanted)

    def slower_than(self, other: str, by: float = 0.0) -> Claim:
        """Tell whether it is slower than another variant, by the whole interval of their ratio.

        Args:
            other: label of the other variant.
            by: share of the other's time that it adds at the least: 0.2 is 20 %. Below 3 % nothing is told.

        Returns:
            Something true or false, whose text says ratio, interval and what they tell. Where nothing is
            measured it is false.

        Raises:
            CompareError: there is no such variant, or ``by`` is no share.
            GateError: the run measures, and these two were not measured.
        """
        __tracebackhide__ = True
        check_share(by)
        ratio = self._held_against(other, f"slower_than({other!r}, by={by:g})")
        wanted = f"slower asks for all of it above {1 + max(by, FLOOR):g}"
        return self._claim(other, ratio, ratio is not None and ratio.is_above(by), wanted)

    def _held_against(self, other: str, what: str) -> Ratio | None:
        """Give the ratio that a gate is judged by; it is missing only where the run does not measure."""
        __tracebackhide__ = True
        ratio = self.ratio_to(other)
        if ratio is None and (self.compared.variants or self.compared.is_gate):
            raise GateError(f"{self.compared.name!r}: {self.label} {what} is disabled: {self._why(other)}")
        return ratio

    def _why(self, other: str) -> str:
        """Say why there is no ratio."""
        either = [self.compared.of(label) for label in (self.label, other)]
        silent = [one.measurement for one in either if one and not one.samples]
        notes = dict.fromkeys(note for measurement in silent for note in measurement.notes)
        return self.compared.why_not or "; ".join(notes) or "there are too few rounds"

    def _claim(self, other: str, ratio: Ratio | None, holds: bool, wanted: str) -> Claim:
        pair = printable(f"{self.label} against {other}")
        if ratio is None:
            return Claim(holds, f"{pair}: {self.compared.why_not}")
        rounds = f"{ratio.rounds} rounds"
        return Claim(holds, f"{pair}: {ratio.told}, {ratio} times as long in {rounds}; {wanted}")

    def __repr__(self) -> str:
        return f"<{printable(self.label)} of {printable(self.compared.name)}>"


def check_share(by: object, most: float = float("inf")) -> None:
    """Refuse a share that is none."""
    __tracebackhide__ = True
    if isinstance(by, bool) or not isinstance(by, (int, float)) or not 0 <= by < most:
        valid = "a number from 0 to below 1" if most == 1 else "a number of at least 0"
        raise CompareError(f"by={shown(by)} is not {valid}: 0.2 is 20 %")
