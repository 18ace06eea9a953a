# A test catches the error of its limit with assertRaises. It fails all the same, the other tests run, and the status is 1; under xdist too.
import importlib.util

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import unittest, pytest, torch
from torch.distributed.tensor import Shard, distribute_tensor

def x(mesh):
    return distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])

class TestLimit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def given(self, dtdispatch, device_mesh):
        self.dtdispatch, self.mesh = dtdispatch, device_mesh

    @pytest.mark.dtdispatch(max="redistributes=0")
    def test_over_its_limit(self):
        a = x(self.mesh)
        with self.assertRaises(AssertionError):
            self.dtdispatch.steps(lambda: a.full_tensor())

@pytest.mark.parametrize("number", range(4))
def test_good(dtdispatch, device_mesh, number):
    a = x(device_mesh)
    dtdispatch.steps(lambda: a + a)
"""


@pytest.mark.parametrize(
    "flags", [(), ("-n", "2", "--dtdispatch-metric", "counts")], ids=["one process", "xdist"]
)
def test_outcomes(pytester, flags):
    if flags and not importlib.util.find_spec("xdist"):
        pytest.skip("needs pytest-xdist")
    pytester.makepyfile(test_inner=PROGRAM)
    result = pytester.runpytest_subprocess("--dtdispatch", *flags)
    outcomes = result.parseoutcomes() if "passed" in result.stdout.str() else {}
    assert (outcomes.get("failed"), outcomes.get("passed"), result.ret) == (1, 4, 1)
