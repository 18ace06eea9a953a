"""What kind of op one is, by its name: so that a reader finds its like."""

from __future__ import annotations

from fnmatch import fnmatchcase

ELEMENTWISE = "elementwise"

# The first entry whose globs name an op, less its overload, is its kind; what none names is elementwise.
_KINDS = {
    "lists of tensors": "_foreach_* _amp_foreach_* _fused_adam* _fused_adamw* _fused_sgd* _fused_adagrad*",
    "attention": "*attention*",
    "backward": "*_backward *_backward_data",
    "random": "*bernoulli* *dropout* normal* uniform* exponential* geometric* cauchy* log_normal*"
    " multinomial rand* poisson rrelu_with_noise* random* binomial",
    "products of matrices": "mm bmm addmm addmm_ baddbmm baddbmm_ dot vdot mv addmv* addr* addbmm* *_mm"
    " matmul linear *grouped_mm *scaled_mm",
    "linear algebra": "linalg_* _linalg_* cholesky* geqrf lu_unpack ormqr triangular_solve *_fft_* _fft_*",
    "norms, softmax, losses": "*batch_norm* *layer_norm* *group_norm* *rms_norm* *softmax nll_loss* *_loss"
    " *loss_forward",
    "convolution, pooling, resizing": "*convolution* *pool1d* *pool2d* *pool3d* *unpool* *upsample_*"
    " grid_sampler* *pad*",
    "reductions": "sum nansum mean prod max min amax amin aminmax argmax argmin var std var_mean std_mean all"
    " any norm logsumexp median nanmedian mode kthvalue histc equal cum* logcumsumexp count_nonzero dist"
    " _local_scalar_dense item",
    "indexing and sorting": "index* _index_* _unsafe_index* gather* scatter* take* put* masked_* embedding*"
    " topk sort* argsort *bucketize searchsorted where unique* nonzero* flip roll tril* triu* slice_scatter"
    " select_scatter diagonal_scatter",
    "shape and views": "view* _unsafe_view reshape* t transpose permute expand* squeeze* unsqueeze* slice"
    " select split* unbind* as_strided* alias detach* diag* stack cat repeat* movedim unfold* narrow chunk"
    " flatten _reshape_* _conj t_ transpose_ t_copy transpose_copy permute_copy",
    "copies and new tensors": "clone copy _to_copy to contiguous *_like new_* full* zeros* ones* empty* eye"
    " arange* fill* zero* is_pinned is_same_size lift*",
}


def kind_of(op: str) -> str:
    """Tell the kind of an op.

    Example:
        >>> kind_of("mm.default"), kind_of("add_.Tensor"), kind_of("prims.view_of.default")
        ('products of matrices', 'elementwise', 'shape and views')
    """
    name = op.removeprefix("prims.").partition(".")[0]
    names = {name, name.removesuffix("_")}
    for kind, globs in _KINDS.items():
        if any(fnmatchcase(each, glob) for glob in globs.split() for each in names):
            return kind
    return ELEMENTWISE
