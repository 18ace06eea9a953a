"""Why a call missed."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.steps.reasons import Seen, Trait, Traits

pytestmark = pytest.mark.torch


def tensor(of: str, shape: str = "[8,8]", placements: str = "S0", dtype: str = "f32") -> dict[Trait, str]:
    values = {"kind": "a tensor", "dtype": dtype, "shape": shape, "placements": placements, "stride": shape}
    return {Trait(of, what): value for what, value in values.items()}


def number(of: str, value: object) -> dict[Trait, str]:
    values = {"kind": "no tensor", "type": type(value).__name__, "value": str(value)}
    return {Trait(of, what): text for what, text in values.items()}


def mesh(shape: str = "4", names: str = "None", ranks: str = "0,1,2,3") -> dict[Trait, str]:
    values = {"shape": shape, "dim_names": names, "ranks": ranks}
    return {Trait("mesh", what): value for what, value in values.items()}


def tensors(of: str, count: int) -> dict[Trait, str]:
    items = {trait: text for i in range(count) for trait, text in tensor(f"{of}[{i}]").items()}
    return {Trait(of, "kind"): "a list", Trait(of, "length"): str(count), **items}


BASE = {**mesh(), **tensor("self"), **number("other", 1)}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (tensor("self", shape="[9,8]"), "shape of self [9,8], was [8,8]"),
        (tensor("self", placements="R"), "placements of self R, were S0"),
        (tensor("self", dtype="bf16"), "dtype of self bf16, was f32"),
        (number("other", 1.5), "type of other float, was int"),
        (number("other", 7), "value of other 7, was 1"),
        (number("alpha", 2), "alpha is given, and was not"),
        (tensor("other"), "other is a tensor, and was no tensor"),
        (mesh(names="('x',)"), "another mesh: dim_names ('x',), were None"),
        (mesh(ranks="3,2,1,0"), "another mesh: ranks 3,2,1,0, were 0,1,2,3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_not_seen_before_is_told(changed: Traits, why: str) -> None:
    seen = Seen()
    seen.note("add", BASE, clears=0)
    unmatched = {trait for trait in BASE if trait.of in {t.of for t in changed} and trait not in changed}
    call = {trait: text for trait, text in {**BASE, **changed}.items() if trait not in unmatched}
    assert seen.why("add", call, clears=0) == why


def test_an_argument_that_is_not_given_any_more_is_told() -> None:
    seen = Seen()
    seen.note("add", {**BASE, **number("alpha", 2)}, clears=0)
    assert seen.why("add", BASE, clears=0) == "alpha is not given, and was"


def test_equal_changes_of_several_arguments_are_told_once() -> None:
    seen = Seen()
    seen.note("add", {**tensor("self"), **tensor("other")}, clears=0)
    call = {**tensor("self", shape="[9,8]"), **tensor("other", shape="[9,8]")}
    assert seen.why("add", call, clears=0) == "shape of self and other [9,8], was [8,8]"


def test_of_a_list_its_length_is_told_and_not_its_elements() -> None:
    seen = Seen()
    seen.note("stack", tensors("tensors", 2), clears=0)
    assert seen.why("stack", tensors("tensors", 4), clears=0) == "length of tensors 4, was 2"


def test_the_nearest_call_is_compared_with_and_of_equals_the_last() -> None:
    seen = Seen()
    seen.note("add", {**BASE, **tensor("self", dtype="f64", shape="[1,1]")}, clears=0)
    seen.note("add", {**BASE, **tensor("self", shape="[2,2]")}, clears=0)
    seen.note("add", {**BASE, **tensor("self", shape="[3,3]")}, clears=0)
    why = seen.why("add", {**BASE, **tensor("self", shape="[4,4]")}, clears=0)
    assert why == "shape of self [4,4], was [3,3]"


def test_only_calls_of_the_same_op_are_compared_with() -> None:
    seen = Seen()
    seen.note("mul", BASE, clears=0)
    assert seen.why("add", BASE, clears=0) == "first call of this op"


def test_an_equal_call_missed_because_of_a_clear_or_is_not_kept() -> None:
    seen = Seen()
    seen.note("add", BASE, clears=1)
    assert seen.why("add", BASE, clears=2) == "the caches were cleared since its last call"
    assert seen.why("add", BASE, clears=1) == "an equal call missed before: its plan is not kept"


def test_a_long_list_of_differences_is_cut() -> None:
    seen = Seen()
    seen.note("add", {t: v for name in "abcde" for t, v in tensor(name).items()}, clears=0)
    shapes = {name: tensor(name, shape=f"[{i},8]") for i, name in enumerate("abcde")}
    why = seen.why("add", {t: v for each in shapes.values() for t, v in each.items()}, clears=0)
    assert why.endswith("and 2 more")
