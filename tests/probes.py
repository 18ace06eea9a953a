"""Probes for features that differ between versions of torch; skips name the missing feature."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest


def has(name: str) -> bool:
    """Return whether an interface exists: ``torch._C._clear_DTensor_sharding_propagator_cache``."""
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip a test if an interface is missing, and name it."""
    missing = ", ".join(name for name in names if not has(name))
    return pytest.mark.skipif(bool(missing), reason=f"this environment has no {missing}")


def needs_plugin(module: str) -> pytest.MarkDecorator:
    """Skip a test of another pytest plugin if it is not installed."""
    return pytest.mark.skipif(not find_spec(module), reason=f"{module} is not installed")


def needs_that(probe: Callable[[], str]) -> pytest.MarkDecorator:
    """Skip a test if a probe returns a reason, which names the missing feature."""
    missing = probe()
    return pytest.mark.skipif(bool(missing), reason=missing or "nothing is missing")


# As part of torch.distributed._composable, it required CUDA streams.
FSDP_WITHOUT_CUDA = "torch.distributed.fsdp.fully_shard"
NATIVE_CACHE = "torch._C._get_DTensor_sharding_propagator_cache_stats"
SLOW_PATH_NAME = "torch.distributed.tensor.DTensor._op_dispatcher._propagate_op_sharding_dispatch_slow_path"


def has_rule(op: str) -> bool:
    """Return whether DTensor has a sharding rule for an op: ``argmax.default``."""
    from pytest_dtdispatch.torchapi.ops import ops_with_a_rule

    return op in ops_with_a_rule()


def needs_rule(op: str) -> pytest.MarkDecorator:
    """Skip a test if DTensor has no sharding rule for an op."""
    return needs_that(lambda: "" if has_rule(op) else f"DTensor has no sharding rule of {op}")


def fake_group_writes() -> bool:
    """Return whether collectives of the open group write results: those of old fake groups do not."""
    import torch
    import torch.distributed as dist

    written = torch.full((2,), 7.0)
    dist.scatter(written, [torch.ones(2) for _ in range(dist.get_world_size())])
    return bool((written == 1).all())


@functools.cache
def compiles_once_under_a_mode() -> str:
    """Return an error if compiled code is recompiled under a no-op infra mode; else empty."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Nothing(TorchDispatchMode):
        @classmethod
        def is_infra_mode(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    double, ones = torch.compile(lambda x: x + x, backend=backend), torch.ones(4)
    double(ones)
    for _ in range(2):
        with Nothing():  # type: ignore[no-untyped-call]
            double(ones)
    torch._dynamo.reset()
    return "" if len(graphs) == 1 else "this torch recompiles code under an open TorchDispatchMode"


LOCAL_TENSOR = "torch.distributed._local_tensor"  # simulated ranks in one process
# Derives a rule for an op from the rules of its decomposition.
DECOMPOSING = "torch.distributed.tensor._decompositions.DecompShardingStrategy"


def is_replanned_for_scalar_type(mesh: Any) -> bool:
    """Return whether an op called with an int is planned again for a float."""
    return plans_again(mesh, lambda rows: rows + 1, lambda rows: rows + 1.5)


def is_replanned_for_scalar_value(mesh: Any) -> bool:
    """Return whether ``addcdiv_`` is planned again for another value: each step of AdamW's loop has one."""
    return plans_again(
        mesh,
        lambda rows: rows.addcdiv_(rows, rows, value=0.5),
        lambda rows: rows.addcdiv_(rows, rows, value=0.25),
    )


def plans_again(mesh: Any, *calls: Callable[[Any], Any]) -> bool:
    """Return whether the last of several calls on a DTensor is planned after the others have run."""
    from unittest.mock import patch

    import torch
    from torch.distributed.tensor import DTensor, Shard

    from pytest_dtdispatch.torchapi.observe import POINTS
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

    propagator = DTensor._op_dispatcher.sharding_propagator
    name = next(name for name in POINTS["tensor_meta"].names if hasattr(propagator, name))
    rows = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)])
    *before, last = calls
    ShardingCaches().clear_all()
    for call in before:
        call(rows)
    with patch.object(propagator, name, wraps=getattr(propagator, name)) as planned:
        last(rows)
    return bool(planned.called)


def head_product_error(mesh: Any) -> str:
    """Return an error if attention matrices sharded by heads cannot be multiplied; else empty."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    heads = DTensor.from_local(torch.ones(2, 1, 2, 2), mesh, [Shard(1)])
    try:
        heads @ heads
    except RuntimeError as error:
        return f"this torch cannot multiply batches of matrices sharded by heads: {error}"
    return ""


@functools.cache
def modes_add_detaches() -> bool:
    """Return whether autograd detaches a gradient again for each open TorchDispatchMode."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Naming(TorchDispatchMode):
        ops: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    leaf = torch.ones(2, requires_grad=True)
    with Naming():  # type: ignore[no-untyped-call]
        (leaf * 2).sum().backward()
    return Naming.ops.count("aten.detach.default") > 1


def dynamic_compile_error(rows: Any) -> str:
    """Return an error if functions on DTensors do not compile with dynamic shapes; else empty."""
    import torch

    torch._dynamo.reset()
    try:
        torch.compile(lambda x: x + x, backend="eager", dynamic=True)(rows)
    except torch._dynamo.exc.TorchRuntimeError as error:
        return (
            f"this torch cannot compile DTensor functions with dynamic shapes: {str(error).splitlines()[0]}"
        )
    finally:
        torch._dynamo.reset()
    return ""


def fused_adamw_leaks_specs(mesh: Any) -> bool:
    """Return whether a step of AdamW's fused implementation leaks a spec."""
    import gc

    import torch
    from torch.distributed.tensor import DTensor, Shard

    from pytest_dtdispatch.torchapi.tensors import DTensorSpec

    def specs() -> int:
        gc.collect()
        return sum(type(each) is DTensorSpec for each in gc.get_objects())

    parameter: Any = torch.nn.Parameter(DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)]))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    for _ in range(3):
        optimizer.step()
    before = specs()
    optimizer.step()
    return specs() > before


@functools.cache
def on_a_fake_mesh(probe: Callable[[Any], Any]) -> Any:
    """Return the result of a probe on a mesh of four ranks of a temporary fake group."""
    from contextlib import closing

    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.meshes.spec import MeshSpec

    with closing(ProcessGroupOwner()) as owner:
        return probe(owner.mesh(MeshSpec((4,), "cpu", "fake")))
