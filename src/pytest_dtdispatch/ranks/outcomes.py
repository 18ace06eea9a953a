"""What the outcomes of one test on several ranks come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_dtdispatch.core.world import ranks_text

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
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


def is_one(outcomes: Mapping[int, Outcome]) -> bool:
    """Whether all ranks ended the same test the same way."""
    return len({(outcome.test, outcome.label) for outcome in outcomes.values()}) <= 1


def complaints(outcomes: Mapping[int, Outcome]) -> list[str]:
    """Say which ranks did not pass a test and with what, those that agree in one line.

    Example:
        >>> passed, failed = Outcome("t", PASSED), Outcome("t", FAILED, "ValueError: boom")
        >>> complaints({0: passed, 1: failed, 2: failed})
        ['ranks 1, 2 failed: ValueError: boom']
        >>> complaints({0: passed, 1: Outcome("t", SKIPPED, "no luck")})
        ['rank 1 skipped what rank 0 runs: no luck']
    """
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


def _grouped(outcomes: Mapping[int, Outcome], by: str) -> Iterator[tuple[str, list[int]]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        groups.setdefault((outcome.label, getattr(outcome, by)), []).append(rank)
    return ((text, ranks) for (_, text), ranks in groups.items())
