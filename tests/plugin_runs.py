"""Runs of pytest inside a test, in this process, so that torch is imported only once."""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from pytest_benchmark import plugin as pytest_benchmark
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import pytest_dtdispatch
from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.plugin.run import Run
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.ops import open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.heap import young_heap

# A minimal test, as a user starts with.
TEN_LINES = """
    from torch.distributed.tensor import Shard, distribute_tensor
    import torch

    def test_add(dtdispatch, device_mesh):
        a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
        with dtdispatch.capture():
            a + a
"""
ADD = "add.Tensor(f32[512,512]S0, f32[512,512]S0)@4"
# Imports and helpers to insert before the source of a test.
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
# Another test, whose call takes the time set by the fixture `scripted`.
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
# An endless iterator of 0 and 1. Repetitions restore random generators, but not iterators.
BURST_SOURCE = """import itertools, random, scripted
draws = itertools.cycle(random.Random(1).choices((0, 1), k=997))"""
# Replacements that make calls scatter.
BURSTS = {
    "import scripted": BURST_SOURCE,
    "wait(scripted.extra_ns)": "wait(next(draws) * 10**6)",
}
# Plugins that shuffle tests, warn, or take time: hypothesis is imported again in every run.
OTHER_PLUGINS = ("xdist", "codspeed", "cacheprovider", "hypothesispytest", "randomly", "asyncio")
# Old versions of torch warn whenever a tensor is distributed on a CPU.
TORCH_WARNS = "-Wignore:DTensor random operators may not have complete support:UserWarning"
ALONE = (*(f"-pno:{plugin}" for plugin in OTHER_PLUGINS), TORCH_WARNS)
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=2", "--dtdispatch-repeat=3")


def run(pytester: pytest.Pytester, *args: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest in this process, check that nothing is left open, and check the passed outcomes."""
    with one_thread(), young_heap(), warnings.catch_warnings(record=True):
        warnings.simplefilter("default")  # warnings are errors in this suite, but not for users
        result = pytester.runpytest_inprocess(*ALONE, *args)
    left_open = close_what_is_open()
    assert not left_open, f"the run left open: {left_open}"
    if outcomes:
        result.assert_outcomes(**outcomes)
    return result


@dataclass(frozen=True)
class Judged:
    """A run that measured.

    Args:
        result: status and output of pytest.
        run: data of its reports.
    """

    result: pytest.RunResult
    run: ReportedRun

    def verdicts(self, gate: int = 0) -> dict[str, int]:
        """Return the number of verdicts of a gate, by verdict."""
        return Counter(str(each.verdict) for each in self.run.gates[gate].verdicts)

    def compared(self, label: str, state: str = "hit") -> str:
        """Return the verdict of a row of the saved run; empty if absent."""
        rows = [each for each in self.run.compared if (each.row.label, each.row.state) == (label, state)]
        return str(rows[0].verdict) if rows else ""


def judged(pytester: pytest.Pytester, *args: str, **outcomes: int) -> Judged:
    """Run pytest in this process, and return its output with the data of its reports."""
    reported: list[ReportedRun] = []
    end = Run.end

    def recorded(ended: Run) -> None:
        end(ended)
        reported.append(ended.reported)

    with patch.object(Run, "end", recorded):
        result = run(pytester, *args, **outcomes)
    return Judged(result, reported[-1] if reported else ReportedRun())


def passed(ran: Judged, **verdicts: int) -> Judged:
    """Check that a run passed with these numbers of verdicts; return it."""
    assert ran.result.ret == pytest.ExitCode.OK, text_of(ran.result)
    assert ran.verdicts() == verdicts
    return ran


def failed(ran: Judged, tests: int = 2, **verdicts: int) -> Judged:
    """Check that only gates failed a run, the first with these numbers of verdicts; return it."""
    assert_gate_failed(ran.result, "gate: failed against ", passed=tests)
    assert ran.verdicts() == verdicts
    return ran


def measure(pytester: pytest.Pytester, *args: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest with --dtdispatch and few samples."""
    return run(pytester, *MEASURED, *args, **outcomes)


def measure_source(pytester: pytest.Pytester, source: str, *args: str, **outcomes: int) -> pytest.RunResult:
    """Measure a module test_it.py that consists of IMPORTS and the source."""
    return judge_source(pytester, source, *args, **outcomes).result


def judge_source(pytester: pytest.Pytester, source: str, *args: str, **outcomes: int) -> Judged:
    """Like measure_source, with the data of its reports."""
    pytester.makepyfile(test_it=f"{IMPORTS}\n{dedent(source)}")
    return judged(pytester, *MEASURED, *args, **outcomes)


def rows(pytester: pytest.Pytester, *args: str, **outcomes: int) -> tuple[pytest.RunResult, list[Any]]:
    """Measure, and return the rows in the JSON file of pytest-benchmark."""
    path = pytester.path / "rows.json"
    result = measure(pytester, f"--benchmark-json={path}", *args, **outcomes)
    return result, benchmarks_of(path)


def benchmarks_of(path: Path) -> list[dict[str, Any]]:
    """Return the benchmarks in a file of pytest-benchmark; empty if the file is missing or empty."""
    if not path.exists() or not path.stat().st_size:
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text())["benchmarks"]
    return found


