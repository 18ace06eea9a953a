"""Arguments of calls, and calls of ops and of conversions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from pytest_dtdispatch.torchapi.observe import Converter
from pytest_dtdispatch.torchapi.ops import is_op, is_written, ops_with_a_rule, schema_of
from pytest_dtdispatch.torchapi.tensors import are_on_meta, is_dtensor, is_tensor, mesh_among

__tracebackhide__ = True  # a failing test shows its own line


def leaves_of(values: list[Any]) -> list[Any]:
    """Flatten lists of tensors, and all other nested values."""
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return tree_leaves(values)
    return values  # of most ops; torch's tree_leaves takes ten times as long


class OpCall:
    """A call of an op. Lists of its arguments are computed at most once.

    Args:
        func: op overload, or a higher-order operator, which has no schema.
        args: positional arguments: tensors, or the specs that replace them in propagation.
        kwargs: keyword arguments.

    Attributes:
        leaves: all arguments, flattened.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs or {}
        self.leaves = leaves_of([*args, *self.kwargs.values()])

    @cached_property
    def tensors(self) -> list[Any]:
        """Tensors among the leaves."""
        return [leaf for leaf in self.leaves if is_tensor(leaf)]

    @property  # in Python 3.11, a cached property takes longer than this search
    def mesh(self) -> Any:
        """Mesh of the first DTensor or spec; None without one."""
        return mesh_among(self.leaves)

    @property
    def has_dtensor(self) -> bool:
        """Whether any leaf is a DTensor."""
        return any(map(is_dtensor, self.leaves))

    @property
    def is_on_meta(self) -> bool:
        """Whether any DTensor is on meta."""
        return are_on_meta(self.leaves)

    def run(self) -> Any:
        """Run the call below the mode that handles it, with the autograd and versions of a plain call."""
        keys = () if torch.is_inference_mode_enabled() else _keys_of_kernel(self.func)
        if not keys:
            return self.func(*self.args, **self.kwargs)
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in keys:
            excluded = excluded.remove(key)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return self.func(*self.args, **self.kwargs)

    def named(self) -> list[tuple[Any, Any]]:
        """Pair the arguments that the op's schema declares with the values that the call passes."""
        declared = {each.name: each for each in schema_of(self.func)}
        values = {**self.kwargs, **dict(zip(declared, self.args, strict=False))}
        return [(argument, values[name]) for name, argument in declared.items() if name in values]

    @cached_property
    def written(self) -> list[Any]:
        """Tensors that the op may write to: those that its schema declares, or all without a schema."""
        if not is_op(self.func):
            return self.tensors
        values = [value for argument, value in self.named() if is_written(argument)]
        return [leaf for leaf in leaves_of(values) if is_tensor(leaf)]

    @property
    def skip_reason(self) -> str | None:
        """Why the call cannot be repeated according to its schema and tags; None if it can."""
        if not is_op(self.func):
            return "a higher-order operator runs once"
        if torch.Tag.inplace_view in self.func.tags:
            return "runs once: it changes a tensor's shape in place"
        if not self.func._schema.returns and not self.written:
            return "runs once: its effect is outside its tensors"
        return None

    @property
    def may_return_alias(self) -> bool:
        """Whether a result may share the memory of an argument according to the schema."""
        return any(each.alias_info is not None for each in self.func._schema.returns)

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result depends on one element of each argument."""
        return is_op(self.func) and torch.Tag.pointwise in self.func.tags

    def replacement(self) -> str:
        """Return the function whose one call can replace calls of an op that writes, or of ``select``."""
        func, args = self.func, self.args
        if func is torch.ops.aten.select.int:
            tensor, dim = args[0], args[1] % args[0].dim()
            is_whole = not any(placement.is_shard(dim) for placement in tensor.placements)
            return f"unbind({args[1]})" if is_whole else ""
        if not is_op(func) or not func._opname.endswith("_"):
            return ""
        placements = (each for tensor in self.tensors for each in getattr(tensor, "placements", ()))
        options = _options_of_foreach(func._opname)
        # Torch runs some of these ops, such as `_foreach_zero_`, as others that reject partial DTensors.
        is_partial = any(placement.is_partial() for placement in placements)
        is_enough = bool(options) and options.issuperset(self.kwargs) and not is_partial
        return f"torch._foreach_{func._opname}" if is_enough else ""


class RepetitionContext:
    """Replacement of the context of an autograd function in a repetition.

    Attributes are read from the context of the program's own call, and written to this object.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def save_for_backward(self, *args: Any) -> None:
        """No-op: the program's own call already registered this with autograd."""

    set_materialize_grads = mark_dirty = mark_non_differentiable = save_for_backward


class ConversionCall:
    """A call of a conversion.

    Args:
        converter: kind and name of the conversion.
        function: function of torch that converts.
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        leaves: all arguments, flattened.
        name: name in signatures, such as ``redistribute`` or ``to_local_backward``.
        tensor: converted tensor; None if autograd has no gradient for it.
    """

    def __init__(
        self,
        converter: Converter,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.converter, self.function, self.args, self.kwargs = converter, function, args, kwargs
        self.leaves = leaves_of([*args, *kwargs.values()])
        self.name = f"{converter.name}_backward" if converter.is_backward else converter.name
        self.tensor: Any = next(filter(is_tensor, self.leaves), None)

    def arguments_of_repetition(self) -> tuple[Any, ...]:
        """Return the positional arguments, with a replaced context so that the program's is unchanged."""
        if not self.args or isinstance(self.args[0], torch.Tensor):
            return self.args
        return (RepetitionContext(self.args[0]), *self.args[1:])


def propagated_call(schema: Any) -> OpCall:
    """Return the call of an op that a propagation plans, on specs."""
    return OpCall(schema.op, schema.args_schema, schema.kwargs_schema)


@functools.cache
def _keys_of_kernel(func: Any) -> tuple[Any, ...]:
    """Return the dispatch keys that an op needs, that modes exclude, and that its kernels do not.

    Below a mode, torch excludes autograd and version counters. Kernels of aten exclude both themselves.
    Kernels of collectives increment versions: a gathered tensor has as many versions as ranks. Kernels of
    users' libraries may rely on the autograd of the ops that they call.
    """
    if not is_op(func) or func.namespace in ("aten", "prim", "prims"):
        return ()
    keys = torch._C.DispatchKey
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    counting = () if has_kernel("ADInplaceOrView") else (keys.ADInplaceOrView,)
    return counting if has_kernel("Autograd") else (*counting, keys.AutogradFunctionality, keys.AutogradOther)


@functools.lru_cache(maxsize=1024)
def _options_of_foreach(name: str) -> frozenset[str]:
    """Return the argument names of an op's variants on lists; empty if DTensor has no rule for them."""
    if not any(each.partition(".")[0] == f"_foreach_{name}" for each in ops_with_a_rule()):
        return frozenset()
    packet = getattr(torch.ops.aten, f"_foreach_{name}")
    overloads = (getattr(packet, each) for each in packet.overloads())
    return frozenset(argument.name for each in overloads for argument in schema_of(each))
