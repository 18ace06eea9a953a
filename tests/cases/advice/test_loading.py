"""Right: set_model_state_dict has no src_data_rank to pass: nothing, or how its user loads tensors that are sharded already (0 collectives).

The control calls distribute_tensor itself, and saves all 8.
"""

import re

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def test_load(dtdispatch, device_mesh):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    fully_shard(model, mesh=device_mesh)
    full = {key: torch.rand(value.shape) for key, value in model.state_dict().items()}

    def torch_shards():
        set_model_state_dict(model, dict(full), options=StateDictOptions(full_state_dict=True))

    def sharded(**options):
        return {
            key: distribute_tensor(value, device_mesh, [Shard(0)], **options) for key, value in full.items()
        }

    load = dtdispatch.steps(torch_shards, name="torch shards")
    own = dtdispatch.steps(sharded, name="own loop")
    free = dtdispatch.steps(
        lambda: set_model_state_dict(model, sharded(src_data_rank=None)), name="sharded before"
    )
    if dtdispatch.enabled:
        assert [each.collectives_per_step for each in (load, own, free)] == [8, 8, 0]
        assert sum(advice.count for advice in own.advice) == 8
        for advice in load.advice:  # what is loaded can be changed
            assert "src_data_rank" not in advice.change or re.search("load|state_dict", advice.change), advice
