"""Memory held by measuring: one copy of written tensors during an op, nothing afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.measured_runs import FEW, Make

pytestmark = [pytest.mark.torch, pytest.mark.slow]

UNARY = ("sin", "cos", "tanh", "sigmoid", "exp", "neg", "abs", "relu", "square", "sqrt", "ceil", "floor")


@pytest.mark.parametrize("mode", [nullcontext, lambda: SignatureCapture(ResultStore(), FEW), TimeCaptureMode])
def test_only_last_result_of_a_chain_is_alive(
    mode: Callable[[], Any], shard: Make, request: pytest.FixtureRequest
) -> None:
    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    x, results = shard(8, 8), []
    with mode():
        for name in UNARY:
            x = getattr(x, name)()
            results.append(weakref.ref(x))
    assert [each() is not None for each in results] == [False] * (len(UNARY) - 1) + [True]


# A subprocess, whose memory is separate from that of the tests.
MEMORY = """
import resource
import torch
from torch.distributed.tensor import DTensor, Shard
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.core.store import ResultStore

mesh = ProcessGroupOwner().mesh(MeshSpec((4,), "cpu", "fake"))
MB = 2**20

def make(megabytes):
    return DTensor.from_local(torch.ones(megabytes * MB // 4), mesh, [Shard(0)], run_check=False)

def peak(run):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    run()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

def captured(op):
    with SignatureCapture(ResultStore(), Plan(1, 1)):
        op()

a, b, c, pair = make(100), make(100), make(100), [make(50), make(50)]
ops = {
    "in place": lambda: a.add_(1),
    "out": lambda: torch.add(a, b, out=c),
    "foreach": lambda: torch._foreach_mul_(pair, 1.0),
}
for name, op in ops.items():
    op()
    print(name, round(peak(lambda: captured(op)) - peak(op)), sep=":")

del a, b, c, pair, ops, op
a = DTensor.from_local(torch.zeros(500 * 2**18), mesh, [Shard(0)], run_check=False)
a.add_(1)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 300 * 2**20, -1))
book = ResultStore()
with SignatureCapture(book, Plan(1, 1)):
    a.add_(1)
[measured] = book.measurements()
print(*measured.figures.notes)
print(a.to_local().min().item(), a.to_local().max().item())
"""


def test_written_tensors_are_copied_at_most_once() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    *peaks, reason, values = ran.stdout.splitlines()
    over = {name: int(megabytes) for name, megabytes in (line.split(":") for line in peaks)}
    assert over.keys() == {"in place", "out", "foreach"}
    assert all(megabytes <= 110 for megabytes in over.values()), over
    assert [reason, values] == [
        "runs once: no memory for a copy of the 524,288,000 bytes that it writes",
        "2.0 2.0",
    ]


def test_repeated_signature_in_capture_retains_no_objects(shard: Make) -> None:
    a, book = shard(8, 8), ResultStore()
    with SignatureCapture(book, FEW):
        for _ in range(100):
            a + a
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(3000):
            a + a
        gc.collect()
        assert len(gc.get_objects()) - before < 100
    [measured] = book.measurements()
    assert measured.calls == 3100
    assert measured.of(State.HIT)
