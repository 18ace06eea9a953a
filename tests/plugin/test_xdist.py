"""Counts under pytest-xdist: records of workers equal those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.run import ReportedRun, read_run
from tests.plugin_runs import IMPORTS, OTHER_PLUGINS, text_of
from tests.probes import needs_plugin

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_plugin("xdist")]

PLUGINS = [f"-pno:{plugin}" for plugin in OTHER_PLUGINS if plugin != "xdist"]
COUNTS = (*PLUGINS, "--dtdispatch", "--dtdispatch-metric=counts", "--benchmark-json=run.json")
SUITE = f"""{IMPORTS}
@pytest.mark.parametrize("ops", [1, 2, 3])
def test_steps(dtdispatch, a, ops):
    def step():
        b = a
        for _ in range(ops):
            b = b + a
        return b.redistribute(placements=[Shard(1)])

    dtdispatch.steps(step, warmup=1, steps=2, name="a::step")

def test_capture(dtdispatch, a):
    with dtdispatch.capture():
        a.sum()

@pytest.mark.xfail(strict=True)
def test_expected_failure(dtdispatch, a):
    dtdispatch.steps(lambda: a + a, name="xfail")
    assert False
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def reported(pytester: pytest.Pytester, *flags: str) -> tuple[pytest.RunResult, ReportedRun]:
    result = pytester.runpytest_subprocess(*COUNTS, *flags)
    assert "INTERNALERROR" not in text_of(result)
    return result, read_run(Path("run.json"))


def verdicts_of(run: ReportedRun) -> dict[RowId, RowVerdict]:
    return {row.row: row for gate in run.gates for row in gate.verdicts}


def test_workers_report_the_same_as_one_process(suite: pytest.Pytester) -> None:
    flags = ("--dtdispatch-max=calls=2,recompiles=0",)
    of_one, one = reported(suite, *flags, "--dtdispatch-export=csv:one.csv")
    of_two, two = reported(suite, *flags, "--dtdispatch-export=csv:two.csv", "-n2")
    assert of_one.ret == of_two.ret == pytest.ExitCode.TESTS_FAILED
    assert len(one.results["steps"]) == 5
    assert {**two.results} == {**one.results}
    rows = [sorted(Path(name).read_text().splitlines()) for name in ("one.csv", "two.csv")]
    assert rows[0] == rows[1]
    assert verdicts_of(one) == verdicts_of(two)
    found = {row.test.rpartition("::")[2]: str(each.verdict) for row, each in verdicts_of(two).items()}
    assert found["test_steps[3]"] == "regressed"
    assert found["test_expected_failure"] == "passed"
    assert found[""] == "missing", "nothing was compiled"
    # Tests that workers deselect are not missing from a file of expected results.
    expected = "".join(f"{row},0\n" for row in rows[0] if ",calls," not in row)
    Path("expected.csv").write_text(f"{expected}test_suite.py::test_gone::x,collectives,1,0\n")
    result, run = reported(suite, "--dtdispatch-expected=expected.csv", "-n2", "-knot test_capture")
    failing = {row: str(each.verdict) for row, each in verdicts_of(run).items() if each.verdict != "passed"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failing == {RowId("test_suite.py::test_gone", "x"): "missing"}


def test_dead_worker_is_a_verdict(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_dies="import os\n\ndef test_dies(dtdispatch): os._exit(3)")
    result, run = reported(suite, "-n2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lost = verdicts_of(run)[RowId("test_dies.py::test_dies")]
    assert lost.verdict is Verdict.MISSING
    assert lost.details[0].endswith("died in this test")
    assert len(run.results["steps"]) == 5, "results of other tests are preserved"


def test_stopped_run_of_workers_replaces_no_file(suite: pytest.Pytester) -> None:
    row = "test_suite.py::test_capture::capture 1,calls,1\n"
    Path("rows.csv").write_text(row)
    suite.makepyfile(test_a="def test_fails(): assert False")
    result, run = reported(suite, "-n2", "-x", "--dtdispatch-export=csv:rows.csv")
    assert result.ret
    assert run.stopped.startswith("the run stopped after")
    assert Path("rows.csv").read_text() == row


def test_results_without_a_type_fail_their_test(pytester: pytest.Pytester) -> None:
    reason = "'blocks' cannot leave a worker of pytest-xdist: register the kind with"
    pytester.makeconftest(
        """
        from dataclasses import dataclass
        from typing import ClassVar
        from pytest_dtdispatch.extend import Document, Kind, register_kind

        @dataclass(frozen=True)
        class Blocks:
            kind: ClassVar[str] = "blocks"
            name: str
            sizes: tuple[int, ...]
            def rows(self): return ()
            def metrics(self): return ()

        register_kind(Kind("blocks", lambda results, view: Document()))
        """
    )
    pytester.makepyfile(
        """
        from conftest import Blocks

        def test_blocks(dtdispatch):
            dtdispatch.record(Blocks("model", (3,)))
        """
    )
    result = pytester.runpytest_subprocess(*COUNTS, "-n1")
    result.assert_outcomes(passed=1, errors=1)
    assert reason in text_of(result)
    assert "INTERNALERROR" not in text_of(result)


LIMITED = f"""{IMPORTS}
SIZES = iter(range(2, 100))

@pytest.mark.parametrize("number", range(4))
def test_misses(dtdispatch, device_mesh, number):
    def step():
        size = next(SIZES) if number == 3 else 4
        a = distribute_tensor(torch.rand(size, 8), device_mesh, [Shard(0)])
        return a + a

    dtdispatch.steps(step, warmup=1, steps=2)

def test_plain(dtdispatch):
    pass
"""


@pytest.mark.parametrize(
    "source", ["marker", *(pytest.param(source, marks=pytest.mark.sweep) for source in ("flag", "ini"))]
)
def test_limits_are_judged_over_workers(pytester: pytest.Pytester, source: str) -> None:
    flags = ["--dtdispatch-max=misses=0"] if source == "flag" else []
    marker = "pytestmark = pytest.mark.dtdispatch(max='misses=0')\n" if source == "marker" else ""
    pytester.makeini("[pytest]\ndtdispatch_max = misses=0" if source == "ini" else "[pytest]")
    pytester.makepyfile(LIMITED.replace("SIZES", marker + "SIZES", 1))
    flags = [*PLUGINS, "--dtdispatch", "--benchmark-json=run.json", "-n2", *flags, "-ktest_misses"]
    result = pytester.runpytest_subprocess(*flags)
    result.assert_outcomes(passed=3, failed=1)
    run = read_run(Path("run.json"))
    found = {row.test.rpartition("::")[2]: str(each.verdict) for row, each in verdicts_of(run).items()}
    assert found == {f"test_misses[{number}]": "passed" for number in range(3)} | {
        "test_misses[3]": "regressed"
    }
    assert "meaningless" not in text_of(result)


def test_requested_times_are_refused_with_limits(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED)
    flags = (*PLUGINS, "--dtdispatch", "--dtdispatch-metric=time", "--dtdispatch-max=misses=0", "-n2")
    result = pytester.runpytest_subprocess(*flags, "-kplain")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "latencies meaningless" in text_of(result)
