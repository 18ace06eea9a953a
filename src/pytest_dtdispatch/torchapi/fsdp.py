"""Groups of parameters that FSDP2 gathers and reduces together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from pytest_dtdispatch.core.events import FsdpGroup


def describe_groups(numbers: Mapping[Any, int]) -> tuple[FsdpGroup, ...]:
    """Describe groups of FSDP2, given with their numbers."""
    layouts: dict[Hashable, int] = {}
    return tuple(
        FsdpGroup(
            number,
            _name(group),
            numbers.get(_parent(group, numbers), 0),
            not _name(group),
            not any(shard.requires_grad for shard in shards_of(group)),
            getattr(group, "post_forward_mesh_info", None) is None,
            next(filter(None, map(_narrow_sum, group.fsdp_params)), ""),
            layouts.setdefault(_layout(group), len(layouts) + 1),
            casts=getattr(getattr(group, "mp_policy", None), "param_dtype", None) is not None,
        )
        for group, number in numbers.items()
    )


def shards_of(group: Any) -> list[Any]:
    """Return the sharded parameters of a group."""
    return [each.sharded_param for each in group.fsdp_params]


def how_reduced(group: Any) -> Hashable:
    """Return the settings of a group's reductions: two reductions can be one only if these are equal."""
    names = (
        "gradient_divide_factor",
        "force_sum_reduction_for_comms",
        "_all_reduce_hook",
        "reduce_scatter_reduce_op",
    )
    return tuple(getattr(group, name, None) for name in names)


def _name(group: Any) -> str:
    return str(getattr(group, "_module_fqn", "") or "")


def _layout(group: Any) -> Hashable:
    dtypes = sorted({str(shard.dtype) for shard in shards_of(group)})
    return group.mesh_info.mesh, str(getattr(group, "mp_policy", None)), *dtypes, id(group.comm_ctx)


def _narrow_sum(parameter: Any) -> str:
    """Return the dtype in which gradients are summed without a reduction, if it is narrower; else empty."""
    own = parameter.sharded_param.dtype
    dtype = getattr(parameter, "reduce_dtype", None) or getattr(parameter, "param_dtype", None) or own
    return str(dtype).removeprefix("torch.") if dtype.itemsize < own.itemsize else ""


def _modules(group: Any) -> tuple[Any, ...]:
    """Return the modules of a group; older versions of torch have one."""
    return tuple(getattr(group, "modules", None) or (group.module,))


def _parent(group: Any, groups: Mapping[Any, int]) -> Any:
    """Return the group of the nearest module around a group; None without one."""
    around = [other for other in groups if _contains(other, _modules(group)[0])]
    return min(around, key=lambda other: sum(1 for _ in _inside(other)), default=None)


def _contains(group: Any, module: Any) -> bool:
    is_own = any(each is module for each in _modules(group))
    return not is_own and any(each is module for each in _inside(group))


def _inside(group: Any) -> Iterator[Any]:
    for module in _modules(group):
        yield from module.modules()
