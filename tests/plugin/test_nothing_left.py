"""After a session of 500 tests nothing of it is left: no group, thread, file, hook, mode or DTensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
MOST_BYTES_A_TEST = 20_000  # rows, reports, and what pytest-benchmark keeps

# Each test makes a mesh and calls ops, by turns: plain ones, backward, a redistribution, a module, a step.
TESTS = """
import os
import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

def made(mesh, grad=False):
    return DTensor.from_local(torch.ones(4, 4, requires_grad=grad), mesh, [Shard(0)])

def add(mesh):
    made(mesh) + made(mesh)

def backward(mesh):
    made(mesh, grad=True).sum().backward()

def redistribute(mesh):
    made(mesh).redistribute(placements=[Replicate()])

def fail(mesh):
    kept = made(mesh)
    kept.view(3)

WORKS = (add, backward, redistribute, fail)

@pytest.mark.parametrize("number", range(int(os.environ["TESTS"])))
def test_work(device_mesh, number):
    work = WORKS[number % len(WORKS)]
    if work is fail:
        with pytest.raises(RuntimeError):
            work(device_mesh)
    else:
        work(device_mesh)
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
# Runs pytest twice in one process, and looks around after each: what a first run imports stays.
SCRIPT = """
import gc, json, os, sys, threading, tracemalloc, types
import pytest
import torch
import torch.distributed as dist
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

def is_ours(value, depth=4):
    home = getattr(value, "__module__", None) or type(value).__module__
    names = (home, type(value).__module__)
    if any(isinstance(name, str) and name.split(".")[0] == "pytest_dtdispatch" for name in names):
        return True
    inner = [getattr(value, name, None) for name in ("func", "__func__", "__wrapped__", "__self__")]
    closure = getattr(value, "__closure__", None) or ()
    cells = [cell.cell_contents for cell in closure if cell is not None]
    if depth and isinstance(value, (types.FunctionType, types.MethodType, staticmethod, classmethod)):
        inner += [cell for cell in cells if callable(cell)]
    return depth > 0 and any(each is not None and is_ours(each, depth - 1) for each in inner)

def hooks():
    dispatcher = DTensor._op_dispatcher
    found = set()
    objects = {"dispatcher": dispatcher, "propagator": dispatcher.sharding_propagator}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType):
            objects[name] = module
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type):
                    objects[f"{name}.{attribute}"] = value
    for name, one in objects.items():
        for attribute, value in list(vars(one).items()):
            try:
                if callable(value) or isinstance(value, (staticmethod, classmethod)):
                    if is_ours(value):
                        found.add(f"{name}.{attribute}")
            except Exception:
                pass
    handlers = dispatcher._custom_op_handlers
    return sorted(found | {f"handler of {op}" for op, handler in handlers.items() if is_ours(handler)})

def around():
    from torch._dynamo.callback import callback_handler
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
    "flag",
    [
        pytest.param("", marks=pytest.mark.long),
        pytest.param("--dtdispatch-metric=counts", marks=pytest.mark.sweep),
        pytest.param("--dtdispatch-budget", marks=pytest.mark.sweep),
    ],
)
def test_nothing_is_left_of_five_hundred_tests(tmp_path: Path, flag: str) -> None:
    before, after = around_a_session(tmp_path, tests=500, flag=flag)
    assert not after["group"]
    assert after["hooks"] == []
    assert after["modes"] == []
    assert after["dtensors"] == 0
    assert after == before
    held = [line.split() for line in (tmp_path / "held.txt").read_text().splitlines()]
    (first, held_first), *_, (last, held_last) = [tuple(map(int, each)) for each in held]
    assert (held_last - held_first) / (last - first) < MOST_BYTES_A_TEST


def test_a_short_session_leaves_nothing(tmp_path: Path) -> None:
    before, after = around_a_session(tmp_path, tests=8)
    assert after["hooks"] == []
    assert after == before


def around_a_session(tmp_path: Path, tests: int, flag: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Run so many tests, and tell what there was before and after."""
    (tmp_path / "test_work.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "script.py", *[flag] * bool(flag)],
        cwd=tmp_path,
        env={**os.environ, "MANY": str(tests), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    return found["before"], found["after"]
