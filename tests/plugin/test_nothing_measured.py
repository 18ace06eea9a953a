"""Measurements that were requested but did not happen are reported, also in pytest's last line."""

from __future__ import annotations

import pytest

# Torch 2.9 refuses a second import, as the second run of pytest in this process would do.
import torch.distributed.tensor.debug  # noqa: F401

from pytest_dtdispatch.torchapi.observe import has_local_mode
from tests.plugin_runs import (
    ADDS,
    IMPORTS,
    TORCH_WARNS,
    assert_reported_once,
    measure,
    measure_source,
    rows,
    run,
    text_of,
)

pytestmark = pytest.mark.torch

TESTS = f"{ADDS}        a * a\n"
UNMATCHED = "no op matches '{}' (--dtdispatch-ops, or ops of the marker); these ran: add.Tensor, mul.Tensor"
RED, YELLOW = "\x1b[31m\x1b[1m", "\x1b[33m\x1b[1m"


def last_line(result: pytest.RunResult) -> str:
    return str(result.stdout.lines[-1])


def notes(result: pytest.RunResult) -> str:
    """Return the plugin's messages at the end of a run, with lines joined."""
    return " ".join(text_of(result).rpartition("= dtdispatch =")[2].split())


def test_unmatched_op_patterns_list_the_captured_ops(pytester: pytest.Pytester) -> None:
    flags = ("--dtdispatch-ops=matmul", "--color=yes")
    first = measure_source(pytester, TESTS, *flags, passed=1)
    for result in (first, run(pytester, "--dtdispatch-all", *flags)):
        assert f"nothing was measured: {UNMATCHED.format('matmul')}" in text_of(result)
        assert f"{YELLOW}1 not measured" in last_line(result)
    result = measure(pytester, "--dtdispatch-ops=add*", "--dtdispatch-ops=mm*", "--benchmark-quiet")
    assert [line for line in result.outlines if "these ran" in line] == [UNMATCHED.format("mm*")]
    assert "1 passed in" in last_line(result)


@pytest.mark.parametrize(
    ("code", "flag"),
    [("def test_one(dtdispatch): assert 0", "-q"), ("def test_one(): pass", "--collect-only")],
)
def test_reason_for_no_measured_test_is_shown(pytester: pytest.Pytester, code: str, flag: str) -> None:
    pytester.makepyfile(code)
    result = measure(pytester, flag)
    result.stdout.fnmatch_lines(["nothing was measured: no test passed"])
    assert "made a call" not in text_of(result)


def test_run_without_ops_is_reported_at_every_verbosity(pytester: pytest.Pytester) -> None:
    message = "nothing was measured: no test that passed "
    result = measure_source(pytester, "def test_one(): pass\ndef test_two(): pass")
    result.stdout.fnmatch_lines([f"{message}made a call on DTensors*--dtdispatch-all*"])
    assert "2 passed, 2 not measured in" in last_line(result)
    for verbosity in ("-q", "-qq", "-v"):
        measure(pytester, verbosity).stdout.fnmatch_lines([f"{message}*"])
    message = "nothing was measured: no capture received an op on DTensors in a test that passed"
    measure(pytester, "--dtdispatch-all").stdout.fnmatch_lines([message])


PLAIN = """
def test_plain(dtdispatch):
    b = torch.rand(8)
    with dtdispatch.capture():  # of none
        b + b

def test_never_called(dtdispatch):
    dtdispatch.capture

def test_raises(dtdispatch):
    with pytest.raises(ValueError), dtdispatch.capture():
        raise ValueError
"""
NO_OPS = "no op on DTensors ran in the capture"


@pytest.mark.parametrize("metric", ["time", "counts"])
def test_unmeasured_tests_are_named(pytester: pytest.Pytester, metric: str) -> None:
    result = measure_source(pytester, TESTS + PLAIN, f"--dtdispatch-metric={metric}", passed=4)
    path = pytester.path / "test_it.py"
    line = path.read_text().splitlines().index("    with dtdispatch.capture():  # of none") + 1
    message = "it measured nothing with its dtdispatch fixture"
    assert [text for text in result.outlines if text.startswith("not measured")] == [
        f"not measured: test_it.py::test_plain: {NO_OPS} at {path}:{line}",
        f"not measured: test_it.py::test_never_called: {message}",
        f"not measured: test_it.py::test_raises: {message}",
    ]
    assert "4 passed, 3 not measured in" in last_line(result)


@pytest.mark.parametrize(("gate", "failed"), [("max=misses=9", 1), ("expected=expected.csv", 0)])
def test_capture_without_ops_fails_under_a_gate(pytester: pytest.Pytester, gate: str, failed: int) -> None:
    pytester.path.joinpath("expected.csv").write_text("test_it.py::test_add::capture 1,misses_per_step,2,0\n")
    result = measure_source(pytester, TESTS + PLAIN, "--dtdispatch-metric=counts", f"--dtdispatch-{gate}")
    # A limit also fails the test that raised.
    result.assert_outcomes(passed=4 - failed, failed=failed, errors=1)
    result.stdout.fnmatch_lines([f"*test_it.py:*: {NO_OPS}, so the gate judged nothing"])


