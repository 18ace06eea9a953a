# Each collective of FSDP2 is in the module whose parameters it moves, as a table by FSDP2's own groups has it.
import sys
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint

MODULE = next(each for name, each in sys.modules.items() if name.endswith("_fsdp_param_group"))
GROUP = MODULE.FSDPParamGroup
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_reduce": "all_reduce",
}


class Block(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.reentrant = reentrant

    def run(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

    def forward(self, x):
        if self.reentrant is None:
            return self.run(x)
        return checkpoint(self.run, x, use_reentrant=self.reentrant)


class Stack(nn.Module):
    def __init__(self, blocks=3, **options):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleDict({str(n): Block(**options) for n in range(blocks)})
        self.norm, self.output = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


def sharded(mesh, model=None, lists=True, inner=False, **options):
    model = model or Stack()
    fully_shard(model.embedding, mesh=mesh, **options)
    for block in model.layers.values():
        for each in (block.up, block.down, block) if inner else (block,):
            fully_shard(each, mesh=mesh, **options)
    if lists:
        fully_shard([model.norm, model.output], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def prefetching(mesh):
    model = sharded(mesh)
    blocks = [*model.layers.values()]
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 3])
        block.set_modules_to_backward_prefetch(blocks[:number][::-1])
    return model


def frozen(mesh):
    model = Stack().requires_grad_(False)
    model.output.requires_grad_(True)
    return sharded(mesh, model)


def shared(mesh):
    model = Stack()
    model.output.weight = model.embedding.weight
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


MODELS = {
    "usual": sharded,
    "leftovers": lambda mesh: sharded(mesh, lists=False),
    "groups_in_a_block": lambda mesh: sharded(mesh, inner=True),
    "prefetching": prefetching,
    "stays_gathered": lambda mesh: sharded(mesh, reshard_after_forward=False),
    "frozen": frozen,
    "shared": shared,
    "checkpoint": lambda mesh: sharded(mesh, Stack(reentrant=False)),
    "reentrant": lambda mesh: sharded(mesh, Stack(reentrant=True)),
    "hybrid": sharded,
}


def names(group, model):
    owners = getattr(group, "modules", None) or (group.module,)
    of_modules = {module: name or type(module).__name__ for name, module in model.named_modules()}
    return ", ".join(of_modules[each] for each in owners)


def owner_table(model, step):
    """Run a step; return kind and owner of each collective of FSDP2, from its groups."""
    running, table = [], []

    def entered(inner):
        def run(group, *args, **kwargs):
            running.append(group)
            try:
                return inner(group, *args, **kwargs)
            finally:
                running.pop()

        return run

    def recorded(kind, inner):
        def run(*args, **kwargs):
            table.append((kind, names(running[-1], model)))
            return inner(*args, **kwargs)

        return run

    methods = {name: entered(getattr(GROUP, name)) for name in ("unshard", "post_backward")}
    calls = {name: recorded(kind, getattr(dist, name)) for name, kind in KINDS.items() if hasattr(dist, name)}
    with patch.multiple(GROUP, **methods), patch.multiple(dist, **calls):
        step()
    return table


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_collectives(dtdispatch, mesh_factory, kind, microbatches):
    mesh = mesh_factory((2, 2), dim_names=("r", "s")) if kind == "hybrid" else mesh_factory((4,))
    model = MODELS[kind](mesh)
    tokens = torch.randint(32, (8,))

    def step():
        for number in range(microbatches):
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(number == microbatches - 1)
            model(tokens).sum().backward()
        model.zero_grad()

    try:
        step()
    except AssertionError:
        if kind == "hybrid":
            pytest.skip("this torch reduces over replicas on CUDA only")
        raise
    expected = owner_table(model, step)
    assert len(expected) > 4
    for counts in dtdispatch.steps(step, warmup=1, steps=2).steps:
        assert [(run.kind, run.place.module) for run in counts.collective_runs] == expected
