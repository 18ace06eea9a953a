"""Ops and their schemas, and dispatch modes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

from pytest_dtdispatch.core.events import OptimizerStep
from pytest_dtdispatch.torchapi.patches import calling, patched


def is_op(func: Any) -> bool:
    """Return whether a callable is an op overload; a higher-order operator, without a schema, is not."""
    return isinstance(func, torch._ops.OpOverload)


def below_modes(func: Any) -> AbstractContextManager[Any]:
    """Return a context in which a dispatch mode calls an op with the autograd and versions of a plain call.

    Below a mode, torch excludes autograd and version counters. Kernels of aten exclude both themselves.
    Kernels of collectives increment versions: a gathered tensor has as many versions as ranks. Kernels of
    users' libraries may rely on the autograd of the ops that they call.
    """
    keys = () if torch.is_inference_mode_enabled() else _keys_of_kernel(func)
    if not keys:
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


@functools.cache
def _keys_of_kernel(func: Any) -> tuple[Any, ...]:
    """Return the dispatch keys that an op needs and that its kernels do not exclude themselves."""
    if not is_op(func) or func.namespace in ("aten", "prim", "prims"):
        return ()
    keys = torch._C.DispatchKey
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    counting = () if has_kernel("ADInplaceOrView") else (keys.ADInplaceOrView,)
    return counting if has_kernel("Autograd") else (*counting, keys.AutogradFunctionality, keys.AutogradOther)


def op_name(func: Any) -> str:
    """Return the name of an op in tables, ``add.Tensor``, with its namespace unless that is ``aten``."""
    namespace = getattr(func, "namespace", "aten")
    return str(func.__name__) if namespace == "aten" else f"{namespace}.{func.__name__}"


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Pair the arguments that a call passes with those of the op's schema."""
    declared = {each.name: each for each in schema_of(func)}
    values = {**kwargs, **dict(zip(declared, args, strict=False))}
    return [(argument, values[name]) for name, argument in declared.items() if name in values]


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the flattened arguments of an op call."""
    values = [*args, *kwargs.values()]
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return tree_leaves(values)
    return values  # most ops; torch's tree_leaves takes ten times as long


@functools.lru_cache(maxsize=1024)  # read for every captured op, and slow to create
def schema_of(func: Any) -> tuple[Any, ...]:
    """Return the arguments of an op's schema."""
    return tuple(func._schema.arguments)


def is_written(argument: Any) -> bool:
    """Return whether an op writes to an argument of its schema, declared or not."""
    alias = argument.alias_info
    # Updated by some overloads of batch normalization whose schema does not declare it.
    is_undeclared = argument.name in ("running_mean", "running_var")
    return is_undeclared or (alias is not None and alias.is_write)


def ops_with_a_rule() -> dict[str, Any]:
    """Return the ops for which DTensor's propagator or dispatcher has a rule, by name, sorted.

    Registries that this torch lacks are skipped, and so are ``out=`` variants.
    """
    dispatcher = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    registries = (
        getattr(propagator, "op_to_rules", {}),
        getattr(propagator, "op_strategy_funcs", {}),
        getattr(propagator, "op_single_dim_strategy_funcs", {}),
        getattr(dispatcher, "_custom_op_handlers", {}),
    )
    ops = {op for registry in registries for op in registry if is_op(op)}
    return dict(sorted((op_name(op), op) for op in ops if not any(each.is_out for each in schema_of(op))))


@functools.lru_cache(maxsize=1024)
def takes_tensor(func: Any, name: str) -> bool:
    """Return whether an overload of an op with a DTensor rule takes a tensor as this argument."""
    with_a_rule = ops_with_a_rule()
    overloads = (getattr(func.overloadpacket, each) for each in func.overloadpacket.overloads())
    arguments = (each for op in overloads if op_name(op) in with_a_rule for each in schema_of(op))
    return any(each.name == name and str(each.type) in ("Tensor", "Optional[Tensor]") for each in arguments)


def describe_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerStep | None:
    """Describe an optimizer before its step; return None if its class is not torch's."""
    name = type(optimizer).__name__
    if getattr(torch.optim, name, None) is not type(optimizer):
        return None
    groups = [[each for each in group["params"] if each.grad is not None] for group in optimizer.param_groups]
    meshes = ({each.device_mesh if isinstance(each, DTensor) else None for each in group} for group in groups)
    used = [each for group in groups for each in group]
    gradients = (each.grad for each in used if isinstance(each.grad, DTensor))
    allows = not any(group.get("differentiable") for group in optimizer.param_groups)
    has_rule = f"_fused_{name.lower()}_.default" in ops_with_a_rule()
    return OptimizerStep(
        name,
        has_rule and allows and all(each.is_floating_point() for each in used),
        any(len(each) > 1 for each in meshes),
        any(placement.is_partial() for gradient in gradients for placement in gradient.placements),
    )


