"""What torch dispatches: ops and their schemas, and the modes that see them."""

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

# Some overloads of batch normalisation update these, and their schema does not say so.
UNDECLARED_WRITES = ("running_mean", "running_var")


def is_op(func: Any) -> bool:
    """Return whether it is an op overload, which has a schema; a higher-order operator has none."""
    return isinstance(func, torch._ops.OpOverload)


def below_modes(func: Any) -> AbstractContextManager[Any]:
    """Return a context in which a dispatch mode calls an op whose kernels count as if no mode were open.

    Torch excludes autograd and version counters below a mode. Kernels of aten exclude both themselves. Those
    of collectives count: a gathered tensor has as many versions as ranks. Those of users' libraries may have
    no other autograd than that of the ops which they call.
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
    """Return the dispatch keys that the kernels of an op do not exclude by themselves."""
    if not is_op(func) or func.namespace in ("aten", "prim", "prims"):
        return ()
    keys = torch._C.DispatchKey
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    counting = () if has_kernel("ADInplaceOrView") else (keys.ADInplaceOrView,)
    return counting if has_kernel("Autograd") else (*counting, keys.AutogradFunctionality, keys.AutogradOther)


def is_collective(func: Any) -> bool:
    """Return whether it is a functional collective, whose output must be waited for."""
    return str(getattr(func, "namespace", "")).startswith("_c10d_functional")


def op_name(func: Any) -> str:
    """Name an op as tables do: ``add.Tensor``, and with its namespace where that is not ``aten``."""
    namespace = getattr(func, "namespace", "aten")
    return str(func.__name__) if namespace == "aten" else f"{namespace}.{func.__name__}"


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Pair the arguments of a call with the op's schema, those given and no others."""
    declared = {each.name: each for each in schema_of(func)}
    values = {**kwargs, **dict(zip(declared, args, strict=False))}
    return [(argument, values[name]) for name, argument in declared.items() if name in values]


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return every argument of an op call, lists of tensors flattened."""
    values = [*args, *kwargs.values()]
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return tree_leaves(values)
    return values  # of most ops, and torch's own function takes ten times as long


@functools.lru_cache(maxsize=1024)  # asked for every captured op, and slow to read
def schema_of(func: Any) -> tuple[Any, ...]:
    """Return the arguments that an op's schema declares, as torch describes them."""
    return tuple(func._schema.arguments)


def is_written(argument: Any) -> bool:
    """Return whether an op writes to an argument of its schema, also where that does not say so."""
    alias = argument.alias_info
    return (alias is not None and alias.is_write) or argument.name in UNDECLARED_WRITES


def ops_with_a_rule() -> dict[str, Any]:
    """Return every op that DTensor's propagator or dispatcher has a rule for, by name, in the order of names.

    Registries that this torch does not have hold no op. Variants that write to ``out=`` are left out.
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
    """Return whether an overload of an op takes a tensor as this argument, and DTensor has a rule for it."""
    with_a_rule = ops_with_a_rule()
    overloads = (getattr(func.overloadpacket, each) for each in func.overloadpacket.overloads())
    arguments = (each for op in overloads if op_name(op) in with_a_rule for each in schema_of(op))
    return any(each.name == name and str(each.type) in ("Tensor", "Optional[Tensor]") for each in arguments)


def describe_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerStep | None:
    """Describe an optimizer that is about to step; None if its class is not torch's."""
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


def returns_of(func: Any) -> Sequence[Any]:
    """Return what an op's schema says of each of its results."""
    results: Sequence[Any] = func._schema.returns
    return results


def without_outer_modes() -> AbstractContextManager[Any]:
    """Keep the modes that the program itself has open from seeing what is repeated."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
    return disabled


@contextmanager
def unnoticed() -> Iterator[None]:
    """Hide work of this plugin from modes of the program and from ``__torch_function__`` of its classes."""
    with without_outer_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def own_warnings() -> Iterator[Callable[[Callable[[float], float]], Any]]:
    """Give what calls a function, which returns its argument, with the C++ code's warnings before it returns.

    Torch keeps them until the outermost of its functions that the program called returns, which may be a
    whole backward. A function that calls back, here for the only element, keeps them no longer than itself.
    """
    unseen = torch._C.DisableTorchFunction if torch._C._len_torch_function_stack() else nullcontext
    with unseen():
        yield torch.zeros(1, device="cpu").apply_


def open_modes() -> list[Any]:
    """Return the dispatch modes that are open in this thread, outermost first."""
    modes: list[Any] = _python_dispatch._get_current_dispatch_mode_stack()
    return modes


def close_modes_opened_since(outer: Sequence[Any]) -> list[str]:
    """Close every mode that was not open then, the innermost first, and return the names of their types."""
    inside = [mode for mode in reversed(open_modes()) if not any(mode is other for other in outer)]
    for mode in inside:
        _close(mode)
    return [type(mode).__name__ for mode in inside]


def _close(mode: Any) -> None:
    """Close a mode, also one of torch's that a signal interrupted as it was opened or closed."""
    for close in (type(mode).__exit__, TorchDispatchMode.__exit__):
        try:
            close(mode, None, None, None)
        except IndexError:  # it noted nothing yet of what was open before, or has taken it back already
            continue
        return
    _python_dispatch._pop_mode(getattr(mode, "_mode_key", None))


@contextmanager
def hidden_from_debug_mode(ours: type) -> Iterator[None]:
    """Let torch's DebugMode find the next mode that is not ours: else it records the ops of propagation."""
    name = "_get_current_dispatch_mode"
    homes = map(sys.modules.get, ("torch.utils._debug_mode._mode", "torch.utils._debug_mode"))
    home = next((each for each in homes if hasattr(each, name)), None)

    def current_mode() -> Any:
        return next((mode for mode in reversed(open_modes()) if not isinstance(mode, ours)), None)

    with patch.object(home, name, current_mode) if home else nullcontext():
        yield


def is_mode_of_program(mode: Any) -> bool:
    """Return whether a program opened a dispatch mode, and not the compiler for itself."""
    if not isinstance(mode, TorchDispatchMode) or type(mode).__module__.startswith("torch._functorch"):
        return False
    is_infra = getattr(mode, "is_infra_mode", None)
    return is_infra is None or not is_infra()
