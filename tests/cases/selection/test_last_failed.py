# A run that leaves out test_2.py, by --lf or by --ignore, does not miss its rows in the expected file, as with -k.
import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import os, torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_step(dtdispatch, device_mesh):
    t = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    dtdispatch.steps(lambda: t + t, name="s")
    assert not (os.environ.get("FAIL") and __file__.endswith("test_1.py"))
"""


def run(folder, *arguments, **variables):
    command = [sys.executable, "-m", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    for name in ("test_1.py", "test_2.py"):
        Path(folder, name).write_text(STEPS)
    update = "pytest_dtdispatch expected update e.csv --results r.csv --reason first --new-margin 0"
    run(folder, "pytest", "-q", "--dtdispatch", "--dtdispatch-export=csv:r.csv")
    run(folder, *update.split())
    return folder


@pytest.mark.parametrize("workers", [(), ("-n2", "--dtdispatch-metric=counts")], ids=["alone", "workers"])
@pytest.mark.parametrize("flag", ["--ignore=test_2.py", "--lf"])
def test_left_out(folder, flag, workers):
    if flag == "--lf":
        run(folder, "pytest", "-q", FAIL="1")  # test_1.py failed last
    result = run(folder, "pytest", "-q", "--dtdispatch", "--dtdispatch-expected=e.csv", flag, *workers)
    assert result.returncode == 0, result.stdout
    assert "\ngate: passed" in result.stdout
    assert "7 rows not selected" in result.stdout
