"""Measuring on a CUDA device in one process: NCCL on a mesh of one rank, a fake group on larger ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import choose_mesh
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import run_and_measure_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = [
    pytest.mark.torch,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is available"),
]

Capture = Callable[..., dict[str, Measurement]]


@pytest.fixture(params=[(1,), (4,)], ids=["NCCL", "fake"])
def cuda_mesh(request: pytest.FixtureRequest, group_owner: ProcessGroupOwner) -> Any:
    return group_owner.mesh(choose_mesh(request.param, "cuda", "auto"))


def sharded(mesh: Any, requires_grad: bool = False) -> Any:
    a = distribute_tensor(torch.rand(16, 16, device="cuda"), mesh, [Shard(0)])
    return a.requires_grad_(requires_grad)


def test_auto_selects_nccl_only_for_one_rank(cuda_mesh: Any) -> None:
    assert dist.get_backend() == ("nccl" if cuda_mesh.size() == 1 else "fake")
    assert cuda_mesh.device_type == "cuda"


def test_add_is_proved_on_miss_and_hits(cuda_mesh: Any, capture: Capture) -> None:
    a = sharded(cuda_mesh)
    add = capture(lambda: a + a, rounds=3, repeat=4)["add.Tensor"]
    counts = {samples.state: len(samples.ns) for samples in add.figures.samples}
    assert counts == {State.MISS: 3, State.HIT: 12, State.LOCAL: 12}
    assert add.proof == "proved"
    assert add.full_label.endswith(":cuda")


@pytest.mark.parametrize(
    "draw",
    [lambda a: a.uniform_(), torch.rand_like, torch.nn.functional.dropout],
    ids=["uniform_", "rand_like", "dropout"],
)
def test_captured_random_ops_draw_equal_numbers(cuda_mesh: Any, draw: Callable[[Any], Any]) -> None:
    seen = []
    for captured in (False, True):
        torch.manual_seed(3)
        a = sharded(cuda_mesh)
        with SignatureCapture(ResultStore(), Plan(2, 3)) if captured else nullcontext():
            result = draw(a)
        seen.append((result.to_local().clone(), torch.cuda.get_rng_state(), torch.get_rng_state()))
    assert all(map(torch.equal, *seen))


def test_captured_backward_computes_equal_gradients(cuda_mesh: Any) -> None:
    seen, book = [], ResultStore()
    for captured in (False, True):
        torch.manual_seed(3)
        a = sharded(cuda_mesh, requires_grad=True)
        with SignatureCapture(book, Plan(2, 3)) if captured else nullcontext():
            for _ in range(2):
                (a * a).sum().backward()
        seen.append((a.grad.to_local().clone(), torch.cuda.get_rng_state()))
    assert all(map(torch.equal, *seen))
    measured = {m.op: m for m in book.measurements()}
    assert {"mul.Tensor", "expand.default"} <= measured.keys()
    # The backward runs in a thread of the device, which has separate caches.
    assert all(m.proof == "proved" for m in measured.values())


def test_measured_closure_has_effects_of_one_call(cuda_mesh: Any) -> None:
    seen = []
    for measured in (False, True):
        torch.manual_seed(3)
        a = sharded(cuda_mesh)

        def fn(a: Any = a) -> Any:
            return a.add_(1.0), torch.rand(3, device="cuda"), torch.rand_like(a)

        if measured:
            (_, plain, drawn), _, figures = run_and_measure_call(fn, (), None, ShardingCaches(), Plan(2, 3))
        else:
            _, plain, drawn = fn()
        seen.append((a.to_local().clone(), plain, drawn.to_local(), torch.cuda.get_rng_state()))
    assert all(map(torch.equal, *seen))
    assert {s.state for s in figures.samples if s.ns} == {State.MISS, State.HIT}
