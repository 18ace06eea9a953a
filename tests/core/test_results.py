"""The book: what was measured in one test, and how often each call was made."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.core.signature import Signature

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ADD = Signature("add.Tensor", ("f32[8]S0",), (2, 4), "cuda")
LONG = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (4,), "cpu")
FIGURES = Figures(5, (Samples(State.HIT, (7,)),))


def test_a_new_book_is_empty() -> None:
    assert TestResults().measurements() == ()
    assert list(TestResults().names()) == []


def test_a_signature_is_counted_only_once_it_is_known() -> None:
    book = TestResults()
    assert not book.count(ADD)
    assert not book.count(ADD)
    book.enter(ADD, FIGURES)
    assert book.count(ADD)
    assert book.count(ADD)
    [measured] = book.measurements()
    assert measured.calls == 3


def test_an_op_is_labelled_by_its_signature_and_starts_below_autograd() -> None:
    book = TestResults()
    book.enter(ADD, FIGURES)
    [measured] = book.measurements()
    assert measured.label == measured.full_label == "add.Tensor(f32[8]S0)@2x4:cuda"
    assert (measured.op, measured.mesh) == ("add.Tensor", "2x4:cuda")
    assert measured.contains is Contains.DISPATCH
    assert measured.figures is FIGURES


def test_a_long_signature_is_kept_whole_beside_its_label() -> None:
    book = TestResults()
    book.enter(LONG, FIGURES)
    [measured] = book.measurements()
    assert measured.label == str(LONG)
    assert measured.full_label == LONG.full
    assert len(measured.label) < len(measured.full_label)


def test_a_named_call_is_end_to_end_and_made_once() -> None:
    book = TestResults()
    book.enter_call("warm start", "2x4", FIGURES)
    [measured] = book.measurements()
    assert measured.label == measured.full_label == measured.op == "warm start"
    assert (measured.mesh, measured.calls) == ("2x4", 1)
    assert measured.contains is Contains.END_TO_END
    assert list(book.names()) == ["warm start"]


@unhurried
@given(st.lists(st.sampled_from([ADD, LONG, "one", "two"])))
def test_signatures_stand_in_the_order_of_their_first_call_and_named_calls_after_them(
    made: list[Signature | str],
) -> None:
    book = TestResults()
    for call in made:
        if isinstance(call, str):
            book.enter_call(call, "4", FIGURES)
        elif not book.count(call):
            book.enter(call, FIGURES)
    ops = Counter(call for call in made if isinstance(call, Signature))
    names = dict.fromkeys(call for call in made if isinstance(call, str))
    measured = book.measurements()
    assert [m.full_label for m in measured] == [*(op.full for op in ops), *names]
    assert [m.calls for m in measured] == [*ops.values(), *(1 for _ in names)]


def test_a_compiled_function_is_a_measurement_and_takes_its_name() -> None:
    book = TestResults()
    row = Measurement("f", "f", "f", "4", Contains.COMPILED, 1, FIGURES)
    variant = CompiledVariant("f", "f", "eager", None, CompileCounts(), row)
    book.enter_call("warm start", "4", FIGURES)
    book.add(variant)
    assert book.compiled() == (variant,)
    assert [measurement.label for measurement in book.measurements()] == ["warm start", "f"]
    assert set(book.names()) == {"warm start", "f"}
