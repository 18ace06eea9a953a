"""Runs of pytest inside a test, in this process: torch is imported once for all of them."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import pytest_dtdispatch
from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation, CompilePlan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.torchapi.ops import open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode

# The test that the design's users start from.
TEN_LINES = """
    from torch.distributed.tensor import Shard, distribute_tensor
    import torch

    def test_add(dtdispatch, device_mesh):
        a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
        with dtdispatch.capture():
            a + a
"""
ADD = "add.Tensor(f32[512,512]S0, f32[512,512]S0)@4"
# What other tests need, to put in front of them.
IMPORTS = """
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

def sharded(mesh, *extents):
    return distribute_tensor(torch.rand(*extents or (8, 8)), mesh, [Shard(0)] * mesh.ndim)

@pytest.fixture
def a(device_mesh):
    return sharded(device_mesh)

class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
"""
ADDS = """
def test_add(dtdispatch, a):
    with dtdispatch.capture():
        a + a
"""
# One more, whose call takes as long as the fixture `scripted` says.
SCRIPTED = f"""{IMPORTS}
import scripted
{ADDS}
{{marker}}
def test_mul(dtdispatch, a):
    def mul():
        scripted.clock.wait(scripted.extra_ns)
        return a * a

    dtdispatch.call(mul, name="mul")
"""
# In place of what a test adds: calls that scatter.
BURSTS = {
    "import scripted": "import random, scripted\ndraws = random.Random(1)",
    "wait(scripted.extra_ns)": "wait(draws.choice((0, 10**6)))",
}
# Plugins that only cost time, as hypothesis, which is imported anew in every run, shuffle tests, or warn.
OTHER_PLUGINS = ("xdist", "codspeed", "cacheprovider", "hypothesispytest", "randomly", "asyncio")
# Old versions of torch say so wherever a tensor is distributed on a CPU.
TORCH_WARNS = "-Wignore:DTensor random operators may not have complete support:UserWarning"
ALONE = (*(f"-pno:{plugin}" for plugin in OTHER_PLUGINS), TORCH_WARNS)
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=2", "--dtdispatch-repeat=3")


def run(pytester: pytest.Pytester, *args: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest in this process; nothing may be left open when it ends. Check outcomes that are named."""
    with one_thread(), young_heap(), warnings.catch_warnings(record=True):
        warnings.simplefilter("default")  # ours are errors, a user's are not
        result = pytester.runpytest_inprocess(*ALONE, *args)
    left_open = close_what_is_open()
    assert not left_open, f"the run left open: {left_open}"
    if outcomes:
        result.assert_outcomes(**outcomes)
    return result


