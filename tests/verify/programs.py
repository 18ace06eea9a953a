"""Programs that DTensor of torch 2.13 computes silently wrong, each with a variant that it computes right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.nn import functional

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.verify.mode import Verifier
from pytest_dtdispatch.verify.model import Verified

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()


def verified(step: Callable[[], object], name: str = "step") -> Verified:
    """Verify one step."""
    with Verifier(ResultStore()) as verifier:
        step()
    return verifier.result(name)


def placed(values: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> DTensor:
    """Distribute a tensor."""
    return distribute_tensor(values, mesh, placements)


def random(mesh: DeviceMesh, *shape: int, placement: Any = ROWS, is_trained: bool = False) -> Any:
    """Return a random DTensor with this placement on the first mesh dimension."""
    return placed(values(*shape), mesh, placement).requires_grad_(is_trained)


def values(*shape: int) -> torch.Tensor:
    """Return the same random numbers on each call."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7))


class Program(NamedTuple):
    """A program with a known error.

    Args:
        run: function of a mesh; ``is_wrong`` selects the variant.
        op: beginning of the signature of the wrong op.
        fault: kind of the error.
        right: function that returns the right result, if later versions of torch compute it.
    """

    run: Callable[[DeviceMesh, bool], Any]
    op: str
    fault: str
    right: Callable[[], torch.Tensor] | None = None


def rows(is_wrong: bool) -> int:
    """Return a number of rows that four ranks share unevenly if the program is to be wrong."""
    return 5 if is_wrong else 8


def loss_of(function: Any) -> Callable[[DeviceMesh, bool], object]:
    def run(mesh: DeviceMesh, is_wrong: bool) -> object:
        values = random(mesh, rows(is_wrong), 3), random(mesh, rows(is_wrong), 3) * 0.5
        return function(*values)

    return run


def convolution(mesh: DeviceMesh, is_wrong: bool) -> object:
    placement = COLUMNS if is_wrong else WHOLE
    x, weight = (random(mesh, 4, 4, size, placement=placement) for size in (8, 3))
    return functional.conv1d(x, weight)


def gradient_of_mse(mesh: DeviceMesh, is_wrong: bool) -> object:
    placement = ROWS if is_wrong else WHOLE  # the gradient is wrong on even shards too
    x = random(mesh, 8, 3, placement=placement, is_trained=True)
    functional.mse_loss(x, random(mesh, 8, 3, placement=placement) * 0.5).backward()
    return x.grad


def gradient_of_soft_margin(mesh: DeviceMesh, is_wrong: bool) -> object:
    placement = ROWS if is_wrong else WHOLE
    x = random(mesh, 8, 3, placement=placement, is_trained=True)
    functional.soft_margin_loss(x, random(mesh, 8, 3, placement=placement) * 0.5).backward()
    return x.grad


def squeeze_in_place(mesh: DeviceMesh, is_wrong: bool) -> object:
    x = random(mesh, 1, 8, placement=WHOLE)
    return x.squeeze_(0) if is_wrong else x.squeeze(0)


def sharded_filters(mesh: DeviceMesh, is_wrong: bool) -> object:
    weight = random(mesh, 4, 4, 3, placement=ROWS if is_wrong else WHOLE)
    return functional.conv1d(random(mesh, 4, 4, 8, placement=ROWS), weight)


def ignored_targets(mesh: DeviceMesh, is_wrong: bool) -> object:
    first = -100 if is_wrong else 4
    target = placed(torch.tensor([first, 1, 2, 3, 4, 0, 1, 2]), mesh, ROWS)
    return functional.cross_entropy(random(mesh, 8, 5), target)


def right_loss() -> torch.Tensor:
    return functional.cross_entropy(values(8, 5), torch.tensor([-100, 1, 2, 3, 4, 0, 1, 2]))


def count_of_any(mesh: DeviceMesh, is_wrong: bool) -> object:
    has_any = (random(mesh, 8, 4) > 0.1).any(0)
    return (has_any if is_wrong else has_any.redistribute(placements=[WHOLE])).sum()


def right_count() -> torch.Tensor:
    return (values(8, 4) > 0.1).any(0).sum()


def gradient_of_amax(mesh: DeviceMesh, is_wrong: bool) -> object:
    placement = ROWS if is_wrong else WHOLE
    x = random(mesh, 8, placement=placement, is_trained=True)
    x.amax().backward()
    return x.grad


