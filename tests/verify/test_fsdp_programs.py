"""Programs that FSDP2 computes silently wrong differ from their plain twins, and right ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes import FSDP_WITHOUT_CUDA, needs
from tests.rank_runs import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs(FSDP_WITHOUT_CUDA)]

PROGRAMS = """
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call

from pytest_dtdispatch.errors import UnequalError


def model_of(mesh=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    for layer in (*model, model) if mesh else ():
        fully_shard(layer, mesh=mesh)
    return model


def gradients(model):
    return {name: each.grad for name, each in model.named_parameters()}


def earlier_forward_in_autocast(model, x, is_wrong):
    with torch.autocast("cpu", torch.bfloat16):
        if is_wrong:
            model(x)
        loss = model(x).square().mean()
    loss.backward()
    return gradients(model)


def backward_to_inputs(model, x, is_wrong):
    loss = model(x).square().mean()
    loss.backward(inputs=[*model.parameters()] if is_wrong else None)
    return gradients(model)


@torch.no_grad()
def functional_call_after_a_forward(model, x, is_wrong):
    model(x)
    values = {name: each * 2 for name, each in model.named_parameters()}
    if is_wrong:
        return functional_call(model, values, (x,))
    for name, each in model.named_parameters():
        each.copy_(values[name])
    return model(x)


def close(one, other):
    torch.testing.assert_close(other, one, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize(
    "program", [earlier_forward_in_autocast, backward_to_inputs, functional_call_after_a_forward]
)
def test_step(dtdispatch, device_mesh, program, is_wrong):
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(1))
    models = {"plain": model_of(), "sharded": model_of(device_mesh)}
    variants = {name: lambda model=model: program(model, x, is_wrong) for name, model in models.items()}
    if is_wrong:
        with pytest.raises(UnequalError) as raised:
            dtdispatch.compare(variants, equal=close)
        print(program.__name__, raised.value)
    else:
        dtdispatch.compare(variants, equal=close)
"""


@pytest.mark.long
def test_wrong_programs_differ_from_plain_twins(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAMS)
    result = run_ranks(tmp_path, 2, "--dtdispatch-backend=gloo", "--dtdispatch-metric=verify", "-s")
    assert result.status == 0, result.text
    assert (
        "earlier_forward_in_autocast compare 'compare': the results of 'sharded' and 'plain'" in result.text
    )
    assert "None is not tensor" in result.text
    assert "functional_call_after_a_forward compare 'compare': the results of" in result.text
    assert "collectives on plain tensors" in result.text
