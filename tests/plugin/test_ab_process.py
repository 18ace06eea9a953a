"""Measuring processes of an A/B run: all tests once, then one answer file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Figures,
    FunctionShare,
    Profile,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.plugin.ab_process import absences, instructions, times
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from tests.plugin_runs import ADD, IMPORTS, TEN_LINES, measure, measure_source, run
from tests.row_ids import by_text

pytestmark = pytest.mark.torch
PLUGIN = "-ppytest_dtdispatch.plugin.ab_process"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "answer.json"
    monkeypatch.setenv("DTDISPATCH_AB_OUTPUT", str(path))
    return path


OPS = ("add.Tensor", "mul.Tensor", "mm.default", "relu.default", "sum.default", "clone.default")
CONTROL = {f"control::aten.{op}::control" for op in OPS}


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


TWO_TESTS = """
def note(word):
    with open("noted", "a") as file:
        file.write(word + " ")

@pytest.fixture(scope="module")
def module_wide():
    note("up")
    yield
    note("down")

@pytest.mark.parametrize("rows", [8, 16])
def test_add(dtdispatch, device_mesh, module_wide, rows):
    note(str(rows))
    a = sharded(device_mesh, rows, 8)
    with dtdispatch.capture():
        a + a
"""


def test_tests_run_once_and_rows_have_one_value(pytester: pytest.Pytester, answer: Path) -> None:
    measure_source(pytester, TWO_TESTS, PLUGIN)
    assert (pytester.path / "noted").read_text().split() == ["up", "8", "16", "down"]
    values = by_text(read(answer)["values"])
    add = "add.Tensor(f32[{0},8]S0, f32[{0},8]S0)@4"
    assert (
        set(values)
        == {
            f"test_it.py::test_add[{extent}]::{add.format(extent)}::{state}"
            for extent in (8, 16)
            for state in ("miss", "hit", "local")
        }
        | CONTROL
    )
    assert all(value > 0 for value in values.values())


def test_selected_rows_run_only_their_tests(
    pytester: pytest.Pytester, answer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTDISPATCH_AB_ONLY", json.dumps(["test_it.py::test_add[16]", "test_it.py::test_x"]))
    measure_source(pytester, TWO_TESTS, PLUGIN)
    assert (pytester.path / "noted").read_text().split() == ["up", "16", "down"]
    measured = by_text(read(answer)["values"]).keys() - CONTROL
    assert {name.split("::")[1] for name in measured} == {"test_add[16]"}


NOTES = "def test_it(dtdispatch):\n    with open('noted', 'a') as file:\n        file.write('x')\n    assert "


def test_failed_test_or_empty_run_fails(pytester: pytest.Pytester, answer: Path) -> None:
    assert measure_source(pytester, f"{NOTES}False", PLUGIN).ret == 1
    assert (pytester.path / "noted").read_text() == "x"
    assert measure_source(pytester, "", PLUGIN).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_plugin_is_inactive_without_its_variables(pytester: pytest.Pytester) -> None:
    assert measure_source(pytester, f"{NOTES}True", PLUGIN).ret == 0
    assert (pytester.path / "noted").read_text() == "x"


@pytest.mark.slow
@pytest.mark.long
def test_two_real_sides_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides use the same interpreter. Verdicts are not checked: they depend on the machine's load."""
    path = tmp_path / "ab.json"
    words = ["--base", sys.executable, "--head", sys.executable]
    tests = ["--pyargs", "pytest_dtdispatch.suite.test_ops::test_add[4]", "--dtdispatch-rounds=3"]
    status = main(["ab", *words, "--json", str(path), "--", *tests])
    out, _ = capsys.readouterr()
    assert status in (0, 3, 4)
    assert "pytest_dtdispatch/suite/test_ops.py::test_add[4]" in out
    content = json.loads(path.read_text())
    assert [process["side"] for process in content["processes"]][:4] == ["base", "head", "head", "base"]


