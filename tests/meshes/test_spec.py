"""Device and backend: resolution of "auto", and one-line errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_dtdispatch.core.environment import World
from pytest_dtdispatch.errors import DevicesError, MeshError
from pytest_dtdispatch.meshes import spec
from pytest_dtdispatch.meshes.spec import MeshSpec, choose_mesh

pytestmark = pytest.mark.torch

RANKS = World(rank=1, size=4, local_rank=1, local_size=4)
TWO_MACHINES = World(rank=3, size=4, local_rank=1, local_size=2)


def has_devices(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(spec, "has_local_mode", lambda: True)


@pytest.mark.parametrize(
    ("devices", "arguments", "chosen"),
    [
        # Auto is a fake group on a CPU without CUDA, and NCCL on CUDA if each rank has a process.
        (0, ((2, 4), "auto", "auto"), ("cpu", "fake")),
        (0, ((1,), "auto", "auto"), ("cpu", "fake")),
        (1, ((1,), "auto", "auto"), ("cuda", "nccl")),
        (1, ((4,), "auto", "auto"), ("cuda", "fake")),
        (1, ((1,), "cpu", "auto"), ("cpu", "fake")),
        (1, ((2, 2), "auto", "local"), ("cpu", "local")),
        (0, ((2**10, 2**10), "cpu", "fake"), ("cpu", "fake")),
        # Several ranks: real ones if the mesh contains all of them.
        (0, ((4,), "auto", "auto", RANKS), ("cpu", "gloo")),
        (0, ((2, 2), "cpu", "gloo", RANKS), ("cpu", "gloo")),
        (0, ((256,), "auto", "auto", RANKS), ("cpu", "fake")),
        (4, ((4,), "auto", "auto", RANKS), ("cuda", "nccl")),
        (3, ((4,), "auto", "auto", RANKS), ("cpu", "gloo")),
        (2, ((4,), "auto", "auto", TWO_MACHINES), ("cuda", "nccl")),
    ],
    ids=str,
)
def test_mesh_spec_is_chosen_by_devices_and_arguments(
    monkeypatch: pytest.MonkeyPatch, devices: int, arguments: Any, chosen: tuple[str, str]
) -> None:
    has_devices(monkeypatch, devices)
    found = choose_mesh(*arguments)
    assert found == MeshSpec(arguments[0], *chosen)
    assert found.world_size == torch.tensor(arguments[0]).prod()


NO_CUDA = "device cuda: torch {torch} sees no CUDA device; valid here: cpu"
NO_NCCL = "backend nccl needs a CUDA device, and {}; valid here: fake, gloo"
NO_PROCESS = "backend {} needs a process for each of the {} ranks of mesh {} and this run has {}: use "
ONE, ALL = "the fake backend, or mesh 1", "the fake backend, or a mesh of all 4 ranks"
FEW = "backend nccl needs a CUDA device for each of the 4 ranks on this machine, and torch {torch} sees 1"
LARGE = "mesh 100000000x100000 has 10000000000000 ranks; at most 1048576 are simulated"


@pytest.mark.parametrize(
    ("devices", "arguments", "message"),
    [
        (0, ((1,), "cuda", "auto"), NO_CUDA),
        (0, ((1,), "cuda", "nccl"), NO_CUDA),
        (0, ((1,), "auto", "nccl"), NO_NCCL.format("torch {torch} sees none")),
        (1, ((1,), "cpu", "nccl"), NO_NCCL.format("the device is cpu")),
        (1, ((1,), "cuda", "gloo"), "backend gloo needs device cpu; on cuda use nccl or fake"),
        (0, ((2, 4), "cpu", "gloo"), NO_PROCESS.format("gloo", 8, "2x4", 1) + ONE),
        (1, ((4,), "cuda", "nccl"), NO_PROCESS.format("nccl", 4, "4", 1) + ONE),
        (0, ((2,), "cpu", "gloo", RANKS), NO_PROCESS.format("gloo", 2, "2", 4) + ALL),
        (1, ((4,), "cuda", "nccl", RANKS), FEW),
        (0, ((100_000_000, 100_000), "cpu", "auto"), LARGE),
    ],
    ids=str,
)
def test_invalid_mesh_spec_is_refused(
    monkeypatch: pytest.MonkeyPatch, devices: int, arguments: Any, message: str
) -> None:
    has_devices(monkeypatch, devices)
    with pytest.raises((MeshError, DevicesError)) as raised:
        choose_mesh(*arguments)
    assert str(raised.value).startswith(message.format(torch=torch.__version__))
    assert "\n" not in str(raised.value)


def test_local_ranks_are_refused_if_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "has_local_mode", lambda: False)
    with pytest.raises(MeshError, match=r"\(torch 2.10 and later do\); valid here: fake"):
        choose_mesh((4,), "auto", "local")