def measure(pytester: pytest.Pytester, *args: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest with --dtdispatch and few samples."""
    return run(pytester, *MEASURED, *args, **outcomes)


def measure_source(pytester: pytest.Pytester, source: str, *args: str, **outcomes: int) -> pytest.RunResult:
    """Measure one module, test_it.py, which has what IMPORTS has."""
    pytester.makepyfile(test_it=f"{IMPORTS}\n{dedent(source)}")
    return measure(pytester, *args, **outcomes)


def rows(pytester: pytest.Pytester, *args: str, **outcomes: int) -> tuple[pytest.RunResult, list[Any]]:
    """Measure, and read the rows that pytest-benchmark wrote as JSON."""
    path = pytester.path / "rows.json"
    result = measure(pytester, f"--benchmark-json={path}", *args, **outcomes)
    return result, benchmarks_of(path)


def benchmarks_of(path: Path) -> list[dict[str, Any]]:
    """Read the benchmarks of a file of pytest-benchmark; none where it wrote no file, or nothing into it."""
    if not path.exists() or not path.stat().st_size:
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text())["benchmarks"]
    return found


def text_of(result: pytest.RunResult) -> str:
    """Everything that a run printed."""
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def assert_says_once(result: pytest.RunResult, line: str) -> None:
    """Check that a user's mistake is told in one line, once, and that no frame of ours or of torch's is."""
    text = text_of(result)
    body, _, _ = text.partition("short test summary info")
    assert len([each for each in body.splitlines() if line in each]) == 1, text
    for frame in ("pytest_dtdispatch/", "site-packages", "INTERNALERROR", "During handling"):
        assert frame not in text


def assert_refused(result: pytest.RunResult, *words: str) -> None:
    """Check that a run was refused in one line, before anything ran."""
    text = text_of(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    [line] = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    for word in words:
        assert word in line
    for frame in ("Traceback", "INTERNALERROR", "test session starts", "site-packages"):
        assert frame not in text


def assert_gate_failed(result: pytest.RunResult, *words: str, passed: int) -> str:
    """Check that a gate alone failed a run, without a traceback; return what was printed."""
    text = text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    result.assert_outcomes(passed=passed)
    assert result.outlines[-1].startswith("="), text  # pytest's own summary line
    for word in words:
        assert word in text
    for frame in ("Traceback", "INTERNALERROR", "pytest_dtdispatch/"):
        assert frame not in text
    return text


def assert_passed(result: pytest.RunResult, *words: str) -> None:
    """Check that a run passed, and printed these words."""
    text = text_of(result)
    assert result.ret == pytest.ExitCode.OK, text
    for word in words:
        assert word in text


# No test finds a mode open that the one before it left.
NOTHING_OPEN = """
@pytest.fixture(autouse=True)
def nothing_open():
    assert not _get_current_dispatch_mode_stack()
"""
HERE = "  # here"


def assert_mistakes(
    pytester: pytest.Pytester, mistakes: Sequence[tuple[str, str]], *flags: str, source: str = IMPORTS
) -> None:
    """Check that each body fails in the line beside it, at its line ``# here``, or else at its last one."""
    bodies = [body if HERE in body else body + HERE for body, _ in mistakes]
    tests = "".join(
        f"\ndef test_{number}(dtdispatch, device_mesh, mesh_factory):\n"
        f"    a = sharded(device_mesh)\n{indent(body, '    ')}\n"
        for number, body in enumerate(bodies)
    )
    pytester.makepyfile(f"{source}{NOTHING_OPEN}{tests}")
    result = run(pytester, *flags)
    result.assert_outcomes(failed=len(bodies))
    body, _, _ = text_of(result).partition("short test summary info")
    told = [line for line in body.splitlines() if line.startswith("E ")]
    for line, (_, says) in zip(told, mistakes, strict=True):
        assert says in line, line
    pointed_at = [line for line in body.splitlines() if line.startswith(">") and line.endswith(HERE)]
    assert len(pointed_at) >= len(bodies)
    for frame in ("pytest_dtdispatch/", "site-packages", "INTERNALERROR", "During handling"):
        assert frame not in body


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from waiting for a second thread, which takes milliseconds where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def young_heap() -> Iterator[None]:
    """Keep what was there before from the garbage collector: pytest collects five times as a run ends."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def close_what_is_open() -> list[str]:
    """Close every process group and dispatch mode, so that the next test starts clean; name them."""
    found = [type(mode).__name__ for mode in reversed(open_modes())]
    for mode in reversed(open_modes()):
        mode.__exit__(None, None, None)
    if dist.is_initialized():
        found.append(f"process group of {dist.get_world_size()}")
        dist.destroy_process_group()
    return found


def import_everything() -> None:
    """Import all that a run imports late, by taking one measurement.

    Pytester forgets what was first imported after it started, and torch cannot be imported twice.
    """
    for module in pkgutil.walk_packages(pytest_dtdispatch.__path__, "pytest_dtdispatch."):
        if not module.name.endswith("__main__") and ".suite" not in module.name:
            importlib.import_module(module.name)
    owner = ProcessGroupOwner()
    a = distribute_tensor(torch.rand(8, 8), owner.mesh(MeshSpec((4,), "cpu", "fake")), [Shard(0)])
    with TimeCaptureMode(repeat_count=1):
        a @ a
        a.redistribute(placements=[Replicate()])
    owner.close()


@functools.cache
def import_compilers() -> None:
    """Import once what compiling with the fast backends imports late, by compiling with each of them."""
    for backend in ("eager", "aot_eager", "aot_eager_decomp_partition"):
        compilation = Compilation(lambda x: x + 1, (torch.ones(1, requires_grad=True),), backend=backend)
        run_and_measure_compile(compilation, backend, ShardingCaches(), CompilePlan(rounds=1, calls=1))


import_everything()
