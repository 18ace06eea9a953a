"""Measuring processes of an A/B run: all tests once, then a saved run, with the values that are compared."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_dtdispatch.ab.values import Metric, Sample, samples_of
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    FunctionShare,
    Measurement,
    Profile,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.plugin.ab_process import readable
from pytest_dtdispatch.report.run import FailedTest, ReportedRun, read_run, saved_text
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from tests.plugin_runs import ADD, IMPORTS, TEN_LINES, measure, measure_source, run
from tests.reported_runs import COUNTED, measured, results_of

pytestmark = pytest.mark.torch
PLUGIN = "-ppytest_dtdispatch.plugin.ab_process"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "answer.json"
    monkeypatch.setenv("DTDISPATCH_AB_OUTPUT", str(path))
    return path


OPS = ("add.Tensor", "mul.Tensor", "mm.default", "relu.default", "sum.default", "clone.default")
CONTROL = {f"control::aten.{op}::control" for op in OPS}


def read(path: Path, metric: Metric = Metric.TIME) -> Sample:
    [sample] = samples_of([read_run(path, allows_empty=True)], metric, proves_hits=False)
    return sample


def numbers_of(sample: Sample) -> dict[str, float]:
    return {str(row): number for row, number in sample.numbers.items()}


def details_of(sample: Sample) -> dict[str, tuple[str, ...]]:
    return {str(row): value.details for row, value in sample.values.items()}


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


@pytest.mark.parametrize("flags", [(), ("-p", "no:benchmark", "-k", "test_add", "-m", "not slow")])
def test_tests_run_once_and_rows_have_one_value(
    pytester: pytest.Pytester, answer: Path, flags: tuple[str, ...]
) -> None:
    """Neither selections nor a missing pytest-benchmark remove the control."""
    measure_source(pytester, TWO_TESTS, PLUGIN, *flags)
    assert (pytester.path / "noted").read_text().split() == ["up", "8", "16", "down"]
    values = numbers_of(read(answer))
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
    run = read_run(answer)
    assert not run.stopped
    names = numbers_of(read(answer)).keys() - CONTROL
    assert {name.split("::")[1] for name in names} == {"test_add[16]"}


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
    """Both sides use the same interpreter, with floors that no load exceeds."""
    path = tmp_path / "saved"
    words = ["--base", sys.executable, "--head", sys.executable, "--floor", "hit=1000%,miss=1000%"]
    tests = ["--pyargs", "pytest_dtdispatch.suite.test_ops::test_add[4]", "--dtdispatch-rounds=3"]
    report = tmp_path / "ab.json"
    flags = ["--control", "off", "--keep", str(path), "--json", str(report)]
    assert main(["ab", *words, *flags, "--", *tests]) == 0
    [gate] = json.loads(report.read_text())["gates"]
    test = "pytest_dtdispatch/suite/test_ops.py::test_add[4]"
    assert {(one["test"], one["verdict"]) for one in gate["verdicts"]} == {(test, "passed")}
    saved = {side: sorted(file.stem[:2] for file in (path / side).iterdir()) for side in ("base", "head")}
    assert saved == {"base": ["01", "04", "05"], "head": ["02", "03", "06"]}


@pytest.fixture
def counted(answer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTDISPATCH_AB_METRIC", "counts")
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
    sample = read(counted, Metric.COUNTS)
    numbers, details = numbers_of(sample), details_of(sample)
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
    lines = {str(row): value.lines for row, value in sample.values.items()}
    assert re.fullmatch(r"test_it\.py:\d+", lines[f"{step}redistributes_per_step"][0])


LEAK = """
KEPT = []

