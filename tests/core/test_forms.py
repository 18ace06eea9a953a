"""What a file is, by how it begins."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.forms import EXPECTED, RESULTS, SOMETHING_ELSE, form_of


@pytest.mark.parametrize(
    ("beginning", "form"),
    [
        ("t.py::test_a::add,dispatch_hit_ns,6940\n", RESULTS),
        ('t.py::test_a::add,dispatch_hit_ns,6940,"add([f32[8]R*40], f32[8]R)@4"\n', RESULTS),
        ("t.py::test_a::add,dispatch_hit_ns,6940,0.25\n", EXPECTED),
        ("t.py::test_a::add,dispatch_hit_ns,6940,0\n", EXPECTED),
        ("# why\n\nt.py::test_a::add,dispatch_hit_ns,6940,1e-3,slower\n", EXPECTED),
        ("name,value\n1,2\n", SOMETHING_ELSE),
        ("", SOMETHING_ELSE),
    ],
)
def test_rows_are_told_by_their_fields(beginning: str, form: str) -> None:
    assert form_of(beginning) == form
