"""Saved runs, as pytest-benchmark writes them and as anybody could."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.gates import baseline as saved
from pytest_dtdispatch.gates.baseline import StateRow, differences, machine_of, parse_run, read_run

NAME = "t.py::test_add::add.Tensor(f32[8]S0)@4::hit"
STATS = {"min": 1e-6, "median": 2e-6, "mean": 3e-6, "data": [1e-6, 2e-6]}
OURS = {"fullname": NAME, "group": "dtdispatch hit", "stats": STATS}
THEIRS: dict[str, Any] = {"fullname": "t.py::test_other", "group": None, "stats": {}}
MACHINE = {
    "python_implementation": "CPython",
    "python_version": "3.11.8",
    "processor": "x86_64",
    "cpu": {"brand_raw": "AMD EPYC"},
    "dtdispatch": {
        "torch_version": "2.13.0",
        "torch_build": "abc",
        "device": "cpu",
        "backend": "fake",
        "threads": 2,
    },
}


def text_of(*benchmarks: Any, **others: Any) -> str:
    return json.dumps({"machine_info": MACHINE, "benchmarks": benchmarks, **others})


def test_our_rows_are_read_in_nanoseconds_and_others_left_out() -> None:
    [row] = parse_run(text_of(THEIRS, OURS), "f").rows
    assert (row.name, row.state) == (NAME, State.HIT)
    assert row.ns == pytest.approx((1000, 2000))
    assert dict(row.figures) == pytest.approx({"min": 1000, "median": 2000, "mean": 3000})


def test_a_run_that_was_saved_without_samples_has_figures_alone() -> None:
    stats = {name: value for name, value in STATS.items() if name != "data"}
    [row] = parse_run(text_of({**OURS, "stats": stats}), "f").rows
    assert row.ns == ()
    assert dict(row.figures)["median"] == pytest.approx(2000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: Expecting value"),
        (text_of(OURS)[:-20], "line 1: "),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "the file has no benchmarks"),
        ("null", "the file has no benchmarks"),
        ('{"benchmarks": []}', "the file has no machine_info"),
        ('{"benchmarks": {}, "machine_info": {}}', "the file has no benchmarks"),
        (text_of(7), "benchmark 1 has no fullname"),
        (text_of({"stats": STATS}), "benchmark 1 has no fullname"),
        (text_of({**OURS, "stats": 7}), "has no stats"),
        (text_of({**OURS, "fullname": "a::warm", "group": "dtdispatch warm"}), "has no state that is known"),
        (text_of({**OURS, "stats": {**STATS, "data": 7}}), "its data is no list"),
        (text_of({**OURS, "stats": {**STATS, "data": ["x"]}}), "'x' is no time"),
        (text_of({**OURS, "stats": {**STATS, "data": [0]}}), "'0' is no time"),
        (text_of({**OURS, "stats": {**STATS, "data": [True]}}), "'True' is no time"),
        (text_of({**OURS, "stats": {**STATS, "data": [float("nan")]}}), "'nan' is no time"),
        (text_of({**OURS, "stats": {**STATS, "data": [float("inf")]}}), "'inf' is no time"),
        (text_of({**OURS, "stats": {**STATS, "median": -1}}), "'-1' is no time"),
        (text_of({**OURS, "stats": {"data": [1]}}), "'None' is no time"),
        (text_of({**OURS, "stats": {**STATS, "data": [10**400]}}), "is no time"),
        (text_of(OURS, OURS), "is there twice"),
    ],
)
def test_what_is_no_saved_run_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "0001_base.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as raised:
        read_run(path)
    line = str(raised.value)
    assert line.startswith(f"{path} is no saved run: ")
    assert "\n" not in line
    assert len(line) < len(str(path)) + 200


def test_a_file_that_is_no_text_is_none(tmp_path: Path) -> None:
    path = tmp_path / "0001_base.json"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="is no saved run: it is no text"):
        read_run(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0001_base.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(ValueError, match="it has more than 64 MiB"):
        read_run(path)
    monkeypatch.setattr(saved, "MOST_BYTES", len(text_of(OURS)))
    path.write_text(text_of(OURS))
    assert len(read_run(path).rows) == 1


def test_a_folder_and_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ValueError, match=r"cannot be read: (Is a directory|No such file)"):
            read_run(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["fullname", "group", "stats", "data", "cpu", "dtdispatch", "top"]))
def test_anything_in_any_place_is_read_or_refused(value: Any, place: str) -> None:
    benchmark = {**OURS, place: value} if place in OURS else {**OURS, "stats": {**STATS, "data": value}}
    machine = {**MACHINE, place: value}
    text = json.dumps(value if place == "top" else {"machine_info": machine, "benchmarks": [benchmark]})
    with contextlib.suppress(ValueError):
        run = parse_run(text, "f")
        assert all(isinstance(row, StateRow) for row in run.rows)
        assert all(isinstance(name, str) and isinstance(text, str) for name, text in run.machine)


# Machines


def test_a_run_on_the_same_machine_differs_in_nothing() -> None:
    assert differences(parse_run(text_of(OURS), "f"), machine_of(MACHINE)) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cpu": {"brand_raw": "Xeon"}}, "CPU: AMD EPYC then, Xeon now"),
        ({"cpu": {}}, "CPU: AMD EPYC then, x86_64 now"),
        ({"python_version": "3.12.1"}, "Python: CPython 3.11.8 then, CPython 3.12.1 now"),
        ({"torch_version": "2.14.0"}, "torch: 2.13.0 abc then, 2.14.0 abc now"),
        ({"torch_build": "def"}, "torch: 2.13.0 abc then, 2.13.0 def now"),
        ({"device": "cuda", "device_name": "H100"}, "device: cpu then, cuda H100 now"),
        ({"backend": "gloo"}, "backend: fake then, gloo now"),
        ({"threads": 4}, "threads: 2 then, 4 now"),
    ],
)
def test_each_difference_is_named(change: dict[str, Any], says: str) -> None:
    inner = {**MACHINE["dtdispatch"], **change}  # type: ignore[dict-item]
    now = {**MACHINE, **change} if set(change) & set(MACHINE) else {**MACHINE, "dtdispatch": inner}
    assert differences(parse_run(text_of(OURS), "f"), machine_of(now)) == (says,)


def test_a_run_that_says_nothing_of_its_machine_differs_from_every_one() -> None:
    unknown = parse_run(text_of(OURS, machine_info={}), "f")
    assert "threads: unknown then, 2 now" in differences(unknown, machine_of(MACHINE))
