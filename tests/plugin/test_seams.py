"""Custom samplers and kinds of result, registered once in one file, reach every output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import UNITS
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.report.run import encode_run, read_run
from pytest_dtdispatch.rounds.sampler import SAMPLERS
from tests.plugin_runs import (
    IMPORTS,
    MEASURED,
    assert_gate_failed,
    assert_refused,
    assert_reported_once,
    benchmarks_of,
    failed,
    judged,
    measure,
    run,
    text_of,
)
from tests.row_ids import number

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLER = """
    import time

    from pytest_dtdispatch.extend import Sampler, Unit, register_sampler

    class ThreadTime(Sampler):
        name = "thread-cpu"
        unit = Unit(hit="thread_cpu_hit_ns", miss="thread_cpu_miss_ns")
        begin = end = time.thread_time_ns

    register_sampler(ThreadTime())
"""
# Sleeping uses no CPU time.
TESTS = """
import time

def test_mul(dtdispatch, a):
    def mul():
        time.sleep(0.01)
        sum(range(20_000))
        return a * a

    dtdispatch.call(mul, name="mul")
"""
MUL = "test_it.py::test_mul::mul"
METRIC = "--dtdispatch-metric=thread-cpu"
SLEEP_S = 0.01


@pytest.fixture(autouse=True)
def nothing_stays_registered(pytester: pytest.Pytester) -> Iterator[None]:
    pytester.makeconftest(SAMPLER)
    pytester.makepyfile(test_it=IMPORTS + TESTS)
    samplers, units, kinds = dict(SAMPLERS), list(UNITS), dict(KINDS)
    yield
    SAMPLERS.clear()
    SAMPLERS.update(samplers)
    UNITS[:] = units
    KINDS.clear()
    KINDS.update(kinds)


def test_custom_sampler_reaches_files_and_gates(pytester: pytest.Pytester) -> None:
    rounds = ("--dtdispatch-rounds=10", "--dtdispatch-repeat=1", "--dtdispatch-max-time=9")
    files = ("--dtdispatch-export=csv:results.csv", "--benchmark-json=rows.json", "--benchmark-save=base")
    measure(pytester, METRIC, *rounds, *files, passed=1)
    saved = json.loads(Path("rows.json").read_text())
    assert saved["machine_info"]["dtdispatch"]["metric"] == "thread-cpu"
    rows = {row["fullname"]: row for row in saved["benchmarks"]}
    assert rows.keys() == {f"{MUL}::miss", f"{MUL}::hit"}
    assert 0 < rows[f"{MUL}::hit"]["stats"]["median"] < SLEEP_S
    assert rows[f"{MUL}::hit"]["options"]["timer"] == "thread-cpu"
    names = [line.rpartition(",")[0] for line in Path("results.csv").read_text().splitlines()]
    assert names == [f"{MUL},thread_cpu_hit_ns", f"{MUL},thread_cpu_miss_ns"]
    expected = "--dtdispatch-expected=expected.csv"
    against_saved = ("--benchmark-compare=0001", "--dtdispatch-fail=10000%")
    Path("expected.csv").write_text(f"{MUL},thread_cpu_hit_ns,1,0.1\n")
    failed(judged(pytester, *MEASURED, METRIC, expected), 1, regressed=1, new=1)
    Path("expected.csv").write_text(f"{MUL},thread_cpu_hit_ns,{10**7},0.999\n")
    ran = judged(pytester, *MEASURED, METRIC, *rounds, expected, *against_saved)
    assert [gate.has_failed for gate in ran.run.gates] == [False, False]
    for flags in ((), ("--dtdispatch-any-machine",)):  # only compared with a run of the same sampler
        ran = failed(judged(pytester, *MEASURED, *rounds, *against_saved, *flags), 1, mismatched=1)
        assert ran.run.gates[0].verdicts[0].row.label == "metric: thread-cpu then, time now"


def test_unavailable_sampler_is_refused_in_one_line(pytester: pytest.Pytester) -> None:
    line = 'why_not = lambda self: "this kernel has no such clock"'
    pytester.makeconftest(SAMPLER.replace("        begin = end", f"        {line}\n        begin = end"))
    message = "--dtdispatch-metric thread-cpu: this kernel has no such clock"
    assert_refused(measure(pytester, METRIC), message)
    message = "'cpu' is not one of time, counts, instructions, verify, thread-cpu"
    assert_refused(measure(pytester, "--dtdispatch-metric=cpu"), message)


COUNTS = """
    import itertools

    from pytest_dtdispatch.extend import Sampler, Unit, register_sampler

    class Readings(Sampler):
        name = "readings"
        unit = Unit("readings", is_time=False, steady="readings")
        begin = end = itertools.count().__next__

    register_sampler(Readings())
