"""How names are cut for a reader."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.signatures import cut_name, digest_name, fit_name

ADDMM = "addmm.default(f32[512]S0, f32[512,512]R, f32[512,512]R)@2x4"
FOREACH = "_foreach_add_.List([f32[8,8]S0, f32[8]R*3, f32[64,64]S1], [f32[8,8]S0, f32[8]R])@4:cuda"
PIECES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
LISTS = st.lists(PIECES, min_size=1, max_size=4).map(lambda inner: f"[{', '.join(inner)}]")
SIGNATURES = st.builds(
    "{}({})@2x4".format, PIECES, st.lists(PIECES | LISTS, min_size=1, max_size=9).map(", ".join)
)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (59, ADDMM),
        (58, "addmm.default(f32[512]S0, ..., f32[512,512]R)@2x4"),
        (40, "addmm.default(f32[512]S0, ...)@2x4"),
        (30, "addmm.default(...)@2x4"),
        (21, "addmm...#f1a73300@2x4"),
    ],
)
def test_a_signature_is_cut_where_arguments_end(limit: int, text: str) -> None:
    assert fit_name(ADDMM, limit) == text


def test_a_list_that_has_no_room_is_cut_where_its_parts_end() -> None:
    assert fit_name(FOREACH, 84) == "_foreach_add_.List([f32[8,8]S0, f32[8]R*3, f32[64,64]S1], ...)@4:cuda"
    assert fit_name(FOREACH, 60) == "_foreach_add_.List(..., [f32[8,8]S0, f32[8]R])@4:cuda"


def test_a_name_that_was_cut_before_keeps_its_digest() -> None:
    [digest] = re.findall(r"#\w+", stored := cut_name(ADDMM.replace("S0", "S0" * 60)))
    assert fit_name(stored, 50).endswith(f"...{digest}@2x4")
    assert digest_name(stored, 50).endswith(f"...{digest}@2x4")


def test_what_is_no_signature_is_cut_as_in_files() -> None:
    name = "a step of the optimizer, and then a pass over all (of) it"
    assert fit_name(name, 40) == digest_name(name, 40) == cut_name(name, 40)


@given(name=SIGNATURES | st.text(max_size=200), limit=st.integers(20, 130))
def test_no_cut_name_is_longer_than_its_limit(name: str, limit: int) -> None:
    for cut in (fit_name(name, limit), digest_name(name, limit)):
        assert len(cut) <= limit
        assert cut == name or "..." in cut


@given(name=SIGNATURES, limit=st.integers(30, 130))
def test_whole_arguments_stay(name: str, limit: int) -> None:
    cut = fit_name(name, limit)
    if "#" not in cut:
        kept = re.split(r"[(,]* \.\.\.,? ?|\(\.\.\.|\.\.\.", cut)
        assert all(part.strip(" ,()") in name for part in kept)
        assert cut.endswith("@2x4")
