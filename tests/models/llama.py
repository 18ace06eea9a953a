"""A model like Llama, written with torch alone, every parameter and every activation a DTensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HEADS, LONGEST = 32, 16, 4, 16
HEAD_WIDTH = WIDTH // HEADS

Cache = dict[int, tuple[torch.Tensor, torch.Tensor]]


def rotary_angles() -> torch.Tensor:
    """Angles of every position, twice: one for each half of a head."""
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    angles = torch.outer(torch.arange(LONGEST).float(), frequencies)
    return torch.cat([angles, angles], dim=-1)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn every pair of a head by the angle of its position."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Causal attention with a cache of keys and values that grows by what it is given."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(
        self, hidden: torch.Tensor, rotary: tuple[Any, Any], mask: torch.Tensor, cache: Cache | None
    ) -> torch.Tensor:
        """Attend to what the cache holds and to what is given."""
        queries, keys, values = (
            projected.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2)
            for projected in (self.wq(hidden), self.wk(hidden), self.wv(hidden))
        )
        queries, keys = rotated(queries, *rotary), rotated(keys, *rotary)
        if cache is not None:
            if self.layer in cache:
                past_keys, past_values = cache[self.layer]
                keys, values = torch.cat([past_keys, keys], dim=2), torch.cat([past_values, values], dim=2)
            cache[self.layer] = keys, values
        scores = queries @ keys.transpose(-2, -1) / HEAD_WIDTH**0.5
        attended = torch.softmax(scores + mask, dim=-1) @ values
        return self.wo(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Gate one projection by the other."""
        return self.w2(nn.functional.silu(self.w1(hidden)) * self.w3(hidden))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm, each added to what came in."""

    def __init__(self, layer: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(layer), FeedForward()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, *context: Any) -> torch.Tensor:
        """Add both to what came in."""
        hidden = hidden + self.attention(self.attention_norm(hidden), *context)
        return hidden + self.dropout(self.feed_forward(self.ffn_norm(hidden)))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Embedding, blocks, norm, and a projection to the vocabulary."""

    cos: torch.Tensor
    sin: torch.Tensor
    future: torch.Tensor

    def __init__(self, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Block(layer, dropout) for layer in range(layers)])
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        angles = rotary_angles()
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        future = torch.full((LONGEST, LONGEST), float("-inf")).triu(1)
        self.register_buffer("future", future)

    def forward(self, ids: torch.Tensor, start: int = 0, cache: Cache | None = None) -> torch.Tensor:
        """Logits of every id, the first of which stands at position ``start``."""
        end = start + ids.shape[1]
        rotary = self.cos[start:end], self.sin[start:end]
        mask = self.future[start:end, :end]
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden, rotary, mask, cache)
        return self.output(self.norm(hidden))  # type: ignore[no-any-return]


def parallel_llama(mesh: DeviceMesh, layers: int, dropout: float = 0.0) -> Llama:
    """Make the model on a mesh: the vocabulary, the heads and the widths of feed-forward are split."""
    model = Llama(layers, dropout)
    keep: dict[str, Any] = {"use_local_output": False}
    column, row = ColwiseParallel(**keep), RowwiseParallel(output_layouts=Replicate(), **keep)
    replicated = (Replicate(), None, None, None)
    plan: dict[str, Any] = {
        # Its result leaves DTensors and comes back: torch cannot give a partial gradient to a masked one.
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "layers.0": PrepareModuleInput(
            input_layouts=replicated, desired_input_layouts=replicated, use_local_output=False
        ),
        "output": ColwiseParallel(output_layouts=Shard(-1), **keep),
    }
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3"):
        plan[f"layers.*.{name}"] = column
    for name in ("attention.wo", "feed_forward.w2"):
        plan[f"layers.*.{name}"] = row
    parallelize_module(model, mesh, plan)
    for name, buffer in list(model.named_buffers(recurse=False)):
        model.register_buffer(name, distribute_tensor(buffer, mesh, [Replicate()]))
    return distribute_module(model, mesh)  # type: ignore[return-value]
