"""A step that waits for the device once passes the limit reads=1: what .cpu() returned is on the host."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.dtdispatch(max="reads=1")
def test_logged_loss(dtdispatch, device_mesh):
    loss = torch.rand(4, 4)
    dtdispatch.steps(lambda: loss.mean().detach().cpu().item(), name="logged")
