"""Rows over ranks: they travel as JSON; the median of medians, the slowest, the spread; differences."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.gates.limits import judge_count
from pytest_dtdispatch.ranks.merge import (
    FAILED,
    PASSED,
    SKIPPED,
    PhaseOutcome,
    all_agree,
    collected_difference,
    complaints,
    merge_numbers,
    merge_ranks,
    merge_verdicts,
    read_measurement,
    representative,
)

counts = some.integers(0, 10**12)
refused = some.builds(Refused, some.text(max_size=5), counts)
samples = some.builds(
    Samples, some.sampled_from(State), some.lists(counts).map(tuple), some.lists(refused).map(tuple)
)
texts = some.lists(some.text(max_size=5), max_size=2).map(tuple)
figures = some.builds(
    Figures,
    counts,
    some.lists(samples, max_size=3).map(tuple),
    texts,
    texts,
)
measurements = some.builds(Measurement, figures=figures, contains=some.sampled_from(Contains), calls=counts)
ONE = asdict(
    Measurement("a", "a", "a", "4", Contains.DISPATCH, 1, Figures(samples=(Samples(State.HIT, (7,)),)))
)
FIGURES = ONE["figures"]
[HITS] = FIGURES["samples"]
lists_of_ranks = some.lists(
    some.lists(some.integers(1, 10**9), min_size=1, max_size=9).map(tuple), min_size=1, max_size=6
)


def measured(
    *samples: Samples, label: str = "add", rounds: int = 5, notes: tuple[str, ...] = ()
) -> Measurement:
    figures = Figures(rounds, samples, notes)
    return Measurement(label, label, label, "2", Contains.DISPATCH, 1, figures)


def hits(*ns: int) -> Measurement:
    return measured(Samples(State.HIT, ns))


def merged_hits(stat: str, *by_rank: Measurement) -> Samples:
    [measurement] = merge_ranks({rank: [one] for rank, one in enumerate(by_rank)}, stat)
    samples = measurement.of(State.HIT)
    assert samples is not None
    assert samples.by_rank
    return samples


@given(lists_of_ranks)
def test_what_stands_for_all_ranks_is_between_the_fastest_and_the_slowest(
    by_rank: list[tuple[int, ...]],
) -> None:
    medians = [statistics.median(ns) for ns in by_rank]
    middle = merged_hits("median", *(hits(*ns) for ns in by_rank))
    slowest = merged_hits("max", *(hits(*ns) for ns in by_rank))
    assert middle.median_ns == statistics.median(medians)
    assert slowest.median_ns == statistics.median(slowest.ns) == max(medians)
    assert middle.slowest == slowest.slowest == (medians.index(max(medians)), max(medians))
    assert min(medians) <= statistics.median(middle.ns) <= max(medians)
    assert middle.spread == slowest.spread >= 0


@given(lists_of_ranks, some.sampled_from(["median", "max"]))
def test_every_sample_that_stands_for_all_was_measured(by_rank: list[tuple[int, ...]], stat: str) -> None:
    chosen = representative(list(enumerate(by_rank)), stat)
    assert chosen
    assert set(chosen) <= {sample for ns in by_rank for sample in ns}


def test_all_samples_of_all_ranks_are_kept() -> None:
    assert merged_hits("median", hits(7, 8), hits(9, 10)).by_rank == ((0, (7, 8)), (1, (9, 10)))


def test_refused_samples_add_up_and_the_least_rounds_are_told() -> None:
    first = measured(Samples(State.MISS, (), (Refused("no", 2),)), rounds=5)
    second = measured(Samples(State.MISS, (3,), (Refused("no", 1),)), rounds=4)
    [merged] = merge_ranks({0: [first], 1: [second]}, "median")
    assert merged.proof == "no (3x)"
    assert merged.rounds == 4


def test_a_note_of_one_rank_names_it_and_one_of_all_is_told_once() -> None:
    [merged] = merge_ranks({0: [measured(notes=("a", "b"))], 3: [measured(notes=("a",))]}, "median")
    assert merged.notes == ("a", "rank 0: b")


def test_a_signature_of_some_ranks_says_on_which_it_is_missing() -> None:
    add, sub = hits(7), measured(label="sub")
    merged = merge_ranks({0: [add], 1: [add, sub], 2: [add]}, "median")
    assert [one.label for one in merged] == ["add", "sub"]
    assert merged[1].remarks == ("not measured on ranks 0, 2",)
    assert merged[0].remarks == ()


@given(measurements)
def test_what_travels_arrives_as_it_was(measurement: Measurement) -> None:
    assert read_measurement(json.loads(json.dumps(asdict(measurement)))) == measurement


@pytest.mark.parametrize(
    "changed",
    [
        {"label": 1},
        {"contains": "else"},
        {"calls": -1},
        {"calls": True},
        {"figures": None},
        {"figures": {**FIGURES, "rounds": "1"}},
        {"figures": {**FIGURES, "samples": [{**HITS, "values": [1.5]}]}},
        {"figures": {**FIGURES, "samples": [{**HITS, "state": "warm"}]}},
        {"figures": {**FIGURES, "samples": [{"state": "hit"}]}},
        {"figures": {**FIGURES, "notes": [1]}},
        {"figures": {**FIGURES, "notes": None}},
    ],
    ids=str,
)
def test_what_is_no_measurement_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_measurement({**ONE, **changed})


@pytest.mark.parametrize("plain", [None, [], "text", {}])
def test_what_is_nothing_of_the_kind_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="no measurement"):
        read_measurement(plain)


# Numbers and verdicts


def test_of_each_number_the_largest_stands_and_says_whose_it_is_where_ranks_differ() -> None:
    one, two = MetricValue("t::a", "misses_per_step", 1), MetricValue("t::a", "misses_per_step", 2)
    alone = MetricValue("t::b", "collectives", 3)
    assert merge_numbers({0: [one], 1: [one]}) == (one,)
    merged = merge_numbers({0: [one], 1: [two], 2: [two, alone]})
    assert merged == (replace(two, ranks=(1, 2)), replace(alone, ranks=(2,)))


def test_of_each_limit_the_worst_verdict_stands_and_says_on_which_ranks() -> None:
    passed, over, worse = (judge_count("t::a", "misses", 1, found, "it has more") for found in (0, 2, 5))
    other = judge_count("t::a", "wraps", 1, 1, "")
    assert merge_verdicts({0: [passed, other], 1: [passed, other]}) == [passed, other]
    assert merge_verdicts({0: [over], 1: [worse]}) == [worse]
    assert merge_verdicts({0: [passed], 1: [over], 2: [worse]}) == [
        replace(worse, criterion="misses=1 on ranks 1, 2")
    ]


# Where ranks differ


def test_outcomes_that_agree_are_one() -> None:
    assert all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("t", PASSED)})
    assert all_agree({0: PhaseOutcome("t", SKIPPED, "a"), 1: PhaseOutcome("t", SKIPPED, "b")})
    assert not all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("t", SKIPPED)})
    assert not all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("u", PASSED)})


def test_ranks_that_failed_alike_are_told_in_one_line() -> None:
    outcomes = {
        0: PhaseOutcome("t", FAILED, "timed out"),
        1: PhaseOutcome("t", FAILED, "boom"),
        2: PhaseOutcome("t", FAILED, "timed out"),
        3: PhaseOutcome("t", PASSED),
    }
    assert complaints(outcomes) == ["ranks 0, 2 failed: timed out", "rank 1 failed: boom"]


def test_a_rank_that_expects_to_fail_is_told_apart() -> None:
    outcomes = {
        0: PhaseOutcome("t", PASSED),
        1: PhaseOutcome("t", "xfailed", "known"),
        2: PhaseOutcome("t", PASSED),
    }
    assert complaints(outcomes) == ["rank 1 xfailed what ranks 0, 2 run: known"]


def test_ranks_in_different_tests_are_told_so() -> None:
    outcomes = {0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("u", PASSED)}
    assert complaints(outcomes) == ["rank 0 ran t", "rank 1 ran u"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (["a", "b", "c"], ""),
        (["a", "c"], "lacks b"),
        ([], "lacks a and 2 more"),
        (["a", "b", "c", "d", "e"], "has besides d and 1 more"),
        (["a", "b", "d"], "lacks c and has besides d"),
        (["a", "c", "b"], "has c in place 2, where rank 0 has b"),
        (["a", "b", "c", "c"], "has 4 tests, and rank 0 3"),
    ],
)
def test_the_first_difference_of_collections_is_named(other: list[str], says: str) -> None:
    assert collected_difference(["a", "b", "c"], other) == says


@given(some.lists(some.text(max_size=3)), some.lists(some.text(max_size=3)))
def test_collections_differ_where_a_difference_is_named(first: list[str], other: list[str]) -> None:
    assert bool(collected_difference(first, other)) == (first != other)
