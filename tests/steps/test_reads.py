"""Reads of values by the host are counted once, with their line; other calls are not counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch.core.events import Phase
from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import counts_of
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = pytest.mark.torch

X = torch.arange(64.0).reshape(8, 8)
MASK, NUMBER = X > 32, torch.tensor(3)
Make = Callable[..., DTensor]


def test_reads_equal_those_observed_by_a_mode() -> None:
    class Seen(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
            return func(*args, **(kwargs or {}))

    def step() -> None:
        for number in range(7):
            (NUMBER + number).item()
        MASK.nonzero()

    with Seen() as seen:  # type: ignore[no-untyped-call]
        step()
    assert len(counts_of(step).reads) == seen.count == 8


def test_read_of_partial_dtensor_is_marked(shard: Make) -> None:
    total: Any = shard(8, 8).sum()
    before = total.item()
    [partial] = counts_of(lambda: total.item()).reads
    assert partial.is_partial
    assert (partial.tensor, partial.placements) == ("f32[]", ("P",))
    assert total.item() == before
    [reduced] = counts_of(lambda: total.full_tensor().item()).reads
    assert not reduced.is_partial
    [compared] = counts_of(lambda: torch.equal(total, total)).reads
    assert (compared.op, compared.is_partial) == ("equal", False), "torch reduces the value first"


def test_reading_a_dtensor_changes_no_other_count(shard: Make) -> None:
    total = shard(8, 8).sum()
    total.item()
    counts = counts_of(lambda: [total.item() for _ in range(3)])
    assert (counts.hits + counts.unpropagated, counts.misses, len(counts.reads)) == (3, 0, 3)


def test_reads_by_torch_or_us_are_not_counted(shard: Make) -> None:
    a = shard(8, 8)

    def step() -> None:
        a.sum()  # the text of its miss names the mesh
        assert a.device_mesh.get_coordinate()

    ShardingCaches().clear_all()
    counts = counts_of(step)
    assert (counts.misses, counts.reads) == (1, ())


@needs(FSDP_WITHOUT_CUDA)
def test_clipped_step_under_fsdp_has_no_reads(mesh: DeviceMesh) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    stepping = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        model(X).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepping.step()
        stepping.zero_grad()

    step()
    assert counts_of(step).reads == ()


class PassingOn(TorchDispatchMode):
    def __init__(self, counter: StepCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [CallNotes, PassingOn], ids=["warm-up", "program"])
def test_optimizer_reads_nothing_inside_a_mode(mode: Callable[[StepCounter], Any]) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(X).sum().backward()

    def step() -> None:
        with mode(counter):
            optimizer.step()
            NUMBER.item()

    with StepCounter() as counter:
        step()
        assert [read.tensor for read in counter.lap().reads] == ["i64[]"]


def test_reads_have_module_and_phase() -> None:
    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.sum().item()
            return x * 2

    model = nn.Sequential(nn.Linear(8, 8), Reading())
    weight: Any = model[0].weight

    def log(parameter: torch.Tensor) -> None:
        parameter.grad.norm().item()  # type: ignore[union-attr]

    weight.register_post_accumulate_grad_hook(log)

    def step() -> None:
        model(X).sum().backward()

    step()
    in_forward, in_hook = counts_of(step).reads
    assert in_forward.place is not None
    assert in_hook.place is not None
    assert (in_forward.place.module, in_forward.place.phase) == ("1", Phase.FORWARD)
    assert in_hook.place.phase is Phase.BACKWARD


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_graph_reads_at_its_calling_line(backend: str) -> None:
    torch.compiler.reset()

    @torch.compile(backend=backend, fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero()

    def step() -> None:
        compiled(X)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        step()
        [read] = counts_of(step).reads
    assert read.place is not None
    assert (read.place.line, read.place.module) == (step.__code__.co_firstlineno + 1, "")
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_number_that_a_graph_returns_is_read_once(backend: str) -> None:
    """Dynamo returns it as a tensor on the host, and reads that too."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x.sum().item(), backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled(X)
        [read] = counts_of(lambda: compiled(X)).reads
    assert (read.op, read.tensor) == ("item", "f32[]")
    torch.compiler.reset()


@needs("types.CodeType.co_positions")
def test_read_at_graph_break_has_its_line() -> None:
    torch.compiler.reset()
    function = lambda x: x * x.sum().item()  # noqa: E731 (one line)
    compiled = torch.compile(function, backend="eager")
    compiled(X)

    [read] = counts_of(lambda: compiled(X)).reads
    assert read.place is not None
    assert read.place.line == function.__code__.co_firstlineno
    torch.compiler.reset()


def test_original_handler_is_restored(shard: Make) -> None:
    total, op = shard(8, 8).sum(), torch.ops.aten._local_scalar_dense.default
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    with StepCounter():
        installed = handlers[op]
        total.item()
        assert handlers[op] is installed


def test_read_that_outlasts_counting_leaves_no_handler(shard: Make) -> None:
    """Another thread may still be reading when counting ends."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    op, counting = torch.ops.aten._local_scalar_dense.default, StepCounter()
    with counting:
        handler = handlers[op]
    handler(op, (shard(8, 8).sum(),), {})
    assert op not in handlers


def test_all_patches_are_removed() -> None:
    counts_of(NUMBER.item)
    assert "tolist" not in vars(torch.Tensor)
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    assert torch.ops.aten._local_scalar_dense.default not in handlers