def test_steps(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.steps(lambda: KEPT.append(a + a), name="step")
"""


def test_growth_lists_live_dtensors(pytester: pytest.Pytester, counted: Path) -> None:
    assert measure_source(pytester, LEAK, PLUGIN, "--dtdispatch-metric=counts").ret == 0
    name = "test_it.py::test_steps::step::dtensor_growth_per_step"
    sample = read(counted, Metric.COUNTS)
    assert numbers_of(sample)[name] == 1.0
    assert details_of(sample)[name] == ("f32[8,8] S0",)


def test_hits_of_rows_are_proved_beside_counts(
    pytester: pytest.Pytester, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure_source(pytester, STEPS, PLUGIN, "--dtdispatch-metric=counts").ret == 0
    run = read_run(counted)
    monkeypatch.setenv("DTDISPATCH_AB_METRIC", "time")
    few = ("--dtdispatch-rounds=1", "--dtdispatch-repeat=2")
    assert measure_source(pytester, STEPS, PLUGIN, *few).ret == 0
    [sample] = samples_of([run, read_run(counted)], Metric.COUNTS)
    [(row, never)] = [(row, never) for row, never in sample.numbers.items() if row.state == "never_hits"]
    assert (row.test, row.label.partition("(")[0], never) == ("test_it.py::test_steps", "add.Tensor", 0.0)


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("counts", "time"), ("time", "counts"), ("instructions", "time"), ("time", "clock-counts")],
)
def test_marker_with_another_metric_is_refused(
    pytester: pytest.Pytester, counted: Path, monkeypatch: pytest.MonkeyPatch, kind: str, metric: str
) -> None:
    sampler = InstructionSampler(lambda: (WallClock().meter, None))
    monkeypatch.setitem(SAMPLERS, "clock-counts", sampler)
    monkeypatch.setenv("DTDISPATCH_AB_METRIC", kind)
    pytester.makepyfile(TEN_LINES)
    result = measure(pytester, PLUGIN, f"--dtdispatch-metric={metric}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = f"ERROR: --dtdispatch-metric {metric}: this A/B run compares {kind}; set before -- *"
    result.stderr.fnmatch_lines([error])


def test_skipped_tests_and_files_are_absent_with_reasons(pytester: pytest.Pytester, answer: Path) -> None:
    source = """
def test_skipped():
    import pytest
    pytest.skip("no interface")

def test_expected_to_fail():
    import pytest
    pytest.xfail("known")
"""
    skips = "import pytest\npytest.skip('no torch', allow_module_level=True)"
    pytester.makepyfile(test_ten=TEN_LINES, test_lacks=IMPORTS + source, test_none=skips)
    assert measure(pytester, PLUGIN).ret == 0
    sample = read(answer)
    assert {str(row): reason for row, reason in sample.absent.items()} == {
        "test_none.py": "skipped: no torch",
        "test_lacks.py::test_skipped": "skipped: no interface",
    }
    assert f"test_ten.py::test_add::{ADD}::hit" in numbers_of(sample)


@pytest.mark.parametrize(("metric", "status"), [("time", 3), ("counts", 0)])
def test_runs_of_two_jobs_are_judged(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], metric: str, status: int
) -> None:
    """Times of runs that did not alternate are inconclusive; counts are exact."""
    for side in ("base", "head"):
        pytester.mkdir(side)
        saves = f"--benchmark-json={side}/job.json"
        measure_source(pytester, STEPS, f"--dtdispatch-metric={metric}", saves, passed=1)
    capsys.readouterr()
    assert main(["ab", "--judge", str(pytester.path)]) == status
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in out[:2]] == ["base:", "head:"]


def sample_of(metric: Metric, *rows: Measurement, **more: Any) -> Sample:
    run = ReportedRun(environment={"metric": metric}, measured={"t.py::test_add": rows}, **more)
    [sample] = samples_of([run], metric)
    return sample


def test_unmeasured_state_is_absent_with_its_reason() -> None:
    never = Samples(State.HIT, (), (Refused("it propagated", 20),))
    add = measured("add", Samples(State.MISS, (9,)), never, notes=("never hits: it propagates",))
    sample = sample_of(Metric.TIME, add, measured("mm", notes=("runs once",)))
    assert {str(row): reason for row, reason in sample.absent.items()} == {
        "t.py::test_add::add::hit": "never hits: it propagates",
        "t.py::test_add::mm": "runs once",
    }


def test_rows_of_a_failed_test_are_absent() -> None:
    """A run that a CI saved may have a failed test, with rows of its first calls."""
    failed = (FailedTest("t.py::test_add", "call", "boom"),)
    sample = sample_of(Metric.TIME, measured("add", Samples(State.HIT, (9,))), failed_tests=failed)
    assert sample.numbers == {}
    assert {str(row): reason for row, reason in sample.absent.items()} == {"t.py::test_add": "failed: boom"}


def test_profiled_count_lists_its_functions() -> None:
    profile = Profile((FunctionShare("A.rule (a.py:3)", 70), FunctionShare("add (b.py:9)", 20)), 100)
    misses = Samples(State.MISS, (80, 90), unit=INSTRUCTIONS, profile=profile)
    hits = Samples(State.HIT, (7, 6), unit=INSTRUCTIONS)
    sample = sample_of(Metric.INSTRUCTIONS, measured("add", misses, hits))
    assert numbers_of(sample) == {"t.py::test_add::add::miss": 80.0, "t.py::test_add::add::hit": 6.0}
    assert [*details_of(sample).values()] == [("70 A.rule (a.py:3)", "20 add (b.py:9)"), ()]


@dataclass(frozen=True)
class Number:
    """A result of a kind that a conftest would register, which the process that compares does not load."""

    kind: ClassVar[str] = "number"
    name: str

    def rows(self) -> tuple[Measurement, ...]:
        """Return a row of times."""
        return (measured("called", Samples(State.CALL, (9,))),)

    def metrics(self) -> tuple[tuple[str, int], ...]:
        """Return a number."""
        return (("size", 7),)


@pytest.mark.parametrize(
    ("metric", "row", "number"),
    [(Metric.COUNTS, "t.py::test_a::n::size", 7.0), (Metric.TIME, "t.py::test_a::called::call", 9.0)],
)
def test_results_of_any_kind_are_compared(tmp_path: Path, metric: Metric, row: str, number: float) -> None:
    results = {"number": {"t.py::test_a": (Number("n"),)}, **results_of(COUNTED)}
    path = tmp_path / "saved.json"
    path.write_text(saved_text(readable(ReportedRun(environment={"metric": metric}, results=results))))
    numbers = numbers_of(read(path, metric))
    assert numbers[row] == number
    of_steps = {name for name in numbers if name.startswith("t.py::test_b::step::")}
    assert len(of_steps) == (9 if metric == Metric.COUNTS else 0)  # one step has no growth


def test_row_value_is_its_least_sample() -> None:
    sample = sample_of(Metric.TIME, measured("add", Samples(State.CALL, (9, 7, 9))))
    assert numbers_of(sample) == {"t.py::test_add::add::call": 7}


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
    monkeypatch.setenv("DTDISPATCH_AB_METRIC", "counts")
    pytester.makeini(GATED)
    pytester.makepyfile(test_it=LIMITED)
    result = run(pytester, "--dtdispatch", PLUGIN, "--dtdispatch-metric=counts", passed=1)
    assert result.ret == pytest.ExitCode.OK
    assert "gate:" not in result.stdout.str()
    values = numbers_of(read(answer, Metric.COUNTS))
    assert [value for name, value in values.items() if "::s::redistributes" in name] == [1]
    assert {path.name for path in pytester.path.iterdir() if path.is_file()} == {"test_it.py", "tox.ini"}