"""


def test_counting_sampler_has_integers_and_no_time_rows(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(COUNTS)
    metric = "--dtdispatch-metric=readings"
    files = ("--dtdispatch-export=csv:results.csv", "--benchmark-json=rows.json")
    result = measure(pytester, "-v", metric, *files, passed=1)
    assert "Readings: the minimum over the counted calls." in text_of(result)
    assert Path("results.csv").read_text() == f"{MUL},readings,1\n"
    assert benchmarks_of(Path("rows.json")) == []
    result = measure(pytester, metric, "--dtdispatch-nproc=2")
    assert "readings are measured in one process, as only times are merged over ranks" in text_of(result)


# A kind of result: a named number without rows.
KIND = """
    from dataclasses import dataclass
    from typing import ClassVar

    from pytest_dtdispatch.extend import Document, Kind, judge_count, one_line, register_kind

    @dataclass(frozen=True)
    class Number:
        kind: ClassVar[str] = "number"
        name: str
        value: int
        most: int = 100

        def rows(self):
            return ()

        def metrics(self):
            return (("blocks", self.value),)

    def document(found, view):
        every = [(test, number) for test, of_test in found.items() for number in of_test]
        lines = (one_line(f"{test}: {number.name} has {number.value} blocks") for test, number in every)
        return Document(tuple(lines), legend="Blocks: what a model is made of.")

    def judge(number, limits):
        what = f"there are {number.value}"
        yield judge_count(number.name, "blocks", limits.get("blocks", number.most), number.value, what)

    register_kind(Kind("number", document, ("blocks",), judge, ("blocks",), title="Numbers", type=Number))
