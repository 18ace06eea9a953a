"""What tests on real DTensors share. Torch is imported inside fixtures: unit tests run without it."""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # this file is loaded by who only measures the built-in suite in this folder, too
    settings = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from pytest_dtdispatch.core.measurement import Measurement
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

# A busy machine is no failure. `make fuzz` tries this many inputs of each kind; what else runs, a sample.
if settings is not None:
    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")
    settings.register_profile("fuzz", max_examples=1000)

SLOW = 20  # a test that is marked slow takes as long as so many others

Shard = Callable[..., "DTensor"]
Capture = Callable[..., "dict[str, Measurement]"]


class NoTorch:
    """Refuses to import torch, so that a test which needs it and is not marked cannot pass."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"{name} is imported where tests marked torch are left out", name=name)


def leaves_torch_out(config: pytest.Config) -> bool:
    return "not torch" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Let ``-m "not torch"`` run as on a machine without torch, and on fewer examples, as it is run often.

    What a run prints is as wide everywhere: a line that breaks on one machine alone fails there alone.
    """
    os.environ["COLUMNS"] = "80"
    if leaves_torch_out(config):
        settings.register_profile("few", max_examples=10)
        settings.load_profile("few")
        sys.meta_path.insert(0, NoTorch())
    if hasattr(config, "workerinput"):
        forget_the_worker()


def forget_the_worker() -> None:
    """Let no run that a test starts take itself for a worker: pytest-benchmark measures in none."""
    for name in ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        os.environ.pop(name, None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out of which no test can run: to collect them imports torch, and takes seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    if leaves_torch_out(config):
        return is_marked_torch(ast.parse(collection_path.read_text())) or None
    if config.option.markexpr.startswith("long"):
        return "pytest.mark.long" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(trylast=True)  # when those that are not asked for have gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, where several run at a time: none is left alone at the end."""
    if hasattr(config, "workerinput"):
        length = Counter[Path]()
        for item in items:
            length[item.path] += SLOW if item.get_closest_marker("slow") else 1
        items.sort(key=lambda item: -length[item.path])


def is_marked_torch(module: ast.Module) -> bool:
    return any(
        "pytest.mark.torch" in ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )


@pytest.fixture
def young_heap() -> Iterator[None]:
    """Let a search of all live objects find those of this test alone: one of a million takes 0.1 s."""
    gc.freeze()
    yield
    gc.unfreeze()


def namespaces() -> list[Mapping[Any, Any]]:
    """Of DTensor and of all that we put hooks into, by what it holds its callables under."""
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
    """Check that a test leaves no hook and no mode behind, and nothing frozen; it may check that itself."""
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
    """Own the process group of a test."""
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

    owner = ProcessGroupOwner()
    yield owner
    owner.close()


@pytest.fixture
def mesh(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Four ranks of a fake process group on the CPU."""
    from pytest_dtdispatch.meshes.spec import MeshSpec

    return group_owner.mesh(MeshSpec((4,), "cpu", "fake"))


@pytest.fixture
def computing_mesh(mesh: DeviceMesh, group_owner: ProcessGroupOwner) -> DeviceMesh:
    """A mesh whose collectives write results: of one real rank, where those of fake groups do not."""
    from pytest_dtdispatch.meshes.spec import MeshSpec
    from tests.probes import fake_group_writes, why_no_redistribution

    if fake_group_writes():
        return mesh
    group_owner.close()
    one_rank = group_owner.mesh(MeshSpec((1,), "cpu", "gloo"))
    if reason := why_no_redistribution(one_rank):
        pytest.skip(f"fake collectives write nothing, and {reason}")
    return one_rank


@pytest.fixture
def shard(mesh: DeviceMesh) -> Shard:
    """Make DTensors of random numbers: ``shard(8, 8)`` on Shard(0), or on the placement that is given."""
    import torch
    from torch.distributed import tensor

    def make(*shape: int, placement: Any = None, requires_grad: bool = False) -> DTensor:
        values = torch.rand(*shape, device=mesh.device_type)
        made = tensor.distribute_tensor(values, mesh, [placement or tensor.Shard(0)])
        local = made.to_local()
        local.copy_(torch.rand_like(local))  # old fake groups leave undefined what they scatter
        made.requires_grad_(requires_grad)
        return made

    return make


@pytest.fixture
def capture() -> Capture:
    """Run a callable in a capture of few rounds; return what was measured, by op."""
    from pytest_dtdispatch.rounds.plan import Plan
    from tests.measuring.runs import captured

    def run(body: Callable[[], Any], rounds: int = 2, repeat: int = 3) -> dict[str, Measurement]:
        results = captured(body, plan=Plan(rounds, repeat, quick_warmup=0))
        return {measurement.op: measurement for measurement in results.measurements()}

    return run
