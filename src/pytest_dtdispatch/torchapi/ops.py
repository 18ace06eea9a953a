"""Ops and their schemas, and dispatch modes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

from pytest_dtdispatch.core.events import FOREACH, FUSED, OptimizerStep
from pytest_dtdispatch.core.text import ask
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


@functools.lru_cache(maxsize=1024)
def _foreach_of(func: Any) -> str:
    """Return the function that runs an op on lists, if DTensor has a rule for it; else empty."""
    name = f"_foreach_{func._opname}"
    has_rule = any(each.partition(".")[0] == name for each in ops_with_a_rule())
    return f"torch.{name}" if has_rule else ""


@functools.lru_cache(maxsize=1024)
def _options_of_foreach(func: Any) -> frozenset[str]:
    """Return the names of all arguments of the overloads of the op on lists."""
    packet = getattr(torch.ops.aten, f"_foreach_{func._opname}")
    overloads = (getattr(packet, name) for name in packet.overloads())
    return frozenset(argument.name for each in overloads for argument in schema_of(each))


def replacement_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Return the function whose one call can replace calls of an op that writes, or of ``select``."""
    if func is torch.ops.aten.select.int:
        tensor, dim = args[0], args[1] % args[0].dim()
        is_whole = not any(placement.is_shard(dim) for placement in tensor.placements)
        return f"unbind({args[1]})" if is_whole else ""
    found = _foreach_of(func) if is_op(func) and func._opname.endswith("_") else ""
    return found if found and _options_of_foreach(func).issuperset(kwargs) else ""


def is_pointwise(func: Any) -> bool:
    """Return whether each element of an op's result depends on one element of each argument."""
    return is_op(func) and torch.Tag.pointwise in func.tags


def written_leaves(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the flattened arguments that an op writes to according to its schema."""
    return leaves_of([value for each, value in arguments_of(func, args, kwargs) if is_written(each)], {})


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
def takes_tensors(func: Any, names: frozenset[str], numbers: frozenset[str]) -> bool:
    """Return whether an overload of an op with a DTensor rule takes tensors as these arguments.

    Args:
        func: the op.
        names: names of arguments that are to be tensors.
        numbers: names of other arguments that are numbers: torch makes numbers of all if one has to be one.
    """
    with_a_rule = ops_with_a_rule()
    overloads = (getattr(func.overloadpacket, each) for each in func.overloadpacket.overloads())
    for schema in (schema_of(op) for op in overloads if op_name(op) in with_a_rule):
        tensors = {each.name for each in schema if str(each.type) in ("Tensor", "Optional[Tensor]")}
        if tensors.issuperset(names) and tensors.isdisjoint(numbers):
            return True
    return False


def describe_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerStep | None:
    """Describe an optimizer before its step; return None if its class is not torch's."""
    name = type(optimizer).__name__
    if getattr(torch.optim, name, None) is not type(optimizer):
        return None
    groups = [[each for each in group["params"] if each.grad is not None] for group in optimizer.param_groups]
    kinds = [{each.device_mesh if isinstance(each, DTensor) else None for each in group} for group in groups]
    meshes = [{*group} - {None} for group in kinds]
    used = [each for group in groups for each in group]
    gradients = (each.grad for each in used if isinstance(each.grad, DTensor))
    option = _option_of(optimizer) if all(each.is_floating_point() for each in used) else ""
    return OptimizerStep(
        name,
        option,
        any(None in group and len(group) > 1 for group in kinds),
        any(placement.is_partial() for gradient in gradients for placement in gradient.placements),
        not option or all(len(group) < 2 or _takes(type(optimizer), option, group) for group in meshes),
    )


def _option_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the argument that makes an optimizer call fewer ops; empty if there is none."""
    name, rules = type(optimizer).__name__.lower(), ops_with_a_rule()
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return ""
    if f"_fused_{name}_.default" in rules:
        return FUSED
    return FOREACH if "foreach" in optimizer.defaults and "_foreach_add_.List" in rules else ""


def _takes(kind: Any, option: str, meshes: Iterable[Any]) -> bool:
    """Return whether an optimizer with an option steps over DTensors of several meshes, by a trial."""
    parameters = []
    with unnoticed():
        for mesh in meshes:
            ones = torch.ones(1, device=mesh.device_type)
            whole = DTensor.from_local(ones, mesh, [Replicate()] * mesh.ndim, run_check=False)
            parameters.append(torch.nn.Parameter(whole))
            parameters[-1].grad = whole.clone()
        trial = kind(parameters, **{option.partition("=")[0]: True})
        return ask(lambda each: each.step() is None, trial, False)


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