def sum_of_norms(mesh: DeviceMesh, is_wrong: bool) -> object:
    norms = torch.linalg.vector_norm(random(mesh, 8, 4), dim=0)
    return (norms if is_wrong else norms.redistribute(placements=[WHOLE])).sum()


def right_norms() -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(values(8, 4), dim=0)
    return norms.sum()


def write_to_slice(mesh: DeviceMesh, is_wrong: bool) -> object:
    x = random(mesh, 8, 8)
    (x[:2] if is_wrong else x[:, :2]).fill_(0)
    return x + 1


def reset_embedding(mesh: DeviceMesh, is_wrong: bool) -> object:
    embedding = nn.Embedding(8, 4, padding_idx=3)
    placement = ROWS if is_wrong else COLUMNS
    embedding.weight = nn.Parameter(random(mesh, 8, 4, placement=placement))
    embedding.reset_parameters()
    return embedding.weight.clone()


def data_of_another(mesh: DeviceMesh, is_wrong: bool) -> object:
    p, q = random(mesh, 8, 8), random(mesh, 4, 8) if is_wrong else random(mesh, 8, 8)
    p.data = q
    return p + 1


def vector_by_matrix(mesh: DeviceMesh, is_wrong: bool) -> object:
    matrix = random(mesh, 8, 8, placement=WHOLE)
    return (random(mesh, 8, placement=WHOLE) if is_wrong else random(mesh, 1, 8, placement=WHOLE)) @ matrix


def gradient_placement(mesh: DeviceMesh, is_wrong: bool) -> object:
    x, w = random(mesh, 8, 6), random(mesh, 6, 4, placement=WHOLE, is_trained=True)
    declared = WHOLE if is_wrong else Partial()
    product = local_map(
        lambda a, b: a @ b,
        out_placements=[ROWS],
        in_placements=([ROWS], [WHOLE]),
        in_grad_placements=([ROWS], [declared]),
        device_mesh=mesh,
    )
    product(x, w).sum().backward()
    return w.grad


def uneven_local(mesh: DeviceMesh, is_wrong: bool) -> object:
    local = random(mesh, rows(is_wrong), 4).to_local()
    shape = torch.Size((8, 4))
    return DTensor.from_local(local, mesh, [ROWS], run_check=False, shape=shape, stride=(4, 1)) + 1


PROGRAMS = {
    "convolution over sharded channels": Program(convolution, "convolution.default", "ranks differ"),
    "mse_loss": Program(loss_of(functional.mse_loss), "mse_loss.default", "values"),
    "smooth_l1_loss": Program(loss_of(functional.smooth_l1_loss), "smooth_l1_loss.default", "values"),
    "huber_loss": Program(loss_of(functional.huber_loss), "huber_loss.default", "values"),
    "binary_cross_entropy": Program(
        loss_of(functional.binary_cross_entropy), "binary_cross_entropy.default", "values"
    ),
    "binary_cross_entropy_with_logits": Program(
        loss_of(functional.binary_cross_entropy_with_logits), "binary_cross_entropy_with_logits", "values"
    ),
    "gradient of soft_margin_loss": Program(gradient_of_soft_margin, "soft_margin_loss_backward", "values"),
    "squeeze in place": Program(squeeze_in_place, "squeeze_", "shape"),
    "convolution with sharded filters": Program(sharded_filters, "convolution.default", "wrapper"),
    "soft_margin_loss": Program(loss_of(functional.soft_margin_loss), "soft_margin_loss.default", "values"),
    "gradient of mse_loss": Program(gradient_of_mse, "mse_loss_backward.default", "values"),
    "cross_entropy with ignore_index": Program(
        ignored_targets, "nll_loss_forward.default", "values", right_loss
    ),
    "count of any": Program(count_of_any, "sum.default", "values", right_count),
    "gradient of amax": Program(gradient_of_amax, "sum.dim_IntList", "wrapper"),
    "sum of norms": Program(sum_of_norms, "sum.default", "values", right_norms),
    "write to a slice": Program(write_to_slice, "fill_.Scalar", "lost write"),
    "reset of an embedding": Program(reset_embedding, "fill_.Scalar", "lost write"),
    "data of another tensor": Program(data_of_another, "add.Tensor", "wrapper"),
    "vector by matrix": Program(vector_by_matrix, "squeeze", "shape"),
    "declared placement of a gradient": Program(gradient_placement, "detach.default", "ranks differ"),
    "uneven local tensors": Program(uneven_local, "add.Tensor", "wrapper"),
}
