"""A step that saves a checkpoint: each tensor is copied to the host once; the offsets that torch's planner reads are always on the host."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor


def test_save(dtdispatch, device_mesh, tmp_path):
    state = {f"w{i}": distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)]) for i in range(3)}

    def save():
        dcp.save(state, checkpoint_id=tempfile.mkdtemp(dir=tmp_path), no_dist=True)

    steps = dtdispatch.steps(save, warmup=1, steps=2)
    assert [len(step.reads) for step in steps.steps] == [3, 3]
