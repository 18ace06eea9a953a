"""Input data of ops: layouts of their tensors, and arguments for ops that do not run with generic ones.

A tensor argument is written as in a signature: ``f32[8,4]``. The suffix ``R`` means that it is replicated
in every layout, such as the scale of a norm, ``L`` that it is a plain tensor, and ``t`` that its last two
dimensions are transposed in memory. Extents allow splitting a batch over 8 ranks.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Placements of the tensor arguments of an op.

    Args:
        mesh: extent of each mesh dimension, in ranks.
        placements: text of each tensor, ``S0R`` as in a signature; the last one is of all further tensors.
    """

    mesh: tuple[int, ...]
    placements: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' '.join(self.placements)}@{'x'.join(map(str, self.mesh))}"

    def of(self, position: int) -> str:
        """Return the placements of the tensor at a position, counted from 0."""
        return self.placements[min(position, len(self.placements) - 1)]


def layouts(mesh: tuple[int, ...], *each: str) -> tuple[Layout, ...]:
    """Create layouts from texts: in ``"S0 R"``, the first tensor is ``S0`` and all others are ``R``."""
    return tuple(Layout(mesh, tuple(text.split())) for text in each)


LINE, GRID = (4,), (2, 4)
SHAPES = (*layouts(LINE, "S1", "R", "P"), *layouts(GRID, "S0S1", "RS0", "PS0"))
MATMUL = (*layouts(LINE, "R", "S0 R", "R S1", "S1 S0", "S1 R", "P R"), *layouts(GRID, "S0R RS1", "S0S1 RS0"))

