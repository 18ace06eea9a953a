"""Where ranks differ: in the tests that they collected, and in how a test ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.world import ranks_text

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
    have, expected = set(other), set(first)
    lacking = [name for name in first if name not in have]
    besides = [name for name in other if name not in expected]
    said = []
    for verb, names in (("lacks", lacking), ("has besides", besides)):
        if names:
            said.append(f"{verb} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
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
    if len({outcome.test for outcome in outcomes.values()}) > 1:
        return [f"{ranks_text(ranks)} ran {test}" for test, ranks in _grouped(outcomes, "test")]
    running = [rank for rank, outcome in outcomes.items() if outcome.label in (PASSED, FAILED)]
    verb = "run" if len(running) > 1 else "runs"
    instead = f" what {ranks_text(running)} {verb}" if running else ""
    said = []
    for why, ranks in _grouped(outcomes, "why"):
        label = outcomes[ranks[0]].label
        if label != PASSED:
            said.append(f"{ranks_text(ranks)} {label}{'' if label == FAILED else instead}: {why}")
    return said


def _grouped(outcomes: Mapping[int, PhaseOutcome], by: str) -> Iterator[tuple[str, list[int]]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        groups.setdefault((outcome.label, getattr(outcome, by)), []).append(rank)
    return ((text, ranks) for (_, text), ranks in groups.items())
