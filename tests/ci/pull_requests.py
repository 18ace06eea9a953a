"""A small project in a git repository, with one commit and pull requests of one commit each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "ci"
JOB = SCRIPTS / "job.sh"
LAYERS = '''"""An op with a sharding rule of its own."""

import itertools

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

kept, widths, turns = [], itertools.count(1), 10


@torch.library.custom_op("layers::gate", mutates_args=())
def gate(x: torch.Tensor) -> torch.Tensor:
    for _ in range(turns):
        y = x.sigmoid()
    return y


@gate.register_fake
def _(x):
    return torch.empty_like(x)


@register_sharding(torch.ops.layers.gate.default)
def gate_sharding(x):
    # plan
    return [([Shard(0)], [Shard(0)]), ([Replicate()], [Replicate()])]


def step(x):
    # move
    return gate(x)
'''
TESTS = """import layers
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def test_gate(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        layers.gate(x)


def test_step(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])
    dtdispatch.steps(lambda: layers.step(x), name="step")
"""
NEW_TEST = """

def test_twice(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])
    dtdispatch.steps(lambda: layers.step(layers.step(x)), name="twice")
"""
# By branch: replaced text with its replacement, or a new test, which is appended.
PULL_REQUESTS = {
    "refactor": ("# plan", "# sharded inputs stay sharded"),
    "new-test": ("", NEW_TEST),
    "op-more": ("# move", "x = x + 1"),
    "redistribution": ("# move", "x = x.redistribute(placements=[Replicate()])"),
    "miss": ("# move", "x = x[:, : next(widths) % 8 + 1]"),
    "leak": ("# move", "kept.append(x.detach())"),
    "slow-rule": ("# plan", "for _ in range(30_000):\n        pass"),
    "slow-kernel": ("turns = [], itertools.count(1), 10", "turns = [], itertools.count(1), 14"),
    # Detectable by a clock on a busy machine too.
    "very-slow-rule": ("# plan", "for _ in range(500_000):\n        pass"),
}


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_project(folder: Path) -> Path:
    """Create a repository: a commit on ``main``, and a branch with one more commit for each pull request."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "layers.py").write_text(LAYERS)
    (folder / "test_layers.py").write_text(TESTS)
    commit(folder, "Add a gate")
    for branch, (before, after) in PULL_REQUESTS.items():
        git(folder, "switch", "--quiet", "--create", branch, "main")
        (folder / "layers.py").write_text(LAYERS.replace(before, after) if before else LAYERS)
        (folder / "test_layers.py").write_text(TESTS + after * (not before))
        commit(folder, branch)
    return folder


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def run_in(project: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this interpreter, without CI variables except those passed."""
    of_jobs = ("GITHUB_", "DTDISPATCH_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(of_jobs)}
    env = {**inherited, "PYTHON": sys.executable, **variables}
    return subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=1500
    )


def run_job(project: Path, branch: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe like a job."""
    if branch:
        git(project, "switch", "--quiet", branch)
    ours = {"COLUMNS": "140", "DTDISPATCH_TESTS": "test_layers.py"}
    return run_in(project, str(JOB), **{**ours, **variables})
