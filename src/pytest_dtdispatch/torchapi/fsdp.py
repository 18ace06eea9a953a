"""Groups of parameters that FSDP2 gathers and reduces together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch


class ParameterGroup(NamedTuple):
    """A group of parameters of FSDP2.

    Args:
        module: name of its module; empty for the root.
        parent: group of the nearest module around it, or None.
        is_root: whether FSDP2 wraps no module around it.
        is_frozen: whether none of its parameters is trained.
        stays_gathered: whether its parameters stay gathered after the forward of its module.
        sum_dtype: dtype in which gradients are summed without a reduction, if it has fewer bytes than that of
            the parameters; else None.
        layout: key that is equal for groups whose parameters can be in one group.
    """

    module: str
    parent: Any
    is_root: bool
    is_frozen: bool
    stays_gathered: bool
    sum_dtype: torch.dtype | None
    layout: Hashable


def describe_group(group: Any, groups: Sequence[Any]) -> ParameterGroup:
    """Describe a group; its parent is one of ``groups``."""
    parameters = [*group.fsdp_params]
    narrow = {dtype for each in parameters if (dtype := _narrow_sum(each)) is not None}
    dtypes = sorted({str(each.sharded_param.dtype) for each in parameters})
    name = str(getattr(group, "_module_fqn", "") or "")
    return ParameterGroup(
        name,
        _parent(group, groups),
        not name,
        not any(each.sharded_param.requires_grad for each in parameters),
        getattr(group, "post_forward_mesh_info", None) is None,
        next(iter(narrow), None),
        (group.mesh_info.mesh, str(getattr(group, "mp_policy", None)), *dtypes, id(group.comm_ctx)),
    )


def shards_of(group: Any) -> list[Any]:
    """Return the sharded parameters of a group."""
    return [each.sharded_param for each in group.fsdp_params]


def _narrow_sum(parameter: Any) -> torch.dtype | None:
    own = parameter.sharded_param.dtype
    dtype = getattr(parameter, "reduce_dtype", None) or getattr(parameter, "param_dtype", None) or own
    return dtype if dtype.itemsize < own.itemsize else None


def modules_of(group: Any) -> tuple[Any, ...]:
    """Return the modules of a group; older versions of torch have one."""
    return tuple(getattr(group, "modules", None) or (group.module,))


def _parent(group: Any, groups: Sequence[Any]) -> Any:
    own = modules_of(group)
    around = [other for other in groups if other is not group and _contains(other, own[0])]
    return min(around, key=lambda other: sum(1 for _ in _inside(other)), default=None)


def _contains(group: Any, module: Any) -> bool:
    is_own = any(each is module for each in modules_of(group))
    return not is_own and any(each is module for each in _inside(group))


def _inside(group: Any) -> Iterator[Any]:
    for module in modules_of(group):
        yield from module.modules()
