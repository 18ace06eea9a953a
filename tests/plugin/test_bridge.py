"""Rows in pytest-benchmark: its files, tables, gate and flags apply to them."""

from __future__ import annotations

import json
import sys
from textwrap import dedent
from typing import Any

import pytest
import torch

from pytest_dtdispatch.torchapi.groups import has_uniform_ranks
from tests.plugin_runs import (
    ADD,
    ALONE,
    IMPORTS,
    MEASURED,
    TEN_LINES,
    TORCH_WARNS,
    benchmarks_of,
    fill_disk,
    measure,
    measure_source,
    rows,
    run,
    text_of,
)

pytestmark = pytest.mark.torch

PARAMETRIZED = f"""{IMPORTS}
@pytest.mark.parametrize("extent", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32])
@pytest.mark.parametrize("op", ["theirs"])
def test_add(dtdispatch, device_mesh, extent, dtype, op):
    a = sharded(device_mesh, extent, extent)
    with dtdispatch.capture():
        a + a
"""
OTHERS = """
def test_plain():
    pass

def test_theirs(benchmark):
    benchmark.pedantic(len, args=("a",), rounds=2)
"""


def machine_of(pytester: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / "rows.json").read_text())["machine_info"]
    return found


def test_saved_row_has_names_groups_and_proof(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ten=TEN_LINES)
    result, found = rows(pytester, "-odtdispatch_cold=true")
    assert result.ret == pytest.ExitCode.OK
    by_state: dict[str, Any] = {row["params"]["state"]: row for row in found}
    assert set(by_state) == {"cold", "miss", "hit", "local"}
    for state, row in by_state.items():
        assert row["name"] == f"test_add::{ADD}::{state}"
        assert row["fullname"] == f"test_ten.py::test_add::{ADD}::{state}"
        assert row["group"] == f"dtdispatch {state}"
        assert row["param"] == f"{ADD}::{state}"
        assert row["params"] == {"op": "add.Tensor", "state": state, "mesh": "4"}
        info = row["extra_info"]
        assert info["signature"] == ADD
        assert info["calls"] == 1
        assert info["overhead_ns"] == by_state["hit"]["extra_info"]["overhead_ns"] != 0
        local = state == "local"
        assert info["contains"] == ("the op on local shards" if local else "dispatch from below autograd")
        assert row["options"]["rounds"] == 2
    assert {row["extra_info"]["proof"] for row in found} == {"proved"}
    assert by_state["miss"]["stats"]["median"] > 10 * by_state["hit"]["stats"]["median"] > 0
    counts = {state: row["stats"]["rounds"] for state, row in by_state.items()}
    assert counts == {"cold": 2, "miss": 2, "hit": 6, "local": 6}
    assert all(len(row["stats"]["data"]) == counts[state] for state, row in by_state.items())


THREADS = """
torch.set_num_threads(3)

def test_add(dtdispatch, device_mesh):
    a = sharded(device_mesh, 8, 8)
    dtdispatch.call(torch.add, a, a)
    assert torch.get_num_threads() == 3
"""


@pytest.mark.parametrize(("args", "threads", "output"), [((), 1, "1 thread"), (("program",), 3, "3 threads")])
def test_machine_info_has_torch_device_and_threads(
    pytester: pytest.Pytester, args: tuple[str, ...], threads: int, output: str
) -> None:
    flags = ("--dtdispatch-device=cpu", *(f"-odtdispatch_threads={arg}" for arg in args))
    result = measure_source(pytester, THREADS, *flags, "--benchmark-json=rows.json", passed=1)
    ranks = ", uniform ranks" if has_uniform_ranks() else ""
    result.stdout.fnmatch_lines([f"  torch *caches, {output}{ranks}"])
    machine = machine_of(pytester)["dtdispatch"]
    assert machine == {
        "torch_version": torch.__version__,
        "torch_build": torch.version.git_version,
        "cuda": torch.version.cuda or "",
        "device": "cpu",
        "device_name": "",
        "backend": "fake",
        "fake_ranks": "uniform" if has_uniform_ranks() else "",
        "world_size": 4,
        "threads": threads,
        "cache_interface": machine["cache_interface"],
        "driver": "",
        "nccl": "",
        "ranks": 1,
        "rank_stat": "",
    }
    assert machine["cache_interface"] in ("native+python", "python")
    pytester.makepyfile(test_it=OTHERS)
    run(pytester, "--benchmark-json=rows.json")  # unchanged: this run measures nothing
    assert "dtdispatch" not in machine_of(pytester)


