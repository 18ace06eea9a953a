"""Where ranks differ: in the tests that they collected, and in how a test ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.world import group_ranks, ranks_text

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class PhaseOutcome:
    """How one phase of a test ended on one rank.

    Args:
        test: its node id.
        label: ``passed``, ``failed``, ``skipped``, ``xfailed``.
        why: one line, of what did not pass.
        details: traceback and output of what failed.
    """

    test: str
    label: str
    why: str = ""
    details: str = ""


def collected_difference(first: Sequence[str], other: Sequence[str]) -> str:
    """Name the first difference between the tests of two ranks, if there is one."""
    sides = ("lacks", first, set(other)), ("has besides", other, set(first))
    said = []
    for verb, names, known in sides:
        if new := [name for name in names if name not in known]:
            said.append(f"{verb} {new[0]}" + (f" and {len(new) - 1} more" if len(new) > 1 else ""))
    if said:
        return " and ".join(said)
    for place, (ours, theirs) in enumerate(zip(first, other, strict=False), start=1):
        if ours != theirs:
            return f"has {theirs} in place {place}, where rank 0 has {ours}"
    return "" if len(first) == len(other) else f"has {len(other)} tests, and rank 0 {len(first)}"


def all_agree(outcomes: Mapping[int, PhaseOutcome]) -> bool:
    """Whether all ranks ended the same test the same way."""
    return len({(outcome.test, outcome.label) for outcome in outcomes.values()}) <= 1


def complaints(outcomes: Mapping[int, PhaseOutcome]) -> list[str]:
    """Say which ranks did not pass a test and with what, those that agree in one line."""
    ordered = sorted(outcomes.items())
    if len({outcome.test for outcome in outcomes.values()}) > 1:
        who = group_ranks((rank, (outcome.label, outcome.test)) for rank, outcome in ordered)
        return [f"{ranks_text(ranks)} ran {test}" for (_, test), ranks in who.items()]
    running = [rank for rank, outcome in outcomes.items() if outcome.label in (PASSED, FAILED)]
    instead = f" what {ranks_text(running)} {'run' if len(running) > 1 else 'runs'}" if running else ""
    who = group_ranks((rank, (outcome.label, outcome.why)) for rank, outcome in ordered)
    return [
        f"{ranks_text(ranks)} {label}{'' if label == FAILED else instead}: {why}"
        for (label, why), ranks in who.items()
        if label != PASSED
    ]
