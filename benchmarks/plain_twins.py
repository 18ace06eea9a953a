"""Plain twins of the suite's steps: the same local program on plain tensors.

What a step costs because its tensors are DTensors is its time less that of its twin. A twin has no DTensor,
no process group and no collective. It runs the same matrix products on the same local shapes. Where a
collective changes a shape, the twin repeats what one rank has (a gather) or takes the first part of it (a
scatter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.suite.decode import STREAMS, Decode, Decoder, decoding, in_sequence
from pytest_dtdispatch.suite.llama import Llama, Sizes, TransformerBlock, Work, training_step
from pytest_dtdispatch.suite.models import BATCH, HIDDEN, WIDTH, four_layers, mlp_loss


def of_one_rank(ranks: int) -> Sizes:
    """Divide the sizes that are split over the ranks."""
    whole = Sizes()
    return replace(
        whole, heads=whole.heads // ranks, hidden=whole.hidden // ranks, tokens=whole.tokens // ranks
    )


def plain_tensor_parallel_step(mesh: DeviceMesh) -> Work:
    """Prepare what one rank of that step computes, on plain tensors: no DTensor, no collective.

    The weights and the batch have the sizes that the local tensors have there; the all-reduces are left out.
    """
    rows, ranks = BATCH // mesh.size(0), mesh.size(1)
    up = torch.rand(HIDDEN // ranks, WIDTH, device=mesh.device_type, requires_grad=True)
    down = torch.rand(WIDTH, HIDDEN // ranks, device=mesh.device_type, requires_grad=True)
    x = torch.rand(rows, WIDTH, device=mesh.device_type)

    def step() -> Any:
        loss = mlp_loss(x, up, down)
        loss.backward()
        return loss

    return step


def plain_fsdp_training_step(mesh: DeviceMesh) -> Work:
    """Prepare what one rank of that step computes, on plain tensors: no DTensor, no collective.

    Forward and backward run on whole weights, as those that FSDP2 gathers. The optimizer works on parameters
    of the size of one rank's shards, whose gradients are the first rows of those of the whole
    weights. Gathering weights and reducing gradients is left out, and the copies that this takes.
    """
    model, ranks = four_layers(mesh.device_type), mesh.size()
    pairs = [
        (whole, torch.nn.Parameter(whole.detach()[: len(whole) // ranks].clone()))
        for whole in model.parameters()
    ]
    optimizer = torch.optim.AdamW([shard for _, shard in pairs], lr=1e-3, foreach=True)
    x = torch.rand(BATCH, WIDTH, device=mesh.device_type)

    def step() -> Any:
        optimizer.zero_grad()
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        for whole, shard in pairs:
            grad: Any = whole.grad
            shard.grad = grad[: len(shard)]
        torch.nn.utils.clip_grad_norm_((shard for _, shard in pairs), max_norm=1.0)
        optimizer.step()
        return loss

    step()
    return step


class LocalBlock(TransformerBlock):
    """One layer on one rank's part of the weights and of the sequence, without collectives.

    Where the parallel layer gathers the sequence, this one repeats its part of it; where that one
    scatters, this one takes the first part. So each local op has the shapes that it has there.
    """

    def __init__(self, sizes: Sizes, ranks: int) -> None:
        super().__init__(sizes)
        self.ranks = ranks

    def forward(self, x: Tensor, *rotations: Tensor) -> Tensor:
        """Run the layer."""
        whole = self.attention(repeated(self.attention_norm(x), self.ranks), *rotations)
        x = x + first_part(whole, self.ranks)
        return x + first_part(self.feed_forward(repeated(self.ffn_norm(x), self.ranks)), self.ranks)


class LocalLlama(Llama):
    """What one rank computes of the model, without collectives."""

    def __init__(self, sizes: Sizes, ranks: int) -> None:
        super().__init__(sizes, lambda: LocalBlock(sizes, ranks))
        self.ranks = ranks

    def forward(self, tokens: Tensor) -> Tensor:
        """Run all layers, and repeat the scores of one rank's tokens."""
        x = first_part(self.tok_embeddings(tokens), self.ranks)
        for layer in self.layers.values():
            x = layer(x, self.rotations)
        scores: Tensor = self.output(repeated(self.norm(x), self.ranks))
        return scores.repeat(1, 1, self.ranks)


def plain_llama_step(mesh: DeviceMesh) -> Work:
    """Prepare what one rank of that step computes, on plain tensors: no DTensor, no collective.

    Weights and activations have the sizes that the local tensors have there, so the local ops are the same:
    norms and residual sums on a rank's part of the sequence, linear layers on its part of the weights.
    """
    whole, ranks = Sizes(), mesh.size()
    sizes = of_one_rank(ranks)
    model = LocalLlama(sizes, ranks).to(mesh.device_type)
    return training_step(model, sizes.tokens, whole.tokens, mesh.device_type)


def repeated(x: Tensor, ranks: int) -> Tensor:
    """Make of one rank's part of the sequence as much as all ranks have."""
    return x.repeat(1, ranks, 1)


def first_part(x: Tensor, ranks: int) -> Tensor:
    """Take as much of the sequence as one rank has."""
    return x.narrow(1, 0, x.shape[1] // ranks)


def plain_decode_token(mesh: DeviceMesh) -> Decode:
    """Prepare what one rank of that model computes, on plain tensors: no DTensor, no collective.

    Weights and caches have the sizes that the local tensors have there: one rank's heads, and its part of
    the width inside a feed-forward block. The two all-reduces of each layer are left out.
    """
    sizes, device = of_one_rank(mesh.size()), mesh.device_type

    def empty(tokens: int) -> Tensor:
        return torch.zeros(sizes.heads, STREAMS, tokens, sizes.head_width, device=device)

    return decoding(Decoder(sizes, empty).to(device), sizes, device)


def plain_decode_steps(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare what one rank computes of that, on plain tensors."""
    return in_sequence(plain_decode_token(mesh))
