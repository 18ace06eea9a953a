"""Reasons of misses."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.steps.reasons import Called, CallPosition, Seen, Trait, Traits

pytestmark = pytest.mark.torch


def tensor(of: str, shape: str = "[8,8]", placements: str = "S0", dtype: str = "f32") -> dict[Trait, str]:
    values = {"type": "tensor", "dtype": dtype, "shape": shape, "placements": placements, "stride": shape}
    return {Trait(of, field): value for field, value in values.items()}


def number(of: str, value: object) -> dict[Trait, str]:
    values = {"type": type(value).__name__, "value": str(value)}
    return {Trait(of, field): text for field, text in values.items()}


def tensors(of: str, count: int) -> dict[Trait, str]:
    items = {trait: text for i in range(count) for trait, text in tensor(f"{of}[{i}]").items()}
    return {Trait(of, "type"): "list", Trait(of, "length"): str(count), **items}


def note(seen: Seen, op: str, traits: Traits, **at: int) -> None:
    seen.note(Called(op, traits, CallPosition(**at)))


def reason_of(seen: Seen, op: str, traits: Traits, **at: int) -> str:
    return seen.why(Called(op, traits, CallPosition(**at))).text


def mesh(names: str = "None", ranks: str = "0,1,2,3", identity: str = "7") -> dict[Trait, str]:
    values = {"shape": "4", "dim_names": names, "ranks": ranks, "identity": identity}
    return {Trait("mesh", kind): text for kind, text in values.items()}


BASE = {**mesh(), **tensor("self"), **number("other", 1)}


@pytest.mark.parametrize(
    ("before", "call", "reason"),
    [
        (BASE, {**BASE, **tensor("self", placements="R")}, "placements of self R, were S0"),
        (BASE, {**BASE, **tensor("self", dtype="bf16")}, "dtype of self bf16, was f32"),
        (BASE, {**BASE, **number("other", 1.5)}, "type of other float, was int"),
        (BASE, {**BASE, **mesh(names="('x',)")}, "another mesh: dim_names ('x',), were None"),
        (BASE, {**BASE, **mesh(ranks="3,2,1,0")}, "another mesh: ranks 3,2,1,0, were 0,1,2,3"),
        (BASE, {**BASE, **mesh(ranks="3,2,1,0", identity="8")}, "another mesh: ranks 3,2,1,0, were 0,1,2,3"),
        (
            BASE,
            {**BASE, **mesh(identity="8")},
            "another mesh of equal ranks, which torch does not compare as equal",
        ),
        (BASE, {**BASE, **number("other", 7)}, "value of other 7, was 1"),
        (BASE, {**BASE, **number("alpha", 2)}, "alpha is passed, but was not before"),
        ({**BASE, **number("alpha", 2)}, BASE, "alpha is not passed, but was before"),
        (BASE, {**mesh(), **tensor("self"), **tensor("other")}, "type of other tensor, was int"),
        (
            {**tensor("self"), **tensor("other")},
            {**tensor("self", shape="[9,8]"), **tensor("other", shape="[9,8]")},
            "shape of self and other [9,8], was [8,8]",
        ),
        (tensors("tensors", 2), tensors("tensors", 4), "length of tensors 4, was 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_difference_is_reported_once(before: Traits, call: Traits, reason: str) -> None:
    seen = Seen()
    note(seen, "add", before)
    assert reason_of(seen, "add", call) == reason


def test_call_is_compared_with_latest_nearest_call() -> None:
    seen = Seen()
    note(seen, "add", {**BASE, **tensor("self", dtype="f64", shape="[1,1]")})
    note(seen, "add", {**BASE, **tensor("self", shape="[2,2]")})
    note(seen, "add", {**BASE, **tensor("self", shape="[3,3]")})
    reason = reason_of(seen, "add", {**BASE, **tensor("self", shape="[4,4]")})
    assert reason == "shape of self [4,4], was [3,3]"


def test_miss_of_equal_call_has_a_reason() -> None:
    seen = Seen()
    note(seen, "add", BASE, clears=1)
    assert reason_of(seen, "add", BASE, clears=2) == "the caches were cleared since its last call"
    assert reason_of(seen, "add", BASE, clears=1) == "an equal call missed before: its plan is not cached"


def test_long_list_of_differences_is_cut() -> None:
    seen = Seen()
    note(seen, "add", {t: v for name in "abcde" for t, v in tensor(name).items()})
    shapes = {name: tensor(name, shape=f"[{i},8]") for i, name in enumerate("abcde")}
    reason = reason_of(seen, "add", {t: v for each in shapes.values() for t, v in each.items()})
    assert reason.endswith("and 2 more")


def test_calls_at_the_same_position_are_compared_first() -> None:
    seen = Seen()
    note(seen, "bmm", {**tensor("self", shape="[8,1,4]"), **tensor("mat2", shape="[8,4,9]")}, call=3)
    note(seen, "bmm", {**tensor("self", shape="[8,1,9]"), **tensor("mat2", shape="[8,9,4]")}, call=7)
    call = {**tensor("self", shape="[8,1,4]"), **tensor("mat2", shape="[8,4,10]")}
    assert reason_of(seen, "bmm", call, call=3) == "shape of mat2 [8,4,10], was [8,4,9]"
    assert reason_of(seen, "bmm", call, call=7).startswith("shape of self [8,1,4], was [8,1,9]")
    assert reason_of(seen, "bmm", call, call=5) == "shape of mat2 [8,4,10], was [8,4,9] at another position"


def test_cause_is_independent_of_call_position() -> None:
    """If a mode adds ops to autograd, calls of the last warm-up step have other positions than later ones."""
    seen, call = Seen(), tensor("self", shape="[12,8]")
    note(seen, "sum", tensor("self"), call=4)
    causes = {seen.why(Called("sum", call, CallPosition(call=number))).without_values for number in (3, 4)}
    assert causes == {"shape of self"}


def test_calls_and_clears_of_threads_are_separate() -> None:
    seen = Seen()
    note(seen, "add", BASE, thread=0, clears=3)
    call = {**BASE, **tensor("self", shape="[9,8]")}
    first = "first call of this op in this thread; caches are per thread"
    assert reason_of(seen, "add", BASE, thread=1) == reason_of(seen, "add", call, thread=1) == first
    note(seen, "add", BASE, thread=1)
    assert reason_of(seen, "add", call, thread=1) == "shape of self [9,8], was [8,8]"
    assert reason_of(seen, "mul", BASE, thread=1) == first
    equal = "an equal call ran in another thread; caches are per thread"
    assert reason_of(seen, "add", call, thread=0).startswith("shape of self")
    note(seen, "add", call, thread=0, clears=3)
    assert reason_of(seen, "add", call, thread=1) == equal
    assert reason_of(seen, "add", call, thread=1, clears=1) == "shape of self [9,8], was [8,8]"
    assert reason_of(seen, "mul", BASE, thread=0) == "first call of this op"


def test_cause_is_the_reason_without_values() -> None:
    seen = Seen()
    note(seen, "add", BASE)
    reasons = [seen.why(Called("add", {**BASE, **tensor("self", shape=f"[{n},8]")})) for n in (9, 10)]
    assert [reason.without_values for reason in reasons] == ["shape of self"] * 2


def test_other_ranks_are_another_cause() -> None:
    seen = Seen()
    note(seen, "add", BASE)
    reasons = [seen.why(Called("add", {**BASE, **mesh(ranks=ranks)})) for ranks in ("0,2,1,3", "3,2,1,0")]
    assert len({reason.without_values for reason in reasons}) == 2
