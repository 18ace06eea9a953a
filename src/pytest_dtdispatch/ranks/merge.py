"""What ranks measured made one, and where they differ: in tests they collected, and in how a test ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dtdispatch.core.environment import group_ranks, ranks_text
from pytest_dtdispatch.core.measurement import Figures, Measurement, Samples, State, refused_of
from pytest_dtdispatch.core.plain_data import decode
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.gates.limits import over

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def merge_ranks(by_rank: Mapping[int, Sequence[Measurement]], stat: str) -> tuple[Measurement, ...]:
    """Merge what ranks measured in one test, signature by signature, in the order of the first rank's."""
    found: dict[tuple[str, str], dict[int, Measurement]] = {}
    for rank, measurements in sorted(by_rank.items()):
        for measurement in measurements:
            found.setdefault((measurement.full_label, measurement.contains), {})[rank] = measurement
    return tuple(_merged(ranks, sorted(by_rank), stat) for ranks in found.values())


def representative(by_rank: Sequence[tuple[int, tuple[int, ...]]], stat: str) -> tuple[int, ...]:
    """Choose the samples that stand for all ranks: every one of them was measured."""
    ordered = sorted(by_rank, key=lambda one: statistics.median(one[1]))
    if stat == "max":
        return ordered[-1][1]
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return tuple(sample for _, samples in middle for sample in samples)


def read_measurement(plain: Any) -> Measurement:
    """Read a measurement from what ``encode`` made of it, as JSON."""
    try:
        measurement: Measurement = decode(Measurement, plain)
    except (ValueError, TypeError) as error:
        raise ValueError(f"no measurement: {error}") from None
    return measurement


def merge_numbers(by_rank: Mapping[int, Sequence[MetricValue]]) -> tuple[MetricValue, ...]:
    """Choose of each number the largest over ranks; where it differs, it says whose it is."""
    found: dict[tuple[str, str], dict[int, MetricValue]] = {}
    for rank, numbers in sorted(by_rank.items()):
        for number in numbers:
            found.setdefault((number.name, number.metric), {})[rank] = number
    return tuple(_largest(ranks, len(by_rank)) for ranks in found.values())


def merge_verdicts(by_rank: Mapping[int, Sequence[RowVerdict]]) -> list[RowVerdict]:
    """Choose of each limit on each result the worst verdict over ranks; what it fails by says on which."""
    found: dict[tuple[str, str], dict[int, RowVerdict]] = {}
    for rank, verdicts in sorted(by_rank.items()):
        for verdict in verdicts:
            found.setdefault((verdict.row, verdict.criterion), {})[rank] = verdict
    return [_worst(ranks, len(by_rank)) for ranks in found.values()]


def _largest(ranks: Mapping[int, MetricValue], world_size: int) -> MetricValue:
    largest = max(ranks.values(), key=lambda number: number.value)
    who = tuple(rank for rank, number in ranks.items() if number.value == largest.value)
    return largest if len(who) == world_size else replace(largest, ranks=who)


def _worst(ranks: Mapping[int, RowVerdict], world_size: int) -> RowVerdict:
    failing = {rank: verdict for rank, verdict in ranks.items() if over([verdict])}
    if not failing or len(failing) == world_size:
        return max((failing or ranks).values(), key=_found)
    worst = max(failing.values(), key=_found)
    return replace(worst, criterion=f"{worst.criterion} on {ranks_text([*failing])}")


def _found(verdict: RowVerdict) -> float:
    return dict(verdict.figures).get("found", 0.0)


def _merged(ranks: Mapping[int, Measurement], everyone: Sequence[int], stat: str) -> Measurement:
    absent = [rank for rank in everyone if rank not in ranks]
    remarks = _told_by({rank: one.remarks for rank, one in ranks.items()})
    if absent:
        remarks = (*remarks, f"not measured on {ranks_text(absent)}")
    figures = Figures(
        rounds=min(one.rounds for one in ranks.values()),
        samples=tuple(_samples(ranks, stat)),
        notes=_told_by({rank: one.notes for rank, one in ranks.items()}),
        remarks=remarks,
    )
    return replace(next(iter(ranks.values())), figures=figures)


def _samples(ranks: Mapping[int, Measurement], stat: str) -> Iterator[Samples]:
    for state in State:
        tried = {rank: s for rank, one in ranks.items() for s in one.samples if s.state is state}
        if not tried:
            continue
        by_rank = tuple((rank, samples.ns) for rank, samples in tried.items() if samples.ns)
        ns = representative(by_rank, stat) if by_rank else ()
        unit = next(iter(tried.values())).unit
        yield Samples(state, ns, refused_of(tried.values()), unit, by_rank=by_rank, stat=stat)


def _told_by(texts: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    """Say once what all ranks say, and of the rest who says it."""
    who = group_ranks((rank, text) for rank, said in texts.items() for text in said)
    return tuple(
        text if len(ranks) == len(texts) else f"{ranks_text(ranks)}: {text}" for text, ranks in who.items()
    )


class PhaseOutcome(NamedTuple):
    """How one phase of a test ended on one rank."""

    test: str  # its node id
    label: str  # ``passed``, ``failed``, ``skipped``, ``xfailed``
    why: str = ""  # one line, of what did not pass
    details: str = ""  # traceback and output of what failed


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
