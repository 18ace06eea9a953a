"""Optimizers: the options that they could use, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from pytest_dtdispatch.core.events import FOREACH, FUSED, OptimizerStep
from pytest_dtdispatch.core.text import ask, grouped
from pytest_dtdispatch.torchapi.ops import modes_disabled, ops_with_a_rule
from pytest_dtdispatch.torchapi.tensors import is_replicated, is_tensor, tensors_in


class Layout(NamedTuple):
    """Layout of a DTensor of an optimizer: those of one list are equal.

    Args:
        group: number of its parameter group.
        dtype: its dtype.
        device: its device.
        mesh: its mesh; None if a list may have several.
    """

    group: int
    dtype: torch.dtype
    device: torch.device
    mesh: Any


def describe_optimizer(optimizer: Optimizer) -> Callable[[], OptimizerStep] | None:
    """Return a function that describes an optimizer as it is now; None if its class is not torch's.

    The function may step another optimizer for a trial: call it after the ops of the step were counted.
    """
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        return None
    has_plain = is_partial = False
    layouts: list[Layout] = []
    for number, group in enumerate(optimizer.param_groups):
        used = [each for each in group["params"] if each.grad is not None]
        dtensors = [each for each in used if isinstance(each, DTensor)]
        has_plain |= 0 < len(dtensors) < len(used)
        gradients = (each.grad for each in used if isinstance(each.grad, DTensor))
        is_partial |= any(placement.is_partial() for each in gradients for placement in each.placements)
        layouts += [Layout(number, each.dtype, each.device, each.device_mesh) for each in dtensors]
    described = OptimizerStep(
        kind.__name__, _option_of(optimizer), has_plain, is_partial, tensors=len(layouts)
    )
    return partial(_with_lists, described, layouts)


def _with_lists(described: OptimizerStep, layouts: Sequence[Layout]) -> OptimizerStep:
    """Complete a description with the lists that its option makes of DTensors with these layouts."""
    meshes = (set(same) for same in grouped((each.group, each.mesh) for each in layouts).values())
    takes_meshes = all(_takes(described, each) for each in meshes if described.option and len(each) > 1)
    lists = {each._replace(mesh=None) if takes_meshes else each for each in layouts}
    return described._replace(takes_meshes=takes_meshes, lists=max(len(lists), 1))


def _option_of(optimizer: Optimizer) -> str:
    """Return the argument that makes an optimizer call fewer ops; empty if there is none."""
    name, rules = type(optimizer).__name__.lower(), ops_with_a_rule()
    for group in optimizer.param_groups:
        used = [each for each in group["params"] if each.grad is not None]
        if group.get("differentiable") or not all(each.is_floating_point() for each in used):
            return ""
    if f"_fused_{name}_.default" in rules:
        return FUSED
    return FOREACH if "foreach" in optimizer.defaults and "_foreach_add_.List" in rules else ""


def _takes(described: OptimizerStep, meshes: Iterable[Any]) -> bool:
    """Return whether an optimizer with its option steps over DTensors of several meshes, by a trial."""
    parameters = []
    with modes_disabled():
        for mesh in meshes:
            ones = torch.ones(1, device=mesh.device_type)
            whole = DTensor.from_local(ones, mesh, [Replicate()] * mesh.ndim, run_check=False)
            parameters.append(torch.nn.Parameter(whole))
            parameters[-1].grad = whole.clone()
        trial = getattr(torch.optim, described.name)(parameters, **{described.option.partition("=")[0]: True})
        return ask(methodcaller("step"), trial, False) is None


def count_sharded_matrices(optimizer: Optimizer) -> int:
    """Return how many parameters of an optimizer are DTensors of two or more dimensions and are sharded."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    matrices = (each for each in parameters if isinstance(each, DTensor) and each.dim() > 1)
    return sum(not is_replicated(each) for each in matrices)


def numbers_of(optimizer: Optimizer) -> list[float]:
    """Return the numbers among the options of an optimizer, such as ``lr`` and ``betas``."""
    options = (value for group in optimizer.param_groups for name, value in group.items() if name != "params")
    values = (value if type(value) is tuple else (value,) for value in options)
    return [each for each in chain.from_iterable(values) if type(each) in (int, float)]


def options_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the options of an optimizer, such as ``lr``, that are tensors on the host."""
    for group in optimizer.param_groups:
        if not group.get("capturable"):
            yield from tensors_in([group[name] for name in group.keys() - {"params"}])


def counters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the step counters of an optimizer that torch keeps on the host."""
    classes = {each for each in type(optimizer).__mro__ if f"{each.__module__}.".startswith("torch.optim.")}
    if not classes - {Optimizer, torch.optim.ASGD}:  # ASGD has them on the device
        return
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("fused"):  # on the device
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            yield from (state[name] for name in ("step", "mu_product") if is_tensor(state.get(name)))
