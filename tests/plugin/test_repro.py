"""Scripts that a run exports run alone, and prove what they time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtdispatch.report.repro import MAX_TENSORS
from tests.plugin_runs import IMPORTS, measure, text_of

pytestmark = pytest.mark.torch

# Even and uneven shards, a scalar, a list, an op that writes, a partial sum, a miss of two dimensions, and a
# plain tensor of indices that must be zeros.
TESTS = """
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import implicit_replication

@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"), rounds=8)
def test_ops(dtdispatch, device_mesh):
    a, uneven = sharded(device_mesh), sharded(device_mesh, 7, 4)
    with dtdispatch.capture():
        torch.cat([a, a], 1)
        uneven.t().mul_(-float("inf"))
        a.sum(0)
    table = distribute_tensor(torch.rand(1, 8), device_mesh, [Replicate(), Replicate()])
    with implicit_replication(), dtdispatch.capture():
        torch.nn.functional.embedding(torch.zeros(3, dtype=torch.int64), table)

def test_others(dtdispatch, a):
    with dtdispatch.capture():
        torch._foreach_add([a] * MANY, 1.0)
        a.to_local()
    dtdispatch.call(lambda: a + a, name="call")
"""


def run_script(script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script alone, without this package on its path."""
    command = [sys.executable, "-I", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_scripts_run_alone_and_prove_their_states(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=IMPORTS + TESTS.replace("MANY", str(MAX_TENSORS + 1)))
    result = measure(pytester, "--dtdispatch-export=repro:scripts", passed=2)
    refused = [line for line in result.outlines if line.startswith("no script of ")]
    assert [line.partition("test_others::")[2].partition("(")[0] for line in refused[-3:]] == [
        "_foreach_add.Scalar",
        "to_local",
        "call: it is not an op whose call was recorded",
    ]
    scripts = {
        re.sub("_default.*|_dim.*|_Tensor.*", "", path.stem): path for path in Path("scripts").iterdir()
    }
    names = {f"repro_test_ops_{op}" for op in ("cat", "t", "mul", "sum", "embedding")}
    assert names <= scripts.keys(), text_of(result)
    for name in sorted(names - {"repro_test_ops_t"}):
        ran = run_script(scripts[name])
        assert re.fullmatch(r"miss [\d.]+ us, hit [\d.]+ us\n", ran.stdout), ran.stderr
        miss, hit = map(float, re.findall(r"[\d.]+", ran.stdout))
        assert miss > hit
    script = scripts["repro_test_ops_sum"]
    script.write_text(re.sub(r"(?m)^clears.*$", "clears = [gc.collect]", script.read_text()))
    ran = run_script(script)
    assert ran.returncode == 1
    assert "AssertionError: 1 calls: 1 hits, 0 misses" in ran.stderr