def test_unentered_capture_is_an_error(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_it(dtdispatch):\n    dtdispatch.capture()")
    result = measure(pytester)
    message = "this capture was never entered, so nothing was measured; use it in a with"
    assert_reported_once(result, f"{path}:2: {message}")
    result.assert_outcomes(passed=1, errors=1)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "flag",
    [
        *("rounds=5", "metric=counts", "ops=mm*", "any-machine", "max=collectives=0", "fail=median:10%"),
        *("expected=file.csv", "export=csv:file.csv"),
    ],
)
def test_measuring_flag_alone_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    result = run(pytester, f"--dtdispatch-{flag}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = f"--dtdispatch-{flag.partition('=')[0]}"
    assert_reported_once(
        result, f"ERROR: {name}: nothing is measured without --dtdispatch or --dtdispatch-all"
    )


def test_mesh_flags_and_ini_values_work_unmeasured(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_rounds = 5\ndtdispatch_max = collectives=0")
    pytester.makepyfile("def test_it(device_mesh): assert device_mesh.shape == (2, 2)")
    flags = ("--dtdispatch-mesh=2x2", "--dtdispatch-backend=fake", "--dtdispatch-device=cpu")
    run(pytester, *flags, "--dtdispatch-timeout=9").assert_outcomes(passed=1)


def test_last_line_counts_failed_gates_in_red(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("expected.csv").write_text("gone,dispatch_hit_ns,1,0.1\n")
    expected = ("--dtdispatch-expected=expected.csv", "--color=yes", "--benchmark-quiet")
    result = measure_source(pytester, TESTS, *expected)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"{RED}1 gate failed" in last_line(result)
    also_idle = ("--dtdispatch-max=collectives=0", "--dtdispatch-ops=nope", "--dtdispatch-export=csv:out.csv")
    result = measure(pytester, *expected, *also_idle)
    assert f"{RED}2 gates failed" in last_line(result)
    assert f"{RED}1 file not written" in last_line(result)


# Whole tests whose ops a capture cannot observe, or observes in a simulation

WHOLE = ("--dtdispatch-all", "--benchmark-quiet")
UNCAPTURED = """
import logging, multiprocessing, threading
from torch.distributed.tensor.debug import CommDebugMode

def test_threads(a):
    for _ in range(2):
        thread = threading.Thread(target=lambda: (a + a) * a)
        thread.start()
        thread.join()

def test_processes():
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()

def test_mode(a):
    with CommDebugMode():
        a + a

@pytest.fixture
def debug_log():
    logger = logging.getLogger("torch.distributed.tensor._dispatch")
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(logging.NOTSET)

def test_logger(a, debug_log):
    a + a
"""
OWN_CAPTURE = """
def test_captured(a, dtdispatch):
    with CommDebugMode(), dtdispatch.capture():
        a + a
"""
SIMULATED = """
from torch.distributed._local_tensor import LocalTensorMode

def test_closed(device_mesh):
    with LocalTensorMode(4):
        a = sharded(device_mesh)
        inside = (a * a).full_tensor()
        assert (inside == a.full_tensor() ** 2).all()
    b = sharded(device_mesh)
    b + b

def test_raises(device_mesh):
    with pytest.raises(KeyError), LocalTensorMode(4):
        sharded(device_mesh) * 2
        raise KeyError
"""


def test_uncaptured_threads_processes_and_modes_are_reported(pytester: pytest.Pytester) -> None:
    result = measure_source(pytester, UNCAPTURED, *WHOLE, "-Werror", TORCH_WARNS, passed=4)
    for line in (
        "not measured: 1 test ran DTensor ops (at least 4) in 2 threads of their own",
        "not measured: 1 test started 2 processes",
        "not measured: 1 test opened CommDebugMode",
        "has level DEBUG",
    ):
        assert line in notes(result)
    counted = run(pytester, "--dtdispatch-all", "--dtdispatch-metric=counts", passed=4)
    assert "4 of 4 misses were in other threads" in notes(counted)
    assert notes(counted).count("not measured") == 1
    assert "not measured: 1 test started 2 processes" in notes(counted)
    pytester.makepyfile(test_it=IMPORTS + UNCAPTURED + OWN_CAPTURE)
    result, found = rows(pytester, *WHOLE, "-k", "test_captured")
    assert {row["params"]["op"] for row in found} == {"add.Tensor"}
    assert "CommDebugMode" not in notes(result)


@pytest.mark.skipif(not has_local_mode(), reason="this torch has no torch.distributed._local_tensor")
def test_simulated_ranks_are_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=IMPORTS + SIMULATED)
    result, found = rows(pytester, *WHOLE, passed=2)
    measured = {row["fullname"].partition("(")[0] for row in found if row["params"]["state"] == "hit"}
    ops = {name.rpartition("::")[2] for name in measured}
    assert {"test_it.py::test_closed::mul.Tensor", "test_it.py::test_raises::mul.Tensor"} <= measured
    assert {"add.Tensor", "mul.Tensor"} <= ops
    assert "figures of 2 tests include the work of all ranks, which LocalTensorMode simulates" in notes(
        result
    )
    assert "not measured" not in notes(result)
    assert "hides DTensor ops" not in text_of(result)