def count_sharded_matrices(optimizer: torch.optim.Optimizer) -> int:
    """Return how many parameters of an optimizer are DTensors of two or more dimensions and are sharded."""
    every = (each for group in optimizer.param_groups for each in group["params"])
    matrices = (each for each in every if isinstance(each, DTensor) and each.dim() > 1)
    return sum(any(not placement.is_replicate() for placement in each.placements) for each in matrices)


def returns_of(func: Any) -> Sequence[Any]:
    """Return the results that an op's schema declares."""
    results: Sequence[Any] = func._schema.returns
    return results


def without_outer_modes() -> AbstractContextManager[Any]:
    """Return a context that disables the open modes of the program."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
    return disabled


@contextmanager
def unnoticed() -> Iterator[None]:
    """Temporarily disable modes of the program and ``__torch_function__`` of its classes."""
    with without_outer_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def call_from_torch(fn: Callable[[], None]) -> Iterator[Callable[[], object]]:
    """Yield a function that has torch call ``fn``, so that warnings of C++ code are issued before it returns.

    Torch buffers such warnings until the outermost torch function of the program returns, which may be a
    whole backward. ``apply_``, here on a single element, calls back and has a separate buffer.
    """
    hidden = torch._C.DisableTorchFunction if torch._C._len_torch_function_stack() else nullcontext
    with hidden():
        # `iter` and `next` discard the element without a Python frame (see `rounds/timing.py`).
        yield partial(torch.zeros(1, device="cpu").apply_, partial(next, iter(fn, None)))


def open_modes() -> list[Any]:
    """Return the open dispatch modes of this thread, outermost first."""
    modes: list[Any] = _python_dispatch._get_current_dispatch_mode_stack()
    return modes


def close_modes_opened_since(outer: Sequence[Any]) -> list[str]:
    """Close all modes but the outer ones, innermost first, and return the names of their types."""
    inside = [mode for mode in reversed(open_modes()) if not any(mode is other for other in outer)]
    for mode in inside:
        _close(mode)
    return [type(mode).__name__ for mode in inside]


def _close(mode: Any) -> None:
    """Close a mode, even if a signal interrupted its opening or closing."""
    for close in (type(mode).__exit__, TorchDispatchMode.__exit__):
        try:
            close(mode, None, None, None)
        except IndexError:  # its record of outer modes does not exist yet, or was already popped
            continue
        return
    _python_dispatch._pop_mode(getattr(mode, "_mode_key", None))


@contextmanager
def hidden_from_debug_mode(ours: type) -> Iterator[None]:
    """Hide modes of class ``ours`` from torch's DebugMode, which would record ops of propagation."""
    name = "_get_current_dispatch_mode"
    homes = map(sys.modules.get, ("torch.utils._debug_mode._mode", "torch.utils._debug_mode"))
    home = next((each for each in homes if hasattr(each, name)), None)

    def current_mode() -> Any:
        return next((mode for mode in reversed(open_modes()) if not isinstance(mode, ours)), None)

    with patch.object(home, name, current_mode) if home else nullcontext():
        yield


def hidden_from_constructors(ours: type) -> AbstractContextManager[None]:
    """Hide modes of class ``ours`` from constructors of tensor subclasses, which torch rejects under a mode.

    ``super().__new__(cls, tensor)`` calls an op. Under a mode its result already belongs to a Python object
    of class ``Tensor``, which cannot become one of class ``cls``.
    """

    def create(new: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        modes = open_modes() if args[:1] != (torch.Tensor,) else []
        is_hidden = modes and all(isinstance(mode, ours) for mode in modes)
        with without_outer_modes() if is_hidden else nullcontext():
            return new(*args, **kwargs)

    return patched(torch.Tensor, "__new__", calling(create))


def is_mode_of_program(mode: Any) -> bool:
    """Return whether a dispatch mode was opened by the program, and not by the compiler."""
    if not isinstance(mode, TorchDispatchMode) or type(mode).__module__.startswith("torch._functorch"):
        return False
    is_infra = getattr(mode, "is_infra_mode", None)
    return is_infra is None or not is_infra()
