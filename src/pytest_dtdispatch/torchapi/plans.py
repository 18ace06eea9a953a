"""Questions to DTensor's planning of ops and redistributions."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from torch.distributed.tensor import DTensor, Shard, _redistribute
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi.ops import modes_disabled
from pytest_dtdispatch.torchapi.tensors import DTensorSpec, is_even


def merges_dimensions() -> bool:
    """Return whether torch reduces over several mesh dimensions at once if a flattened mesh exists."""
    return hasattr(_redistribute, "_optimize_transform_infos")


def free_dims(schema: Any, spec: Any) -> tuple[int, ...]:
    """Return other dimensions of an op's only DTensor that it could find sharded without a redistribution.

    Dimensions for which its result is partial are not among them: that is reduced later.

    Args:
        schema: call of the op, with the placements that it needs.
        spec: spec of the DTensor.
    """
    leaves, tree = tree_flatten((schema.args_schema, schema.kwargs_schema))
    [number] = [number for number, leaf in enumerate(leaves) if isinstance(leaf, DTensorSpec)]
    sharded = {placement.dim for placement in spec.placements if type(placement) is Shard}
    propagator = DTensor._op_dispatcher.sharding_propagator
    # Unwrapped, so that the propagation is not notified.
    propagate = partial(inspect.unwrap(type(propagator).propagate_op_sharding_non_cached), propagator)
    found = []
    for dim in sorted({*range(spec.ndim)} - sharded):
        placements = tuple(Shard(dim) if type(each) is Shard else each for each in spec.placements)
        moved = type(spec)(spec.mesh, placements, tensor_meta=spec.tensor_meta)
        args, kwargs = tree_unflatten([*leaves[:number], moved, *leaves[number + 1 :]], tree)
        again = type(schema)(schema.op, args, kwargs, schema_info=schema.schema_info)
        with modes_disabled():
            planned = ask(propagate, again, None)
        if len(sharded) == 1 and is_even(moved) and planned and not planned.needs_redistribute:
            outputs = (leaf for leaf in tree_leaves(planned.output_spec) if isinstance(leaf, DTensorSpec))
            if not any(placement.is_partial() for each in outputs for placement in each.placements):
                found.append(dim)
    return tuple(found)
