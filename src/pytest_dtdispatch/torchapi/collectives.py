"""Collectives: their names, and observers of the ops, kernels and methods that run them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from pytest_dtdispatch.torchapi.observe import (
    FSDP_COMMON,
    SIMULATION,
    around,
    module_of,
    observe_conversions,
    observe_simulated_ops,
    optional_module,
)
from pytest_dtdispatch.torchapi.ops import op_named
from pytest_dtdispatch.torchapi.patches import calling, kernels_routed, patched
from pytest_dtdispatch.torchapi.tensors import subclasses


def collective_kind(op: str) -> str:
    """Return the name of the Python function for any variant of a collective.

    Example:
        >>> collective_kind("c10d::allgather_into_tensor_coalesced_")
        'all_gather'
    """
    name = op.rpartition("::")[2].partition(".")[0].strip("_")
    for suffix in ("_coalesced", "_into_tensor", "_tensor", "_base", "_single", "_any_source", "_anysource"):
        name = name.replace(suffix, "")
    other_spellings = {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "alltoall": "all_to_all",
        "shard_dim_alltoall": "all_to_all",
        "monitored_barrier": "barrier",
    }
    return other_spellings.get(name, name)


def collective_of(func: Any) -> str:
    """Return the collective that an op runs; empty if none."""
    has_collectives = getattr(func, "namespace", "") in ("c10d", "_c10d_functional", "_dtensor")
    kind = collective_kind(func.name()) if has_collectives else ""
    return kind if kind in _collective_kinds() else ""


def reduction_of(frame: FrameType | None, arguments: Sequence[Any]) -> str:
    """Return the reduction of a collective, such as ``sum``; empty if it is unknown, or none.

    A functional collective takes its name. Torch cannot unbox that of an op of c10d: it is read from the
    frame of the Python function.
    """
    names = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
    for each in arguments:
        if isinstance(each, str) and each in names:
            return each
    while frame is not None and module_of(frame) != "torch.distributed.distributed_c10d":
        frame = frame.f_back
    op = frame.f_locals.get("op", frame.f_locals.get("reduceOp")) if frame else None
    return str(getattr(op, "name", "")).lower()


@functools.cache
def _collective_kinds() -> frozenset[str]:
    return frozenset(collective_kind(op.name()) for op in _collective_ops())


@functools.cache  # listing all ops takes milliseconds, and torch loads those of c10d together
def _collective_ops(space: str = "c10d") -> tuple[Any, ...]:
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{space}::"))
    return tuple(op_named(name) for name in names if name.partition(".")[0] != "c10d::check_for_nan")


@contextmanager
def observe_transfers(observer: Any) -> Iterator[None]:
    """Route redistributions, collectives, wraps and unwraps of every thread through methods of an observer.

    Each method receives the torch function and its arguments, and must call it.
    """
    for name in (SIMULATION, FSDP_COMMON):  # a step may be the first to import them
        optional_module(name)
    methods = {
        "implied": observer.on_implied,
        "redistribution": observer.on_redistribution,
        "exchange": observer.on_exchange,
        "observed": observer.on_observation,
        "backward": observer.on_backward,
    }
    kinds = _collective_kinds()
    # All collectives of torch dispatch to ops of c10d. On meta, functional ones have separate kernels.
    of_c10d = {op: partial(observer.on_collective, collective_kind(op.name())) for op in _collective_ops()}
    functional = filter(collective_of, _collective_ops("_c10d_functional"))
    on_meta = {op: partial(_on_op_on_meta, observer, collective_kind(op.name())) for op in functional}
    with ExitStack() as stack:
        stack.enter_context(around(methods))
        stack.enter_context(observe_simulated_ops(partial(_on_simulated_op, observer)))
        stack.enter_context(kernels_routed("c10d", of_c10d))
        stack.enter_context(kernels_routed("_c10d_functional", on_meta))
        # Methods of Python process groups bypass these ops. C++ classes have no Python functions.
        for group in subclasses(torch.distributed.ProcessGroup):
            for name, method in list(vars(group).items()):
                kind = collective_kind(name)
                if isinstance(method, FunctionType) and kind in kinds:
                    stack.enter_context(patched(group, name, calling(partial(observer.on_collective, kind))))
        stack.enter_context(observe_conversions(observer))
        yield


def _on_op_on_meta(observer: Any, kind: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Notify of calls with a plain tensor on meta. Its type is checked, as fake tensors also report meta."""
    if any(type(leaf) is torch.Tensor and leaf.is_meta for leaf in tree_leaves(args)):
        return observer.on_collective(kind, run, *args, **kwargs)
    return run(*args, **kwargs)


def _on_simulated_op(observer: Any, run: Callable[..., Any], op: Any, *args: Any, **kwargs: Any) -> Any:
    kind = collective_of(op)
    return observer.on_collective(kind, run, *args, **kwargs) if kind else run()
