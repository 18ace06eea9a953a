"""Every case of the sweep: an op of torch's database, a sample of it, a form, placements of its inputs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

from pytest_dtdispatch.torchapi.ops import tree_leaves

FORMS = ("forward", "in place", "out", "backward", "backward after")
PLACED = ("replicated", "sharded", "partial", "mixed")
OTHER_DTYPES = (torch.int64, torch.bool, torch.complex64)
SAMPLES = {True: 2, False: 1}  # by whether the dtype is float32
POOL = 16  # samples of an op that the few are taken from, spread evenly

# Torch looks for a sharding of these by decomposing them, and tries so many that it takes minutes.
TOO_SLOW = (
    "nn.functional.scaled_dot_product_attention | * | sharded",
    "nn.functional.scaled_dot_product_attention | * | mixed",
    "_batch_norm_with_update | * | backward* | mixed",
)

OPS = {op.full_name: op for op in sorted(op_db, key=lambda op: str(op.full_name))}


@dataclass(frozen=True)
class Case:
    """One case.

    Args:
        op: name in :data:`OPS`.
        dtype: of the samples.
        index: of the sample, among those that are taken.
        form: how the op is called, one of :data:`FORMS`.
        placed: where the inputs are, one of :data:`PLACED`.
    """

    op: str
    dtype: torch.dtype
    index: int
    form: str
    placed: str

    @property
    def name(self) -> str:
        """The name, which also seeds the case."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.op} | {dtype} {self.index} | {self.form} | {self.placed}"

    @property
    def number(self) -> int:
        """A number that the name alone decides."""
        return zlib.crc32(self.name.encode())

    @property
    def has_grad(self) -> bool:
        """Whether its inputs require gradients."""
        return self.form.startswith("backward")


def cases() -> Iterator[Case]:
    """Name every case, in a fixed order, without making a sample: some have no such sample."""
    for name, op in OPS.items():
        for dtype in dtypes_of(op):
            for index in range(SAMPLES[dtype is torch.float32]):
                for form in forms_of(op, dtype, index):
                    for placed in PLACED:
                        case = Case(name, dtype, index, form, placed)
                        if not any(fnmatchcase(case.name, pattern) for pattern in TOO_SLOW):
                            yield case


def dtypes_of(op: Any) -> tuple[torch.dtype, ...]:
    """Return float32 where the op takes it, and one other dtype that the name of the op decides."""
    supported = op.supported_dtypes("cpu")
    others = [dtype for dtype in OTHER_DTYPES if dtype in supported]
    first = (torch.float32,) if torch.float32 in supported else ()
    return (*first, *others[zlib.crc32(op.full_name.encode()) % len(others) :][:1]) if others else first


def forms_of(op: Any, dtype: torch.dtype, index: int) -> tuple[str, ...]:
    """Return the forms that an op has; one backward pass after the call is tried, of the first sample."""
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
    """The arguments of an op as plain tensors, some of which may be one object."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """The dense tensors among the arguments, each once, which become DTensors."""
        leaves = tree_leaves((self.args, self.kwargs))
        return list({id(leaf): leaf for leaf in leaves if is_dense(leaf)}.values())


@lru_cache(maxsize=8)
def samples_of(op: str, dtype: torch.dtype, has_grad: bool) -> list[Sample]:
    """Make the samples of an op that are taken: a few of its first, spread evenly."""
    seed(zlib.crc32(f"{op} {dtype}".encode()))
    # Past ``sample_inputs``, which looks through the stack for the test that asks: slow, and not needed.
    made = OPS[op].sample_inputs_func(OPS[op], "cpu", dtype, requires_grad=has_grad)
    pool = [Sample((sample.input, *sample.args), dict(sample.kwargs)) for sample in islice(made, POOL)]
    count = min(SAMPLES[dtype is torch.float32], len(pool))
    return [pool[(2 * n + 1) * len(pool) // (2 * count)] for n in range(count)]


def sample_of(case: Case) -> Sample | None:
    """Return the sample of a case; nothing where it would be a case that has another name already."""
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
    """Place tensors on a mesh of one dimension; what cannot be sharded is replicated."""
    return [_placement(placed, n, tensor, len(tensors)) for n, tensor in enumerate(tensors)]


def _placement(placed: str, n: int, tensor: torch.Tensor, count: int) -> Placement:
    first = Shard(0) if tensor.ndim else Replicate()
    last = Shard(tensor.ndim - 1) if tensor.ndim else Replicate()
    kinds: dict[str, tuple[Placement, ...]] = {
        "replicated": (Replicate(),),
        "sharded": (first,),
        "partial": (Partial(),),
        # The second is where an embedding has its indices, and the first its table.
        "mixed": (first, Replicate(), Partial(), last) if count > 1 else (last,),
    }
    return kinds[placed][n % len(kinds[placed])]


def place(sample: Sample, placed: str, mesh: DeviceMesh, change: Callable[..., torch.Tensor]) -> Sample:
    """Copy arguments, dense tensors as DTensors, what was one object staying one.

    Args:
        sample: the arguments.
        placed: where they are.
        mesh: of one dimension.
        change: makes other contents of a tensor, or leaves it as it is.
    """
    tensors = sample.tensors()
    where = dict(zip(map(id, tensors), placements_of(placed, tensors), strict=True))
    made: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if id(leaf) in where:
            if id(leaf) not in made:
                contents = change(leaf.detach())
                made[id(leaf)] = distribute(contents, mesh, where[id(leaf)], leaf.requires_grad)
            return made[id(leaf)]
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return leaf.clone_state() if isinstance(leaf, torch.Generator) else leaf

    args, kwargs = tree_map(copy, (sample.args, sample.kwargs))
    return Sample(args, kwargs)


def distribute(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement, has_grad: bool) -> DTensor:
    """Give this rank its part of a tensor, by no collective: a fake one would leave it undefined."""
    local = tensor
    if isinstance(placement, Shard):
        local = tensor.chunk(mesh.size(), placement.dim)[0]
    local = local.clone()  # dense, with the order of dimensions that it had
    made = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    made.requires_grad_(has_grad)
    return made


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """Return other contents of the same shape, and as valid: a program's next batch."""
    return tensor.flip(tuple(range(tensor.ndim))) if tensor.numel() else tensor


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the contents as they are."""
    return tensor


def seed(number: int) -> None:
    """Seed everything that makes samples, or that ops draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def is_dense(leaf: Any) -> bool:
    """Tell a tensor that can be a DTensor from one that is sparse or nested, and from what is none."""
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_nested
