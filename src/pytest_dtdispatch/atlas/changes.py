"""What changed of each signature from one version of torch to the next."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise

from pytest_dtdispatch.atlas.atlas_file import AtlasEntry, AtlasRecord
from pytest_dtdispatch.atlas.joining import JoinedRow, Version, in_order, joined
from pytest_dtdispatch.atlas.model import AGREEMENT, Outcome
from pytest_dtdispatch.core.measurement import State

# Least factors: a hit has fifty samples a visit, a miss two.
HIT_FACTOR, MISS_FACTOR = 1.25, 1.5
# How far plain tensors may have shifted: past that the machines were not alike, and no time is compared.
MOST_CONTROL = 1.25
RUNS = (Outcome.MEASURED, Outcome.NOT_REPEATED, Outcome.SPLIT)


class ChangeKind(str, Enum):
    """What changed."""

    RULE = "has a rule now"
    NO_RULE = "has no rule any more"
    SUPPORTED = "supported now"
    UNSUPPORTED = "no longer supported"
    OUTCOME = "another outcome"
    MOVES = "redistributes now"
    STAYS = "redistributes no more"
    MOVES_ELSE = "redistributes otherwise"
    HITS = "hits now"
    NO_HIT = "never hits any more"
    FEWER = "fewer propagations a miss"
    MORE = "more propagations a miss"
    FASTER_HIT = "faster hit"
    SLOWER_HIT = "slower hit"
    FASTER_MISS = "faster miss"
    SLOWER_MISS = "slower miss"
    ARGUMENTS = "other arguments"

    __str__ = str.__str__


@dataclass(frozen=True)
class Change:
    """One change of one row.

    Args:
        row: of the row.
        kind: what changed.
        factor: of a time, after over before; 0 of everything else.
    """

    row: JoinedRow
    kind: ChangeKind
    factor: float = 0.0


@dataclass(frozen=True)
class VersionPair:
    """Two versions, one after the other, and their rows.

    Args:
        place: of the newer version among all.
        before: the older version.
        after: the newer version.
        rows: joined rows of all versions.
    """

    place: int
    before: Version
    after: Version
    rows: tuple[JoinedRow, ...]

    def both(self, row: JoinedRow) -> tuple[AtlasEntry | None, AtlasEntry | None]:
        """Give a row on both."""
        return row.entries[self.place - 1], row.entries[self.place]

    @cached_property
    def control(self) -> float | None:
        """Median factor of the same ops on plain tensors; None where none was measured."""
        factors = [
            factor
            for before, after in map(self.both, self.rows)
            if before and after and (factor := _own_control(before, after))
        ]
        return statistics.median(factors) if factors else None

    @cached_property
    def why_no_times(self) -> str:
        """Why no time of one is compared with one of the other; empty where they are compared."""
        differing = _differences(self.before.record, self.after.record)
        if differing:
            return f"they were taken with another {', '.join(differing)}"
        if self.control is None:
            return "no op was measured on plain tensors on both"
        if not 1 / MOST_CONTROL <= self.control <= MOST_CONTROL:
            return f"plain tensors differ by a factor of {self.control:.2f}: the machine was not as quiet"
        return ""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What changed, row by row."""
        found = [change for row in self.rows for change in self._of(row)]
        counted = {change.row for change in found if not change.factor}
        often = Counter((change.row.op, change.kind) for change in found)
        return tuple(
            change
            for change in found
            if not change.factor or change.row in counted or often[change.row.op, change.kind] > 1
        )

    def _of(self, row: JoinedRow) -> Iterator[Change]:
        before, after = self.both(row)
        if before and after:
            for kind in _exact(before, after):
                yield Change(row, kind)
            if not self.why_no_times:
                yield from self._times(row, before, after)
        elif after and row.op not in self.before.ops:
            yield Change(row, ChangeKind.RULE)
        elif before and row.op not in self.after.ops:
            yield Change(row, ChangeKind.NO_RULE)

    def _times(self, row: JoinedRow, before: AtlasEntry, after: AtlasEntry) -> Iterator[Change]:
        controls = [factor for factor in (self.control, _own_control(before, after)) if factor]
        hit, miss = (
            changed_factor(before.steady_ns, after.steady_ns, HIT_FACTOR, controls),
            changed_factor(before.miss_ns, after.miss_ns, MISS_FACTOR, controls),
        )
        if hit:
            yield Change(row, ChangeKind.SLOWER_HIT if hit > 1 else ChangeKind.FASTER_HIT, hit)
        if miss:
            yield Change(row, ChangeKind.SLOWER_MISS if miss > 1 else ChangeKind.FASTER_MISS, miss)


