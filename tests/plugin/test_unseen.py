"""Whole tests whose ops a capture does not see, or sees in a simulation: what is measured and said."""

from __future__ import annotations

import pytest
import torch.distributed.tensor.debug  # noqa: F401 (else the second run imports it anew, which torch 2.9 refuses)

from pytest_dtdispatch.torchapi.groups import has_local_mode
from tests.plugin_runs import ALONE, IMPORTS, MEASURED, measure, rows, run, text_of

pytestmark = pytest.mark.torch
WHOLE = ("--dtdispatch-all", "--benchmark-quiet")
needs_local_mode = pytest.mark.skipif(
    not has_local_mode(), reason="this torch has no torch.distributed._local_tensor"
)

UNSEEN = """
import multiprocessing
import threading
from torch.distributed.tensor.debug import CommDebugMode

@pytest.fixture
def a(device_mesh):
    return sharded(device_mesh)

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

def test_plain():
    pass
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
BASE_CLASSES = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.common_distributed import MultiThreadedTestCase
from torch.testing._internal.distributed._tensor import common_dtensor as common

def multiply(mesh):
    a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])
    return (a + a) * a

class TestThreads(MultiThreadedTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_mul(self):
        multiply(init_device_mesh("cpu", (4,)))

class TestProcesses(common.DTensorTestBase):
    world_size, backend, device_type = 2, "gloo", "cpu"

    @common.with_comms
    def test_mul(self):
        multiply(self.build_device_mesh())

class Simulated(common.DTensorTestBase):
    world_size = 4

    @common.with_comms
    def test_mul(self):
        multiply(self.build_device_mesh())

TestSimulated = common.create_local_tensor_test_class(Simulated)
del Simulated
"""


def said(result: pytest.RunResult) -> str:
    """What the plugin said at the end, lines joined."""
    return " ".join(text_of(result).rpartition("= dtdispatch =")[2].split())


def test_what_ran_in_threads_and_processes_and_below_a_mode_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IMPORTS + UNSEEN)
    result = measure(pytester, *WHOLE)
    result.assert_outcomes(passed=4)
    for line in (
        "nothing was measured: no test that passed ran an op on DTensors where a capture sees it",
        "not measured: 1 test ran DTensor ops (at least 4) in 2 threads of their own, which a capture of the",
        "not measured: 1 test started 2 processes, and what ran in them was not seen;",
        "not measured: 1 test opened CommDebugMode, which hides DTensor ops from a capture around it; "
        "take the fixture and open dtdispatch.capture() inside CommDebugMode, "
        "or count it by --dtdispatch-metric counts",
    ):
        assert line in said(result)
    assert "open a capture inside CommDebugMode, by TimeCaptureMode or dtdispatch.capture()" in text_of(
        result
    )


def test_a_test_that_opens_its_own_capture_inside_a_mode_is_measured(pytester: pytest.Pytester) -> None:
    own = UNSEEN.replace("test_mode(a)", "test_mode(a, dtdispatch)")
    pytester.makepyfile(IMPORTS + own.replace("CommDebugMode():", "CommDebugMode(), dtdispatch.capture():"))
    result, found = rows(pytester, *WHOLE, "-k", "test_mode")
    result.assert_outcomes(passed=1, deselected=3)
    assert {row["params"]["op"] for row in found} == {"add.Tensor"}
    assert "CommDebugMode" not in said(result)


def test_threads_and_modes_hide_no_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IMPORTS + UNSEEN)
    counted = run(pytester, "--dtdispatch-all", "--dtdispatch-metric=counts")
    counted.assert_outcomes(passed=4)
    assert "4 of 4 misses were in other threads" in said(counted)
    assert said(counted).count("not measured") == 1
    assert "not measured: 1 test started 2 processes" in said(counted)


@needs_local_mode
def test_a_test_that_simulates_its_ranks_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=IMPORTS + SIMULATED)
    result, found = rows(pytester, *WHOLE)
    result.assert_outcomes(passed=2)
    measured = {row["fullname"].partition("(")[0] for row in found if row["params"]["state"] == "hit"}
    ops = {name.rpartition("::")[2] for name in measured}
    assert {"test_it.py::test_closed::mul.Tensor", "test_it.py::test_raises::mul.Tensor"} <= measured
    assert {"add.Tensor", "mul.Tensor"} <= ops
    assert "figures of 2 tests hold the work of all ranks, which LocalTensorMode simulates" in said(result)
    assert "not measured" not in said(result)
    assert "hides DTensor ops" not in text_of(result)


@needs_local_mode
@pytest.mark.long
def test_the_base_classes_of_torchs_own_tests_are_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(BASE_CLASSES)
    counted = pytester.runpytest_subprocess(*ALONE, "--dtdispatch-all", "--dtdispatch-metric=counts")
    counted.assert_outcomes(passed=3)
    for mesh in (2, 4):
        assert f"missed mul.Tensor(f32[8,8]S0, f32[8,8]S0)@{mesh}: first call" in said(counted)
    assert "process 1 2 0 2 " in said(counted)
    assert "process 2" not in said(counted), "its counts are equal"
    assert "not measured" not in said(counted)


@needs_local_mode
@pytest.mark.long
def test_the_base_classes_of_torchs_own_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(BASE_CLASSES)
    result = pytester.runpytest_subprocess(*ALONE, *MEASURED, *WHOLE)
    result.assert_outcomes(passed=3)
    assert "::test_mul (dispatch from below autograd) " in said(result)
    assert " add.Tensor(f32[8,8]S0, f32[8,8]S0)@4 " in said(result)
    assert "not measured: 1 test ran DTensor ops (at least 8) in 4 threads of their own" in said(result)
    assert "not measured: 1 test started 2 processes" in said(result)
    assert "figures of 1 test hold the work of all ranks" in said(result)
