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

from pytest_dtdispatch.torchapi.patches import calling, patched


def is_op(func: Any) -> bool:
    """Return whether a callable is an op overload; a higher-order operator, without a schema, is not."""
    return isinstance(func, torch._ops.OpOverload)


def op_name(func: Any) -> str:
    """Return the name of an op in tables, ``add.Tensor``, with its namespace unless that is ``aten``."""
    namespace = getattr(func, "namespace", "aten")
    return str(func.__name__) if namespace == "aten" else f"{namespace}.{func.__name__}"


def op_named(name: str) -> Any:
    """Return an op by its name in torch's registry, ``aten::add.Tensor``; None if this torch lacks it."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


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


def without_outer_modes() -> AbstractContextManager[Any]:
    """Return a context that disables the open modes of the program."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
    return disabled


@contextmanager
def modes_disabled() -> Iterator[None]:
    """Temporarily disable modes of the program and ``__torch_function__`` of its classes."""
    with without_outer_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def call_from_torch(fn: Callable[[], None]) -> Iterator[Callable[[], object]]:
    """Yield a function that has torch call ``fn``, so that warnings of C++ code are issued before it returns.

    Torch buffers such warnings until the outermost torch function of the program returns, which may be a
    whole backward.
    """
    # `next(calls, element)` calls `fn` without a Python frame (see `rounds/timing.py`). As `fn` returns None,
    # its iterator ends, and `next` returns the element.
    calls: Iterator[Any] = iter(fn, None)
    with torch._C.DisableTorchFunction() if torch._C._len_torch_function_stack() else nullcontext():
        # `apply_` calls a function with each element, here one, and has its own buffer of warnings.
        yield partial(torch.zeros(1, device="cpu").apply_, partial(next, calls))


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
