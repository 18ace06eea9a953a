"""Token-by-token decoding, with caches of keys and values that are DTensors and grow by one entry per token.

Each token has new shapes, so each one misses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_dtdispatch.suite.llama import LAYERS, Attention, Sizes, TransformerBlock, fill_weights

STREAMS = 2  # decoded together
Decode = Callable[[int], Any]  # of one token, by its number


class CachedAttention(Attention):
    """Attention of one token to all earlier ones, with cached keys and values."""

    keys: Tensor
    values: Tensor

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        """Append a token to the cache, and attend to all of it."""
        q, k, v = (self.heads_of(linear(x)) for linear in (self.wq, self.wk, self.wv))
        self.keys = torch.cat([self.keys, k], dim=2)  # of the tokens
        self.values = torch.cat([self.values, v], dim=2)
        scores = torch.softmax(q @ self.keys.transpose(2, 3) * self.head_width**-0.5, dim=-1)
        out: Tensor = self.wo((scores @ self.values).permute(1, 2, 0, 3).flatten(2))
        return out

    def heads_of(self, x: Tensor) -> Tensor:
        """View the last dimension as heads, and move them first: some versions multiply no others."""
        return x.view(*x.shape[:2], -1, self.head_width).permute(2, 0, 1, 3)


class Decoder(nn.Module):
    """Layers that decode one token at a time.

    Args:
        sizes: sizes of the weights.
        empty: function that returns a cache of the given number of tokens.
    """

    def __init__(self, sizes: Sizes, empty: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {str(number): TransformerBlock(sizes, CachedAttention) for number in range(LAYERS)}
        )
        self.empty, self.cached = empty, -1

    @torch.no_grad()
    def forward(self, x: Tensor, number: int) -> Tensor:
        """Decode the token of this number, which equals the number of tokens in the cache."""
        attentions = [each for each in self.modules() if isinstance(each, CachedAttention)]
        if number != self.cached:
            for attention in attentions:
                attention.keys, attention.values = self.empty(number), self.empty(number)
        for layer in self.layers.values():
            x = layer(x)
        self.cached = number + 1
        return x


def decode_token(mesh: DeviceMesh) -> Decode:
    """Prepare a model of two layers, its heads split over a mesh of one dimension, to decode one token.

    Args:
        mesh: mesh whose number of ranks divides the number of heads, 4.

    Returns:
        Function that decodes one token, by its number. The caches are kept from the call before if that
        decoded the preceding token; otherwise they are created with that number of tokens.
    """
    sizes, device = Sizes(), mesh.device_type

    def empty(tokens: int) -> Tensor:
        cache = torch.zeros(sizes.heads, STREAMS, tokens, sizes.head_width, device=device)
        return distribute_tensor(cache, mesh, [Shard(0)])  # by heads

    heads = {f"attention.{name}": ColwiseParallel(use_local_output=False) for name in ("wq", "wk", "wv")}
    widths = {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
    outputs = {name: RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")}
    plan: dict[str, Any] = {**heads, **widths, **outputs}
    model = Decoder(sizes, empty).to(device)
    for layer in model.layers.values():
        parallelize_module(layer, mesh, plan)
    return decoding(model, sizes, device)


def decode_steps(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare the same model to decode the next token in each call, starting at number 1."""
    return in_sequence(decode_token(mesh))


def in_sequence(decode: Decode) -> Callable[[], Any]:
    """Return a function without arguments that decodes the next token."""
    numbers = itertools.count(1)

    def step() -> Any:
        return decode(next(numbers))

    return step


def decoding(model: nn.Module, sizes: Sizes, device: str) -> Decode:
    """Prepare a model to decode tokens whose elements are all 1."""
    fill_weights(model)
    x = torch.ones(STREAMS, 1, sizes.width, device=device)
    return partial(model, x)
