"""Why a call missed: what in it was not seen before. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MOST_SHOWN = 3


class Trait(NamedTuple):
    """One thing that may tell two calls of an op apart.

    Args:
        of: an argument, ``self`` or ``tensors[3]``, or ``mesh``.
        what: ``kind``, which every argument has, ``shape``, ``placements``, ``type``, ...
    """

    of: str
    what: str


# What a call looks like to the caches, as texts.
Traits = Mapping[Trait, str]
# These follow from others, or need not be part of a cache's key: named where nothing else differs.
WEAK = ("stride", "value")


class Seen:
    """Calls that were seen, and how often the caches had been cleared by then."""

    def __init__(self) -> None:
        self._clears: dict[str, dict[tuple[tuple[Trait, str], ...], int]] = {}

    def note(self, op: str, traits: Traits, clears: int) -> None:
        """Note a call, made when the caches had been cleared so many times."""
        self._clears.setdefault(op, {})[tuple(traits.items())] = clears

    def why(self, op: str, traits: Traits, clears: int) -> str:
        """Say why a call missed, before it is noted itself."""
        known = self._clears.get(op)
        if not known:
            return "first call of this op"
        before = known.get(tuple(traits.items()))
        if before is not None and before < clears:
            return "the caches were cleared since its last call"
        if before is not None:
            return "an equal call missed before: its plan is not kept"
        latest_first = reversed(known)  # of those equally near, the last one is what a reader remembers
        differences = (_differences(traits, dict(other)) for other in latest_first)
        return min(differences, key=lambda each: tuple(map(len, each))).text


class _Differences(NamedTuple):
    """What tells two calls apart, what weighs most first."""

    kinds: Sequence[str]
    strong: Sequence[str]
    weak: Sequence[str]

    @property
    def text(self) -> str:
        shown = [*self.kinds, *self.strong] or self.weak
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        return ", ".join(shown[:MOST_SHOWN]) + more


def _differences(traits: Traits, other: Traits) -> _Differences:
    """Compare two calls; equal differences of several arguments are told once."""
    strong: list[str] = []
    weak: list[str] = []
    kinds = _kinds(traits, other)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for trait, new in traits.items():
        if trait in other and other[trait] != new and trait.of not in kinds:
            changed.setdefault((trait.what, new, other[trait]), []).append(trait.of)
    for (what, new, old), of in changed.items():
        text = f"{new}, {'were' if what.endswith('s') else 'was'} {old}"
        told = f"another mesh: {what} {text}" if of == ["mesh"] else f"{what} of {_joined(of)} {text}"
        (weak if what in WEAK else strong).append(told)
    return _Differences([f"{of} {text}" for of, text in kinds.items()], strong, weak)


def _kinds(traits: Traits, other: Traits) -> dict[str, str]:
    """Say which arguments are given and were not, or are something else; of a list, that its length says."""
    new = {trait.of: kind for trait, kind in traits.items() if trait.what == "kind"}
    old = {trait.of: kind for trait, kind in other.items() if trait.what == "kind"}
    lists = {of for of in new if new[of] == old.get(of) == "a list"}
    return {
        of: _change_of_kind(new.get(of), old.get(of))
        for of in {**new, **old}
        if new.get(of) != old.get(of) and of.rpartition("[")[0] not in lists
    }


def _change_of_kind(new: str | None, old: str | None) -> str:
    if old is None:
        return "is given, and was not"
    return "is not given, and was" if new is None else f"is {new}, and was {old}"


def _joined(names: Sequence[str]) -> str:
    if len(names) > MOST_SHOWN:
        return f"{', '.join(names[:MOST_SHOWN])} and {len(names) - MOST_SHOWN} more"
    return " and ".join(names)
