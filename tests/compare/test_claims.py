"""Claims on variants: decided by the whole interval, and explained by their text. Without torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_dtdispatch.compare.model import (
    NOT_MEASURED,
    CallCounts,
    Compared,
    ComparedVariant,
    Ratio,
    RatioOutcome,
    ratio_of,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.errors import CompareError, GateError

BASE = [1000 + 10 * (i % 7) for i in range(40)]
DRIFTING = [ns * (1 + i // 10) for i, ns in enumerate(BASE)]


def variant(label: str, samples: Sequence[int], notes: tuple[str, ...] = ()) -> ComparedVariant:
    states = (Samples(State.CALL, tuple(samples)),) if samples else ()
    figures = Figures(len(samples), states, notes)
    row = Measurement(label, label, "it", "4", Contains.COMPARED, 1, figures)
    return ComparedVariant(f"it[{label}]", label, "it", row, CallCounts(misses=2, wraps=3))


def compared(**samples: Sequence[int]) -> Compared:
    return Compared("it", tuple(samples), tuple(variant(label, taken) for label, taken in samples.items()))


def times(factor: float, samples: Sequence[int] = BASE) -> list[int]:
    return [round(factor * ns) for ns in samples]


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (1.0, RatioOutcome.NOT_APART),
        (1.02, RatioOutcome.NOT_APART),
        (1.1, RatioOutcome.SLOWER),
        (0.9, RatioOutcome.FASTER),
        (0.98, RatioOutcome.NOT_APART),
    ],
)
def test_two_are_told_apart_by_more_than_three_percent(factor: float, told: RatioOutcome) -> None:
    ratio = ratio_of(variant("one", times(factor)), variant("other", BASE))
    assert ratio is not None
    assert ratio.told is told
    assert ratio.ratio == pytest.approx(factor, abs=0.002)
    assert ratio.rounds == 40


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    ratio = ratio_of(variant("one", times(1.1, DRIFTING)), variant("other", DRIFTING))
    assert ratio is not None
    assert 1.09 < ratio.low <= ratio.high < 1.11


def test_one_disturbed_round_of_fifteen_decides_nothing() -> None:
    head = times(0.5, BASE[:15])
    ratio = ratio_of(variant("one", [*head[:-1], 10**6]), variant("other", BASE[:15]))
    assert ratio is not None
    assert ratio.told is RatioOutcome.FASTER


def test_a_share_is_decided_by_the_whole_interval() -> None:
    assert Ratio(0.78, 0.75, 0.79, 40).is_below(0.2)
    assert not Ratio(0.78, 0.75, 0.81, 40).is_below(0.2)
    assert Ratio(1.3, 1.21, 1.4, 40).is_above(0.2)
    assert not Ratio(1.3, 1.19, 1.4, 40).is_above(0.2)


def test_a_claim_is_true_or_false_and_says_why() -> None:
    found = compared(dtensor=BASE, plain=times(0.4))
    claim = found["plain"].faster_than("dtensor", by=0.2)
    assert claim
    assert repr(claim).startswith("plain against dtensor: faster, 0.400 (0.40")
    assert repr(claim).endswith("times as long in 40 rounds; faster asks for all of it below 0.8")
    assert not found["plain"].faster_than("dtensor", by=0.7)
    assert not found["plain"].slower_than("dtensor")
    assert found["dtensor"].slower_than("plain", by=1.0)
    assert "not told apart" in str(compared(a=BASE, b=BASE)["b"].faster_than("a"))


def test_an_entry_has_median_counts_and_ratio() -> None:
    found = compared(dtensor=BASE, plain=times(0.5))
    assert list(found) == ["dtensor", "plain"]
    assert len(found) == 2
    assert found["dtensor"].median_ns == 1030
    assert found["plain"].counts == CallCounts(misses=2, wraps=3)
    ratio = found["plain"].ratio_to("dtensor")
    assert ratio is not None
    assert ratio.ratio == 0.5


def test_where_nothing_is_measured_a_variant_is_faster_and_none_is_slower() -> None:
    found = Compared("it", ("a", "b"), why_not=NOT_MEASURED)
    assert found["b"].faster_than("a", by=0.5)
    assert not found["b"].slower_than("a")
    assert repr(found["b"].faster_than("a")) == "b against a: nothing is measured in this run"
    assert found["a"].median_ns is None
    assert found["a"].counts == CallCounts()


def test_a_claim_that_cannot_be_judged_fails() -> None:
    silent = Compared("it", ("a", "b"), (variant("a", BASE), variant("b", (), ("b: runs once",))))
    untimed = Compared("it", ("a", "b"), why_not="latencies are not taken", is_gate=True)
    few = compared(a=BASE[:10], b=BASE[:10])
    for found, why in (
        (silent, "b: runs once"),
        (untimed, "latencies are not taken"),
        (few, "too few rounds"),
    ):
        for claim in (found["b"].faster_than, found["b"].slower_than):
            with pytest.raises(GateError, match=why):
                claim("a")


@pytest.mark.parametrize("by", [-0.1, 1.0, True, "20%", float("nan"), None])
def test_a_share_that_is_none(by: object) -> None:
    with pytest.raises(CompareError, match=r"is not a number from 0 to below 1: 0\.2 is 20 %"):
        compared(a=BASE, b=BASE)["b"].faster_than("a", by=by)  # type: ignore[arg-type]


def test_labels_that_no_other_variant_has() -> None:
    found = compared(a=BASE, b=BASE)
    with pytest.raises(CompareError, match="has no variant 'c'; valid: a, b"):
        found["c"]
    with pytest.raises(CompareError, match="has no variant 'c'; valid: a, b"):
        found["a"].faster_than("c")
    with pytest.raises(CompareError, match="'a' is held against itself"):
        found["a"].slower_than("a")
