"""Programs that read exported results: the schema, and tasks on planted faults that a script solves."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pytest_dtdispatch.plugin.kinds  # noqa: F401  results of all kinds have data
from pytest_dtdispatch.budget.collector import CollectorPauses
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.cli import _parsers
from pytest_dtdispatch.comparing.model import CallCounts, ComparedVariant
from pytest_dtdispatch.comparing.scaling import Fit, Scaling
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core.events import Cell, CodePlace, Phase
from pytest_dtdispatch.core.measurement import Samples, State, Unit
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.verdicts import CountChange, RowVerdict, TimeChange, Verdict, judged
from pytest_dtdispatch.report.data import run_text
from pytest_dtdispatch.report.document import notice
from pytest_dtdispatch.report.run import FailedTest, ReportedRun
from pytest_dtdispatch.steps.data import written_names
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    QueriedCache,
    Read,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
)
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.reported_runs import hostile_run, measured, results_of, row, run_of
from tests.row_ids import row_id

HERE = Path(__file__).parent
SCHEMA = HERE.parents[1] / "docs" / "_static" / "results.schema.json"
TASKS = json.loads((HERE / "tasks.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


TIME = TimeChange(7e3, 7.1e3, 1.4, 3, 9)


def line_in(module: str = "") -> CodePlace:
    return CodePlace("model.py", 7, module, Phase.FORWARD)


def whole_run() -> ReportedRun:
    """Return a run with every kind of result and event."""
    calls = Samples(State.CALL, (9, 9, 10, 11, 9, 9, 10, 11))
    events = (
        Miss(
            "mm.default(f32[8]R)@4",
            "shape of self [8], was [9]",
            QueriedCache.NATIVE,
            place=line_in("layers.0"),
        ),
        Redistribution("add.Tensor", "f32[8]", ("P",), ("R",), 32, place=line_in()),
        Collective("all_reduce", 32, is_redistributing=True, place=line_in()),
        Wrapping("from_local", "f32[8]", ("S0",)),
        Unwrapping("to_local", "f32[8]", ("S0",)),
        Read("item", "f32[]"),
    )
    advice = (Advice("x", "y", "z", 1, 9e3, 0.1, source_lines=("model.py:7",)),)
    cells = (Cell("local", "mm", line_in("layers.0"), 30.0, 2.0), Cell("dispatch", "", None, 60.0, 2.0))
    variants = (
        ComparedVariant(f"mlp[{label}]", label, "mlp", measured(f"mlp[{label}]", calls), CallCounts())
        for label in ("a", "b")
    )
    results = (
        Steps("train", (StepCounts(),), (StepCounts(hits=3, events=events),) * 2, advice=advice),
        Budget("train", 100.0, cells, steps=20, collector=CollectorPauses(20, 100)),
        Scaling("stack", (1, 2), Fit(State.MISS), Fit(State.HIT, 1.0, 0.9, 1.1)),
        CompiledFunction("mlp", "inductor", CompileCounts(1, (), 3), row()),
        *variants,
    )
    verdicts = (
        RowVerdict(row_id("t.py::test_a::add::hit"), Verdict.PASSED, TIME),
        RowVerdict(row_id("t.py::test_a"), Verdict.REGRESSED, CountChange(0, 1), lines=("model.py:7",)),
        RowVerdict(row_id("t.py::test_b"), Verdict.MISSING),
    )
    return run_of(
        results=results_of(*results),
        gates=(replace(judged(verdicts), where="limits"),),
        notices=notice("a rank is slower"),
        environment={"device": "cpu"},
        unknown={"number": {}},
        failed_tests=(FailedTest("t.py::test_a", "call", "AssertionError"),),
    )


def data_of(run: ReportedRun) -> Any:
    return json.loads(run_text(run)[0])


def series_run() -> ReportedRun:
    """Return the newest of three runs, with a changed row and a row that disappeared."""
    mul = row("mul", Samples(State.HIT, (7,) * 8))
    runs = [run_of(mul, row(), started=f"2026-11-0{day}") for day in (1, 2)]
    newest = run_of(row("mul", Samples(State.HIT, (9,) * 8)), started="2026-11-03")
    return replace(newest, history=(*runs, newest))


@pytest.mark.parametrize(
    "run",
    [whole_run(), hostile_run(), ReportedRun(), series_run()],
    ids=["whole", "hostile", "empty", "series"],
)
def test_exported_results_follow_the_schema(run: ReportedRun) -> None:
    VALIDATOR.validate(data_of(run))


def test_data_has_one_line_and_no_samples() -> None:
    text, count = run_text(whole_run())
    assert (text.count("\n"), count) == (1, len(data_of(whole_run())["rows"]) + 7)
    assert '"values":[7' not in text


def objects(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from objects(each)


def test_unknown_field_is_allowed_everywhere() -> None:
    data = data_of(whole_run())
    for each in objects(data):
        if "name" in each or "test" in each or "format" in each or "event" in each:
            each["added_later"] = [1]
    VALIDATOR.validate(data)


EVENTS = (Miss, Redistribution, Collective, Wrapping, Unwrapping, Read)


@pytest.mark.parametrize("kind", EVENTS)
def test_schema_describes_exactly_the_fields_of_an_event(kind: type[StepEvent]) -> None:
    definition = VALIDATOR.schema["$defs"]["event"]
    [of_kind] = [
        each["then"]
        for each in definition["allOf"]
        if kind.__name__.lower()
        in each["if"]["properties"]["event"].get("enum", [each["if"]["properties"]["event"].get("const")])
    ]
    written = {*written_names(kind), *(("is_implicit",) if kind is Redistribution else ())}
    described = of_kind["properties"].keys() | ({"op"} & written)
    assert described == written
    assert {*of_kind["required"]} | ({"op"} & written) == written


@pytest.mark.parametrize("kind", ["steps", "budget", "compared", "scaling", "compiled"])
def test_every_documented_field_of_a_result_is_required(kind: str) -> None:
    definitions = VALIDATOR.schema["$defs"]
    [of_kind] = [
        each["then"]
        for each in definitions["result"]["allOf"]
        if each["if"]["properties"]["kind"]["const"] == kind
    ]
    for name in (*definitions["result"]["required"], *of_kind["required"]):
        data = data_of(whole_run())
        result = next(each for each in data["results"] if each["kind"] == kind)
        del result[name]
        assert not VALIDATOR.is_valid(data), name


def test_changes_over_runs_are_exported_with_every_field() -> None:
    data = data_of(series_run())
    found = [(each["run"], each["state"], each["verdict"]) for each in data["history"]]
    assert found == [(3, None, "missing"), (3, "hit", "regressed")]
    for name in VALIDATOR.schema["$defs"]["change"]["required"]:
        missing = copy.deepcopy(data)
        del missing["history"][0][name]
        assert not VALIDATOR.is_valid(missing), name


@pytest.mark.parametrize("part", ["rows", "gates", "advice"])
def test_every_field_of_a_part_is_required(part: str) -> None:
    data = data_of(whole_run())
    assert part in VALIDATOR.schema["required"]
    definition = VALIDATOR.schema["$defs"][part.removesuffix("s")]
    for name in definition["required"]:
        missing = copy.deepcopy(data)
        del missing[part][0][name]
        assert not VALIDATOR.is_valid(missing), name


def test_number_that_decides_noise_is_exported() -> None:
    budgets = [Budget("quiet", noise=0.15, scatter=0.2), Budget("noisy", noise=0.16, scatter=0.01)]
    found = data_of(ReportedRun(results=results_of(*budgets)))["results"]
    assert [(each["noise"], each["is_noisy"]) for each in found] == [(0.15, False), (0.16, True)]


def test_transfers_of_different_sizes_are_not_merged() -> None:
    gathers = [Collective("all_gather", nbytes, place=CodePlace("a.py", 3)) for nbytes in (64, 64, 4096)]
    steps = Steps("train", (), (StepCounts(events=tuple(gathers)),))
    [result] = data_of(ReportedRun(results=results_of(steps)))["results"]
    assert [(event["bytes"], event["per_step"]) for event in result["events"]] == [(4096, [1]), (64, [2])]
    assert {event["per_step_mean"] for event in result["events"]} == {3}


def test_first_twenty_events_of_each_kind_are_written() -> None:
    gathers = [Collective("all_gather", nbytes, place=CodePlace("a.py", nbytes)) for nbytes in range(1, 26)]
    steps = Steps("train", (), (StepCounts(events=(*gathers, Read("item", "f32[]"))),))
    [result] = data_of(ReportedRun(results=results_of(steps)))["results"]
    written = [event.get("bytes") for event in result["events"]]
    assert (written, result["left_out"]) == ([*range(25, 5, -1), None], {"collective": 5})
    assert result["counts"]["collectives"] == [25]


def test_advice_on_counts_and_budget_of_a_step_is_one() -> None:
    advice = (Advice("x", "y", "z", 1, 9e3, 0.1, rule="repeated", source_lines=("model.py:7",), unit="op"),)
    steps, budget = Steps("train", (), (StepCounts(),), advice=advice), Budget("train", advice=advice)
    other = Budget("other", advice=advice)
    found = data_of(ReportedRun(results=results_of(budget, other, steps)))["advice"]
    assert [(one["name"], one["kinds"], one["class"], one["unit"]) for one in found] == [
        ("train", ["budget", "steps"], "CPU time", "op"),
        ("other", ["budget"], "CPU time", "op"),
    ]


def test_overhead_of_instructions_is_exported() -> None:
    unit = Unit("instructions", is_time=False)
    states = [Samples(state, (count,), unit=unit) for state, count in ((State.HIT, 900), (State.LOCAL, 200))]
    [row_data] = data_of(run_of(measured("add", *states)))["rows"]
    assert (row_data["overhead"], row_data["overhead_ns"]) == (700, None)


def test_events_of_a_line_are_merged() -> None:
    misses = [
        Miss("mm.default(f32[8]R)@4", "first", QueriedCache.NATIVE, place=line_in(f"layers.{n}"))
        for n in range(3)
    ]
    steps = Steps("train", (), (StepCounts(events=tuple(misses)), StepCounts(events=(misses[0],))))
    [result] = data_of(ReportedRun(results=results_of(steps)))["results"]
    [event] = result["events"]
    assert (event["line"], event["op"], event["modules"]) == ("model.py:7", "mm.default", ["layers.*"])
    assert event["per_step"] == [3, 1]
    assert result["counts"]["misses"] == [3, 1]


def test_floats_are_rounded_below_their_unit() -> None:
    for ns, written in ((1234567.8, 1234568), (1234567, 1234567), (12.3456789, 12.3457), (2.0, 2)):
        [budget] = data_of(ReportedRun(results=results_of(Budget("train", ns))))["results"]
        assert budget["measured_ns"] == written


def test_figures_without_json_equivalent_are_null() -> None:
    [scaling] = [each for each in data_of(whole_run())["results"] if each["kind"] == "scaling"]
    assert (scaling["miss"]["exponent"], scaling["hit"]["exponent"]) == (None, 1.0)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("planted", [name for name in TASKS if name != "tasks"])
def test_script_answers_all_tasks_by_the_schema(tmp_path: Path, planted: str) -> None:
    (tmp_path / planted).write_bytes((HERE / planted).read_bytes())

    def measure(test: str, *flags: str) -> int:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir=.",
            "-c/dev/null",
        ]
        command += ["--dtdispatch", *flags, f"{planted}::test_{test}"]
        return subprocess.run(command, cwd=tmp_path, check=False, stdout=subprocess.DEVNULL).returncode

    for test in ("before", "after"):
        assert measure(test, f"--dtdispatch-export=json:{test}.json") == 0
    script = [sys.executable, "-I", str(HERE / "answer.py"), str(SCHEMA), "before.json", "after.json"]
    ran = subprocess.run(script, cwd=tmp_path, check=True, capture_output=True, text=True)
    answers = json.loads(ran.stdout)
    assert answers == TASKS[planted]
    limit = f"--dtdispatch-max={answers['gate']}"
    assert (measure("before", limit), measure("after", limit)) == (1, 0)


SKILL = (HERE.parents[1] / "SKILL.md").read_text()
COMMANDS = re.findall(r"^\$ (\S.*?)\s+# (\d+): ", SKILL, re.MULTILINE)


def test_skill_has_ten_numbered_commands() -> None:
    assert [int(number) for _, number in COMMANDS] == list(range(1, 11))


@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
def test_flags_of_commands_for_agents_exist(command: str, request: pytest.FixtureRequest) -> None:
    program, *words = command.split()
    flags = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    if program == "pytest":
        groups = request.config._parser._groups
        valid = {name for group in groups for option in group.options for name in option.names()}
    else:
        valid = {f for parser in _parsers()[1].values() for f in parser._option_string_actions}
    assert flags <= valid


@pytest.mark.parametrize("name", ["SKILL.md", "llms.txt"])
def test_pages_for_agents_link_to_files(name: str) -> None:
    text = (HERE.parents[1] / name).read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all((HERE.parents[1] / link).exists() for link in links)
