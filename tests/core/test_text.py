"""Text of foreign values, and shortened names on screens and in files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.signatures import MAX_LENGTH, Signature, cut_name, shorten
from pytest_dtdispatch.core.text import escape_controls, fold_layers, nearest, shown
from pytest_dtdispatch.core.verdicts import THRESHOLD_STATES
from pytest_dtdispatch.plugin.settings import BACKENDS, EXPORTS, KEYWORDS, LIMITS


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("für Löwen", "für Löwen"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("no UTF-8: \udcff", r"no UTF-8: \udcff"),
    ],
)
def test_control_characters_are_escaped(text: str, written: str) -> None:
    assert escape_controls(text) == written


class Silent:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Wide:
    """An object whose repr has two lines."""

    def __repr__(self) -> str:
        return "one\n  two\x1b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (Silent(), "<Silent that cannot be shown>"),
        ([Silent()], "<list that cannot be shown>"),
        (Wide(), r"one two\x1b"),
        ("9" * 5000, f"'{'9' * 116}..."),
    ],
)
def test_value_is_shown_in_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text


# Signatures

SIZES = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (2, 4), "cpu")
TENSORS = st.sampled_from(["f32[]S0", "bf16[8,4096]R", "i64[0]P", "f32[512,512]S0R"])
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
        (Signature("add", ("f32[8,8]S0", "f32[8,8]S0"), (4,), "cpu"), "add(f32[8,8]S0, f32[8,8]S0)@4"),
        (Signature("detach.default", ("f32[8]R",), (2, 4), "cuda"), "detach.default(f32[8]R)@2x4:cuda"),
        (Signature("rand.default", (), (1,), "cpu"), "rand.default()@1"),
        (Signature("cat.default", (("a", "a", "b", "a"),), (4,), "cpu"), "cat.default([a*2, b, a])@4"),
        (Signature("cat.default", ((),), (4,), "cpu"), "cat.default([])@4"),
        (
            SIZES,  # equal in every process and version: saved runs are compared by these names
            "cat.default([f32[0]S0, f32[1]S0, f32[2]S0, f32[3]S0, f32[4]S0, f32[5]S0, f32[6]S0, "
            "f32[7]S0, f32[8]S0, f...#d48de3ea@2x4",
        ),
    ],
)
def test_signature_text_has_op_arguments_and_mesh(signature: Signature, text: str) -> None:
    assert str(signature) == text


@given(SIGNATURES, SIGNATURES, st.integers(60, MAX_LENGTH), st.integers(60, MAX_LENGTH))
def test_distinct_signatures_have_distinct_bounded_texts(
    one: Signature, other: Signature, limit: int, more: int
) -> None:
    assert (one == other) == (one.full == other.full) == (str(one) == str(other))
    assert len(str(one)) <= MAX_LENGTH
    assert str(one).startswith(f"{one.op}(")
    assert str(one).endswith(f"@{one.mesh_device}")
    assert (str(one) == one.full) == (len(one.full) <= MAX_LENGTH)
    assert cut_name(str(one), limit) == cut_name(one.full, limit)
    assert len(re.findall("#[0-9a-f]{8}", cut_name(cut_name(str(one), more), limit))) <= 1, (
        "each text has one signature"
    )


@given(st.text(min_size=1, max_size=80).map(lambda text: text * 20), st.integers(0, 80), st.integers(12, 60))
def test_shortened_name_retains_both_ends(text: str, keep_end: int, limit: int) -> None:
    shortened = shorten(text, keep_end, limit)
    assert len(shortened) == min(len(text), limit)
    if len(text) > limit:
        end = min(keep_end, limit - 12)
        assert text.startswith(shortened[: limit - 12 - end])
        assert text.endswith(shortened[limit - end :])
        assert "..." in shortened
    assert len(cut_name(text, limit)) == len(shortened)


def test_names_differing_in_cut_part_stay_distinct() -> None:
    texts = [f"op({'x' * 70}{number}{'y' * 70})@4" for number in range(1000)]
    assert len({shorten(text, keep_end=2) for text in texts}) == 1000


# Layers

LAYERS = (3, 12, 48)


@pytest.mark.parametrize("layers", LAYERS)
def test_names_differing_by_layer_index_are_folded(layers: int) -> None:
    weights = [f"layers.{n}.attention.wq" for n in range(layers)]
    others = ["tok_embeddings", "layers.0.first", "norm.2", "Transformer", ""]
    assert fold_layers([*weights, *others]) == {
        **dict.fromkeys(weights, "layers.*.attention.wq"),
        **{name: name for name in others},  # a name that occurs with one index retains it
    }


@pytest.mark.parametrize("layers", LAYERS)
def test_only_differing_indices_are_folded(layers: int) -> None:
    numbers = range(layers)
    for names, folded in (
        ([f"layers.{n}.experts.{m}.w1" for n in numbers for m in range(4)], "layers.*.experts.*.w1"),
        ([f"layers.7.experts.{m}.w1" for m in numbers], "layers.7.experts.*.w1"),
        ([f"layers.{n}.experts.1.w1" for n in numbers], "layers.*.experts.1.w1"),
        ([f"{n}.0" for n in numbers], "*.0"),
        ([f"FSDP::pre_forward (layers.{n})" for n in numbers], "FSDP::pre_forward (layers.*)"),
    ):
        assert fold_layers(names) == dict.fromkeys(names, folded)


@pytest.mark.parametrize(
    "names",
    [
        ["layers.0.w1", "layers.1.w2"],
        ["layers.0", "blocks.1"],
        ["layers.0", "layers.0.1"],
        ["h1.wq", "h2.wq"],
        ["redistribute f32[8,8]S0 -> R", "redistribute f32[9,8]S0 -> R"],
        ["_foreach_add1", "_foreach_add2"],
    ],
)
def test_names_differing_beyond_an_index_are_unchanged(names: list[str]) -> None:
    assert fold_layers(names) == {name: name for name in names}


@pytest.mark.parametrize(
    ("typed", "valid", "suggested"),
    [
        ("mises=0", LIMITS, "misses"),
        ({"redistribute": 0}, LIMITS, "redistributes"),
        (["misses=0", "colectives=1"], LIMITS, "collectives or collective_bytes"),
        ("misses=x", LIMITS, ""),
        ("htlm:out.html", EXPORTS, "html"),
        ("csv:", EXPORTS, ""),
        ("FAKE", BACKENDS, "fake"),
        ("hti=median:3%", THRESHOLD_STATES, "hit"),
        ("rond", KEYWORDS, "rounds"),
        ("--dtdispatch-foo", ["--dtdispatch-max", "--dtdispatch-mesh"], ""),
        (b"mises", LIMITS, ""),
        (3, LIMITS, ""),
        ("", LIMITS, ""),
        ("MPL", ["MLP", "norm"], "MLP"),
    ],
)
def test_nearest_name_is_suggested(typed: object, valid: Sequence[str], suggested: str) -> None:
    assert nearest(typed, valid) == (f"; did you mean {suggested}?" if suggested else "")
