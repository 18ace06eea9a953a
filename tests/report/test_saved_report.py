"""Saved runs as reports take them: the same run again, or one line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State, Unit
from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.core.saved_samples import SavedSamples, samples_taken
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.bars import BarPart, StackedBar
from pytest_dtdispatch.report.document import Document, Folded, Span, Tone, one_line
from pytest_dtdispatch.report.html_page import html_page
from pytest_dtdispatch.report.reported_run import ReportedDocument, ReportedGate, ReportedRun
from pytest_dtdispatch.report.run_data import KEY
from pytest_dtdispatch.report.saved_report import OLDER, read_reported, reported_from
from tests.fuzz.inputs import assert_one_line, changed, fuzzed
from tests.reported_runs import ADD, HITS, MISSES, hostile_run, row, run_of
from tests.saved_runs import MACHINE, THEIRS, saved

BAR = StackedBar("train", "10 us", (BarPart("local", 0.4, "4 us"), BarPart("unexplained", 0.6, "6 us", True)))
BUDGET = Document((BAR, Folded("more", (one_line("x"),))), "is", {"a": "b"})
INFINITE = RowVerdict("t.py::test_a", Verdict.PASSED, (("resolution_percent", float("inf")),), "", "10%")
UNMEASURED = Measurement(
    "mul.Tensor(f32[8]R)@4", "mul", "mul.Tensor", "4", Contains.DISPATCH, 3, Figures(0, (), ("why not",))
)
REFUSED = row(
    "mm.default(f32[8,8]R)@4",
    Samples(State.MISS, (), (Refused("nothing propagated (twice)", 4),)),
    Samples(State.HIT, HITS, (Refused("it propagated", 1),)),
    Samples(State.LOCAL, HITS),
)
LIVE = ReportedRun(
    taken="2026-11-22T20:00:00+00:00",
    environment={"CPU": "a CPU", "threads": "1"},
    measured={"t.py::test_a": (UNMEASURED, row(), REFUSED), "t.py::test_b": (row(calls=7),)},
    documents=(
        ReportedDocument("budget", Document((BAR, Folded("more", (one_line("x"),))), "is", {"a": "b"})),
    ),
    numbers=(MetricValue("t.py::test_a::step", "collectives", 3),),
    gates=(ReportedGate("base.json", (INFINITE,), False, Document((one_line(Span("ok", Tone.GOOD)),))),),
    explained=Document((one_line("all of it"),)),
    notices=Document((one_line("one thing"),)),
)


def test_a_saved_run_is_the_run_that_was_saved() -> None:
    again = reported_from(saved(LIVE), "saved.json")
    assert again.where == "saved.json"
    for field in ("taken", "environment", "documents", "numbers", "gates", "explained", "notices"):
        assert getattr(again, field) == getattr(LIVE, field), field
    assert again.measured == LIVE.measured
    assert again.metrics() == LIVE.metrics()


def test_one_saved_without_its_samples_has_what_stands_for_them() -> None:
    live = run_of(row())
    [[again]] = reported_from(saved(live, with_data=False), "f").measured.values()
    [miss, hit] = again.samples
    assert isinstance(miss, SavedSamples)
    assert (miss.figure, hit.scatter) == (row().figure(State.MISS), Samples(State.HIT, HITS).scatter)
    assert (miss.values[0], miss.values[-1], samples_taken(hit)) == (min(MISSES), max(MISSES), len(HITS))
    assert "saved as quartiles alone" in html_page([reported_from(saved(live, with_data=False), "f")])


def test_ranks_are_told_apart_again() -> None:
    samples = Samples(State.HIT, (9,), by_rank=((0, (7, 7)), (1, (9, 9))), stat="max")
    [[again]] = reported_from(saved(run_of(row(ADD, samples))), "f").measured.values()
    [hit] = again.samples
    assert hit.by_rank
    assert (hit.by_rank, hit.slowest, hit.figure) == (samples.by_rank, (1, 9), 9)


def test_a_metric_of_the_users_own_keeps_its_unit() -> None:
    unit = Unit(hit="thread_cpu_hit_ns")
    again = reported_from(saved(run_of(row(ADD, Samples(State.HIT, HITS, unit=unit)))), "f")
    assert [number.metric for number in again.metrics()] == ["thread_cpu_hit_ns"]


def test_a_file_of_an_older_version_has_rows_and_says_what_it_lacks() -> None:
    older = saved(LIVE, is_older=True)
    for each in older["benchmarks"]:
        each["stats"].pop("data")
        each["extra_info"] = {"contains": each["extra_info"]["contains"]}
    again = reported_from(older, "f")
    assert [one.label for one in again.measured["t.py::test_a"]] == [ADD, REFUSED.label]
    assert again.environment == {
        "CPU": "a CPU", "Python": "CPython 3.11.7", "torch": "2.13.0", "device": "cpu", "threads": "1",
        "commit": "abc",
    }  # fmt: skip
    assert (again.taken, again.documents) == ("2026-01-01T00:00:00", ())
    assert OLDER in html_page([again])


def test_data_of_a_later_version_is_left_alone() -> None:
    later = saved(LIVE)
    later[KEY] = {"version": 99, "documents": "of another form"}
    assert reported_from(later, "f").documents == ()


def spoil(**changes: Any) -> dict[str, Any]:
    members = saved(run_of(row()))
    members["benchmarks"][0] |= changes
    return members


WRONG = {
    "no JSON": ("{", "line 1: Expecting property name"),
    "nested": ("[" * 100_000, "it is nested too deeply"),
    "a list": ("[]", "the file has no benchmarks"),
    "no machine": ('{"benchmarks": []}', "the file has no machine_info"),
    "nothing": (json.dumps({"benchmarks": [], "machine_info": {}}), "nothing in it was measured"),
    "others alone": (
        json.dumps({"benchmarks": [THEIRS], "machine_info": MACHINE}),
        "nothing in it was measured",
    ),
    "no name": (json.dumps({"benchmarks": [3], "machine_info": {}}), "benchmark 1 has no fullname"),
    "no stats": (json.dumps(spoil(stats=None)), "has no stats"),
    "no times": (json.dumps(spoil(stats={"data": ["<b>"]})), "is no time"),
    "no quartiles": (json.dumps(spoil(stats={})), "'None' is no time"),
    "another name": (json.dumps(spoil(param="else::miss")), "does not end in its signature and its state"),
    "twice": (json.dumps({**spoil(), "benchmarks": [*spoil()["benchmarks"] * 2]}), "is there twice"),
    "bad data": (json.dumps({**spoil(), KEY: {"version": 1, "gates": 3}}), f"its {KEY} has no list: 3"),
    "a block": (
        json.dumps({**spoil(), KEY: {"version": 1, "notices": {"blocks": [{"type": "Evil"}]}}}),
        f"its {KEY} has a Evil where none is valid",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_a_line_that_names_the_file(what: str, tmp_path: Path) -> None:
    text, said = WRONG[what]
    path = tmp_path / "0001_base.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".") as error:
        read_reported(path)
    assert str(error.value).startswith(f"{path} is no saved run: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read: No such file"):
        read_reported(tmp_path / "none.json")


@fuzzed
@given(some.data())
def test_whatever_a_file_holds_it_is_a_page_or_one_line(data: some.DataObject) -> None:
    for run in (LIVE, hostile_run()):
        spoiled, _ = data.draw(changed(saved(run, with_data=data.draw(some.booleans()))))
        try:
            again = reported_from(spoiled, "f")
        except ValueError as error:
            assert_one_line(error)
            continue
        assert html_page([again]).endswith("</html>\n")
