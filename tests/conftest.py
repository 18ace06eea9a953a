"""Fixtures for tests on real DTensors. They import torch lazily, because unit tests run without it."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # also loaded by runs of the built-in suite in this folder
    settings = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from pytest_dtdispatch.core.measurement import Measurement
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

# No deadline: a busy machine must not fail a test. `make fuzz` tries more inputs of each kind.
if settings is not None:
    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")
    settings.register_profile("fuzz", max_examples=1000)

SLOW = 20  # a test marked slow takes as long as this many others
# Files whose tests are all marked.
MARKED = {
    mark: re.compile(rf"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.{mark}\b", re.MULTILINE)
    for mark in ("torch", "long", "sweep")
}

Shard = Callable[..., "DTensor"]
Capture = Callable[..., "dict[str, Measurement]"]


class NoTorch:
    """Import hook that refuses torch, so an unmarked test that needs it fails."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(
                f"{name} is imported although tests marked torch are deselected", name=name
            )


def deselects_torch(config: pytest.Config) -> bool:
    return "not torch" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Run ``-m "not torch"`` as on a machine without torch, with fewer examples to save time.

    The width of the output is fixed, so that lines break at the same position on all machines. Torch has one
    thread, also in processes that tests start: tensors are small, and a second thread would spin for a core.
    """
    os.environ["COLUMNS"] = "80"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if deselects_torch(config):
        settings.register_profile("few", max_examples=10)
        settings.load_profile("few")
        sys.meta_path.insert(0, NoTorch())
    if hasattr(config, "workerinput"):
        hide_xdist_worker()


def hide_xdist_worker() -> None:
    """Hide the worker from runs that tests start: pytest-benchmark never measures in workers."""
    for name in ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        os.environ.pop(name, None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files whose tests are all deselected: collecting them imports torch, which takes seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    text, selected = collection_path.read_text(), config.option.markexpr
    if selected.startswith(("long", "sweep")):
        mark, _, _ = selected.partition(" ")
        return f"pytest.mark.{mark}" not in text or None
    return any(f"not {mark}" in selected and MARKED[mark].search(text) for mark in MARKED) or None


@pytest.hookimpl(trylast=True)  # after deselection
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In parallel runs, start with the slowest files, so that the workers end at the same time."""
    if hasattr(config, "workerinput"):
        length = Counter[Path]()
        for item in items:
            length[item.path] += SLOW if item.get_closest_marker("slow") else 1
        items.sort(key=lambda item: -length[item.path])


@pytest.fixture
def young_heap() -> Iterator[None]:
    """Limit searches of live objects to those of this test."""
    from tests import heap

    with heap.young_heap():
        yield


@pytest.fixture
def reset_compilers() -> Iterator[None]:
    """Reset torch.compile before and after a test."""
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()


def namespaces() -> list[Mapping[Any, Any]]:
    """Return the namespaces of DTensor and of everything that we install hooks in."""
    import torch
    from torch.distributed import _functional_collectives
    from torch.distributed.tensor import DTensor

    dispatcher = DTensor._op_dispatcher
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.distributed.tensor")]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    owners = (dispatcher, dispatcher.sharding_propagator, torch._C, torch.autograd.graph, torch.autograd)
    holding = [vars(owner) for owner in (*modules, *dict.fromkeys(classes), *owners, _functional_collectives)]
    return [*holding, dispatcher._custom_op_handlers]


def held(namespace: Mapping[Any, Any]) -> dict[Any, int]:
    return {
        name: id(value)
        for name, value in namespace.items()
        if callable(value) or isinstance(value, staticmethod)
    }


@pytest.fixture
def nothing_stays() -> Iterator[Callable[[], None]]:
    """Check that a test leaves no hook, mode or frozen object behind; the value checks it at any time."""
    from pytest_dtdispatch.steps.growth import MIN_FROZEN
    from pytest_dtdispatch.torchapi.ops import open_modes

    watched, frozen = namespaces(), gc.get_freeze_count()
    before = [held(each) for each in watched]

    def check() -> None:
        assert [held(each) for each in watched] == before
        assert open_modes() == []
        assert gc.get_freeze_count() < max(frozen + 1, MIN_FROZEN)

    yield check
    check()


@pytest.fixture
def group_owner() -> Iterator[ProcessGroupOwner]:
    """Return the owner of the test's process group."""
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

    owner = ProcessGroupOwner()
    yield owner
    owner.close()


@pytest.fixture
def mesh(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Return a mesh of four ranks of a fake process group on the CPU."""
    from pytest_dtdispatch.meshes.spec import MeshSpec

    return group_owner.mesh(MeshSpec((4,), "cpu", "fake"))


@pytest.fixture
def shard(mesh: DeviceMesh) -> Shard:
    """Return a factory of random DTensors: ``shard(8, 8)`` on Shard(0), or on the requested placement."""
    import torch
    from torch.distributed import tensor

    def make(*shape: int, placement: Any = None, requires_grad: bool = False) -> DTensor:
        values = torch.rand(*shape, device=mesh.device_type)
        dtensor = tensor.distribute_tensor(values, mesh, [placement or tensor.Shard(0)])
        local = dtensor.to_local()
        local.copy_(torch.rand_like(local))  # old fake groups leave scattered values undefined
        dtensor.requires_grad_(requires_grad)
        return dtensor

    return make


@pytest.fixture
def capture() -> Capture:
    """Return a function that runs a callable in a capture of few rounds and returns measurements by op."""
    from pytest_dtdispatch.rounds.plan import Plan
    from tests.measured_runs import captured

    def run(body: Callable[[], Any], rounds: int = 2, repeat: int = 3) -> dict[str, Measurement]:
        results = captured(body, plan=Plan(rounds, repeat))
        return {measurement.op: measurement for measurement in results.measurements()}

    return run
