"""Rows merged over ranks: JSON, median of medians, slowest rank, spread and differences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import Measurement, Refused, Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.verdicts import RowVerdict, judge_count
from pytest_dtdispatch.ranks.merge import (
    FAILED,
    PASSED,
    PhaseOutcome,
    collected_difference,
    complaints,
    merge_records,
)
from tests.reported_runs import measured
from tests.row_ids import number

lists_of_ranks = some.lists(
    some.lists(some.integers(1, 10**9), min_size=1, max_size=9).map(tuple), min_size=2, max_size=6
)


def hits(*ns: int) -> Measurement:
    return measured("add", Samples(State.HIT, ns))


def merged_rows(by_rank: Mapping[int, Sequence[Measurement]], stat: str = "median") -> Sequence[Measurement]:
    found = {rank: TestRecord("t", tuple(rows)) for rank, rows in by_rank.items()}
    return merge_records(found, stat).rows()


def merged_hits(stat: str, *by_rank: Measurement) -> Samples:
    [measurement] = merged_rows({rank: [one] for rank, one in enumerate(by_rank)}, stat)
    samples = measurement.of(State.HIT)
    assert samples is not None
    assert samples.by_rank
    return samples


@given(lists_of_ranks)
def test_merged_samples_lie_between_fastest_and_slowest_rank(by_rank: list[tuple[int, ...]]) -> None:
    medians = [statistics.median(ns) for ns in by_rank]
    middle = merged_hits("median", *(hits(*ns) for ns in by_rank))
    slowest = merged_hits("max", *(hits(*ns) for ns in by_rank))
    assert middle.median_ns == statistics.median(medians)
    assert slowest.median_ns == statistics.median(slowest.ns) == max(medians)
    assert middle.slowest == slowest.slowest == (medians.index(max(medians)), max(medians))
    assert min(medians) <= statistics.median(middle.ns) <= max(medians)
    assert middle.spread == slowest.spread >= 0
    assert {*middle.ns, *slowest.ns} <= {sample for ns in by_rank for sample in ns}  # all were measured


def test_merged_samples_include_every_rank() -> None:
    assert merged_hits("median", hits(7, 8), hits(9, 10)).by_rank == ((0, (7, 8)), (1, (9, 10)))


def test_merging_sums_refusals_and_takes_minimum_rounds() -> None:
    first = measured("add", Samples(State.MISS, (), (Refused("no", 2),)), rounds=5)
    second = measured("add", Samples(State.MISS, (3,), (Refused("no", 1),)), rounds=4)
    [merged] = merged_rows({0: [first], 1: [second]})
    assert merged.proof == "no (3x)"
    assert merged.figures.rounds == 4


def test_merged_samples_have_passes_and_no_cpu_time() -> None:
    rows = [
        measured("add", Samples(State.HIT, ns, lengths=(2, 1), cpu=(1, 2, 3)))
        for ns in ((9, 9, 4), (7, 7, 8), (8, 8, 9))
    ]
    merged = merged_hits("median", *rows)
    assert (merged.lengths, merged.cpu) == ((2, 1), ())
    assert merged.passes(merged.clock) == ((8,), (8,))


def test_merged_wait_is_the_maximum_of_ranks() -> None:
    rows = [measured("add", Samples(State.HIT, (7, 9), waited=share)) for share in (0.2, 0.7, 0.0)]
    assert merged_hits("median", *rows).waited == 0.7


def test_shared_notes_merge_and_others_name_their_rank() -> None:
    [merged] = merged_rows({0: [measured("add", notes=("a", "b"))], 3: [measured("add", notes=("a",))]})
    assert merged.figures.notes == ("a", "rank 0: b")


def test_signature_names_ranks_that_lack_it() -> None:
    add, sub = hits(7), measured("sub")
    merged = merged_rows({0: [add], 1: [add, sub], 2: [add]})
    assert [one.label for one in merged] == ["add", "sub"]
    assert merged[1].figures.remarks == ("not measured on ranks 0, 2",)
    assert merged[0].figures.remarks == ()


# Numbers and verdicts


def test_merged_number_is_maximum_and_names_its_ranks() -> None:
    one, two = (number("t::a", "misses_per_step", 1), number("t::a", "misses_per_step", 2))
    alone = number("t::b", "collectives", 3)

    def merged(*by_rank: list[MetricValue]) -> tuple[MetricValue, ...]:
        found = {rank: TestRecord("t", merged_numbers=tuple(numbers)) for rank, numbers in enumerate(by_rank)}
        return tuple(merge_records(found, "median").numbers())

    assert merged([one], [one]) == (one,)
    assert merged([one], [two], [two, alone]) == (replace(two, ranks=(1, 2)), replace(alone, ranks=(2,)))


def test_merged_limit_verdict_is_worst_and_names_ranks() -> None:
    passed, over, worse = (judge_count("t::a", "misses", 1, found, "it has more") for found in (0, 2, 5))
    other = judge_count("t::a", "wraps", 1, 1, "")

    def merged(*by_rank: list[RowVerdict]) -> tuple[RowVerdict, ...]:
        found = {rank: TestRecord("t", verdicts=tuple(verdicts)) for rank, verdicts in enumerate(by_rank)}
        return merge_records(found, "median").verdicts

    assert merged([passed, other], [passed, other]) == (passed, other)
    assert merged([over], [worse]) == (worse,)
    assert merged([passed], [over], [worse]) == (replace(worse, criterion="misses=1 on ranks 1, 2"),)


# Differences between ranks


def test_equal_failures_of_ranks_are_one_line() -> None:
    passed, xfailed = PhaseOutcome(PASSED), PhaseOutcome("xfailed", "known")
    late, boom = PhaseOutcome(FAILED, "timed out"), PhaseOutcome(FAILED, "boom")
    lines = complaints({0: late, 1: boom, 2: late, 3: passed})
    assert lines == ["ranks 0, 2 failed: timed out", "rank 1 failed: boom"]
    assert complaints({0: passed, 1: xfailed, 2: passed}) == ["rank 1 xfailed what ranks 0, 2 run: known"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["a", "b", "c"], ""),
        (["a", "c"], "lacks b"),
        ([], "lacks a and 2 more"),
        (["a", "b", "c", "d", "e"], "also has d and 1 more"),
        (["a", "b", "d"], "lacks c and also has d"),
        (["a", "c", "b"], "has them in another order than rank 0"),
    ],
)
def test_first_difference_of_collections_is_named(other: list[str], message: str) -> None:
    assert collected_difference(["a", "b", "c"], other) == message


@given(some.lists(some.text(max_size=3)), some.lists(some.text(max_size=3)))
def test_unequal_collections_have_a_named_difference(first: list[str], other: list[str]) -> None:
    assert bool(collected_difference(first, other)) == (first != other)