def test_rows_have_unique_names_and_test_parameters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PARAMETRIZED)
    _, first = rows(pytester)
    result, second = rows(pytester, "--benchmark-group-by=param:extent")
    names = [row["fullname"] for row in first]
    assert names == [row["fullname"] for row in second]
    assert len(set(names)) == len(names) == 6
    for extent in (8, 16):
        result.stdout.fnmatch_lines([f"*benchmark 'extent={extent}': 3 tests*"])
    grouped = measure(pytester, "--benchmark-group-by=group,param:state", "--benchmark-columns=median,rounds")
    grouped.stdout.fnmatch_lines(["*benchmark 'dtdispatch miss state=miss': 2 tests*"])
    # A dtype is saved as text, because JSON has no type for it. A test parameter `op` does not hide ours.
    params = {(row["params"]["extent"], row["params"]["dtype"], row["params"]["op"]) for row in first}
    assert params == {(extent, "torch.float32", "add.Tensor") for extent in (8, 16)}


@pytest.mark.long
def test_pytest_benchmark_compares_and_draws_our_rows(pytester: pytest.Pytester) -> None:
    # In subprocesses: the library that draws charts cannot be imported twice.
    pytester.makepyfile(TEN_LINES)
    measure(pytester, "--benchmark-autosave", "--benchmark-quiet")
    flags = ("--benchmark-autosave", "--benchmark-histogram=own")
    result = pytester.runpytest_subprocess(*ALONE, *MEASURED, *flags)
    assert result.ret == pytest.ExitCode.OK
    assert "Name (time in" in text_of(result)  # charts are drawn from this table
    assert len(list((pytester.path / ".benchmarks").rglob("*.json"))) == 2
    command = (sys.executable, "-m", "pytest_benchmark", "compare", "--columns=median", "--sort=name")
    result = pytester.run(*command, "--histogram=chart")
    assert result.ret == 0
    assert result.stdout.str().count(f"test_add::{ADD}::miss") == 2
    result.stdout.fnmatch_lines(["*benchmark 'dtdispatch miss': 2 tests*"])
    for name in ("own", "chart"):
        charts = list(pytester.path.glob(f"{name}*.svg"))
        assert len(charts) == 3  # one for each state
        assert all("<svg" in chart.read_text() for chart in charts)


