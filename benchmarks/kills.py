"""Check that no file is torn or lost when runs are killed, or when many share one storage.

    python benchmarks/kills.py [--kills 60] [--sessions 20] [--at-once 4]

Runs are forks of this process, which has imported torch, so each takes about a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jinja2  # noqa: F401 (before the forks)
import pytest
import torch.distributed.tensor

from pytest_dtdispatch.gates.expected import read_results
from pytest_dtdispatch.plugin.kinds import metric_names
from pytest_dtdispatch.plugin.settings import EXPORTS
from pytest_dtdispatch.report.run import read_run

SOURCE = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_all(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
        a @ a.t()
    dtdispatch.steps(lambda: a * 2, name="step")
    open("over", "w").close()
"""
ARGS = (
    "--dtdispatch",
    "--dtdispatch-rounds=2",
    "-q",
    "-pno:cacheprovider",
    "--benchmark-save=base",
    "test_it.py",
)
FILES = [name for name in EXPORTS if name != "repro"]  # which is a folder
WRITES = ("--benchmark-json=run.json", *(f"--dtdispatch-export={name}:of-{name}" for name in FILES))


def start(*args: str) -> int:
    """Run pytest in a fork, and return its process id."""
    if process := os.fork():
        return process
    status = 3
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            status = pytest.main([*args])
    finally:
        os._exit(status)  # after an interrupt the child must not continue as the parent


def check(path: Path) -> None:
    """Raise an exception unless a file is complete."""
    text = path.read_text()
    if path.suffix == ".json":
        read_run(path)
    elif path.name == "of-csv":
        assert read_results(path, metric_names())
    elif path.name == "of-html":
        assert text.endswith("</html>\n")
    elif path.name == "of-markdown":
        assert text.startswith("## ")
        assert text.endswith("\n")
    else:
        json.loads(text)


def saved() -> dict[Path, bytes]:
    """Return the number of saved runs, and check that each can be read."""
    return {path: path.read_bytes() for path in Path(".benchmarks").rglob("*.json")}


def last_part(process: int) -> float:
    """Wait until the test of a run has ended; return that time."""
    while not Path("over").exists() and os.waitpid(process, os.WNOHANG) == (0, 0):
        time.sleep(1e-3)
    Path("over").unlink(missing_ok=True)
    return time.monotonic()


def kill_runs(kills: int) -> None:
    """Kill runs at random moments between the end of their test and their own."""
    for _ in range(2):  # the first run imports lazily
        process = start(*ARGS, *WRITES)
        began = last_part(process)
        os.waitpid(process, 0)
        lasts = time.monotonic() - began
    ended, files = 0, [Path("run.json"), *(Path(f"of-{name}") for name in FILES)]
    for number in range(kills):
        before = saved()
        process = start(*ARGS, *WRITES)
        last_part(process)
        time.sleep(lasts * random.random())
        os.kill(process, signal.SIGINT if number % 2 else signal.SIGKILL)
        ended += os.waitpid(process, 0)[1] == 0
        after = saved()
        lost = [path for path, content in before.items() if after.get(path) != content]
        assert not lost, f"earlier saved runs are lost: {lost}"
        for path in (*files, *after):
            check(path)
    print(f"{kills} kills in the last {lasts:.2f} s, {ended} too late: {len(saved())} saved runs are whole")


def run_sessions(sessions: int, at_once: int) -> None:
    """Run sessions in one storage, ``at_once`` at a time."""
    before, running = saved(), 0
    for _ in range(sessions):
        if running == at_once:
            os.wait()
            running -= 1
        start(*ARGS, "--benchmark-json=run.json")
        running += 1
    for _ in range(running):
        os.wait()
    new = saved().keys() - before.keys()
    for path in (Path("run.json"), *new):
        check(path)
    numbers = {path.name.partition("_")[0] for path in new}
    print(f"{sessions} sessions, {at_once} at once: {len(new)} saved runs with {len(numbers)} numbers")
    assert len(new) == len(numbers) == sessions


def main() -> int:
    """Kill runs, then run sessions in one storage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("test_it.py").write_text(SOURCE)
        kill_runs(options.kills)
        run_sessions(options.sessions, options.at_once)
        os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
