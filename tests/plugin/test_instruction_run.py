"""Instruction counting, from flags to the table: the selected meter and the run under it."""

from __future__ import annotations

import csv
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pytest_dtdispatch.plugin import relaunch
from pytest_dtdispatch.plugin.relaunch import choose, find_callgrind, same_command

NO_PMU = "the hardware counter reads 18446744073709551615"
COUNT = ("--dtdispatch", "--dtdispatch-metric=instructions")
FAST = ("-pno:cacheprovider", "-pno:hypothesispytest", "-pno:xdist", "-pno:codspeed")
needs_callgrind = pytest.mark.skipif(bool(find_callgrind()[1]), reason=find_callgrind()[1])

TESTS = """
import os
import pytest
import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

def handler_that_grew(times):
    for _ in range(times):
        pass

def test_detach(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    with dtdispatch.capture() as book:
        a.detach()
    dtdispatch.call(a.detach, name="whole")
    dtdispatch.call(lambda: torch.ops.aten.is_same_size(a, a), name="same")
    [detach, whole, same] = book.measurements()
    assert not list(detach.times())
    assert detach.steady.figure > same.steady.figure

def test_fails():
    assert os.environ["PYTHONHASHSEED"] == "1"

def test_grown(dtdispatch, device_mesh, monkeypatch):
    a = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    propagator = DTensor._op_dispatcher.sharding_propagator
    inner = propagator.propagate_op_sharding_non_cached

    def propagate(schema):
        handler_that_grew(5_000)
        return inner(schema)

    monkeypatch.setattr(propagator, "propagate_op_sharding_non_cached", propagate)
    dtdispatch.call(a.detach, name="grown")

def test_left_out():
    pass
"""


# Selection of the meter


@needs_callgrind
def test_callgrind_is_used_only_without_hardware_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    valgrind, meter = choose(NO_PMU)
    assert Path(valgrind).name == "valgrind"
    assert meter.startswith("callgrind (valgrind-")
    assert meter.endswith(f"; {NO_PMU})")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert choose("") == ("", "the hardware counter (callgrind is not needed)")
    with pytest.raises(pytest.UsageError) as raised:
        choose(NO_PMU)
    message = f"--dtdispatch-metric instructions: no counter is available here: {NO_PMU}; "
    assert str(raised.value).startswith(
        f"{message}valgrind is not on PATH: install valgrind (apt install valgrind"
    )
    assert "\n" not in str(raised.value)


def test_unsupported_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "only on Linux on x86-64, not linux on aarch64" in find_callgrind()[1]


def test_failed_counter_probe_ends_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaunch, "HARDWARE_PROBE", "no_such_module_of_ours")
    text = relaunch.why_no_hardware_counter()
    assert text.startswith("the probe of the hardware counter failed: ")
    assert text.endswith("No module named no_such_module_of_ours")


# The run


def test_counting_run_refuses_debugger_flags(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debugger flags are refused, while runs that measure nothing need no meter."""
    monkeypatch.setenv("PATH", "")
    pytester.makepyfile("def test_plain(dtdispatch, device_mesh): pass\ndef test_other(): pass")
    for flag in ("--pdb", "--trace"):
        result = pytester.runpytest_inprocess(*FAST, *COUNT, flag)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {flag} does not work with --dtdispatch-metric *: drop one*"])
        assert "Traceback" not in result.stderr.str()
    pytester.runpytest_inprocess(*FAST, *COUNT, "--collect-only", "-q").stdout.fnmatch_lines(["2 tests*"])
    result = pytester.runpytest_inprocess(*FAST, *COUNT, "--benchmark-disable", "-kother")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["nothing was measured: --benchmark-disable is set"])
    ini = "-odtdispatch_metric=instructions"
    pytester.runpytest_inprocess(*FAST, ini, "-kother").assert_outcomes(passed=1, deselected=1)


def test_relaunch_has_the_same_command(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytester.parseconfig("-x", "-k", "a b")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "pytest", "-x"])
    monkeypatch.setattr(sys, "argv", ["/site/pytest/__main__.py", "-x"])
    assert same_command(config) == [sys.executable, "-X", "dev", "-m", "pytest", "-x"]
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert same_command(config)[:3] == [sys.executable, "-m", "pytest"]
    assert "a b" in same_command(config)


@needs_callgrind
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.long
def test_callgrind_run_prints_a_single_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_count=TESTS)
    flags = ("-k", "not left_out", "--dtdispatch-export=csv:results.csv", "--benchmark-json=rows.json")
    profile = ("-odtdispatch_profile=true", "--dtdispatch-rounds=2")
    result = pytester.runpytest_subprocess(*FAST, *COUNT, *flags, *profile)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    assert result.stdout.str().count("test session starts") == 1
    result.stdout.fnmatch_lines(
        ["*assert '0' == '1'*", "*instructions are counted by *", "*= 1 failed, 2 passed*"]
    )
    found = {
        (row[0].rpartition("::")[2], row[1]): int(row[2])
        for row in csv.reader((pytester.path / "results.csv").read_text().splitlines())
    }
    detach = "detach.default(f32[8,8]S0)@4"
    hit, miss = found[detach, "instruction_count"], found[detach, "instruction_count_miss"]
    assert 10_000 < hit < 200_000
    assert 20 * hit < miss
    assert 10_000 < found["whole", "instruction_count"] < 200_000
    assert found["same", "instruction_count"] < hit
    assert ("same", "instruction_count_miss") not in found
    assert not any(metric.endswith("_ns") for _, metric in found)
    # A profile names the function whose count increased.
    result.stdout.fnmatch_lines(
        [
            "profile of a miss: test_count.py::test_grown::grown",
            "* Python, with the machine code that it calls *",
            "*handler_that_grew *count.py:6",
            "profile of a hit: *",
        ]
    )
    [line] = [line for line in result.outlines if "handler_that_grew " in line and "count.py:6" in line]
    count = int(line.split()[1].replace(",", ""))
    assert 5_000 * 20 < count < 5_000 * 500


COUNTS = """
import pathlib, sys
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.meters import Callgrind
from pytest_dtdispatch.instructions.instruction_sampler import count_loop, counts_lookups

callgrind = Callgrind(pathlib.Path(sys.argv[1]))

def least(turns):
    return min(count_loop(callgrind.meter, turns) for _ in range(10))

for _ in range(40):  # until the interpreter has specialized the bytecode
    count_loop(callgrind.meter, 1000)
print(least(1000), least(1000), least(2000), least(3000))
print(counts_lookups(callgrind.meter))
callgrind.stop()
try:
    callgrind.total()
except MeterError as error:
    print("off" if "instrumentation: off" in str(error) else error)
"""


@needs_callgrind
@pytest.mark.slow
@pytest.mark.long
def test_callgrind_counts_loop_iterations_but_no_method_lookups(tmp_path: Path) -> None:
    from pytest_dtdispatch.instructions.meters import command

    script = tmp_path / "count.py"
    script.write_text(COUNTS)
    line = [*command(find_callgrind()[0], tmp_path), sys.executable, str(script), str(tmp_path)]
    counted = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
    once, again, twice, thrice = map(int, counted[:4])
    assert once == again
    assert thrice - twice == twice - once
    assert thrice - twice > 1000
    assert counted[5:] == ["off"]
    # Distribution builds, and others with link-time optimization, inline method lookups.
    if sys.base_prefix != "/usr" and "lto" not in str(sysconfig.get_config_var("CONFIG_ARGS")):
        assert counted[4] == "False"
