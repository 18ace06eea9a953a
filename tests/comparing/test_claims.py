"""Valid comparisons, and claims on variants, decided by the whole interval. Without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.comparing.model import (
    NOT_MEASURED,
    CallCounts,
    Compared,
    ComparedVariant,
    Outcome,
    ratio_of,
)
from pytest_dtdispatch.comparing.table import document
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.errors import DtDispatchError, GateError, MeasurementError
from pytest_dtdispatch.report.document import View

BASE = [1000 + 10 * (i % 7) for i in range(40)]
DRIFTING = [ns * (1 + i // 10) for i, ns in enumerate(BASE)]
COUNTS = CallCounts(misses=2, wraps=3)


def variant(label: str, samples: Sequence[int], notes: tuple[str, ...] = ()) -> ComparedVariant:
    states = (Samples(State.CALL, tuple(samples)),) if samples else ()
    figures = Figures(len(samples), states, notes)
    row = Measurement(label, label, "it", "4", Contains.COMPARED, 1, figures)
    return ComparedVariant(f"it[{label}]", label, "it", row, COUNTS)


def compared(**samples: Sequence[int]) -> Compared:
    return Compared("it", tuple(samples), tuple(variant(label, ns) for label, ns in samples.items()))


def times(factor: float, samples: Sequence[int] = BASE) -> list[int]:
    return [round(factor * ns) for ns in samples]


@pytest.mark.parametrize(
    ("base", "head", "ratio", "outcome"),
    [
        (BASE, times(1.0), 1.0, Outcome.NOT_APART),
        (BASE, times(1.02), 1.02, Outcome.NOT_APART),
        (BASE, times(1.1), 1.1, Outcome.SLOWER),
        (BASE, times(0.9), 0.9, Outcome.FASTER),
        (DRIFTING, times(1.1, DRIFTING), 1.1, Outcome.SLOWER),  # a machine that becomes slower
        (BASE[:21], [*times(0.5, BASE[:20]), 10**6], 0.5, Outcome.FASTER),  # one disturbed round
    ],
)
def test_differences_above_three_percent_are_detected(
    base: list[int], head: list[int], ratio: float, outcome: Outcome
) -> None:
    found = ratio_of(variant("one", head), variant("other", base))
    assert found is not None
    assert (found.outcome(), found.rounds) == (outcome, len(base))
    assert found.ratio == pytest.approx(ratio, abs=0.002)
    assert found.low == pytest.approx(ratio, abs=0.01)


def test_claim_has_a_truth_value_and_a_reason() -> None:
    found = compared(dtensor=BASE, plain=times(0.4))
    claim = found["plain"].faster_than("dtensor", by=0.2)
    assert claim
    assert repr(claim).startswith("plain against dtensor: faster, 0.400 (0.40")
    assert repr(claim).endswith("times as long in 40 rounds; faster needs the whole interval below 0.8")
    assert not found["plain"].faster_than("dtensor", by=0.7)
    slower = found["dtensor"].slower_than("plain", by=1.0)
    assert slower
    assert str(slower).endswith("; slower needs the whole interval above 2")
    scattered = compared(a=BASE, b=[round(ns * (0.5, 1.1)[i % 2]) for i, ns in enumerate(BASE)])["b"]
    assert not scattered.faster_than("a")  # decided by the whole interval
    assert "time not told apart, 0.7" in str(scattered.faster_than("a"))
    ratio = found["plain"].ratio_to("dtensor")
    assert ratio is not None
    assert (ratio.ratio, found["dtensor"].median_ns, found["plain"].counts) == (0.4, 1030, COUNTS)


def test_undecided_claim_names_counts_and_a_longer_time_limit() -> None:
    base = [1000 + 100 * (i % 7) for i in range(40)]
    head = [round(0.95 * (1000 + 100 * (i * 3 % 7))) for i in range(40)]
    one, other = (
        replace(variant(label, samples), counts=CallCounts(redistributes=count), max_time_s=1.0, spent_s=1.0)
        for label, samples, count in (("a", head, 385), ("b", base, 481))
    )
    claim = Compared("it", ("a", "b"), (one, other))["a"].faster_than("b")
    assert not claim
    assert str(claim).startswith("a against b: 385 redistributions for 481; time not told apart, 0.9")
    assert re.search(
        r"in 40 rounds; --dtdispatch-max-time \d+ would give about \+-\d.\d% instead of \+-", str(claim)
    )


@pytest.mark.parametrize(("spent_s", "is_wider"), [(1.0, False), (0.5, True)])
def test_interval_of_an_early_end_is_wider(spent_s: float, is_wider: bool) -> None:
    base = [1000 + 10 * (i * i % 7) for i in range(40)]
    late, early = (
        ratio_of(replace(variant("a", BASE), max_time_s=1.0, spent_s=s), variant("b", base))
        for s in (1.0, spent_s)
    )
    assert late
    assert early
    assert (early.margin > late.margin) == is_wider


def test_long_calls_are_compared_by_cpu_time() -> None:
    def timed(label: str, wall: Sequence[int], cpu: Sequence[int]) -> ComparedVariant:
        one = variant(label, wall)
        [samples] = one.measurement.figures.samples
        figures = replace(one.measurement.figures, samples=(replace(samples, cpu=tuple(cpu)),))
        return replace(one, measurement=replace(one.measurement, figures=figures))

    one, other = timed("a", times(3.0), times(0.9)), timed("b", BASE, BASE)
    ratio = ratio_of(one, other)
    assert ratio
    assert (ratio.outcome(), one.median_ns) == (Outcome.FASTER, median(times(0.9)))
    slower = ratio_of(one, variant("c", BASE))  # one clock for both
    assert slower
    assert slower.outcome() is Outcome.SLOWER


def test_unmeasured_claims_accept_faster_and_reject_slower() -> None:
    found = Compared("it", ("a", "b"), reason=NOT_MEASURED)
    assert found["b"].faster_than("a", by=0.5)
    assert not found["b"].slower_than("a")
    assert repr(found["b"].faster_than("a")) == "b against a: nothing is measured in this run"
    assert (found["a"].median_ns, found["a"].counts) == (None, CallCounts())


@pytest.mark.parametrize("claim", ["faster_than", "slower_than"])
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Compared("it", ("a", "b"), (variant("a", BASE), variant("b", (), ("b: once",)))), "b: once"),
        (Compared("it", ("a", "b"), reason="latencies are not taken", is_gate=True), "latencies are not"),
        (compared(a=BASE[:10], b=BASE[:10]), "too few rounds"),
    ],
)
def test_claim_that_cannot_be_judged_fails(found: Compared, reason: str, claim: str) -> None:
    with pytest.raises(GateError, match=reason):
        getattr(found["b"], claim)("a")


@pytest.mark.parametrize("by", [-0.1, 1.0, True, "20%", float("nan"), None])
def test_invalid_share_is_refused(by: Any) -> None:
    with pytest.raises(MeasurementError, match=r"is not a number from 0 to below 1: 0\.2 is 20 %"):
        compared(a=BASE, b=BASE)["b"].faster_than("a", by=by)


def test_unknown_or_equal_labels_are_refused() -> None:
    found = compared(a=BASE, b=BASE)
    for ask in (lambda: found["c"], lambda: found["a"].faster_than("c")):
        with pytest.raises(MeasurementError, match="has no variant 'c'; valid: a, b"):
            ask()
    with pytest.raises(MeasurementError, match="'a' is compared with itself"):
        found["a"].slower_than("a")


# Valid comparisons


def one() -> None:
    pytest.fail("a variant ran although another is invalid")


NO_NAME = "of a variant is not a string, is empty, or begins or ends with"


@pytest.mark.parametrize(
    ("variants", "options", "message"),
    [
        ({"a": one}, {}, "compare() of 1 variants: it needs at least two"),
        ([one, one], {}, "it takes callables by their names"),
        ({"a": one, 2: one}, {}, f"the name 2 {NO_NAME}"),
        ({"a": one, "": one}, {}, f"the name '' {NO_NAME}"),
        ({"a": one, "a ": one}, {}, f"the name 'a ' {NO_NAME}"),
        ({"a": one, "b": lambda x: x}, {}, "the variant 'b' takes arguments (x), and compare() passes none"),
        ({"a": one, "b": 3}, {}, "a value of type int is not callable"),
        ({"a": one, "b": one}, {"equal": True}, "compare(equal=True): it takes a function of two results"),
        ({"a": one, "b": one}, {"name": ""}, "compare(name=''): the name must be a non-empty string"),
        ({"a": one, "b": one}, {"name": 3}, "compare(name=3): the name must be a non-empty string"),
    ],
)
def test_invalid_variants_are_refused_before_running(variants: Any, options: Any, message: str) -> None:
    with pytest.raises(DtDispatchError) as refused:
        DtDispatch().compare(variants, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_worst_variant_differs_from_another() -> None:
    for head, worst in ((times(1.0), ""), (times(1.2), "worst: it[b], 1.20 us")):
        variants = [variant("a", BASE), variant("b", head)]
        assert document({"t.py::test": variants}, View()).worst == worst