def test_flags_of_tables_show_our_rows(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of pytest-benchmark contain our rows if a flag that formats them is passed."""
    pytester.makepyfile(test_ten=TEN_LINES, test_others=OTHERS)
    result, found = rows(pytester)
    assert [line for line in result.outlines if " benchmark" in line and "tests" in line] == [
        line for line in result.outlines if " benchmark: 1 tests " in line
    ], "only rows of pytest-benchmark"
    assert "test_theirs" in text_of(result)
    assert len(found) == 4, "files have all rows"
    ours = "* benchmark 'dtdispatch miss': 1 tests *"
    measure(pytester, "--benchmark-sort=min").stdout.fnmatch_lines([ours])  # the default, but explicit
    measure(pytester, "-v").stdout.no_fnmatch_line(ours)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--benchmark-columns min")
    measure(pytester).stdout.fnmatch_lines([ours])
    measure(pytester, "--benchmark-quiet").stdout.no_fnmatch_line(ours)


def test_only_and_skip_select_our_tests_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ten=TEN_LINES, test_others=OTHERS)
    result, found = rows(pytester, "--benchmark-only", passed=2, skipped=1)
    assert {row["name"].split("::")[0] for row in found} == {"test_add", "test_theirs"}
    # Unmeasured tests are benchmarks too: the selection does not depend on --dtdispatch.
    run(pytester, "--benchmark-only").assert_outcomes(passed=2, skipped=1)
    measure(pytester, "--benchmark-only", "--dtdispatch-all").assert_outcomes(passed=3)
    result = measure(pytester, "--benchmark-skip", passed=1, skipped=2)
    result.stdout.fnmatch_lines(["nothing was measured: --benchmark-skip is set"])


def test_benchmark_disable_runs_tests_once_and_unmeasured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES + "        print('enabled', dtdispatch.enabled)\n")
    result, found = rows(pytester, "--benchmark-disable", "-s", passed=1)
    assert found == []
    result.stdout.fnmatch_lines(["*enabled False*", "nothing was measured: --benchmark-disable is set"])
    result, found = rows(pytester, "--benchmark-disable", "--benchmark-enable")
    assert len(found) == 3


def test_both_fixtures_work_in_one_test(pytester: pytest.Pytester) -> None:
    source = """
def test_both(dtdispatch, a, benchmark):
    with dtdispatch.capture():
        a + a
    benchmark.pedantic(len, args=("a",), rounds=2)

def test_ours(dtdispatch, device_mesh):
    with dtdispatch.capture():
        sharded(device_mesh)
"""
    flags = ("--benchmark-only", "--benchmark-json=rows.json", "-Werror", TORCH_WARNS)
    result = measure_source(pytester, source, *flags, passed=2)
    assert "warning" not in text_of(result)
    found = benchmarks_of(pytester.path / "rows.json")
    assert len([row for row in found if "test_both" in row["fullname"]]) == 4
    assert sum(row["params"] is None for row in found) == 1


def test_full_disk_preserves_earlier_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(TEN_LINES)
    writing = ("--benchmark-save=base", "--benchmark-json=rows.json", "--dtdispatch-export=csv:rows.csv")
    measure(pytester, *writing)
    files = [*pytester.path.glob("rows.*"), *(pytester.path / ".benchmarks").rglob("*.json")]
    before = [path.read_bytes() for path in files]
    fill_disk(monkeypatch)
    result = measure(pytester, *writing)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name in ("rows.json", "0002_base.json", "rows.csv"):
        result.stdout.fnmatch_lines([f"failed: *{name} cannot be written: No space left on device"])
    assert [path.read_bytes() for path in files] == before
    assert not list(pytester.path.rglob("*.part"))


def test_rows_of_installed_suite_have_module_names(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an installed suite are named after its module."""
    package = pytester.path / "elsewhere" / "some_suite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    pytester.makepyfile(TEN_LINES).rename(package / "test_ten.py")
    monkeypatch.syspath_prepend(str(package.parent))
    _, found = rows(pytester, "--pyargs", "some_suite.test_ten")
    assert {row["fullname"].partition("::")[0] for row in found} == {"some_suite/test_ten.py"}


def test_default_device_may_be_missing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on another device are shown and saved if the default device is missing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    source = """
def test_own_mesh(dtdispatch, mesh_factory):
    mesh = mesh_factory((4,), device="cpu")
    a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
"""
    flags = ("--dtdispatch-device=cuda", "--benchmark-json=rows.json")
    result = measure_source(pytester, source, *flags, passed=1)
    assert "INTERNALERROR" not in text_of(result)
    result.stdout.fnmatch_lines(["  add.Tensor(*", "* are proved *"])
    assert machine_of(pytester)["dtdispatch"]["device"] == "cuda"
    assert len(benchmarks_of(pytester.path / "rows.json")) == 3
    # The same for a mesh: the marker's mesh exists, and the default mesh of four ranks does not.
    one_rank = dedent(TEN_LINES).replace("def test", "@pytest.mark.dtdispatch(mesh=(1,))\ndef test")
    gloo = ("--dtdispatch-backend=gloo", "--dtdispatch-device=cpu", "--benchmark-json=one.json")
    measure_source(pytester, one_rank, *gloo, passed=1)
    assert len(benchmarks_of(pytester.path / "one.json")) == 3
