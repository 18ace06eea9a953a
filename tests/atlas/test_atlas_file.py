"""The file of an atlas: what is written is read, and what is no atlas is refused in one line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_dtdispatch.atlas.atlas_file import LONGEST_TEXT, read_atlas, record_of, record_text
from pytest_dtdispatch.atlas.model import Outcome
from pytest_dtdispatch.core.forms import ATLAS_DATA, form_of
from pytest_dtdispatch.core.measurement import State
from tests.atlas.test_page import EXAMPLE, GATHER, atlas_of, row
from tests.fuzz.inputs import odd_json

RECORD = record_of(atlas_of(*EXAMPLE))
TEXT = record_text(RECORD)


def refused(tmp_path: Path, text: str | bytes) -> str:
    """Give what is said of a file beside its name."""
    path = tmp_path / "atlas.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="is no data of dtdispatch atlas: ") as error:
        read_atlas(path)
    said = str(error.value)
    assert said.isprintable()
    return said.removeprefix(f"{path} is no data of dtdispatch atlas: ")


def changed(**members: Any) -> str:
    """Write the example with other members of its second row, None for none."""
    plain = json.loads(TEXT)
    plain["rows"][1] |= members
    plain["rows"][1] = {name: value for name, value in plain["rows"][1].items() if value is not None}
    return json.dumps(plain)


def test_an_atlas_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "atlas.json"
    path.write_text(TEXT)
    assert read_atlas(path) == RECORD
    assert form_of(TEXT) == ATLAS_DATA


def test_a_row_has_the_medians_of_its_visits_and_what_a_miss_does() -> None:
    entry = record_of(atlas_of(row("mm.default", 2_000, 70_000, counts=GATHER))).rows[0]
    assert entry.visits_ns[State.COLD] == (4_000_000, 4_000_000)
    assert (entry.miss_ns, entry.steady_ns) == ((2_000_000,) * 2, (70_000,) * 2)
    assert (entry.propagations, entry.moves) == (1, ("mat2 f32[16,32] S0 -> R",))
    assert entry.collectives == {"all_gather": 1}


def test_an_op_that_never_asks_has_its_calls_as_hits() -> None:
    entry = record_of(atlas_of(row("is_same_size.default"))).rows[0]
    assert (entry.miss_ns, entry.steady_ns) == ((), (7_000, 7_000))
    assert entry.why_no_hit.startswith("never asks")


def test_each_row_stands_on_a_line_without_what_is_empty() -> None:
    lines = [json.loads(line.rstrip(",")) for line in TEXT.splitlines() if line.startswith('{"op"')]
    assert len(lines) == len(EXAMPLE)
    assert lines[-1] == {
        "op": "new.op",
        "signature": "new.op",
        "outcome": Outcome.NO_ARGUMENTS,
        "message": "TypeError: no",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: Expecting value"),
        ("[" * 100_000, "it is nested too deeply"),
        (b"\xff\xfe", "it is no text"),
        ("[]", 'it has no "format": "pytest-dtdispatch atlas"'),
        ('{"format": "pytest-dtdispatch ab", "version": 1}', 'it has no "format": "pytest-dtdispatch atlas"'),
        ('{"format": "pytest-dtdispatch atlas", "version": 2}', "version 2 of the format; this one reads 1"),
        ('{"format": "pytest-dtdispatch atlas", "version": 1}', "a AtlasRecord without environment"),
        (changed(op=None), "a AtlasEntry without op"),
        (changed(op=7), "no str: 7"),
        (changed(outcome="good"), "'good' is not a valid Outcome"),
        (changed(visits_ns={"miss": [-1.0]}), "row 2, miss: no times in nanoseconds"),
        (changed(visits_ns={"miss": []}), "row 2, miss: no times in nanoseconds"),
        (changed(visits_ns={"hit": ["nan"]}), "row 2, hit: no times in nanoseconds"),
        (changed(visits_ns={"hit": ["inf"]}), "row 2, hit: no times in nanoseconds"),
        (changed(visits_ns={"hit": [1e30]}), "row 2, hit: no times in nanoseconds"),
        (changed(visits_ns={"soon": [1.0]}), "'soon' is not a valid State"),
        (changed(propagations=-1), "no whole number from 0: -1"),
        (changed(propagations=True), "no int: True"),
        (changed(moves="S0 -> R"), "no list: 'S0 -> R'"),
        (changed(message="x" * (LONGEST_TEXT + 1)), "row 2 has a text of more than 10,000 letters"),
        (changed(signature=RECORD.rows[0].signature, op="add.Tensor", mesh="4"), "row 2 is there twice"),
    ],
)
def test_what_is_no_atlas_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text).startswith(said)


def test_an_atlas_without_rows_is_none(tmp_path: Path) -> None:
    assert refused(tmp_path, json.dumps({**json.loads(TEXT), "rows": []})) == "it has no rows"


@given(odd_json)
def test_odd_members_are_refused_or_read_as_what_they_should_be(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "odd-atlas.json"
    plain = json.loads(TEXT)
    plain["rows"][1]["visits_ns"] = value
    path.write_text(json.dumps(plain))
    with suppress(ValueError):
        record = read_atlas(path)
        assert all(ns > 0 for medians in record.rows[1].visits_ns.values() for ns in medians)
