"""Runs of pytest on several ranks, one process each; no process may be left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

OURS = "DTDISPATCH_TEST_RUN"  # marks every process of a run, also indirect children
OTHERS = ("cacheprovider", "hypothesispytest", "xdist", "codspeed")
# No capture by file descriptor: it loses the C++ stack of a rank that aborts.
QUIET = ("-q", "--benchmark-quiet", "--capture=sys", *(f"-pno:{plugin}" for plugin in OTHERS))
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=5", "--dtdispatch-repeat=2", "--dtdispatch-device=cpu")
TIMEOUT_S = 6
LONGEST_S = 120.0

IMPORTS = """
import os, signal, sys, time
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANK = int(os.environ.get("RANK", 0))

def sharded(mesh, *extents):
    return distribute_tensor(torch.rand(*extents or (8, 8)), mesh, [Shard(0)] * mesh.ndim)

@pytest.fixture
def a(device_mesh):
    return sharded(device_mesh)
"""
GOOD = """
def test_good(dtdispatch, a):
    with dtdispatch.capture():
        a + a
"""


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Args:
        status: its exit status.
        text: its whole output.
        seconds: its duration.
    """

    status: int
    text: str
    seconds: float


def by_pytest(ranks: int) -> tuple[list[str], list[str]]:
    """Let pytest start the ranks: return the command before pytest's arguments, and additional arguments."""
    return [sys.executable, "-m", "pytest"], [f"--dtdispatch-nproc={ranks}"]


def by_torchrun(ranks: int) -> tuple[list[str], list[str]]:
    """Let torchrun start the ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*torchrun, "-m", "pytest"], []


FORKS = """
import os, socket, sys
import pytest
import torch.distributed.tensor.debug

ranks = int(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as server:
    port = os.environ.get("MASTER_PORT") or server.getsockname()[1]
started = []
for rank in range(ranks):
    if not (pid := os.fork()):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        sys.exit(pytest.main(sys.argv[2:]))
    started.append(pid)
sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in started))
"""


def by_fork(ranks: int) -> tuple[list[str], list[str]]:
    """Fork the ranks from one process that has imported torch, which takes most of the time."""
    return [sys.executable, "-c", FORKS, str(ranks)], []


Launcher = Callable[[int], "tuple[list[str], list[str]]"]


def run_ranks(
    folder: Path,
    ranks: int,
    *args: str,
    launcher: Launcher = by_fork,
    meanwhile: Callable[[subprocess.Popen[str]], object] = lambda process: None,
    variables: Mapping[str, str] | None = None,
) -> Finished:
    """Measure the tests in a folder on several ranks; check that no process is left."""
    before, after = launcher(ranks)
    command = [*before, *QUIET, *MEASURED, f"--dtdispatch-timeout={TIMEOUT_S}", *after, *args]
    return finish(command, folder, meanwhile, variables)


def finish(
    command: Sequence[str],
    folder: Path,
    meanwhile: Callable[[subprocess.Popen[str]], object] = lambda process: None,
    variables: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command until it ends, and check that it leaves no process behind."""
    name = uuid.uuid4().hex
    start = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment({**(variables or {}), OURS: name}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        meanwhile(process)
        try:
            text, _ = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            end_all(name)
            text, _ = process.communicate()
            pytest.fail(f"the run hung:\n{text}")
    seconds = time.monotonic() - start
    left = wait_for_none(name)
    end_all(name)
    assert not left, f"processes were left: {left}\n{text}"
    return Finished(process.returncode, text, seconds)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run: no launcher, the loopback device, one thread per rank."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    own = {name: value for name, value in os.environ.items() if name not in launchers}
    return {**own, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}


def processes_of(name: str) -> list[int]:
    """Return the live processes of a run, identified by an environment variable."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{OURS}={name}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # ended, or owned by another user
            continue
    return found


def wait_for_none(name: str, seconds: float = 5.0) -> list[int]:
    """Wait for processes to end; return those that are left."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(name)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def end_all(name: str) -> None:
    """Kill processes that a failed test left."""
    for pid in processes_of(name):
        os.kill(pid, signal.SIGKILL)
