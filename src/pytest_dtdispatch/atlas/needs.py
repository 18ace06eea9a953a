"""Arguments of the ops that generic ones are wrong for, as data.

A tensor is written as in a signature: ``f32[8,4]``. Behind it, ``R`` says that no layout splits it, as the
scale of a norm, ``L`` that it is no DTensor, and ``t`` that its last two dimensions lie the other way round
in memory. Extents are such that a batch can be split over 8 ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Need:
    """What some ops need.

    Args:
        ops: globs of their names, ``add.Tensor``, separated by spaces; all are tried on ``prims.add.default``
            too.
        values: arguments by name in the op's schema; those that an op does not have are not its concern.
    """

    ops: str
    values: Mapping[str, Any] = field(default_factory=dict)


_IMAGE, _GRAD = "f32[8,4,8,8]", "f32[8,4,8,8]"
_CONVOLUTION = {
    "input": _IMAGE,
    "weight": "f32[8,4,3,3]R",
    "bias_sizes": [8],
    "grad_output": "f32[8,8,8,8]",
    "stride": [1, 1],
    "padding": [1, 1],
    "dilation": [1, 1],
    "output_padding": [0, 0],
    "output_mask": [True, True, True],
}
_BATCH_NORM = {
    "input": _IMAGE,
    "grad_out": _GRAD,
    "weight": "f32[4]R",
    "bias": "f32[4]R",
    "running_mean": "f32[4]R",
    "running_var": "f32[4]R",
    "save_mean": "f32[4]R",
    "save_invstd": "f32[4]R",
    "training": True,
    "train": True,
    "output_mask": [True, True, True],
}
_ATTENTION = {
    **dict.fromkeys(("query", "key", "value", "out", "grad_out", "grad_out_"), "f32[8,4,8,16]"),
    "attn_bias": "f32[8,4,8,8]",
    "logsumexp": "f32[8,4,8]",
    "cum_seq_q": "i64[8]R",
    "cum_seq_k": "i64[8]R",
    "max_q": 8,
    "max_k": 8,
    "philox_seed": "i64[]",
    "philox_offset": "i64[]",
    "grad_input_mask": [True, True, True, True],
    "dropout_p": 0.0,
}

# The first entry that names an argument of an op decides it.
NEEDS = (
    # Products of matrices.
    Need("mm.*", {"self": "f32[8,16]", "mat2": "f32[16,32]"}),
    Need("addmm.* addmm_.*", {"self": "f32[8,32]", "mat1": "f32[8,16]", "mat2": "f32[16,32]"}),
    Need("bmm.*", {"self": "f32[8,8,16]", "mat2": "f32[8,16,32]"}),
    Need(
        "baddbmm.* baddbmm_.*",
        {"self": "f32[8,8,32]", "batch1": "f32[8,8,16]", "batch2": "f32[8,16,32]"},
    ),
    Need("_grouped_mm.*", {"self": "bf16[8,16,16]", "mat2": "bf16[8,16,16]"}),
    Need("_scaled_mm.*", {"self": "float8_e4m3fn[16,16]", "mat2": "float8_e4m3fn[16,16]t"}),
    Need(
        "_scaled_mm.*", {"scale_a": "f32[1,1]", "scale_b": "f32[1,1]", "out_dtype": "bf16", "out": "bf16[0]"}
    ),
    # Convolution, pooling, resizing.
    Need("convolution.* convolution_backward.*", _CONVOLUTION),
    Need("*avg_pool1d*.* *max_pool1d*.*", {"self": "f32[8,4,8]", "kernel_size": [2], "output_size": [4]}),
    Need("max_unpool2d.*", {"self": "f32[8,4,4,4]", "indices": "i64[8,4,4,4]", "output_size": [8, 8]}),
    Need(
        "max_unpool3d.*",
        {
            "self": "f32[8,4,4,4,4]",
            "indices": "i64[8,4,4,4,4]",
            "output_size": [8, 8, 8],
            "stride": [2, 2, 2],
            "padding": [0, 0, 0],
        },
    ),
    Need(
        "*max_pool2d_with_indices_backward.*",
        {
            "grad_output": "f32[8,4,4,4]",
            "indices": "i64[8,4,4,4]",
            "stride": [2, 2],
            "padding": [0, 0],
            "dilation": [1, 1],
        },
    ),
    Need(
        "*pool2d*.*",
        {
            "self": _IMAGE,
            "kernel_size": [2, 2],
            "output_size": [4, 4],
            "random_samples": "f32[8,4,2]",
            "grad_output": "f32[8,4,4,4]",
        },
    ),
    Need(
        "*pool3d*.*",
        {
            "self": "f32[8,4,8,8,8]",
            "kernel_size": [2, 2, 2],
            "output_size": [4, 4, 4],
            "random_samples": "f32[8,4,3]",
        },
    ),
    Need(
        "*upsample_*1d*.*",
        {"self": "f32[8,4,8]", "grad_output": "f32[8,4,16]", "output_size": [16], "input_size": [8, 4, 8]},
    ),
    Need(
        "*upsample_*2d*.*",
        {
            "self": _IMAGE,
            "grad_output": "f32[8,4,16,16]",
            "output_size": [16, 16],
            "input_size": [8, 4, 8, 8],
        },
    ),
    Need(
        "*upsample_*3d*.*",
        {
            "self": "f32[8,4,4,4,4]",
            "grad_output": "f32[8,4,8,8,8]",
            "output_size": [8, 8, 8],
            "input_size": [8, 4, 4, 4, 4],
        },
    ),
    Need(
        "grid_sampler_2d*.*",
        {"input": _IMAGE, "grid": "f32[8,8,8,2]", "grad_output": _GRAD, "output_mask": [True, True]},
    ),
    Need(
        "grid_sampler_3d*.*",
        {
            "input": "f32[8,4,4,4,4]",
            "grid": "f32[8,4,4,4,3]",
            "grad_output": "f32[8,4,4,4,4]",
            "output_mask": [True, True],
        },
    ),
    Need("grid_sampler_*.*", {"interpolation_mode": 0, "padding_mode": 0}),
    # Norms.
    Need("*batch_norm*.*", _BATCH_NORM),
    Need(
        "native_layer_norm*.*",
        {
            "input": "f32[8,8]",
            "weight": "f32[8]R",
            "bias": "f32[8]R",
            "mean": "f32[8,1]",
            "rstd": "f32[8,1]",
            "normalized_shape": [8],
            "output_mask": [True, True, True],
        },
    ),
    Need(
        "_fused_rms_norm*.*",
        {
            "input": "f32[8,8]",
            "weight": "f32[8]R",
            "rstd": "f32[8,1]",
            "normalized_shape": [8],
            "output_mask": [True, True],
        },
    ),
    Need(
        "native_group_norm*.*",
        {
            "input": _IMAGE,
            "weight": "f32[4]R",
            "bias": "f32[4]R",
            "N": 8,
            "C": 4,
            "HxW": 64,
            "group": 2,
        },
    ),
    # Losses, embeddings, attention, random numbers, optimizers.
    Need(
        "nll_loss2d_*.*",
        {"self": _IMAGE, "target": "i64[8,8,8]", "total_weight": "f32[]", "grad_output": "f32[]"},
    ),
    Need("nll_loss_*.*", {"target": "i64[8]", "total_weight": "f32[]", "grad_output": "f32[]"}),
    Need(
        "embedding.*",
        {"weight": "f32[16,8]R", "indices": "i64[8,8]"},
    ),
    Need(
        "embedding_dense_backward.*",
        {"grad_output": "f32[8,8,8]", "indices": "i64[8,8]", "num_weights": 16, "padding_idx": -1},
    ),
    Need("_scaled_dot_product_*.*", _ATTENTION),
    Need("randint_like.*", {"low": 0, "high": 8}),
    Need("multinomial.*", {"num_samples": 2}),
    Need("native_dropout.* native_dropout_backward.*", {"train": True, "mask": "b8[8,8]"}),
    Need("rrelu_with_noise*.*", {"noise": "f32[8,8]"}),
    Need("_fused_adam*.tensor_lr", {"lr": "f32[]"}),
    Need("_fused_adam*.*", {"state_steps": ["f32[]", "f32[]"], "lr": 0.1, "max_exp_avg_sqs": []}),
    Need("_amp_foreach_non_finite_check_and_unscale_.*", {"found_inf": "f32[]L", "inv_scale": "f32[]L"}),
    Need("_foreach_addc*.Tensor", {"scalars": "f32[2]R"}),
    Need("_foreach_add*.Tensor _foreach_mul*.Tensor _foreach_div*.Tensor", {"other": "f32[]"}),
    # Indexing.
    Need("select_backward.*", {"grad_output": "f32[8]", "input_sizes": [8, 8], "dim": 1}),
    Need("slice_backward.*", {"input_sizes": [8, 8], "dim": 1, "start": 0, "end": 8, "step": 1}),
    Need("select_scatter.*", {"src": "f32[8]"}),
    Need("diagonal_scatter.*", {"src": "f32[8]"}),
    Need("index_select.*", {"index": "i64[8]R"}),
    Need("index_fill*.int_Tensor*", {"value": "f32[]"}),
    Need("index_fill*.*", {"index": "i64[8]R", "value": 2}),
    Need("index_reduce*.*", {"index": "i64[8]R", "source": "f32[8,8]", "reduce": "mean"}),
    Need("index.* index_put*.* _index_put_impl*.*", {"indices": ["i64[8]R"], "values": "f32[8,8]"}),
    Need("scatter.value scatter_.value", {"value": 2}),
    Need("bucketize.*", {"boundaries": "f32[8]R"}),
    Need("take.* put_.*", {"index": "i64[8]R"}),
    # Shapes.
    Need("view.default view_copy.* reshape.* _unsafe_view.*", {"self": "f32[8,8,8]", "size": [64, 8]}),
    Need("as_strided.*", {"size": [8, 8], "stride": [8, 1]}),
    Need("permute.*", {"dims": [1, 0]}),
    Need("transpose.int", {"dim0": 0, "dim1": 1}),
    Need("expand.* expand_copy.*", {"self": "f32[8,1]", "size": [8, 8]}),
    Need("repeat.*", {"repeats": [1, 2]}),
    Need("roll.*", {"shifts": [1], "dims": [1]}),
    Need("flip.*", {"dims": [1]}),
    Need("constant_pad_nd.*", {"pad": [1, 1]}),
    Need("split.Tensor", {"split_size": 4, "dim": 1}),
    Need("split_with_sizes*.*", {"split_sizes": [4, 4], "dim": 1}),
    Need("unbind.int", {"dim": 1}),
    Need("squeeze.default squeeze_.default", {"self": "f32[8,1]"}),
    Need("squeeze.dim squeeze_.dim", {"self": "f32[8,1]", "dim": 1}),
    Need("squeeze.dims squeeze_.dims", {"self": "f32[8,1]", "dim": [1]}),
    Need("cat.*", {"dim": 1}),
    Need("new_empty_strided.*", {"size": [8, 8], "stride": [8, 1]}),
    Need("view_as_complex.*", {"self": "f32[8,2]"}),
    Need("view_as_real.*", {"self": "c64[8,8]"}),
    Need("view.dtype", {"dtype": "i32"}),
    # Elementwise, where something must be chosen.
    Need("clamp*.default clamp*.out clip*.default clip*.out", {"min": 0.1}),
    Need("clamp*.Tensor* clip*.Tensor*", {"min": "f32[8,8]"}),
    Need("div*.*mode*", {"rounding_mode": "floor"}),
    Need("gelu_backward.*", {"approximate": "none"}),
    Need("mvlgamma*.*", {"p": 1}),
    Need("prims.var.*", {"dims": [1], "correction": 1.0}),
    Need("prims.sum.* prims.prod.*", {"dims": [1]}),
    Need("norm.Scalar", {"p": 2}),
    Need("_foreach_powsum.* linalg__powsum.*", {"ord": 2}),
    Need("float_power_.*", {"self": "f64[8,8]"}),
    # Linear algebra, each matrix of a batch on its own: symmetric and positive definite ones.
    Need("cholesky_solve.*", {"self": "f32[8,4,4]", "input2": "f32[8,4,4]"}),
    Need("linalg_householder_product.*", {"input": "f32[8,4,4]", "tau": "f32[8,4]"}),
    Need("ormqr.*", {"self": "f32[8,4,4]", "input2": "f32[8,4]", "input3": "f32[8,4,4]"}),
    Need("linalg_ldl_solve.*", {"LD": "f32[8,4,4]", "pivots": "i32[8,4]", "B": "f32[8,4,4]"}),
    Need("linalg_lu_solve.*", {"LU": "f32[8,4,4]", "pivots": "i32[8,4]", "B": "f32[8,4,4]"}),
    Need("lu_unpack.*", {"LU_data": "f32[8,4,4]", "LU_pivots": "i32[8,4]"}),
    Need("linalg_cross.*", {"self": "f32[8,3]", "other": "f32[8,3]"}),
    Need("linalg_pinv.*", {"self": "f32[8,4,4]", "atol": "f32[]", "rtol": "f32[]"}),
    Need("_linalg_check_errors.*", {"info": "i32[0]", "api_name": "linalg.inv", "is_matrix": False}),
    Need("linalg_vector_norm.*", {"self": "f32[8,8]"}),
    Need(
        "cholesky*.* geqrf.* triangular_solve.* linalg_*.* _linalg_*.*",
        {"self": "f32[8,4,4]", "A": "f32[8,4,4]", "B": "f32[8,4,4]", "other": "f32[8,4,4]"},
    ),
    # Fourier transforms, over the last dimension.
    Need("_fft_c2c.*", {"self": "c64[8,8]", "dim": [1], "normalization": 0, "forward": True}),
    Need("_fft_c2r.*", {"self": "c64[8,5]", "dim": [1], "normalization": 0, "last_dim_size": 8}),
    Need("_fft_r2c.*", {"self": "f32[8,8]", "dim": [1], "normalization": 0, "onesided": True}),
    Need("_fft_c2c.out _fft_r2c.out", {"out": "c64[0]"}),
)