@dataclass(frozen=True)
class AtlasComparison:
    """Atlases of several versions: the same rows on each, and every two that follow one another."""

    versions: tuple[Version, ...]
    rows: tuple[JoinedRow, ...]
    neighbours: tuple[VersionPair, ...]


def compare_atlases(records: Iterable[AtlasRecord]) -> AtlasComparison:
    """Join atlases in the order of their versions, and find what changed."""
    versions = in_order(records)
    rows = joined(versions)
    pairs = (VersionPair(place, *both, rows) for place, both in enumerate(pairwise(versions), 1))
    return AtlasComparison(versions, rows, tuple(pairs))


def _own_control(before: AtlasEntry, after: AtlasEntry) -> float | None:
    """Give the factor of an op on plain tensors; None where it was not measured on both."""
    both = (before.visits_ns.get(State.LOCAL), after.visits_ns.get(State.LOCAL))
    return both[1][0] / both[0][0] if both[0] and both[1] else None


def changed_factor(
    before: Sequence[float], after: Sequence[float], least: float, controls: Sequence[float] = ()
) -> float:
    """Give the factor between two times, where it is no noise; else 0.

    It is none where every visit of one lies above every visit of the other, where a second visit of each
    found about its lowest, and where the lowest differ by a factor past the least one, also after what plain
    tensors shifted is taken off: those of all ops, and those of this one. A neighbour on the machine that
    stayed for all visits of a signature slowed them as well.

    Args:
        before: medians of the visits, the lowest first.
        after: those of the newer version.
        least: factor that is asked for.
        controls: what plain tensors shifted by.

    Example:
        >>> changed_factor((100, 110), (150, 160), 1.25), changed_factor((100, 155), (150, 160), 1.25)
        (1.5, 0.0)
    """
    if not (_confirmed(before) and _confirmed(after)):
        return 0.0
    factor = after[0] / before[0]
    corrected = (factor, *(factor / control for control in controls))
    if factor > 1:
        is_apart, beyond = min(after) > max(before), min(corrected) > least
    else:
        is_apart, beyond = max(after) < min(before), max(corrected) < 1 / least
    return factor if is_apart and beyond else 0.0


def _confirmed(medians: Sequence[float]) -> bool:
    return len(medians) > 1 and sorted(medians)[1] <= min(medians) * (1 + AGREEMENT)


def _exact(before: AtlasEntry, after: AtlasEntry) -> Iterator[ChangeKind]:
    """Name what is counted, and not timed."""
    if before.signature != after.signature:
        yield ChangeKind.ARGUMENTS
    if Outcome.UNDEFINED in (before.outcome, after.outcome):
        return  # it says what lay in memory, and nothing of the op
    ran, runs = before.outcome in RUNS, after.outcome in RUNS
    if before.outcome is not after.outcome:
        if Outcome.UNSUPPORTED in (before.outcome, after.outcome) and ran != runs:
            yield ChangeKind.SUPPORTED if runs else ChangeKind.UNSUPPORTED
        else:
            yield ChangeKind.OUTCOME
    if before.propagations is None or after.propagations is None:
        return
    if before.moves != after.moves:
        yield _moved(before, after)
    if before.propagations != after.propagations:
        yield ChangeKind.FEWER if after.propagations < before.propagations else ChangeKind.MORE
    both_measured = before.outcome is after.outcome is Outcome.MEASURED
    if both_measured and bool(before.why_no_hit) != bool(after.why_no_hit):
        yield ChangeKind.NO_HIT if after.why_no_hit else ChangeKind.HITS


def _moved(before: AtlasEntry, after: AtlasEntry) -> ChangeKind:
    if before.moves and after.moves:
        return ChangeKind.MOVES_ELSE
    return ChangeKind.MOVES if after.moves else ChangeKind.STAYS


def _differences(before: AtlasRecord, after: AtlasRecord) -> list[str]:
    """Name what makes times of two atlases incomparable."""
    both = [
        {
            "CPU": record.cpu,
            "number of threads": record.environment.threads,
            "Python": ".".join(record.python.split(".")[:2]),
            "device": (record.environment.device, record.environment.device_name),
            "backend": record.environment.backend,
        }
        for record in (before, after)
    ]
    return [name for name, value in both[0].items() if value != both[1][name]]
