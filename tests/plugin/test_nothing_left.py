"""Hundreds of tests leave no process group, thread, file, hook, mode or DTensor behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
MAX_BYTES_PER_TEST = 20_000  # rows, reports, and data stored by pytest-benchmark

# Each test creates a mesh and runs one of WORKS in rotation: an add, a backward, a redistribution, an error.
TESTS = """
import os
import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

def fail(a):
    with pytest.raises(RuntimeError):
        a.view(3)

WORKS = (
    lambda a: a + a,
    lambda a: a.sum().backward(),
    lambda a: a.redistribute(placements=[Replicate()]),
    fail,
)

@pytest.mark.parametrize("number", range(int(os.environ["TESTS"])))
def test_work(device_mesh, number):
    turn = number % len(WORKS)
    local = torch.ones(4, 4, requires_grad=turn == 1)
    WORKS[turn](DTensor.from_local(local, device_mesh, [Shard(0)]))
"""
CONFTEST = """
import gc, os, tracemalloc

COUNTS = []

def pytest_runtest_logfinish(nodeid):
    COUNTS.append(nodeid)
    if "HELD" in os.environ and len(COUNTS) % (int(os.environ["TESTS"]) // 5) == 0:
        gc.collect()
        with open(os.environ["HELD"], "a") as file:
            print(len(COUNTS), tracemalloc.get_traced_memory()[0], file=file)
"""
# Runs pytest twice in one process and compares the state after each run: modules imported by the first stay.
SCRIPT = """
import gc, json, os, sys, threading, tracemalloc, types
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.callback import callback_handler
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

def run(tests):
    os.environ["TESTS"] = str(tests)
    flags = ["-q", "-pno:cacheprovider", "-pno:xdist", "-pno:codspeed", "-pno:hypothesispytest"]
    measured = ["--dtdispatch-all", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1", *sys.argv[1:]]
    status = pytest.main([*flags, *measured, "test_work.py"])
    assert status == 0, status
    for name in ("test_work", "conftest"):
        sys.modules.pop(name, None)
    gc.collect()

def callables():
    # Callables that may be patched, by owner: modules and classes of torch, and the dispatcher.
    dispatcher = DTensor._op_dispatcher
    objects = {"dispatcher": dispatcher, "propagator": dispatcher.sharding_propagator}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType):
            classes = {f"{name}.{key}": each for key, each in vars(module).items() if isinstance(each, type)}
            objects |= {name: module, **classes}
    found = {f"handler of {op}": handler for op, handler in dispatcher._custom_op_handlers.items()}
    for name, one in objects.items():
        for attribute, value in list(vars(one).items()):
            if isinstance(value, (types.FunctionType, types.MethodType, staticmethod, classmethod)):
                found[f"{name}.{attribute}"] = value
    return found

def hooks():
    return sorted(name for name, value in callables().items() if UNTOUCHED.get(name, value) is not value)

def around():
    return {
        "threads": sorted(each.name for each in threading.enumerate()),
        "files": sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{each}")),
        "group": dist.is_initialized(),
        "groups": len(dist.distributed_c10d._world.pg_map),
        "modes": [type(each).__name__ for each in _get_current_dispatch_mode_stack()],
        "dtensors": sum(issubclass(type(each), DTensor) for each in gc.get_objects()),
        "hooks": hooks(),
        "compiling": len(callback_handler.start_callbacks) + len(callback_handler.end_callbacks),
        "audit": sys.gettrace() is None and sys.getprofile() is None and gc.isenabled(),
        "finders": [type(each).__name__ if not isinstance(each, type) else each.__name__
                    for each in sys.meta_path],
    }

import pytest_dtdispatch
UNTOUCHED = callables()
with pytest_dtdispatch.StepWatch(lambda line: None):
    assert hooks(), "what is put in is found"
run(8)
before = around()
tracemalloc.start()
os.environ["HELD"] = "held.txt"
run(int(os.environ["MANY"]))
after = around()
print(json.dumps({"before": before, "after": after}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "flag"),
    [
        pytest.param(8, "", marks=pytest.mark.long),
        pytest.param(300, "", marks=pytest.mark.sweep),
        pytest.param(500, "--dtdispatch-metric=counts", marks=pytest.mark.sweep),
        pytest.param(500, "--dtdispatch-budget", marks=pytest.mark.sweep),
    ],
)
def test_many_tests_leave_nothing_behind(tmp_path: Path, tests: int, flag: str) -> None:
    for name, text in (("test_work", TESTS), ("conftest", CONFTEST), ("script", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "script.py", *[flag] * bool(flag)]
    env = {**os.environ, "MANY": str(tests), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    after = found["after"]
    assert after["hooks"] == []
    assert after == found["before"]
    assert not after["group"]
    assert after["modes"] == []
    assert after["dtensors"] == 0
    held = [[int(word) for word in line.split()] for line in (tmp_path / "held.txt").read_text().splitlines()]
    (first, held_first), *_, (last, held_last) = held
    assert tests < 100 or (held_last - held_first) / (last - first) < MAX_BYTES_PER_TEST
