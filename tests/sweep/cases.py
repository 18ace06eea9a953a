"""Cases of the sweep: an op of torch's database, a sample, a form, and placements of its inputs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils._pytree import tree_map

from pytest_dtdispatch.torchapi.ops import tree_leaves

FORMS = ("forward", "in place", "out", "backward", "backward after")
PLACED = ("replicated", "sharded", "partial", "mixed")
OTHER_DTYPES = (torch.int64, torch.bool, torch.complex64)
SAMPLES = {True: 2, False: 1}  # key: whether the dtype is float32
POOL = 16  # first samples of an op, from which a few are selected evenly

# Torch searches shardings of these by decomposition, and tries so many that it takes minutes.
TOO_SLOW = (
    "nn.functional.scaled_dot_product_attention | * | sharded",
    "nn.functional.scaled_dot_product_attention | * | mixed",
    "_batch_norm_with_update | * | backward* | mixed",
)


@cache
def ops() -> dict[str, Any]:
    """Return torch's op database by name. Its import takes 3 s, so only the process that runs cases does."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in sorted(op_db, key=lambda op: str(op.full_name))}


@dataclass(frozen=True)
class Case:
    """One case.

    Args:
        op: name in :func:`ops`.
        dtype: dtype of the samples.
        index: index of the sample among the selected ones.
        form: how the op is called, one of :data:`FORMS`.
        placed: placements of the inputs, one of :data:`PLACED`.
    """

    op: str
    dtype: torch.dtype
    index: int
    form: str
    placed: str

    @property
    def name(self) -> str:
        """The name of the case, from which its seed is derived."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.op} | {dtype} {self.index} | {self.form} | {self.placed}"

    @property
    def number(self) -> int:
        """A number derived from the name."""
        return zlib.crc32(self.name.encode())

    @property
    def has_grad(self) -> bool:
        """Whether its inputs require gradients."""
        return self.form.startswith("backward")


def cases() -> Iterator[Case]:
    """Yield all cases in a fixed order, without creating samples: some cases have none."""
    for name, op in ops().items():
        for dtype in dtypes_of(op):
            for index in range(SAMPLES[dtype is torch.float32]):
                for form in forms_of(op, dtype, index):
                    for placed in PLACED:
                        case = Case(name, dtype, index, form, placed)
                        if not any(fnmatchcase(case.name, pattern) for pattern in TOO_SLOW):
                            yield case


def dtypes_of(op: Any) -> tuple[torch.dtype, ...]:
    """Return float32 if the op supports it, and another dtype selected by the name of the op."""
    supported = op.supported_dtypes("cpu")
    others = [dtype for dtype in OTHER_DTYPES if dtype in supported]
    first = (torch.float32,) if torch.float32 in supported else ()
    return (*first, *others[zlib.crc32(op.full_name.encode()) % len(others) :][:1]) if others else first


def forms_of(op: Any, dtype: torch.dtype, index: int) -> tuple[str, ...]:
    """Return the forms of an op; only the first sample has one with a backward pass after the call."""
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    has = {
        "forward": True,
        "in place": op.get_inplace() is not None,
        "out": op.supports_out,
        "backward": differentiable,
        "backward after": differentiable and index == 0 and dtype is torch.float32,
    }
    return tuple(form for form in FORMS if has[form])


@dataclass(frozen=True)
class Sample:
    """The arguments of an op as plain tensors; the same object may occur several times."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """The unique dense tensors among the arguments, which become DTensors."""
        leaves = tree_leaves((self.args, self.kwargs))
        return list({id(leaf): leaf for leaf in leaves if is_dense(leaf)}.values())


@lru_cache(maxsize=8)
def samples_of(op: str, dtype: torch.dtype, has_grad: bool) -> list[Sample]:
    """Create the selected samples of an op: a few of the first, spread evenly."""
    seed(zlib.crc32(f"{op} {dtype}".encode()))
    # Not ``sample_inputs``, which searches the stack for the calling test: slow and not needed.
    samples = ops()[op].sample_inputs_func(ops()[op], "cpu", dtype, requires_grad=has_grad)
    pool = [Sample((sample.input, *sample.args), dict(sample.kwargs)) for sample in islice(samples, POOL)]
    count = min(SAMPLES[dtype is torch.float32], len(pool))
    return [pool[(2 * n + 1) * len(pool) // (2 * count)] for n in range(count)]


def sample_of(case: Case) -> Sample | None:
    """Return the sample of a case; None if the case equals another one."""
    samples = samples_of(case.op, case.dtype, case.has_grad)
    if case.index >= len(samples):
        return None
    sample = samples[case.index]
    tensors = sample.tensors()
    if not tensors and case.placed != PLACED[0]:
        return None
    here = placements_of(case.placed, tensors)
    before = [placements_of(placed, tensors) for placed in PLACED[: PLACED.index(case.placed)]]
    return None if here in before else sample


def placements_of(placed: str, tensors: list[torch.Tensor]) -> list[Placement]:
    """Return placements of tensors on a 1-D mesh; tensors that cannot be sharded are replicated."""
    return [_placement(placed, n, tensor, len(tensors)) for n, tensor in enumerate(tensors)]


def _placement(placed: str, n: int, tensor: torch.Tensor, count: int) -> Placement:
    first = Shard(0) if tensor.ndim else Replicate()
    last = Shard(tensor.ndim - 1) if tensor.ndim else Replicate()
    kinds: dict[str, tuple[Placement, ...]] = {
        "replicated": (Replicate(),),
        "sharded": (first,),
        "partial": (Partial(),),
        # The first is the table of an embedding, the second its indices.
        "mixed": (first, Replicate(), Partial(), last) if count > 1 else (last,),
    }
    return kinds[placed][n % len(kinds[placed])]


def place(sample: Sample, placed: str, mesh: DeviceMesh, change: Callable[..., torch.Tensor]) -> Sample:
    """Copy arguments, with dense tensors as DTensors; identical objects stay identical.

    Args:
        sample: the arguments.
        placed: their placements.
        mesh: 1-D mesh.
        change: returns other contents of a tensor, or the same.
    """
    tensors = sample.tensors()
    where = dict(zip(map(id, tensors), placements_of(placed, tensors), strict=True))
    copies: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if id(leaf) in where:
            if id(leaf) not in copies:
                contents = change(leaf.detach())
                copies[id(leaf)] = distribute(contents, mesh, where[id(leaf)], leaf.requires_grad)
            return copies[id(leaf)]
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return leaf.clone_state() if isinstance(leaf, torch.Generator) else leaf

    args, kwargs = tree_map(copy, (sample.args, sample.kwargs))
    return Sample(args, kwargs)


def distribute(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement, has_grad: bool) -> DTensor:
    """Shard a tensor without a collective: a fake one would leave the result undefined."""
    local = tensor
    if isinstance(placement, Shard):
        local = tensor.chunk(mesh.size(), placement.dim)[0]
    local = local.clone()  # dense, with the original order of dimensions
    dtensor = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    dtensor.requires_grad_(has_grad)
    return dtensor


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """Return other valid contents of the same shape, like the next batch of a program."""
    return tensor.flip(tuple(range(tensor.ndim))) if tensor.numel() else tensor


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same contents."""
    return tensor


def seed(number: int) -> None:
    """Seed all generators that samples and ops draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def is_dense(leaf: Any) -> bool:
    """Return whether a value is a tensor that can become a DTensor: neither sparse nor nested."""
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_nested
