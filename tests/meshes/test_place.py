"""Device and backend: what auto means, and what is refused in one line."""

from __future__ import annotations

import pytest
import torch

from pytest_dtdispatch.core.environment import World
from pytest_dtdispatch.errors import DevicesError, MeshError
from pytest_dtdispatch.meshes import place
from pytest_dtdispatch.meshes.place import Place, choose_place

pytestmark = pytest.mark.torch
RANKS = World(rank=1, size=4, local_rank=1, local_size=4)


@pytest.fixture(params=[False, True], ids=["without CUDA", "with CUDA"])
def has_cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    has: bool = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(has))
    return has


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def refusal(mesh: tuple[int, ...], device: str, backend: str) -> str:
    with pytest.raises(MeshError) as raised:
        choose_place(mesh, device, backend)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_auto_is_a_fake_group_on_the_cpu_where_there_is_no_cuda(no_cuda: None) -> None:
    assert choose_place((2, 4), "auto", "auto") == Place((2, 4), "cpu", "fake")
    assert choose_place((1,), "auto", "auto") == Place((1,), "cpu", "fake")


def test_auto_is_nccl_on_cuda_where_each_rank_has_a_process(cuda: None) -> None:
    assert choose_place((1,), "auto", "auto") == Place((1,), "cuda", "nccl")
    assert choose_place((4,), "auto", "auto") == Place((4,), "cuda", "fake")


def test_the_cpu_can_be_had_beside_cuda(cuda: None) -> None:
    assert choose_place((1,), "cpu", "auto") == Place((1,), "cpu", "fake")


@pytest.mark.parametrize("mesh", [(1,), (4,), (8, 8, 8, 32)], ids=str)
def test_a_fake_group_can_be_had_at_any_size(has_cuda: bool, mesh: tuple[int, ...]) -> None:
    place = choose_place(mesh, "cpu", "fake")
    assert place == Place(mesh, "cpu", "fake")
    assert place.world_size == torch.tensor(mesh).prod()


@pytest.mark.parametrize("backend", ["auto", "fake", "nccl"])
def test_cuda_where_there_is_none_is_refused(no_cuda: None, backend: str) -> None:
    text = refusal((1,), "cuda", backend)
    assert text == f"device cuda: torch {torch.__version__} sees no CUDA device; valid here: cpu"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_nccl_where_there_is_no_cuda_is_refused(no_cuda: None, device: str) -> None:
    text = refusal((1,), device, "nccl")
    assert text.startswith("backend nccl needs a CUDA device, and torch ")
    assert text.endswith("valid here: fake, gloo")


def test_nccl_on_the_cpu_is_refused_where_there_is_cuda(cuda: None) -> None:
    assert "the device is cpu" in refusal((1,), "cpu", "nccl")


def test_gloo_on_cuda_is_refused(cuda: None) -> None:
    assert refusal((1,), "cuda", "gloo") == "backend gloo needs device cpu; on cuda use nccl or fake"


def test_a_real_backend_without_a_process_for_each_rank_is_refused(has_cuda: bool) -> None:
    text = refusal((2, 4), "cpu", "gloo")
    assert text.startswith("backend gloo needs a process for each of the 8 ranks of mesh 2x4")
    assert text.endswith("use the fake backend, or mesh 1")


def test_nccl_without_a_process_for_each_rank_is_refused(cuda: None) -> None:
    assert "each of the 4 ranks of mesh 4" in refusal((4,), "cuda", "nccl")


def test_many_ranks_without_cuda_are_gloo_ranks(no_cuda: None) -> None:
    assert choose_place((4,), "auto", "auto", RANKS) == Place((4,), "cpu", "gloo")
    assert choose_place((2, 2), "cpu", "gloo", RANKS) == Place((2, 2), "cpu", "gloo")


def test_a_mesh_of_another_size_than_the_run_is_simulated(no_cuda: None) -> None:
    assert choose_place((256,), "auto", "auto", RANKS) == Place((256,), "cpu", "fake")
    with pytest.raises(MeshError, match="use the fake backend, or a mesh of all 4 ranks"):
        choose_place((2,), "cpu", "gloo", RANKS)


@pytest.mark.parametrize(("devices", "place"), [(4, ("cuda", "nccl")), (3, ("cpu", "gloo"))])
def test_many_ranks_are_nccl_ranks_where_each_has_a_device(
    cuda: None, monkeypatch: pytest.MonkeyPatch, devices: int, place: tuple[str, str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert choose_place((4,), "auto", "auto", RANKS) == Place((4,), *place)


def test_nccl_with_too_few_devices_says_how_many_there_are(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DevicesError) as raised:
        choose_place((4,), "cuda", "nccl", RANKS)
    assert str(raised.value) == (
        "backend nccl needs a CUDA device for each of the 4 ranks on this machine, "
        f"and torch {torch.__version__} sees 1"
    )


def test_a_mesh_of_several_machines_needs_the_devices_of_this_one(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    world = World(rank=3, size=4, local_rank=1, local_size=2)
    assert choose_place((4,), "auto", "auto", world) == Place((4,), "cuda", "nccl")


def test_local_ranks_are_simulated_on_the_cpu(has_cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "has_local_mode", lambda: True)
    assert choose_place((2, 2), "auto", "local") == Place((2, 2), "cpu", "local")


def test_local_ranks_are_refused_where_torch_has_none(no_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "has_local_mode", lambda: False)
    assert "(torch 2.10 and later do); valid here: fake" in refusal((4,), "auto", "local")


def test_a_mesh_that_would_fill_the_memory_is_refused() -> None:
    assert choose_place((2**10, 2**10), "cpu", "fake").world_size == 2**20
    said = refusal((100_000_000, 100_000), "cpu", "auto")
    assert said == "mesh 100000000x100000 has 10000000000000 ranks; at most 1048576 are simulated"
