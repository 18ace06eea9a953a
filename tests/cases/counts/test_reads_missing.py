"""Each read that waits for a device counts; numbers that are on the host anyway never do."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

x = torch.arange(6.0).view(2, 3)
mask = x > 2
square = torch.eye(3) + torch.arange(9.0).view(3, 3)
sparse = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long), torch.ones(2), (3,))
WAITS = {
    "nonzero(out=)": lambda: torch.nonzero(mask, out=torch.empty(0, dtype=torch.long)),
    "nonzero(as_tuple)": lambda: x.nonzero(as_tuple=True),
    "index_put_(mask)": lambda: x.clone().index_put_((mask,), torch.ones(3)),
    "to_sparse": lambda: x.to_sparse(),
    "coalesce": lambda: sparse.coalesce(),
    "narrow(Tensor)": lambda: x.narrow(0, torch.zeros((), dtype=torch.long), 1),
    "unique(return_inverse)": lambda: torch.unique(x, return_inverse=True),
    "unique_consecutive(dim)": lambda: torch.unique_consecutive(x, dim=0),
    "complex": lambda: complex(x.sum()),
    "format": lambda: f"{x.sum()}",
    "repr of Parameter": lambda: repr(torch.nn.Parameter(x)),
    "pickle.dumps": lambda: pickle.dumps(x),
    "storage()[0]": lambda: x.untyped_storage()[0],
    "__array__": lambda: np.add(x, 1),
    "torch.cond": lambda: torch.cond(mask.any(), lambda: x.sin(), lambda: x.cos(), ()),
}
ONCE = {  # torch.linalg.inv checks for errors once; torch documents that inv_ex does not synchronize
    "linalg.inv": lambda: torch.linalg.inv(square),
}
data = torch.utils.data.TensorDataset(torch.arange(8.0))
plain, shuffled = (
    torch.utils.data.DataLoader(data, batch_size=4, shuffle=shuffle) for shuffle in (False, True)
)
NO_WAIT = {
    "DataLoader": lambda: [*plain],
    "DataLoader(shuffle)": lambda: [*shuffled],
    "random_split": lambda: torch.utils.data.random_split(data, [4, 4]),
    "seed": lambda: torch.Generator().seed(),
    "rng_state": lambda: torch.set_rng_state(torch.get_rng_state()),
    "item of torch.tensor": lambda: torch.tensor(3).item(),
    "sum of torch.tensor": lambda: (torch.tensor([3, 4]) + 1).sum().item(),
    "tolist of torch.as_tensor": lambda: torch.as_tensor([3, 4]).tolist(),
    "narrow(host Tensor)": lambda: x.narrow(0, torch.tensor(0), 1),
    "tensor_split(host Tensor)": lambda: torch.tensor_split(x, torch.tensor([1])),
    "linalg.inv_ex": lambda: torch.linalg.inv_ex(square),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(dtdispatch, name):
    assert dtdispatch.steps(WAITS[name], warmup=1, steps=1).reads_per_step >= 1


@pytest.mark.parametrize("name", ONCE)
def test_once(dtdispatch, name):
    assert dtdispatch.steps(ONCE[name], warmup=1, steps=1).reads_per_step == 1


@pytest.mark.parametrize("name", NO_WAIT)
def test_no_wait(dtdispatch, name):
    assert dtdispatch.steps(NO_WAIT[name], warmup=1, steps=1).reads_per_step == 0
