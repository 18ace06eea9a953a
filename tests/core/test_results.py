"""The book: what was measured in one test, and how often each call was made."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.core.signatures import MAX_LENGTH, Signature, cut_name, shorten
from pytest_dtdispatch.steps.model import Steps

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ADD = Signature("add.Tensor", ("f32[8]S0",), (2, 4), "cuda")
LONG = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (4,), "cpu")
FIGURES = Figures(5, (Samples(State.HIT, (7,)),))


def test_a_signature_is_a_row_below_autograd_and_is_counted_once_it_is_known() -> None:
    book = TestResults()
    assert not book.count(ADD)
    assert not book.count(ADD)
    book.enter(ADD, FIGURES)
    assert book.count(ADD)
    assert book.count(ADD)
    [measured] = book.measurements()
    assert measured.label == measured.full_label == "add.Tensor(f32[8]S0)@2x4:cuda"
    assert (measured.op, measured.mesh, measured.calls) == ("add.Tensor", "2x4:cuda", 3)
    assert measured.contains is Contains.DISPATCH
    assert measured.figures is FIGURES


def test_a_long_signature_is_kept_whole_beside_its_label() -> None:
    book = TestResults()
    book.enter(LONG, FIGURES)
    [measured] = book.measurements()
    assert measured.label == str(LONG)
    assert measured.full_label == LONG.full
    assert len(measured.label) < len(measured.full_label)
    numbers = [*book.metrics(())]
    assert [number.name for number in numbers] == [f"::{measured.label}"] * len(numbers) != []
    assert {number.signature for number in numbers} == {LONG.full}, "it stands whole beside its name in files"


def test_a_named_call_is_end_to_end_and_made_once() -> None:
    book = TestResults()
    book.enter_call("warm start", "2x4", FIGURES)
    [measured] = book.measurements()
    assert measured.label == measured.full_label == measured.op == "warm start"
    assert (measured.mesh, measured.calls) == ("2x4", 1)
    assert measured.contains is Contains.END_TO_END
    assert book.names_beside("measured") == {"warm start"}


def test_an_op_that_never_asks_the_propagator_has_the_metric_of_its_calls() -> None:
    book = TestResults("t.py::test_it")
    book.enter(ADD, Figures(5, (Samples(State.CALL, (7,)), Samples(State.LOCAL, (3,)))))
    assert [(number.metric, number.value) for number in book.metrics(())] == [("call_ns", 7)]


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
    variant = CompiledFunction("f", "eager", CompileCounts(), row)
    book.enter_call("warm start", "4", FIGURES)
    book.add(variant)
    assert book.of("compiled") == (variant,)
    assert [measurement.label for measurement in book.measurements()] == ["warm start", "f"]
    assert book.names_beside("measured") == book.names_beside("compiled") == {"warm start", "f"}


def test_names_of_steps_and_budgets_meet_those_of_their_own_kind_alone() -> None:
    book = TestResults()
    book.enter_call("call", "4", FIGURES)
    book.add(Steps("steps", (), ()))
    book.add(Budget("budget"))
    assert book.names_beside("steps") == {"steps"}
    assert book.names_beside("budget") == {"budget"}
    others = ("measured", "scaling", "compiled", "compared", "one of a plugin")
    assert [book.names_beside(kind) for kind in others] == [{"call"}] * len(others)


LONG_ADD = Signature("add.Tensor", ("f32[512,512]S0", "f32[512,512]S0"), (4,), "cpu")

TENSORS = st.builds(
    "{}[{}]{}".format,
    st.sampled_from(["f32", "bf16", "i64"]),
    st.lists(st.integers(0, 4096), max_size=4).map(lambda shape: ",".join(map(str, shape))),
    st.sampled_from(["S0", "S1", "R", "P", "S0R"]),
)
SIGNATURES = st.builds(
    Signature,
    st.sampled_from(["add.Tensor", "stack.default", "_foreach_add.List"]),
    st.lists(st.one_of(TENSORS, st.lists(TENSORS, max_size=12).map(tuple)), max_size=8).map(tuple),
    st.lists(st.integers(1, 65536), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["cpu", "cuda"]),
)


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (LONG_ADD, "add.Tensor(f32[512,512]S0, f32[512,512]S0)@4"),
        (Signature("detach.default", ("f32[8]R",), (2, 4), "cuda"), "detach.default(f32[8]R)@2x4:cuda"),
        (Signature("rand.default", (), (1,), "cpu"), "rand.default()@1"),
        (Signature("cat.default", (("a", "a", "b", "a"),), (4,), "cpu"), "cat.default([a*2, b, a])@4"),
        (Signature("cat.default", ((),), (4,), "cpu"), "cat.default([])@4"),
        (Signature("f", (("a", "b"), "c"), (4,), "cpu"), "f([a, b], c)@4"),
    ],
)
def test_a_signature_is_written_as_op_arguments_and_place(signature: Signature, text: str) -> None:
    assert str(signature) == signature.full == text


@unhurried
@given(SIGNATURES)
def test_a_signature_ends_in_its_place_and_begins_with_its_op(signature: Signature) -> None:
    text = str(signature)
    assert len(text) <= MAX_LENGTH
    assert text.startswith(f"{signature.op}(")
    assert text.endswith(signature.place)
    assert (text == signature.full) == (len(signature.full) <= MAX_LENGTH)


@unhurried
@given(SIGNATURES, SIGNATURES)
def test_two_signatures_have_two_texts(one: Signature, other: Signature) -> None:
    assert (one == other) == (one.full == other.full) == (str(one) == str(other))


@unhurried
@given(st.text(max_size=60), st.integers(0, 80), st.integers(12, 60))
def test_a_shortened_name_is_within_its_limit_and_a_short_one_unchanged(
    text: str, keep_end: int, limit: int
) -> None:
    shortened = shorten(text, keep_end, limit)
    assert len(shortened) == min(len(text), limit)
    if len(text) <= limit:
        assert shortened == text


@unhurried
@given(st.text(min_size=41, max_size=80), st.integers(0, 28))
def test_a_shortened_name_keeps_its_beginning_and_the_end_that_must_stay(text: str, keep_end: int) -> None:
    shortened = shorten(text, keep_end, limit=40)
    assert text.startswith(shortened[: 40 - 12 - keep_end])
    assert text.endswith(shortened[40 - keep_end :])


@unhurried
@given(SIGNATURES, st.integers(60, MAX_LENGTH), st.integers(60, MAX_LENGTH))
def test_a_name_that_is_cut_again_keeps_its_digest(signature: Signature, limit: int, more: int) -> None:
    assert cut_name(str(signature), limit) == cut_name(signature.full, limit)
    name = cut_name(cut_name(str(signature), more), limit)
    assert len(re.findall("#[0-9a-f]{8}", name)) <= 1, "no row has two"


def test_the_name_of_a_call_with_an_at_sign_keeps_its_beginning() -> None:
    name = "a @ b, then its backward pass, then a step of the optimizer"
    assert cut_name(name, 40).startswith("a @ b, then its backward pas...#")
    assert cut_name("mm.default(f32[512,512]S0, f32[512,512]S0)@2x4:cuda", 40).endswith("@2x4:cuda")


def test_names_that_differ_only_in_the_part_that_is_cut_stay_different() -> None:
    texts = [f"op({'x' * 70}{number}{'y' * 70})@4" for number in range(1000)]
    assert len({shorten(text, keep_end=2) for text in texts}) == 1000


def test_a_shortened_name_is_the_same_in_every_process_and_version() -> None:
    """Saved runs are compared by these names."""
    signature = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (2, 4), "cpu")
    assert str(signature) == (
        "cat.default([f32[0]S0, f32[1]S0, f32[2]S0, f32[3]S0, f32[4]S0, f32[5]S0, f32[6]S0, "
        "f32[7]S0, f32[8]S0, f...#d48de3ea@2x4"
    )
