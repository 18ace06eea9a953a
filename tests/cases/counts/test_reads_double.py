"""One wait for the device is one read: what .cpu() returned is on the host, until a tensor of the device is written to it."""

from __future__ import annotations

import pytest
import torch

LOSSES = [torch.rand(4, 4) for _ in range(4)]


def one_by_one():
    return [loss.sum().item() for loss in LOSSES]


def stacked():
    return [float(value) for value in torch.stack([loss.sum() for loss in LOSSES]).cpu()]


def logged():
    return LOSSES[0].sum().detach().cpu().item()


def of_host():
    return (LOSSES[0].cpu() * 2).sum().item()


def written():
    host = LOSSES[0].cpu()
    return host.copy_(LOSSES[1]).tolist()


@pytest.mark.parametrize(
    ("step", "waits"), [(one_by_one, 4), (stacked, 1), (logged, 1), (of_host, 1), (written, 2)]
)
def test_waits(dtdispatch, step, waits):
    assert dtdispatch.steps(step).reads_per_step == waits
