"""Model with the structure of Llama: two layers, tensor and sequence parallel.

Weights are split as in torchtitan, with torch's ``parallelize_module``: linear layers over the ranks of a
mesh of one dimension; norms and residual sums between them by the sequence. Attention runs on local
tensors, each rank on its own heads. Sizes are small, so that most of a step is dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_dtdispatch.torchapi.tensors import local_of

BATCH, SEQUENCE, LAYERS = 2, 16, 2
Work = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model.

    Attributes:
        width: width of the activations between layers.
        heads: number of attention heads.
        head_width: width of one head.
        hidden: width inside a feed-forward block.
        tokens: number of tokens in the vocabulary.
    """

    width: int = 64
    heads: int = 4
    head_width: int = 16
    hidden: int = 128
    tokens: int = 64


class RMSNorm(nn.Module):
    """Root mean square norm, made of ops that every supported torch has a rule for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal attention with rotary position embeddings."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_width = sizes.head_width
        inner = sizes.heads * sizes.head_width
        self.wq = nn.Linear(sizes.width, inner, bias=False)
        self.wk = nn.Linear(sizes.width, inner, bias=False)
        self.wv = nn.Linear(sizes.width, inner, bias=False)
        self.wo = nn.Linear(inner, sizes.width, bias=False)

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Attend from each position to those before it."""
        q, k, v = (self.heads_of(linear(x)) for linear in (self.wq, self.wk, self.wv))
        q, k = rotated(q, rotations), rotated(k, rotations)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.wo(out.transpose(1, 2).flatten(2))
        return joined

    def heads_of(self, x: Tensor) -> Tensor:
        """View the last dimension as heads, and move them before the sequence."""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """Feed-forward block: SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.w2 = nn.Linear(sizes.hidden, sizes.width, bias=False)
        self.w3 = nn.Linear(sizes.width, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply one projection by the activated other one, and project back."""
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class TransformerBlock(nn.Module):
    """One layer: attention and a feed-forward block, each with a norm before it and a residual connection."""

    def __init__(self, sizes: Sizes, attention: Callable[[Sizes], nn.Module] = Attention) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(sizes.width), attention(sizes)
        self.ffn_norm, self.feed_forward = RMSNorm(sizes.width), FeedForward(sizes)

    def forward(self, x: Tensor, *rotations: Tensor) -> Tensor:
        """Run the layer."""
        x = x + self.attention(self.attention_norm(x), *rotations)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    """Model that maps token numbers to scores of the next token."""

    rotations: Tensor

    def __init__(self, sizes: Sizes, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleDict({str(number): block() for number in range(LAYERS)})
        self.norm = RMSNorm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.tokens, bias=False)
        self.register_buffer("rotations", rotary_angles(SEQUENCE, sizes.head_width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run all layers."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.rotations)
        scores: Tensor = self.output(self.norm(x))
        return scores


def llama_step(mesh: DeviceMesh) -> Work:
    """Prepare forward, loss and backward of the model, its weights split over a mesh of one dimension.

    Args:
        mesh: mesh whose number of ranks divides the number of heads, 4.

    Returns:
        Function that runs one step and returns its loss, a plain tensor.
    """
    tokens = Sizes().tokens
    return training_step(split(llama(mesh.device_type), mesh), tokens, tokens, mesh.device_type)


def llama(device: str) -> nn.Module:
    """Create the model with unsplit weights."""
    sizes = Sizes()
    return Llama(sizes, partial(TransformerBlock, sizes)).to(device)


def split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split the weights of a model over the ranks, and activations between linear layers by the sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.get_submodule("layers").children():
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(),
            },
        )
    fill_weights(model)
    return model


def fill_weights(model: nn.Module) -> None:
    """Fill weights with small random numbers: older fake process groups scatter undefined values."""
    for weight in model.parameters():
        if weight.ndim > 1:  # those of norms are not scattered
            local_of(weight.data).uniform_(-0.1, 0.1)


def training_step(model: nn.Module, inputs: int, outputs: int, device: str) -> Work:
    """Prepare forward, loss and backward of a model.

    Args:
        model: model that maps token numbers to scores.
        inputs: size of the input vocabulary.
        outputs: number of scores per token.
        device: device of the weights.
    """
    tokens = torch.arange(BATCH * SEQUENCE, device=device).remainder(inputs).view(BATCH, SEQUENCE)
    labels = torch.arange(BATCH * SEQUENCE, device=device).remainder(outputs)

    def step() -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels)
        loss.backward()
        return loss

    return step


def rotary_angles(positions: int, head_width: int) -> Tensor:
    """Return the cosines and sines of the rotary embedding at each position."""
    frequencies = 10_000.0 ** -(torch.arange(0, head_width, 2) / head_width)
    angles = torch.outer(torch.arange(positions), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def rotated(x: Tensor, rotations: Tensor) -> Tensor:
    """Apply the rotary embedding to the halves of each head, where Llama's own code uses pairs."""
    cosines, sines = rotations
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosines - right * sines, left * sines + right * cosines], dim=-1)
