"""Plain twins of the suite's steps: the same local program on plain tensors.

The cost of DTensor in a step is its time less that of its twin. A twin has no DTensor, no process group and
no collective. It runs the same matrix products on the same local shapes. If a collective changes a shape,
the twin repeats one rank's part (a gather) or takes the first part of it (a scatter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.suite.decode import STREAMS, Decode, Decoder, decoding, in_sequence
from pytest_dtdispatch.suite.llama import Llama, Sizes, TransformerBlock, Work, training_step
from pytest_dtdispatch.suite.models import BATCH, HIDDEN, WIDTH, linear_layers, mlp_loss


def of_one_rank(ranks: int) -> Sizes:
    """Return the sizes on one rank."""
    whole = Sizes()
    return replace(
        whole, heads=whole.heads // ranks, hidden=whole.hidden // ranks, tokens=whole.tokens // ranks
    )


def plain_tensor_parallel_step(mesh: DeviceMesh) -> Work:
    """Return a step with the local program of one rank, on plain tensors.

    The weights and the batch have the sizes of the local tensors; the all-reduces are omitted.
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
    """Return a step with the local program of one rank, on plain tensors.

    Forward and backward run on whole weights, like those that FSDP2 gathers. The optimizer updates parameters
    with the size of one rank's shards, whose gradients are the first rows of those of the whole weights.
    Gathers of weights, reductions of gradients and their copies are omitted.
    """
    model, ranks = linear_layers(mesh.device_type), mesh.size()
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
    """Layer on one rank's part of the weights and of the sequence, without collectives.

    If the parallel layer gathers the sequence, this one repeats its part; if that one scatters, this one
    takes the first part. So the shapes of all local ops are equal.
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
    """Model with the local program of one rank, without collectives."""

    def __init__(self, sizes: Sizes, ranks: int) -> None:
        super().__init__(sizes, partial(LocalBlock, sizes, ranks))
        self.ranks = ranks

    def forward(self, tokens: Tensor) -> Tensor:
        """Run all layers, and repeat the scores of one rank's tokens for the whole sequence."""
        x = first_part(self.tok_embeddings(tokens), self.ranks)
        for layer in self.layers.values():
            x = layer(x, self.rotations)
        scores: Tensor = self.output(repeated(self.norm(x), self.ranks))
        return scores.repeat(1, 1, self.ranks)


def plain_llama_step(mesh: DeviceMesh) -> Work:
    """Return a step with the local program of one rank, on plain tensors.

    Weights and activations have the sizes of the local tensors, so the local ops are equal: norms and
    residual sums on a rank's part of the sequence, linear layers on its part of the weights.
    """
    whole, ranks = Sizes(), mesh.size()
    sizes = of_one_rank(ranks)
    model = LocalLlama(sizes, ranks).to(mesh.device_type)
    return training_step(model, sizes.tokens, whole.tokens, mesh.device_type)


def repeated(x: Tensor, ranks: int) -> Tensor:
    """Repeat one rank's part of the sequence to the length of the whole sequence."""
    return x.repeat(1, ranks, 1)


def first_part(x: Tensor, ranks: int) -> Tensor:
    """Return the first part of the sequence, with the length of one rank's part."""
    return x.narrow(1, 0, x.shape[1] // ranks)


def plain_decode_token(mesh: DeviceMesh) -> Decode:
    """Return a decoding loop with the local program of one rank, on plain tensors.

    Weights and caches have the sizes of the local tensors: one rank's heads, and its part of the width inside
    a feed-forward block. The two all-reduces of each layer are omitted.
    """
    sizes, device = of_one_rank(mesh.size()), mesh.device_type

    def empty(tokens: int) -> Tensor:
        return torch.zeros(sizes.heads, STREAMS, tokens, sizes.head_width, device=device)

    return decoding(Decoder(sizes, empty).to(device), sizes, device)


def plain_decode_steps(mesh: DeviceMesh) -> Callable[[], Any]:
    """Return decoding steps with the local program of one rank, on plain tensors."""
    return in_sequence(plain_decode_token(mesh))
