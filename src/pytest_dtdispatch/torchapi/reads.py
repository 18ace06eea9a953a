"""Reads of tensor values by the host: torch ops, methods and functions that wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.compiler import is_generated
from pytest_dtdispatch.torchapi.observe import Point, patch
from pytest_dtdispatch.torchapi.patches import (
    call_hidden,
    has_torch_function,
    kernels_routed,
    skipped_by_compiler,
)

# Ops that read values, or whose result shape depends on values, with the names of their functions.
OPS = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "equal": "equal",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique_consecutive",
    "repeat_interleave.Tensor": "repeat_interleave",
    "bincount": "bincount",
}
# Ops that read values only on a CPU: to check arguments, and numbers that a GPU kernel reads itself.
CPU_READERS = (
    *("_index_put_impl_", "multinomial", "_assert_async", "_assert_async.msg"),
    *("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"),
    *("_fused_sgd_.tensor_lr", "_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr"),
)
# Methods and functions that call no op on a CPU tensor.
METHODS = {
    Point(("torch",), "Tensor", (name,), is_required=True): name for name in ("tolist", "numpy", "cpu")
} | {Point(("torch._tensor_str",), "", ("_str",), is_required=True): "print"}
# Modules whose tensors are always on the host: ranks of a mesh, states of generators.
HOST_MODULES = (
    *("torch.distributed.device_mesh", "torch.distributed._mesh_layout"),
    *("torch.distributed.tensor.placement_types", "torch.distributed.tensor._random"),
)
DTENSOR_OPS = {torch.ops.aten._local_scalar_dense: "item", torch.ops.aten.equal: "equal"}
FOLDER = __name__.rpartition(".")[0]
PASSING = (FOLDER, "torch._compile", "torch._dynamo.eval_frame")  # call ops for others


@contextmanager
def observe_reads(observer: Any) -> Iterator[None]:
    """Route reads of every thread through methods of an observer, which must call their first argument.

    * ``on_read(run, name, tensor, *args, **kwargs)``: a read; a read of a DTensor contains that of its shard
    * ``on_cpu_reader(run, *args, **kwargs)``: an op that reads numbers only on a CPU
    """
    wraps = {point: partial(_reading, observer, name) for point, name in METHODS.items()}
    with kernels_routed("aten", dict(_listeners(observer))), patch(wraps), _handling(observer):
        yield


def _listeners(observer: Any) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield the ops that this torch has, with the listeners of their calls."""
    for name in (*OPS, *CPU_READERS):
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if op is not None:
            is_reader = name in CPU_READERS
            yield op, observer.on_cpu_reader if is_reader else partial(_on_op, observer, OPS[name])


def _on_op(observer: Any, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("output_size") is not None:  # repeat_interleave then reads no value for its result shape
        return run(*args, **kwargs)
    return observer.on_read(run, name, *args, **kwargs)


def _reading(observer: Any, name: str, inner: Any) -> Any:
    def read(*args: Any, **kwargs: Any) -> Any:  # a function, so that it is bound as a method
        __tracebackhide__ = True
        if has_torch_function(args):
            return call_hidden(observer.on_read, inner, name, *args, **kwargs)
        return observer.on_read(inner, name, *args, **kwargs)

    return skipped_by_compiler(read)


@contextmanager
def _handling(observer: Any) -> Iterator[None]:
    """Notify an observer of reads of DTensors, as kernels receive only their local tensors.

    A handler of the dispatcher calls the op again with the handler removed, so that calls, hits and misses
    are unchanged.
    """
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    reading = {ops.default: name for ops, name in DTENSOR_OPS.items() if ops.default not in handlers}

    def handle(op: Any, args: Any, kwargs: Any) -> Any:
        handlers.pop(op, None)
        try:
            return call_hidden(observer.on_read, op, reading[op], *args, **kwargs)
        finally:
            handlers.update({op: handler} if is_open else {})

    handler, is_open = skipped_by_compiler(handle), True
    handlers.update(dict.fromkeys(reading, handler))
    try:
        yield
    finally:
        is_open = False  # for running reads in other threads
        for op in reading:
            handlers.pop(op, None)


def is_host_read(frame: FrameType) -> bool:
    """Return whether this package or torch is reading a tensor that is always on the host.

    Args:
        frame: frame that called the observer; the innermost frame outside of this folder, and of a dispatch
            mode that passed the op on, reads.
    """
    while _module(frame).startswith(PASSING) and frame.f_back:
        frame = frame.f_back
        if _module(frame) == "torch._ops":  # calls ops for modes
            frame = _caller_of_mode(frame) or frame
    module = _module(frame)
    is_ours = module.partition(".")[0] == FOLDER.partition(".")[0]
    # The function reads the steps of an optimizer.
    is_steps = module == "torch.optim.optimizer" and frame.f_code.co_name == "_get_value"
    # Generated code reads a number that a graph returned.
    return is_ours or is_steps or module in HOST_MODULES or is_generated(frame)


def _caller_of_mode(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame and frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def waits_for_device(tensor: Any) -> bool:
    """Return whether reading a tensor waits for a device, or would on a machine with one."""
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta:
        return False
    return tensor.device.type != "cpu" or not torch.cuda.is_initialized()
