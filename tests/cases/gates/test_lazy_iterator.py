# A step that returns a lazy iterator runs none of the iterator's code. It is rejected as a generator is, and a list is not.
import itertools

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_dtdispatch.errors import DtDispatchError


def whole(batch):
    return batch.full_tensor()


LAZY = {
    "generator": lambda batches: (whole(batch) for batch in batches),
    "map": lambda batches: map(whole, batches),
    "filter": lambda batches: filter(lambda batch: whole(batch).sum() > 0, batches),
    "zip": lambda batches: zip(batches, map(whole, batches), strict=True),
    "enumerate": lambda batches: enumerate(map(whole, batches)),
    "islice": lambda batches: itertools.islice(map(whole, batches), 2),
    "chain": lambda batches: itertools.chain(map(whole, batches), map(whole, batches)),
    "starmap": lambda batches: itertools.starmap(whole, [(batch,) for batch in batches]),
}


@pytest.mark.parametrize("kind", LAZY)
def test_rejected(dtdispatch, device_mesh, kind):
    batches = [distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)]) for _ in range(3)]
    with pytest.raises(DtDispatchError):
        dtdispatch.steps(lambda: LAZY[kind](batches))


def test_list(dtdispatch, device_mesh):
    batches = [distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)]) for _ in range(3)]
    assert dtdispatch.steps(lambda: [*map(whole, batches)]).collectives_per_step == 3
