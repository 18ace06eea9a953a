"""The host reads a loss, and each rank has another share of it. The limit partial_reads=0 must fail wherever this rank's share is read, whether known to be partial or refused as unknown, and pass where the whole value is read."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

SHARES = [
    "loss.item()",
    "loss.to_local().item()",
    "float(loss.to_local())",
    "loss.detach().to_local().item()",
    "(loss.to_local() * 1).item()",
    "loss._local_tensor.item()",
    "loss.to_local().cpu()",
    "torch.stack([loss.to_local()] * 2).tolist()",
]
WHOLE = ["bool(loss > 0)", "loss.full_tensor().item()", "(loss.full_tensor() * 1).item()"]
READS = SHARES + WHOLE
PROGRAM = f"""
import pytest, torch
from torch.distributed.tensor import Shard, distribute_tensor

@pytest.mark.dtdispatch(max="partial_reads=0")
@pytest.mark.parametrize("number", range({len(READS)}))
def test_read(dtdispatch, device_mesh, number):
    w = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    read = {READS}[number]
    dtdispatch.steps(lambda: eval(read, dict(globals(), loss=w.sum())), name="read")
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inner")
    (folder / "test_inner.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "--dtdispatch", "-q", "-rA"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    found = re.findall(r"^(PASSED|FAILED) \S+::test_read\[(\d+)\]", said, re.MULTILINE)
    return {READS[int(number)]: outcome for outcome, number in found}


@pytest.mark.parametrize("read", SHARES)
def test_share(outcomes, read):
    assert outcomes[read] == "FAILED"


@pytest.mark.parametrize("read", WHOLE)
def test_whole(outcomes, read):
    assert outcomes[read] == "PASSED"
