"""Groups of parameters that FSDP2 gathers and reduces together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from pytest_dtdispatch.core.events import FsdpGroup
from pytest_dtdispatch.torchapi.observe import owners_of_parameters


def describe_groups(numbers: Mapping[Any, int]) -> tuple[FsdpGroup, ...]:
    """Describe groups of FSDP2, given with their numbers."""
    layouts: dict[Hashable, int] = {}
    described = []
    for group, number in numbers.items():
        name = str(getattr(group, "_module_fqn", "") or "")
        policy = getattr(group, "mp_policy", None)
        dtypes = sorted({str(shard.dtype) for shard in shards_of(group)})
        layout = (group.mesh_info.mesh, str(policy), *dtypes, id(group.comm_ctx))
        sums_in = ""  # dtype in which gradients are summed without a reduction, if it is narrower
        for parameter in group.fsdp_params:
            own = parameter.sharded_param.dtype
            dtype = getattr(parameter, "reduce_dtype", None) or getattr(parameter, "param_dtype", None) or own
            if dtype.itemsize < own.itemsize:
                sums_in = sums_in or str(dtype).removeprefix("torch.")
        described.append(
            FsdpGroup(
                number,
                module=name,
                parent=numbers.get(_parent(group, numbers), 0),
                is_root=not name,
                is_frozen=not any(shard.requires_grad for shard in shards_of(group)),
                stays_gathered=getattr(group, "post_forward_mesh_info", None) is None,
                sums_in=sums_in,
                layout=layouts.setdefault(layout, len(layouts) + 1),
                casts=getattr(policy, "param_dtype", None) is not None,
            )
        )
    return tuple(described)


def shards_of(group: Any) -> list[Any]:
    """Return the sharded parameters of a group."""
    return [each.sharded_param for each in group.fsdp_params]


def runs_hooks(shard: Any) -> bool:
    """Return whether each reduction of a parameter's gradient runs a hook of the program."""
    return bool(getattr(shard, "_post_accumulate_grad_hooks", None))


def how_reduced(group: Any) -> Hashable:
    """Return the settings of a group's reductions: two reductions can be one only if these are equal."""
    names = ["gradient_divide_factor", "force_sum_reduction_for_comms"]
    names += ["_all_reduce_hook", "reduce_scatter_reduce_op"]
    return tuple(getattr(group, name, None) for name in names)


def _parent(group: Any, groups: Mapping[Any, int]) -> Any:
    """Return the group of the nearest module around a group; None without one."""
    module, parent, fewest = owners_of_parameters(group)[0], None, math.inf
    for other in groups:
        own = owners_of_parameters(other)
        inside = [each for outer in own for each in outer.modules()]
        is_around = any(each is module for each in inside) and all(each is not module for each in own)
        if is_around and len(inside) < fewest:
            parent, fewest = other, len(inside)
    return parent