# Layouts in addition to those of every op; the first entry with a matching glob is used.
COMMON = (
    ("mm.default", MATMUL),
    ("bmm.default", (*MATMUL, *layouts(LINE, "S2 S1"))),
    ("addmm.default baddbmm.default", layouts(LINE, "R S0 R", "R R S1", "S0 S0 R", "R S1 S0", "R", "P")),
    (
        "add.Tensor sub.Tensor mul.Tensor div.Tensor add_.Tensor mul_.Tensor copy_.default"
        " maximum.default eq.Tensor pow.Tensor_Tensor where.self _foreach_add.List _foreach_mul.List"
        " stack.default cat.default",
        (*SHAPES, *layouts(LINE, "S0 R", "S0 S1", "P R"), *layouts(GRID, "S0R RS1")),
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


def _need(ops: str, /, **values: Any) -> tuple[str, dict[str, Any]]:
    """Return an entry of NEEDS: globs of op names such as ``add.Tensor``, and values by argument name."""
    return ops, values


_IMAGE = "f32[8,4,8,8]"
_VOLUME = "f32[8,4,4,4,4]"
_CONVOLUTION = "convolution.* convolution_backward.*"

# Values of arguments; the first entry of an op with that argument is used.
NEEDS = (
    # Products of matrices.
    _need("mm.*", self="f32[8,16]", mat2="f32[16,32]"),
    _need("addmm.* addmm_.*", self="f32[8,32]", mat1="f32[8,16]", mat2="f32[16,32]"),
    _need("bmm.*", self="f32[8,8,16]", mat2="f32[8,16,32]"),
    _need("baddbmm.* baddbmm_.*", self="f32[8,8,32]", batch1="f32[8,8,16]", batch2="f32[8,16,32]"),
    _need("_grouped_mm.*", self="bf16[8,16,16]", mat2="bf16[8,16,16]"),
    _need("_scaled_mm.*", self="float8_e4m3fn[16,16]", mat2="float8_e4m3fn[16,16]t"),
    _need("_scaled_mm.*", scale_a="f32[1,1]", scale_b="f32[1,1]", out_dtype="bf16"),
    # Convolution, pooling, resizing.
    _need(_CONVOLUTION, input=_IMAGE, weight="f32[8,4,3,3]R", grad_output="f32[8,8,8,8]", bias_sizes=[8]),
    _need(_CONVOLUTION, stride=[1, 1], padding=[1, 1], dilation=[1, 1], output_padding=[0, 0]),
    _need("*avg_pool1d*.* *max_pool1d*.*", self="f32[8,4,8]", kernel_size=[2], output_size=[4]),
    _need("max_unpool2d.*", self="f32[8,4,4,4]", indices="i64[8,4,4,4]", output_size=[8, 8]),
    _need("max_unpool3d.*", self=_VOLUME, indices="i64[8,4,4,4,4]", output_size=[8, 8, 8]),
    _need("max_unpool3d.*", stride=[2, 2, 2], padding=[0, 0, 0]),
    _need("*max_pool2d_with_indices_backward.*", grad_output="f32[8,4,4,4]", indices="i64[8,4,4,4]"),
    _need("*max_pool2d_with_indices_backward.*", stride=[2, 2], padding=[0, 0], dilation=[1, 1]),
    _need("*pool2d*.*", self=_IMAGE, grad_output="f32[8,4,4,4]", random_samples="f32[8,4,2]"),
    _need("*pool2d*.*", kernel_size=[2, 2], output_size=[4, 4]),
    _need("*pool3d*.*", self="f32[8,4,8,8,8]", random_samples="f32[8,4,3]"),
    _need("*pool3d*.*", kernel_size=[2, 2, 2], output_size=[4, 4, 4]),
    _need("*upsample_*1d*.*", self="f32[8,4,8]", input_size=[8, 4, 8]),
    _need("*upsample_*1d*.*", grad_output="f32[8,4,16]", output_size=[16]),
    _need("*upsample_*2d*.*", self=_IMAGE, input_size=[8, 4, 8, 8]),
    _need("*upsample_*2d*.*", grad_output="f32[8,4,16,16]", output_size=[16, 16]),
    _need("*upsample_*3d*.*", self=_VOLUME, input_size=[8, 4, 4, 4, 4]),
    _need("*upsample_*3d*.*", grad_output="f32[8,4,8,8,8]", output_size=[8, 8, 8]),
    _need("grid_sampler_2d*.*", input=_IMAGE, grid="f32[8,8,8,2]", grad_output=_IMAGE),
    _need("grid_sampler_3d*.*", input=_VOLUME, grid="f32[8,4,4,4,3]", grad_output=_VOLUME),
    _need("grid_sampler_*.*", interpolation_mode=0, padding_mode=0),
    # Norms.
    _need("*batch_norm*.*", input=_IMAGE, grad_out=_IMAGE, weight="f32[4]R", bias="f32[4]R"),
    _need("*batch_norm*.*", running_mean="f32[4]R", running_var="f32[4]R", training=True, train=True),
    _need("*batch_norm*.*", save_mean="f32[4]R", save_invstd="f32[4]R"),
    _need("native_layer_norm*.* _fused_rms_norm*.*", input="f32[8,8]", weight="f32[8]R", rstd="f32[8,1]"),
    _need("native_layer_norm*.* _fused_rms_norm*.*", normalized_shape=[8]),
    _need("native_layer_norm*.*", bias="f32[8]R", mean="f32[8,1]"),
    _need("native_group_norm*.*", input=_IMAGE, weight="f32[4]R", bias="f32[4]R", N=8, C=4, HxW=64, group=2),
    # Losses, embeddings, random numbers, optimizers.
    _need("nll_loss2d_*.*", self=_IMAGE, target="i64[8,8,8]", total_weight="f32[]", grad_output="f32[]"),
    _need("nll_loss_*.*", target="i64[8]", total_weight="f32[]", grad_output="f32[]"),
    _need("embedding.*", weight="f32[16,8]R", indices="i64[8,8]"),
    _need("embedding_dense_backward.*", grad_output="f32[8,8,8]", indices="i64[8,8]"),
    _need("embedding_dense_backward.*", num_weights=16, padding_idx=-1),
    _need("randint_like.*", low=0, high=8),
    _need("multinomial.*", num_samples=2),
    _need("native_dropout.* native_dropout_backward.*", train=True, mask="b8[8,8]"),
    _need("_fused_adam*.tensor_lr", lr="f32[]"),
    _need("_fused_adam*.*", state_steps=["f32[]", "f32[]"], lr=0.1, max_exp_avg_sqs=[]),
    _need("_amp_foreach_non_finite_check_and_unscale_.*", found_inf="f32[]L", inv_scale="f32[]L"),
    _need("_foreach_addc*.Tensor", scalars="f32[2]R"),
    _need("_foreach_add*.Tensor _foreach_mul*.Tensor _foreach_div*.Tensor", other="f32[]"),
    # Indexing.
    _need("select_backward.*", grad_output="f32[8]", input_sizes=[8, 8], dim=1),
    _need("slice_backward.*", input_sizes=[8, 8], dim=1, start=0, end=8, step=1),
    _need("select_scatter.*", src="f32[8]"),
    _need("diagonal_scatter.*", src="f32[8]"),
    _need("index_select.*", index="i64[8]R"),
    _need("index_fill*.int_Tensor*", value="f32[]"),
    _need("index_fill*.*", index="i64[8]R", value=2),
    _need("index_reduce*.*", index="i64[8]R", source="f32[8,8]", reduce="mean"),
    _need("index.* index_put*.* _index_put_impl*.*", indices=["i64[8]R"], values="f32[8,8]"),
    _need("bucketize.*", boundaries="f32[8]R"),
    _need("take.* put_.*", index="i64[8]R"),
    # Shapes.
    _need("view.default view_copy.* reshape.* _unsafe_view.*", self="f32[8,8,8]", size=[64, 8]),
    _need("as_strided.*", size=[8, 8], stride=[8, 1]),
    _need("permute.*", dims=[1, 0]),
    _need("transpose.int", dim0=0, dim1=1),
    _need("expand.* expand_copy.*", self="f32[8,1]", size=[8, 8]),
    _need("repeat.*", repeats=[1, 2]),
    _need("roll.*", shifts=[1], dims=[1]),
    _need("constant_pad_nd.*", pad=[1, 1]),
    _need("split.Tensor", split_size=4, dim=1),
    _need("split_with_sizes*.*", split_sizes=[4, 4], dim=1),
    _need("unbind.int", dim=1),
    _need("squeeze.default squeeze_.default", self="f32[8,1]"),
    _need("squeeze.dim squeeze_.dim", self="f32[8,1]", dim=1),
    _need("squeeze.dims squeeze_.dims", self="f32[8,1]", dim=[1]),
    _need("cat.*", dim=1),
    _need("new_empty_strided.*", size=[8, 8], stride=[8, 1]),
    _need("view_as_complex.*", self="f32[8,2]"),
    _need("view.dtype", dtype="i32"),
    # Elementwise ops with a required choice.
    _need("clamp*.default clip*.default", min=0.1),
    _need("clamp*.Tensor* clip*.Tensor*", min="f32[8,8]"),
    _need("div*.*mode*", rounding_mode="floor"),
    _need("gelu_backward.*", approximate="none"),
    _need("prims.var.*", dims=[1], correction=1.0),
    _need("prims.sum.* prims.prod.*", dims=[1]),
    _need("norm.Scalar", p=2),
    _need("_foreach_powsum.* linalg__powsum.*", ord=2),
    _need("float_power_.*", self="f64[8,8]"),
    # Linear algebra on batches of symmetric and positive definite matrices.
    _need("cholesky_solve.*", self="f32[8,4,4]", input2="f32[8,4,4]"),
    _need("linalg_householder_product.*", input="f32[8,4,4]", tau="f32[8,4]"),
    _need("ormqr.*", self="f32[8,4,4]", input2="f32[8,4]", input3="f32[8,4,4]"),
    _need("linalg_ldl_solve.*", LD="f32[8,4,4]", pivots="i32[8,4]", B="f32[8,4,4]"),
    _need("linalg_lu_solve.*", LU="f32[8,4,4]", pivots="i32[8,4]", B="f32[8,4,4]"),
    _need("lu_unpack.*", LU_data="f32[8,4,4]", LU_pivots="i32[8,4]"),
    _need("linalg_cross.*", self="f32[8,3]", other="f32[8,3]"),
    _need("linalg_pinv.*", self="f32[8,4,4]", atol="f32[]", rtol="f32[]"),
    _need("_linalg_check_errors.*", info="i32[0]", api_name="linalg.inv", is_matrix=False),
    _need("linalg_vector_norm.*", self="f32[8,8]"),
    _need(
        "cholesky*.* geqrf.* triangular_solve.* linalg_*.* _linalg_*.*",
        **dict.fromkeys(("self", "A", "B", "other"), "f32[8,4,4]"),
    ),
    # Fourier transforms, over the last dimension.
    _need("_fft_c2c.*", self="c64[8,8]", dim=[1], normalization=0, forward=True),
    _need("_fft_c2r.*", self="c64[8,5]", dim=[1], normalization=0, last_dim_size=8),
    _need("_fft_r2c.*", self="f32[8,8]", dim=[1], normalization=0, onesided=True),
)


def layouts_of(op: str) -> tuple[Layout, ...]:
    """Return the layouts in which an op is measured, by its name such as ``add.Tensor``."""
    every_op = layouts(LINE, "S0") + layouts(GRID, "S0R")
    return every_op + next(iter(_entries(op, COMMON)), ())


def needs_of(op: str) -> dict[str, Any]:
    """Return the argument values of an op in NEEDS, by its name."""
    return dict(ChainMap(*_entries(op, NEEDS)))


def _entries(op: str, table: Iterable[tuple[str, T]]) -> list[T]:
    """Return the entries of a table with a glob that matches an op."""
    return [entry for names, entry in table if any(fnmatchcase(op, glob) for glob in names.split())]
