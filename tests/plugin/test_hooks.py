"""The ten-line test, the flags, the marker and the ini file, from the user's point of view."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin_runs import (
    ADD,
    IMPORTS,
    TEN_LINES,
    assert_refused,
    benchmarks_of,
    judge_source,
    measure_source,
    run,
    text_of,
)

pytestmark = pytest.mark.torch

OWN_GROUP = f"""{IMPORTS}
from torch.distributed.tensor import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

def test_without_fixtures():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    a = sharded(init_device_mesh("cpu", (2,)))
    a * a
    dist.destroy_process_group()
"""


def test_all_flag_measures_each_test_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own=OWN_GROUP, test_ten=TEN_LINES)
    path = pytester.path / "rows.json"
    run(pytester, "--dtdispatch-all", "--dtdispatch-rounds=1", f"--benchmark-json={path}")
    found = benchmarks_of(path)
    own = [row["fullname"] for row in found if row["fullname"].startswith("test_own")]
    assert set(own) == {
        f"test_own.py::test_without_fixtures::{row}"
        for row in (
            *(f"mul.Tensor(f32[8,8]S0, f32[8,8]S0)@2::{state}" for state in ("miss", "hit", "local")),
            "distribute_tensor(f32[8,8] -> S0)@2::call",
        )
    }
    # In a test with the fixture, only ops in its capture are measured.
    assert {row["params"]["op"] for row in found if row["fullname"].startswith("test_ten")} == {"add.Tensor"}


def test_flag_marker_and_ini_select_rounds_and_ops(pytester: pytest.Pytester) -> None:
    body = """
    a = sharded(device_mesh)
    with dtdispatch.capture():
        (a + a) * a.abs()
"""
    marker = '@pytest.mark.dtdispatch(rounds=4, repeat=2, ops=("mul*",), cold=True)'
    pytester.makepyfile(
        f"{IMPORTS}def test_plain(dtdispatch, device_mesh):{body}"
        f"{marker}\ndef test_marked(dtdispatch, device_mesh):{body}"
    )
    ini = "rounds = 3\ndtdispatch_repeat = 1\ndtdispatch_max_time = 60\ndtdispatch_ops =\n  mm*\n  add*"
    pytester.makeini(f"[pytest]\ndtdispatch = true\ndtdispatch_{ini}\n")

    def samples(test: str) -> dict[tuple[str, str], int]:
        found = [row for row in benchmarks_of(Path("rows.json")) if test in row["fullname"]]
        return {(row["params"]["op"], row["params"]["state"]): row["stats"]["rounds"] for row in found}

    def of(*ops: str, rounds: int, repeat: int, cold: bool) -> dict[tuple[str, str], int]:
        misses, hits = ("miss", *["cold"] * cold), ("hit", "local")
        return {
            **{(op, state): rounds for op in ops for state in misses},
            **{(op, state): rounds * repeat for op in ops for state in hits},
        }

    run(pytester, "--benchmark-json=rows.json").assert_outcomes(passed=2)
    assert samples("_marked") == of("mul.Tensor", rounds=4, repeat=2, cold=True)
    assert samples("_plain") == of("add.Tensor", rounds=3, repeat=1, cold=False)
    flags = ("--dtdispatch-rounds=6", "--dtdispatch-ops=a*", "-odtdispatch_cold=true")
    run(pytester, "--benchmark-json=rows.json", *flags).assert_outcomes(passed=2)
    both = ("add.Tensor", "abs.default")
    assert samples("_marked") == of(*both, rounds=6, repeat=2, cold=True)
    assert samples("_plain") == of(*both, rounds=6, repeat=1, cold=True)


def test_lambda_is_named_after_its_test(pytester: pytest.Pytester) -> None:
    source = """
def test_call(dtdispatch, a):
    dtdispatch.call(lambda: a + a)
    with pytest.raises(Exception, match="name .test_call. is used by another call of this test"):
        dtdispatch.call(lambda: a * a)

def test_scaling(dtdispatch, a):
    dtdispatch.scaling(lambda n: lambda: a + n, sizes=(1, 2))
"""
    measure_source(pytester, source, "--benchmark-json=rows.json", passed=2)
    names = {row["fullname"].rpartition("::")[0] for row in benchmarks_of(Path("rows.json"))}
    sizes = (f"test_it.py::test_scaling::test_scaling[{size}]" for size in (1, 2))
    assert names == {"test_it.py::test_call::test_call", *sizes}


# The protocol of pytest-rerunfailures: reports of the first attempt are held back.
RERUNS = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if any(report.failed for report in runtestprotocol(item, nextitem=nextitem, log=False)):
        item._initrequest()
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


FIRST = """
attempts = []

