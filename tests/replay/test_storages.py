"""Copies of tensor contents: for every kind with storage, and a reason for every kind without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_dtdispatch.replay.storages import Copy, NoCopyError, Storages, refuse_uncopyable
from pytest_dtdispatch.torchapi.tensors import StorageReference

pytestmark = pytest.mark.torch

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.rand(3, 4),
    "a column": lambda: torch.rand(3, 4)[:, 1],
    "expanded": lambda: torch.rand(1, 4).expand(3, 4),
    "overlapping": lambda: torch.rand(5).as_strided((3, 3), (1, 1)),
    "empty": lambda: torch.rand(0, 4),
    "empty and expanded": lambda: torch.rand(1, 4).expand(3, 4)[:0],
    "scalar": lambda: torch.tensor(3.0),
    "conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "not a number": lambda: torch.tensor([float("nan"), -0.0]),
    "of bools": lambda: torch.tensor([True, False]),
}


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.clone(memory_format=torch.contiguous_format).untyped_storage())


@pytest.mark.parametrize("name", TENSORS)
def test_written_storage_is_restored(name: str) -> None:
    tensor = TENSORS[name]()
    storage = tensor.untyped_storage()
    before, version = bits(tensor), tensor._version
    copy = Copy(tensor)
    torch.zeros(0, dtype=torch.uint8).set_(storage).fill_(7)
    copy.restore()
    assert bits(tensor) == before
    assert tensor._version == version


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.eye(3).to_mkldnn(), "mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
def test_tensor_without_storage_has_a_reason(make: Callable[[], torch.Tensor], kind: str) -> None:
    with pytest.raises(NoCopyError, match=f"^runs once: it writes to a {kind} tensor, whose contents cannot"):
        refuse_uncopyable(make())


def test_replacing_storage_of_equal_size_is_restored() -> None:
    tensor = torch.ones(4)
    first, copy = tensor.detach(), Copy(tensor)
    tensor.data = torch.zeros(4)
    first.fill_(7)
    assert copy.restore()
    assert tensor.tolist() == [1.0] * 4
    assert first.tolist() == [7.0] * 4


@pytest.mark.parametrize("other", [torch.zeros(8)[:4], torch.zeros(2), torch.zeros(4, dtype=torch.float64)])
def test_storage_of_another_size_is_not_written(other: torch.Tensor) -> None:
    tensor = torch.ones(4)
    copy = Copy(tensor)
    tensor.data = other
    assert not copy.restore()
    assert not tensor.any()


def test_tensor_that_a_graph_releases_is_unchanged() -> None:
    """Torch 2.9 clears the Python object of a tensor that only C++ code holds, unless it is kept alive."""
    factor = torch.full((4,), 2.0)
    product = torch.ones(4, requires_grad=True) * factor
    del factor
    before = Storages()
    del product
    before.refuse_changed("it")


def test_incomplete_reference_is_deleted_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    incomplete = StorageReference.__new__(StorageReference)
    del incomplete
    assert unraisable == []
