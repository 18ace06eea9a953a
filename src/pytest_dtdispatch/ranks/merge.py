"""Merge the results of ranks, and compare the tests that they collected and their outcomes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.environment import ranks_text
from pytest_dtdispatch.core.measurement import SIMULATED, Contains, Measurement, Samples, merge
from pytest_dtdispatch.core.results import OneRow
from pytest_dtdispatch.core.signatures import mesh_size
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.core.trail import CalledOp, Trail
from pytest_dtdispatch.core.verdicts import CountChange, RowVerdict, over

PASSED, FAILED = "passed", "failed"
T = TypeVar("T")


def merge_records(by_process: Mapping[int, TestRecord], stat: str) -> TestRecord:
    """Merge the records of one test, in the order of the first process.

    The result has the maximum of each number and the worst verdict on each limit, with the ranks that it is
    from unless all agree.

    Args:
        by_process: records of ranks, or of pytest-xdist workers, by number.
        stat: statistic of a row over processes: ``median`` or ``max``.
    """
    everyone = sorted(by_process)
    first = by_process[everyone[0]]
    if len(everyone) == 1:
        return first
    rows = _by_key({rank: one.rows() for rank, one in by_process.items()}, "key")
    numbers = _by_key({rank: tuple(one.numbers()) for rank, one in by_process.items()}, "row", "metric")
    by_verdict = _by_key({rank: one.verdicts for rank, one in by_process.items()}, "row", "criterion")
    merged = {row.key: row for row in (_merged(ranks, everyone, stat) for ranks in rows)}
    results = {}
    for kind, of_kind in first.results.items():
        merged_results = []
        for result in of_kind:
            if isinstance(result, OneRow):
                own = result.measurement
                result = replace(result, measurement=merged.get(own.key, own))  # type: ignore[type-var]
            merged_results.append(result)
        results[kind] = tuple(merged_results)
    largest = []
    for ranks in numbers:
        number = max(ranks.values(), key=attrgetter("value"))
        who = tuple(rank for rank, other in ranks.items() if other.value == number.value)
        largest.append(number if len(who) == len(everyone) else replace(number, ranks=who))
    worst = []
    for of_ranks in by_verdict:
        failing = {rank: verdict for rank, verdict in of_ranks.items() if over([verdict])}
        verdict = max((failing or of_ranks).values(), key=_found)
        if failing and len(failing) < len(everyone):
            verdict = replace(verdict, criterion=f"{verdict.criterion} on {ranks_text([*failing])}")
        worst.append(verdict)
    of_results = {row.key for of_kind in results.values() for result in of_kind for row in result.rows()}
    return replace(
        first,
        measured=tuple(row for key, row in merged.items() if key not in of_results),
        results=results,
        merged_numbers=tuple(largest),
        verdicts=tuple(worst),
    )


def rows_trail(record: TestRecord) -> Trail:
    """Return the signatures of captured ops on a mesh of real ranks."""
    rows = (row for row in record.rows() if row.contains is Contains.DISPATCH and "." in row.op)
    real = (row for row in rows if row.backend not in ("", *SIMULATED))
    return Trail(ops=tuple(CalledOp(row.full_label, "", mesh_size(row.mesh)) for row in real))


def _by_key(by_rank: Mapping[int, Sequence[T]], *names: str) -> list[dict[int, T]]:
    """Group values of ranks by these attributes."""
    found: dict[Any, dict[int, T]] = {}
    for rank, values in sorted(by_rank.items()):
        for value in values:
            found.setdefault(attrgetter(*names)(value), {})[rank] = value
    return [*found.values()]


def _found(verdict: RowVerdict) -> float:
    return verdict.change.found if isinstance(verdict.change, CountChange) else 0.0


def _merged(ranks: Mapping[int, Measurement], everyone: Sequence[int], stat: str) -> Measurement:
    absent = [rank for rank in everyone if rank not in ranks]
    merged = merge([one.figures for one in ranks.values()])
    figures = replace(
        merged,
        rounds=min(one.figures.rounds for one in ranks.values()),
        samples=tuple(_of_ranks(samples, ranks, stat) for samples in merged.samples),
        notes=_texts({rank: one.figures.notes for rank, one in ranks.items()}),
        remarks=(
            *_texts({rank: one.figures.remarks for rank, one in ranks.items()}),
            *([f"not measured on {ranks_text(absent)}"] if absent else ()),
        ),
    )
    return replace(next(iter(ranks.values())), figures=figures)


def _of_ranks(merged: Samples, ranks: Mapping[int, Measurement], stat: str) -> Samples:
    """Return merged samples of a state with the samples of each rank."""
    tried = {rank: s for rank, one in ranks.items() for s in one.figures.samples if s.state is merged.state}
    by_rank = tuple((rank, samples.ns) for rank, samples in tried.items() if samples.ns)
    ns = representative(by_rank, stat) if by_rank else ()
    lengths = next(iter(tried.values())).lengths  # ranks make equally many calls
    return replace(merged, values=ns, by_rank=by_rank, stat=stat, lengths=lengths, cpu=())


def representative(by_rank: Sequence[tuple[int, tuple[int, ...]]], stat: str) -> tuple[int, ...]:
    """Return the samples of the rank whose median is the statistic, or of the two ranks that enclose it."""
    ordered = sorted((samples for _, samples in by_rank), key=statistics.median)
    if stat == "max":
        return ordered[-1]
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return tuple(sample for samples in middle for sample in samples)


def _texts(texts: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    """Return the distinct texts, each with its ranks unless all ranks have it."""
    who = grouped((text, rank) for rank, of_rank in texts.items() for text in of_rank)
    return tuple(
        text if len(ranks) == len(texts) else f"{ranks_text(ranks)}: {text}" for text, ranks in who.items()
    )


class PhaseOutcome(NamedTuple):
    """Outcome of one phase of a test on one rank."""

    label: str  # ``passed``, ``failed``, ``skipped``, ``xfailed``
    why: str = ""  # one line, if it did not pass
    details: str = ""  # traceback and output of a failure


def collected_difference(first: Sequence[str], other: Sequence[str]) -> str:
    """Describe the first difference between the tests of two ranks; return an empty string if equal."""
    texts = []
    for verb, names, others in (("lacks", first, other), ("also has", other, first)):
        new = sorted({*names} - {*others}, key=names.index)
        if new:
            texts.append(f"{verb} {new[0]}" + (f" and {len(new) - 1} more" if len(new) > 1 else ""))
    return " and ".join(texts) or ("" if first == other else "has them in another order than rank 0")


def complaints(outcomes: Mapping[int, PhaseOutcome]) -> list[str]:
    """Return a line for each outcome other than a pass, with its ranks."""
    running = [rank for rank, outcome in outcomes.items() if outcome.label in (PASSED, FAILED)]
    instead = f" what {ranks_text(running)} {'run' if len(running) > 1 else 'runs'}" if running else ""
    who = grouped(((outcome.label, outcome.why), rank) for rank, outcome in outcomes.items())
    return [
        f"{ranks_text(ranks)} {label}{'' if label == FAILED else instead}: {why}"
        for (label, why), ranks in who.items()
        if label != PASSED
    ]
