"""A run against a saved one: what is said of each row."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core import saved_file as saved
from pytest_dtdispatch.core.environment import machine_differences, machine_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import Threshold, Verdict
from pytest_dtdispatch.gates.figure_ratios import MOST_SAMPLES
from pytest_dtdispatch.gates.saved_run import (
    LEAST_SAMPLES,
    MIN_SAMPLES,
    Judgement,
    StateRow,
    judge_run,
    not_judged,
    parse_run,
    read_run,
)

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=20)

TEN = Threshold("", "median", 0.1)
ON_THIS_MESH = "save a new run on this mesh"
STEADY = tuple(1000.0 + 7 * n % 20 for n in range(20))


def row(name: str = "hit", factor: float = 1.0, count: int = 20) -> StateRow:
    ns = tuple(factor * STEADY[n % 20] for n in range(count))
    return StateRow(f"t.py::test_a::{name}", State(name.split()[0]), ns)


def judge(base: Iterable[StateRow], head: Iterable[StateRow], *thresholds: Threshold) -> Judgement:
    return judge_run(list(base), list(head), lambda _: thresholds or (TEN,))


def verdicts_of(judgement: Judgement) -> list[str]:
    return [str(row.verdict) for row in judgement.verdicts]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, "passed"),
        (1.05, "passed"),
        (1.1, "inconclusive"),
        (1.15, "regressed"),
        (1.5, "regressed"),
        (0.95, "passed"),
        (0.5, "improved"),
    ],
)
def test_a_row_is_judged_by_its_whole_interval(factor: float, verdict: str) -> None:
    judgement = judge([row()], [row(factor=factor)])
    assert verdicts_of(judgement) == [verdict]
    figures = dict(judgement.verdicts[0].figures)
    assert figures["ratio"] == pytest.approx(factor)
    assert figures["ratio_low"] <= figures["ratio"] <= figures["ratio_high"]
    drift = judgement.verdicts[0].drift
    assert drift is not None
    assert drift.percent == pytest.approx(100 * (factor - 1))
    assert drift.interval == pytest.approx(
        tuple(100 * (figures[f"ratio_{end}"] - 1) for end in ("low", "high"))
    )
    assert judgement.verdicts[0].criterion == "median:10% of all samples"
    assert bool(judgement.verdicts[0].remedy) == (verdict != "passed")


@pytest.mark.parametrize("field", ["min", "q1", "median", "q3", "mean"])
def test_every_field_sees_a_slow_down(field: str) -> None:
    threshold = Threshold("", field, 0.1)
    assert verdicts_of(judge([row()], [row()], threshold)) == ["passed"]
    assert verdicts_of(judge([row()], [row(factor=1.5)], threshold)) == ["regressed"]


@unhurried
@given(st.lists(st.integers(1, 10**6).map(float), min_size=MIN_SAMPLES, max_size=40))
def test_a_run_against_itself_never_regresses_nor_improves(ns: list[float]) -> None:
    same = StateRow("t.py::test_a::hit", State.HIT, tuple(ns))
    assert verdicts_of(judge([same], [same]))[0] in ("passed", "inconclusive")


def test_each_threshold_of_a_row_is_judged() -> None:
    judgement = judge([row()], [row(factor=1.5)], TEN, Threshold("", "min", 1.0))
    assert verdicts_of(judgement) == ["regressed", "passed"]


def test_rows_on_one_side_only_are_new_and_missing() -> None:
    judgement = judge([row(), row("miss")], [row(), row("call")])
    assert verdicts_of(judgement) == ["passed", "new", "missing"]
    assert judgement.has_failed
    assert not judge([row()], [row(), row("call")]).has_failed


def test_rows_without_a_threshold_and_control_rows_are_not_judged() -> None:
    judgement = judge_run([row(), row("local")], [row(), row("local")], lambda _: ())
    assert judgement.verdicts == ()
    assert judgement.has_failed  # nothing compared never passes
    assert verdicts_of(judge([row("local")], [row("local")])) == []


@pytest.mark.parametrize("factor", [1.5, 1.04, 0.9])
def test_a_row_past_its_threshold_beside_a_shifted_control_is_no_regression(factor: float) -> None:
    base = [row(), row("miss"), row("local"), row("cold")]
    head = [row(), row("miss", factor=1.5), row("local", factor=factor), row("call")]
    judgement = judge(base, head)
    assert verdicts_of(judgement) == ["passed", "contaminated", "new", "missing"]
    assert judgement.control_shift == pytest.approx(factor - 1)
    assert judgement.has_failed


def test_a_gain_beside_a_shifted_control_is_doubted() -> None:
    judgement = judge([row(), row("local")], [row(factor=0.5), row("local", factor=0.5)])
    assert verdicts_of(judgement) == ["improved"]
    assert "it may have been the machine" in judgement.verdicts[0].remedy
    assert not judgement.has_failed


def test_one_control_row_of_several_does_not_spoil_a_run() -> None:
    names = ["local a", "local b", "local c"]
    base = [row(), *(StateRow(f"{name}::local", State.LOCAL, STEADY) for name in names)]
    head = [row(), *(StateRow(f"{name}::local", State.LOCAL, STEADY) for name in names[:2]), row("local")]
    head[-1] = StateRow("local c::local", State.LOCAL, tuple(3 * ns for ns in STEADY))
    judgement = judge(base, head)
    assert verdicts_of(judgement) == ["passed"]
    assert judgement.control_shift == pytest.approx(0)
    assert judgement.controls == 3


def test_without_control_rows_the_shift_is_not_known() -> None:
    assert judge([row()], [row()]).control_shift is None


@pytest.mark.parametrize(("base", "head"), [(2, 20), (20, 2), (MIN_SAMPLES - 1, 200)])
def test_too_few_samples_are_inconclusive_and_a_run_of_them_fails(base: int, head: int) -> None:
    judgement = judge([row(count=base)], [row(count=head, factor=2.0)])
    assert judgement.verdicts[0].verdict is Verdict.INCONCLUSIVE
    assert "samples" in judgement.verdicts[0].remedy
    assert judgement.has_failed
    others = judge([row(count=base), row("miss"), row("call")], [row(count=head), row("miss"), row("call")])
    assert not others.has_failed


@pytest.mark.parametrize(
    ("useless", "field"), [(STEADY[: LEAST_SAMPLES - 1], "median"), ((), "q1")], ids=["few", "none"]
)
def test_a_saved_run_of_which_half_lacks_samples_is_refused(useless: tuple[float, ...], field: str) -> None:
    threshold = Threshold("", field, 0.1)
    base = [replace(row(), ns=useless), row("miss"), row("local")]
    judgement = judge(base, [row(), row("miss"), row("local")], threshold)
    assert verdicts_of(judgement) == ["inconclusive", "passed", "mismatched"]
    [refused] = judgement.failed
    assert refused.row == "1 of 2 thresholds can never be judged against this saved run"
    assert refused.remedy.startswith("save one with --benchmark-save-data and a greater --dtdispatch-rounds ")
    better = judge([*base, row("call")], [row(), row("miss"), row("local"), row("call")], threshold)
    assert not better.has_failed


@pytest.mark.parametrize("ns", [(1000.0, 5000.0, 4000.0) * 8, STEADY[:LEAST_SAMPLES]], ids=["noisy", "slow"])
def test_a_saved_run_of_which_most_rows_can_never_be_judged_is_refused(ns: tuple[float, ...]) -> None:
    names = ["hit", "miss", "call", "cold"]
    useless, head = [replace(row(name), ns=ns) for name in names], [row(name) for name in names]
    assert not judge([*useless[:2], *head[2:]], head).has_failed
    [refused] = judge([*useless[:3], *head[3:]], head).failed
    assert refused.row == "3 of 4 thresholds can never be judged against this saved run"


def test_a_saved_run_is_refused_by_the_rows_that_have_a_threshold_alone() -> None:
    base, head = [row("miss", count=1), row()], [row("miss"), row()]
    assert judge(base, head).has_failed
    assert not judge_run(base, head, lambda of: [TEN] * (of.state is State.HIT)).has_failed


def test_a_strict_threshold_fails_where_its_row_is_inconclusive() -> None:
    strict = replace(TEN, is_strict=True)
    rows = [row(), row("miss")], [row(), row("miss", factor=1.1)]
    assert verdicts_of(judge(*rows, strict)) == verdicts_of(judge(*rows)) == ["passed", "inconclusive"]
    assert not judge(*rows).has_failed
    [failed] = judge(*rows, strict).failed
    assert (failed.row, failed.criterion) == ("t.py::test_a::miss", "median:10%,strict of all samples")
    assert not judge([row()], [row(), row("miss")], strict).has_failed, "new, and not inconclusive"


@pytest.mark.parametrize(("then", "now"), [("4", "8"), ("4", "2x4"), ("4", "4:cuda"), ("", "4"), ("4", "")])
def test_a_row_of_another_mesh_is_mismatched(then: str, now: str) -> None:
    judgement = judge(
        [replace(row(), mesh=then), replace(row("call"), mesh="4")],
        [replace(row(), mesh=now), replace(row("call"), mesh="4")],
    )
    assert verdicts_of(judgement) == ["mismatched", "passed"]
    assert judgement.failed[0].remedy == f"mesh: {then or 'none'} then, {now or 'none'} now; " + ON_THIS_MESH


def test_a_row_of_a_saved_run_that_names_no_mesh_is_compared() -> None:
    assert verdicts_of(judge([row()], [replace(row(), mesh="4")])) == ["passed"]


def test_a_saved_run_without_samples_is_compared_by_its_figures() -> None:
    saved = StateRow(row().name, State.HIT, (), (("min", 1000.0), ("median", 1010.0), ("mean", 1010.0)))
    assert verdicts_of(judge([saved], [row()])) == ["passed"]
    judgement = judge([saved], [row(factor=1.5)])
    assert verdicts_of(judgement) == ["regressed"]
    assert dict(judgement.verdicts[0].figures)["base_samples"] == 0
    quartile = judge([saved], [row()], Threshold("", "q1", 0.1))
    assert verdicts_of(quartile) == ["inconclusive", "mismatched"]
    assert "--benchmark-save-data" in quartile.verdicts[0].remedy


def test_a_threshold_under_what_the_run_could_resolve_is_named_the_worst_first() -> None:
    wild = StateRow("t.py::test_a::miss", State.MISS, tuple(1000.0 + 90 * (7 * n % 20) for n in range(20)))
    judgement = judge([row(), wild], [row(), wild])
    [unresolved] = judgement.unresolved
    assert unresolved.row == wild.name
    assert dict(unresolved.figures)["resolution_percent"] > 10


def test_many_samples_are_judged_in_seconds() -> None:
    many = StateRow(
        "t.py::test_a::hit", State.HIT, tuple(1000.0 + math.sin(n) for n in range(50 * MOST_SAMPLES))
    )
    slower = StateRow(many.name, many.state, tuple(1.5 * ns for ns in many.ns))
    judgement = judge([many], [slower])
    assert verdicts_of(judgement) == ["regressed"]
    assert dict(judgement.verdicts[0].figures)["head_samples"] == len(many.ns)


@pytest.mark.parametrize("verdict", [Verdict.DISABLED, Verdict.MISMATCHED, Verdict.MISSING])
def test_what_could_not_be_judged_at_all_fails(verdict: Verdict) -> None:
    assert not_judged(verdict, "why").has_failed


@pytest.mark.parametrize(
    ("state", "flag"),
    [
        ("hit", "--dtdispatch-rounds or --dtdispatch-max-time"),
        ("compile-cold", "--dtdispatch-compile-rounds"),
    ],
)
def test_a_row_with_too_few_samples_names_the_flag_that_gives_it_more(state: str, flag: str) -> None:
    judgement = judge([row(state)], [row(state, count=MIN_SAMPLES - 1)])
    assert verdicts_of(judgement) == ["inconclusive"]
    assert f"raise {flag}, in the saved run too" in judgement.verdicts[0].remedy


NAME = "t.py::test_add::add.Tensor(f32[8]S0)@4::hit"
STATS = {"min": 1e-6, "median": 2e-6, "mean": 3e-6, "data": [1e-6, 2e-6]}
OURS = {"fullname": NAME, "group": "dtdispatch hit", "stats": STATS, "params": {}, "extra_info": {}}
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


@pytest.mark.parametrize(
    ("saved", "day"),
    [
        ("2026-07-31T09:30:15.123456+00:00", "2026-07-31"),
        ("2026-07-31T09:30:15.123456", "2026-07-31"),
        ("<script>", ""),
        (7, ""),
        (None, ""),
    ],
)
def test_the_day_it_was_saved_is_known_where_it_says(saved: Any, day: str) -> None:
    assert parse_run(text_of(OURS, datetime=saved), "f").day == day


def test_mesh_and_thresholds_of_a_row_are_read() -> None:
    held = {**OURS, "params": {"mesh": "2x4"}, "extra_info": {"threshold": ["hit=median:30%,strict"]}}
    [row] = parse_run(text_of(held), "f").rows
    assert (row.mesh, row.thresholds) == ("2x4", (Threshold("hit", "median", 0.3, is_strict=True),))


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
        (text_of({**OURS, "extra_info": {"threshold": ["x"]}}), "STATE=]FIELD:PERCENT"),
        (text_of({**OURS, "extra_info": {"threshold": 7}}), "thresholds, such as"),
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


@pytest.mark.parametrize("padding", ["[],", "{},", "1,"])
def test_a_file_whose_values_would_fill_the_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padding: str
) -> None:
    path = tmp_path / "0001_base.json"
    monkeypatch.setattr(saved, "MOST_HELD_BYTES", 2**20)
    path.write_text(f'{{"pad": [{padding * 20_000}0], {text_of(OURS)[1:]}')
    with pytest.raises(ValueError, match="its values would take more than 1 MiB of memory"):
        read_run(path)
    path.write_text(f'{{"pad": [{padding * 20}0], {text_of(OURS)[1:]}')
    assert len(read_run(path).rows) == 1


def test_what_a_file_has_too_much_of_is_quoted_in_part(tmp_path: Path) -> None:
    path = tmp_path / "0001_base.json"
    twice = {**OURS, "fullname": f"{'x' * 10_000}::{OURS['fullname']}"}
    path.write_text(text_of(twice, twice))
    with pytest.raises(
        ValueError, match=r"is no saved run: 'xxx.*xx\.\.\.x*.*::hit' is there twice$"
    ) as told:
        read_run(path)
    assert len(str(told.value)) < len(str(path)) + 450


def test_a_folder_and_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ValueError, match=r"cannot be read: (Is a directory|No such file)"):
            read_run(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from([*OURS, "data", "cpu", "dtdispatch", "top"]))
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
    assert machine_differences(parse_run(text_of(OURS), "f").machine, machine_of(MACHINE)) == ()


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
    assert machine_differences(parse_run(text_of(OURS), "f").machine, machine_of(now)) == (says,)


def test_a_run_that_says_nothing_of_its_machine_differs_from_every_one() -> None:
    unknown = parse_run(text_of(OURS, machine_info={}), "f")
    assert "threads: unknown then, 2 now" in machine_differences(unknown.machine, machine_of(MACHINE))


@pytest.mark.parametrize("field", ["min", "median"])
@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_row_that_scatters_in_either_run_is_neither_passed_nor_failed(factor: float, field: str) -> None:
    quiet = row("miss")
    busy = StateRow(quiet.name, quiet.state, tuple(factor * ns for ns in (1000.0, 5000.0, 4000.0) * 8))
    threshold = Threshold("", field, 0.1)
    [in_this_run] = judge([quiet], [busy], threshold).verdicts
    in_the_saved_run = judge([busy], [quiet], threshold).verdicts[0]
    assert in_this_run.verdict == in_the_saved_run.verdict == "inconclusive"
    assert in_this_run.remedy.startswith("noisy: its samples scatter by ")
    assert in_the_saved_run.remedy.startswith("noisy in the saved run: its samples scatter by ")
