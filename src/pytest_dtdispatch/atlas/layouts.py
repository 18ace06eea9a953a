"""Where the tensors of an op lie, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Layout:
    """Placements of every tensor among the arguments of an op.

    Args:
        mesh: extent of each mesh dimension, in ranks.
        placements: one text for each tensor, ``S0R`` as in a signature; the last holds for all that follow.
    """

    mesh: tuple[int, ...]
    placements: tuple[str, ...]

    def of(self, position: int) -> str:
        """Placements of the tensor at a position, counted from 0."""
        return self.placements[min(position, len(self.placements) - 1)]


def layouts(mesh: tuple[int, ...], *each: str) -> tuple[Layout, ...]:
    """Write layouts briefly: ``"S0 R"`` is one whose first tensor is ``S0``, and all others ``R``."""
    return tuple(Layout(mesh, tuple(text.split())) for text in each)


LINE, GRID = (4,), (2, 4)
EVERY_OP = (*layouts(LINE, "S0"), *layouts(GRID, "S0R"))
SHAPES = (*layouts(LINE, "S1", "R", "P"), *layouts(GRID, "S0S1", "RS0", "PS0"))
POINTWISE = (*SHAPES, *layouts(LINE, "S0 R", "S0 S1", "P R"), *layouts(GRID, "S0R RS1"))
MATMUL = (
    *layouts(LINE, "R", "S0 R", "R S1", "S1 S0", "S1 R", "P R"),
    *layouts(GRID, "S0R RS1", "S0S1 RS0"),
)
BATCHED = (*MATMUL, *layouts(LINE, "S2 S1"))
FUSED_MATMUL = layouts(LINE, "R S0 R", "R R S1", "S0 S0 R", "R S1 S0", "R", "P")

# The first entry whose globs name an op gives what is taken of it beyond EVERY_OP.
COMMON = (
    ("mm.default", MATMUL),
    ("bmm.default", BATCHED),
    ("addmm.default baddbmm.default", FUSED_MATMUL),
    (
        "add.Tensor sub.Tensor mul.Tensor div.Tensor add_.Tensor mul_.Tensor copy_.default"
        " maximum.default eq.Tensor pow.Tensor_Tensor where.self _foreach_add.List _foreach_mul.List"
        " stack.default cat.default",
        POINTWISE,
    ),
    (
        # Pointwise ops of one tensor; reductions and norms; shapes; indexing; convolution and pooling.
        "add.Scalar mul.Scalar relu.default gelu.default silu.default sigmoid.default tanh.default"
        " exp.default rsqrt.default neg.default pow.Tensor_Scalar clone.default detach.default"
        " _to_copy.default zeros_like.default ones_like.default empty_like.default fill_.Scalar zero_.default"
        " native_dropout.default"
        " sum.* mean.* max.default max.dim amax.default argmax.default topk.default sort.default"
        " cumsum.default var.correction linalg_vector_norm.default _softmax.default _log_softmax.default"
        " _softmax_backward_data.default _log_softmax_backward_data.default native_layer_norm.default"
        " native_layer_norm_backward.default nll_loss_forward.default nll_loss_backward.default"
        " view.default t.default transpose.int permute.default expand.default unsqueeze.default squeeze.dim"
        " slice.Tensor select.int split.Tensor unbind.int flip.default tril.default"
        " embedding.default embedding_dense_backward.default index_select.default index.Tensor gather.default"
        " scatter.src scatter_add.default index_put.default masked_fill.Scalar"
        " convolution.default convolution_backward.default max_pool2d_with_indices.default",
        SHAPES,
    ),
    ("index_put_.default _index_put_impl_.default", layouts(LINE, "S1", "R")),
)


def layouts_of(op: str) -> Iterator[Layout]:
    """Give the layouts in which an op is measured, by its name: ``add.Tensor``."""
    yield from EVERY_OP
    for names, more in COMMON:
        if any(fnmatchcase(op, glob) for glob in names.split()):
            yield from more
            return