def text_of(result: pytest.RunResult) -> str:
    """Return the whole output of a run."""
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def assert_reported_once(result: pytest.RunResult, line: str) -> None:
    """Check that a user error is reported in one line, once, without frames of the plugin or of torch."""
    text = text_of(result)
    body, _, _ = text.partition("short test summary info")
    assert len([each for each in body.splitlines() if line in each]) == 1, text
    for frame in ("pytest_dtdispatch/", "site-packages", "INTERNALERROR", "During handling"):
        assert frame not in text


def assert_refused(result: pytest.RunResult, *words: str) -> None:
    """Check that a run was refused with one line before any test ran."""
    text = text_of(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    [line] = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    for word in words:
        assert word in line
    for frame in ("Traceback", "INTERNALERROR", "test session starts", "site-packages"):
        assert frame not in text


def assert_gate_failed(result: pytest.RunResult, *words: str, passed: int) -> str:
    """Check that only a gate failed a run, without a traceback; return the output."""
    text = text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    result.assert_outcomes(passed=passed)
    assert result.outlines[-1].startswith("="), text  # pytest's own summary line
    for word in words:
        assert word in text
    for frame in ("Traceback", "INTERNALERROR", "pytest_dtdispatch/"):
        assert frame not in text
    return text


# Each test starts without open modes of the previous one.
NOTHING_OPEN = """
@pytest.fixture(autouse=True)
def nothing_open():
    assert not _get_current_dispatch_mode_stack()
"""
HERE = "  # here"


def assert_mistakes(
    pytester: pytest.Pytester, mistakes: Sequence[tuple[str, str]], *flags: str, source: str = IMPORTS
) -> None:
    """Check that each body fails with its error, at its line ``# here`` or else at the last one."""
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
    errors = [line for line in body.splitlines() if line.startswith("E ")]
    for line, (_, message) in zip(errors, mistakes, strict=True):
        assert message in line, line
    pointed_at = [line for line in body.splitlines() if line.startswith(">") and line.endswith(HERE)]
    assert len(pointed_at) >= len(bodies)
    for frame in ("pytest_dtdispatch/", "site-packages", "INTERNALERROR", "During handling"):
        assert frame not in body


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every replacement of a file fail, as on a full disk."""

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: waiting for a second takes milliseconds on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def close_what_is_open() -> list[str]:
    """Close every process group and dispatch mode, so that the next test starts clean; return their names."""
    found = [type(mode).__name__ for mode in reversed(open_modes())]
    for mode in reversed(open_modes()):
        mode.__exit__(None, None, None)
    if dist.is_initialized():
        found.append(f"process group of {dist.get_world_size()}")
        dist.destroy_process_group()
    return found


def import_everything() -> None:
    """Import all modules that a run imports lazily, by measuring once.

    Pytester unloads modules that a run imports first, and torch cannot be imported twice.
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
    """Import modules that the fast compile backends import lazily, by compiling with each of them."""
    for backend in ("eager", "aot_eager", "aot_eager_decomp_partition"):
        compilation = Compilation(lambda x: x + 1, (torch.ones(1, requires_grad=True),), backend=backend)
        run_and_measure_compile(compilation, backend, ShardingCaches(), Plan(1, 1))


import_everything()
# Every run that writes a file of pytest-benchmark would start processes that ask for the CPU.
pytest_benchmark.get_cpu_info = functools.cache(pytest_benchmark.get_cpu_info)
