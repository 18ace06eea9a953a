# Two equal commits whose test exceeds the limit of its own marker: an A/B run judges no limits, and counts are compared.
import os
import subprocess
import sys

TEST = """
import pytest, torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

def step(x):
    return x.redistribute(placements=[Replicate()]).sigmoid()

@pytest.mark.dtdispatch(max="redistributes=0")
def test_step(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])
    dtdispatch.steps(lambda: step(x))
"""


def test_equal_commits(tmp_path):
    (tmp_path / "test_layers.py").write_text(TEST)
    who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **who}
    for command in ("git init -q", "git add .", "git commit -qm one", "git commit -qm two --allow-empty"):
        subprocess.run(command.split(), cwd=tmp_path, env=environ, check=True)
    ab = "pytest_dtdispatch ab --metric counts --base-rev HEAD~1 --head-rev HEAD -- test_layers.py"
    command = [sys.executable, "-m", *ab.split()]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