"""
NUMBER = "test_it.py::test_number::model"


def with_numbers(pytester: pytest.Pytester, *numbers: str) -> None:
    pytester.makeconftest(KIND)
    test = f"def test_number(dtdispatch):\n    dtdispatch.record({', '.join(numbers)})\n"
    pytester.makepyfile(test_it=f"from conftest import Number\n\n{test}")


def test_custom_result_reaches_terminal_files_and_gates(pytester: pytest.Pytester) -> None:
    with_numbers(pytester, 'Number("model", 12, most=11)', 'Number("other", 5)')
    ran = judged(pytester, *MEASURED, "--dtdispatch-export=csv:results.csv", failed=1)
    assert ran.verdicts() == {"passed": 1, "regressed": 1}
    for text in ("blocks=11, and there are 12", "other has 5 blocks", "Blocks: what a model is made of;"):
        assert text in text_of(ran.result)
    others = NUMBER.replace("model", "other")
    assert Path("results.csv").read_text() == f"{NUMBER},blocks,12\n{others},blocks,5\n"
    assert "blocks" not in text_of(run(pytester, passed=1))
    Path("expected.csv").write_text(f"{NUMBER},blocks,12,0\n")
    with_numbers(pytester, 'Number("model", 12)')
    pytester.makepyfile(test_mul=IMPORTS + TESTS)  # pytest-benchmark writes no file without a row
    expected = "--dtdispatch-expected=expected.csv"
    assert measure(pytester, expected, "--benchmark-json=rows.json").ret == pytest.ExitCode.OK
    assert number(NUMBER, "blocks", 12) in read_run(Path("rows.json")).metrics()
    with_numbers(pytester, 'Number("model", 13)')
    ran = judged(pytester, *MEASURED, expected, "-k", "number")
    assert_gate_failed(ran.result, passed=1)
    assert [gate.has_failed for gate in ran.run.gates] == [False, True]


@pytest.mark.parametrize("source", ["flag", "ini", "marker"])
def test_limit_of_a_custom_kind_is_accepted(pytester: pytest.Pytester, source: str) -> None:
    with_numbers(pytester, 'Number("model", 12)')
    flags = {"flag": ["--dtdispatch-max=blocks=8"], "ini": ["-odtdispatch_max=blocks=8"]}.get(source, [])
    if source == "marker":
        marker = "import pytest\n\npytestmark = pytest.mark.dtdispatch(max='blocks=8')\n"
        path = pytester.path / "test_it.py"
        path.write_text(marker + path.read_text())
    assert "blocks=8, and there are 12" in text_of(measure(pytester, *flags, failed=1))
    result = measure(pytester, "--dtdispatch-max=bricks=8")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "graph_breaks, wrong, blocks" in text_of(result)


def test_results_of_an_unregistered_kind_are_preserved(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    with_numbers(pytester, 'Number("model", 12)')
    pytester.makepyfile(test_mul=IMPORTS + TESTS)
    measure(pytester, "--benchmark-json=rows.json")
    [result] = read_run(Path("rows.json")).results["number"]["test_it.py::test_number"]
    assert (result.name, result.value) == ("model", 12)
    del KINDS["number"]
    run = read_run(Path("rows.json"))
    assert run.results == {}
    assert run.unknown == {
        "number": {"test_it.py::test_number": [{"type": "Number", "name": "model", "value": 12}]}
    }
    assert encode_run(run)["run"]["results"] == run.unknown
    assert main(["report", "rows.json", "--export=markdown:rows.md", "--export=html:rows.html"]) == 0
    for name in ("rows.md", "rows.html"):
        assert "is not registered here" in Path(name).read_text()


def test_unrecordable_result_is_a_one_line_error(pytester: pytest.Pytester) -> None:
    for numbers, reason in (
        (
            ["type('', (), {'kind': 'other'})"],
            "record(): no kind of results is registered as 'other'; valid: budget, ",
        ),
        (["{'loss': 3}"], "record(): {'loss': 3} has no kind; valid: budget, "),
        (['Number("one", 1)', 'Number("one", 2)'], "the name 'one' is used by another call of this test"),
    ):
        with_numbers(pytester, *numbers)
        result = measure(pytester, failed=1)
        assert_reported_once(result, f"MeasurementError: {reason}")


@pytest.mark.parametrize(
    ("value", "metric"), [("np.int64(12)", "12.5"), ("torch.tensor(12)", "float('nan')")]
)
def test_refused_value_costs_no_other_result(pytester: pytest.Pytester, value: str, metric: str) -> None:
    imports = "import numpy as np, torch\nfrom conftest import Number\n\n"
    tests = "".join(
        f"def test_{name}(dtdispatch):\n    dtdispatch.record(Number('model', {each}))\n\n"
        for name, each in (("value", value), ("metric", metric), ("good", "12"))
    )
    pytester.makeconftest(KIND)
    pytester.makepyfile(test_it=imports + tests)
    result = measure(pytester, "--dtdispatch-export=json:results.json", passed=1, failed=2)
    assert text_of(result).count("MeasurementError: record(): number 'model': metrics() has ") >= 2
    data = json.loads(Path("results.json").read_text())
    assert [one["test"] for one in data["results"]] == ["test_it.py::test_good"]
    assert [one["test"] for one in data["failed_tests"]] == [
        "test_it.py::test_value",
        "test_it.py::test_metric",
    ]