@pytest.fixture
def counted(answer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTDISPATCH_AB_KIND", "counts")
    return answer


STEPS = """
from torch.distributed.tensor import Replicate

def test_steps(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
    dtdispatch.steps(lambda: a.redistribute(placements=[Replicate()]) + 1, name="step")
"""


def test_counts_are_named_by_test_step_and_count(pytester: pytest.Pytester, counted: Path) -> None:
    assert measure_source(pytester, STEPS, PLUGIN, "--dtdispatch-metric=counts").ret == 0
    numbers, details = (by_text(read(counted)[each]) for each in ("values", "details"))
    step = "test_it.py::test_steps::step::"
    of_step = {name.removeprefix(step): value for name, value in numbers.items() if name.startswith(step)}
    assert len(of_step) == 12
    once = ("calls_per_step", "redistributes_per_step", "collectives_per_step")
    assert {name: value for name, value in of_step.items() if value} == dict.fromkeys(once, 1.0)
    [moved] = details["test_it.py::test_steps::step::redistributes_per_step"]
    assert moved.startswith("redistribute: f32[8,8] S0 -> R")
    [called] = details["test_it.py::test_steps::step::calls_per_step"]
    assert re.fullmatch(r"add\.Tensor\(f32\[8,8\]R\)@4, at test_it\.py:\d+.*", called)
    # A capture is counted from empty caches: filling them does not count as growth.
    assert numbers["test_it.py::test_steps::capture 1::misses_per_step"] == 1.0
    assert "test_it.py::test_steps::capture 1::cache_growth_per_step" not in numbers


LEAK = """
KEPT = []

def test_steps(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.steps(lambda: KEPT.append(a + a), name="step")
"""


def test_growth_lists_live_dtensors(pytester: pytest.Pytester, counted: Path) -> None:
    assert measure_source(pytester, LEAK, PLUGIN, "--dtdispatch-metric=counts").ret == 0
    name = "test_it.py::test_steps::step::dtensor_growth_per_step"
    assert by_text(read(counted)["values"])[name] == 1.0
    assert by_text(read(counted)["details"])[name] == ["f32[8,8] S0"]


def test_hits_of_rows_are_proved_beside_counts(
    pytester: pytest.Pytester, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTDISPATCH_AB_KIND", "proofs")
    few = ("--dtdispatch-rounds=1", "--dtdispatch-repeat=2")
    assert measure_source(pytester, STEPS, PLUGIN, *few).ret == 0
    [(row, never)] = read(counted)["values"]
    assert (row[0], row[1].partition("(")[0]) == ("test_it.py::test_steps", "add.Tensor")
    assert (row[2], never) == ("never_hits", 0.0)


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("counts", "time"), ("proofs", "counts"), ("instructions", "time"), ("times", "clock-counts")],
)
def test_marker_with_another_metric_is_refused(
    pytester: pytest.Pytester, counted: Path, monkeypatch: pytest.MonkeyPatch, kind: str, metric: str
) -> None:
    sampler = InstructionSampler(lambda: (WallClock().meter, None))
    monkeypatch.setitem(SAMPLERS, "clock-counts", sampler)
    monkeypatch.setenv("DTDISPATCH_AB_KIND", kind)
    pytester.makepyfile(TEN_LINES)
    result = measure(pytester, PLUGIN, f"--dtdispatch-metric={metric}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = f"ERROR: --dtdispatch-metric {metric}: this A/B run compares {kind}; set before -- *"
    result.stderr.fnmatch_lines([error])


def test_version_without_a_feature_reports_absent_rows(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, answer: Path
) -> None:
    monkeypatch.setenv("DTDISPATCH_AB_GO_ON", "1")
    source = """
def test_fails(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a * a
    with open("noted", "a") as file:
        file.write("x")
    raise NotImplementedError("no rule\\nhere")

def test_skipped():
    import pytest
    pytest.skip("no interface")

def test_expected_to_fail():
    import pytest
    pytest.xfail("known")
"""
    pytester.makepyfile(test_ten=TEN_LINES, test_lacks=IMPORTS + source, test_broken="import nowhere")
    assert measure(pytester, PLUGIN).ret == 0
    assert (pytester.path / "noted").read_text() == "x"  # once
    content = read(answer)
    assert by_text(content["absent"]) == {
        "test_broken.py": "failed: ModuleNotFoundError: No module named 'nowhere'",
        "test_lacks.py::test_fails": "failed: NotImplementedError: no rule",
        "test_lacks.py::test_skipped": "skipped: no interface",
    }
    assert f"test_ten.py::test_add::{ADD}::hit" in by_text(content["values"])


def test_unmeasured_state_is_absent_with_its_reason() -> None:
    results = ResultStore("t.py::test_add")
    never = Samples(State.HIT, (), (Refused("it propagated", 20),))
    samples = (Samples(State.MISS, (9,)), never)
    results.enter_call("add", "4", Figures(1, samples, ("never hits: it propagates",)))
    results.enter_call("mm", "4", Figures(notes=("runs once",)))
    assert by_text(absences(results.freeze())) == {
        "t.py::test_add::add::hit": "never hits: it propagates",
        "t.py::test_add::mm": "runs once",
    }


def test_profiled_count_lists_its_functions() -> None:
    results = ResultStore("t.py::test_add")
    profile = Profile((FunctionShare("A.rule (a.py:3)", 70), FunctionShare("add (b.py:9)", 20)), 100)
    misses = Samples(State.MISS, (80, 90), unit=INSTRUCTIONS, profile=profile)
    hits = Samples(State.HIT, (7, 6), unit=INSTRUCTIONS)
    results.enter_call("add", "4", Figures(1, (misses, hits)))
    found = by_text(instructions(results.freeze()))
    assert found == {"t.py::test_add::add::miss": 80.0, "t.py::test_add::add::hit": 6.0}
    details = [count.details for count in found.values() if isinstance(count, Count)]
    assert details == [("70 A.rule (a.py:3)", "20 add (b.py:9)"), ()]


def test_row_value_is_its_least_sample() -> None:
    results = ResultStore("t.py::test_add")
    results.enter_call("add", "4", Figures(1, (Samples(State.CALL, (9, 7, 9)),)))
    assert by_text(times(results.freeze())) == {"t.py::test_add::add::call": 7}


LIMITED = f"""{IMPORTS}
@pytest.mark.dtdispatch(max="redistributes=0,recompiles=0", threshold="1%")
def test_it(dtdispatch, a):
    dtdispatch.steps(lambda: a.full_tensor(), name="s")
    dtdispatch.scaling(lambda n: lambda: a + a, sizes=(1, 2), max_exponent=0.1)
    compared = dtdispatch.compare({{"x": lambda: a + a, "y": lambda: a * 2}})
    assert compared["x"].faster_than("y")
"""
GATED = """
[pytest]
dtdispatch_max = misses=0,calls=0
dtdispatch_expected = gone.csv
dtdispatch_fail = median:1%
addopts = --dtdispatch-max=collectives=0 --dtdispatch-fail=hit=median:1% --dtdispatch-expected=gone.csv
    --dtdispatch-export=csv:gone/results.csv --benchmark-compare=gone --benchmark-compare-fail=min:1%
    --benchmark-json=run.json --junitxml=junit.xml
"""


def test_no_limit_or_baseline_is_judged(
    pytester: pytest.Pytester, answer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTDISPATCH_AB_KIND", "counts")
    pytester.makeini(GATED)
    pytester.makepyfile(test_it=LIMITED)
    result = run(pytester, "--dtdispatch", PLUGIN, "--dtdispatch-metric=counts", passed=1)
    assert result.ret == pytest.ExitCode.OK
    assert "gate:" not in result.stdout.str()
    values = by_text(read(answer)["values"])
    assert [value for name, value in values.items() if "::s::redistributes" in name] == [1]
    assert {path.name for path in pytester.path.iterdir() if path.is_file()} == {"test_it.py", "tox.ini"}