def test_flaky(dtdispatch, device_mesh):
    attempts.append(1)
    a = sharded(device_mesh)
    if len(attempts) == 1:
        dtdispatch.steps(lambda: a + a, name="good")
        dtdispatch.steps(a.full_tensor, name="step")
"""
SECOND = {
    "pytest.skip('not now')": {"passed": 1, "regressed": 1},
    "dtdispatch.steps(a.full_tensor, name='good')": {"regressed": 2},
    "dtdispatch.steps(lambda: a + a, name='good')": {"passed": 1, "regressed": 1},
    "dtdispatch.steps(lambda: a + a, name='step'); pytest.skip('not now')": {"passed": 2},
}


@pytest.mark.parametrize("second", SECOND)
def test_last_attempt_that_measured_a_row_is_judged(pytester: pytest.Pytester, second: str) -> None:
    pytester.makeconftest(RERUNS)
    ran = judge_source(pytester, f"{FIRST}    {second}\n", "--dtdispatch-max=redistributes=0")
    assert ran.verdicts() == SECOND[second]
    assert (ran.result.ret == pytest.ExitCode.OK) is ("regressed" not in SECOND[second])


def test_measured_rerun_clears_unmeasured_error(pytester: pytest.Pytester) -> None:
    source = """
attempts = []

@pytest.mark.dtdispatch(max="redistributes=0")
def test_flaky(dtdispatch, device_mesh):
    attempts.append(1)
    if len(attempts) == 2:
        dtdispatch.steps(lambda: sharded(device_mesh) + 1, name="good")
"""
    pytester.makeconftest(RERUNS)
    assert judge_source(pytester, source, passed=1).verdicts() == {"passed": 1}


def test_only_last_attempt_of_rerun_test_counts(pytester: pytest.Pytester) -> None:
    flaky = """
attempts = []

def test_flaky(dtdispatch, device_mesh):
    attempts.append(1)
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        if len(attempts) == 1:
            a * a
    dtdispatch.steps(a.full_tensor if len(attempts) == 1 else lambda: a + a, name="step")
    assert len(attempts) == 2
"""
    pytester.makeconftest(RERUNS)
    files = ("--dtdispatch-export=csv:rows.csv", "--benchmark-json=rows.json")
    flags = ("--dtdispatch-rounds=8", "--dtdispatch-max=redistributes=0", "--benchmark-quiet")
    ran = judge_source(pytester, flaky, *flags, *files, passed=1)
    assert (ran.result.ret, ran.verdicts()) == (pytest.ExitCode.OK, {"passed": 1})
    names = [row["fullname"].partition("::")[2] for row in benchmarks_of(Path("rows.json"))]
    add = "test_flaky::add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"
    rows = [add, add.replace("add", "mul")]
    assert sorted(names) == [f"{row}::{state}" for row in rows for state in ("hit", "local", "miss")]
    assert Path("rows.csv").read_text().count("dispatch_hit_ns") == 2


# Files outside the rootdir


@pytest.fixture
def elsewhere(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a project with an ini file, and return an expected file in a folder outside of it."""
    pytester.makeini("[pytest]\ndtdispatch = true\ndtdispatch_rounds = 2\ndtdispatch_mesh = 2")
    pytester.makepyfile(test_ten=TEN_LINES)
    file = tmp_path_factory.mktemp("elsewhere") / "results.csv"
    file.write_text("left.py::test_it::from another run,dispatch_hit_ns,6940\n")
    return file


def test_value_that_moves_the_rootdir_is_refused(
    pytester: pytest.Pytester, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = ("--dtdispatch-expected", str(elsewhere))
    message = f"ERROR: {' '.join(flag)} would move pytest's rootdir: write {'='.join(flag)}"
    assert_refused(run(pytester, "--dtdispatch", *flag), message)
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(flag))
    assert_refused(run(pytester, "--dtdispatch"), message)


def test_output_file_outside_rootdir_changes_no_row_name(pytester: pytest.Pytester, elsewhere: Path) -> None:
    """A path written as --flag=PATH does not influence pytest's choice of the rootdir."""
    result = run(pytester, f"--dtdispatch-export=csv:{elsewhere}", passed=1)
    assert f"rootdir: {pytester.path}\n" in text_of(result)
    names = {line.rpartition('",')[0] for line in elsewhere.read_text().splitlines()}
    assert names == {f'"test_ten.py::test_add::{ADD[:-1]}2'}
    # A separate argument is accepted if the file is below the rootdir.
    (pytester.path / "results.csv").write_text("left,dispatch_hit_ns,6940,0.1\n")
    run(pytester, "--dtdispatch-expected", "results.csv").assert_outcomes(passed=1)
