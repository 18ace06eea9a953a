"""What a version of torch can do, tried: ``python benchmarks/versions.py`` runs this under each of them.

A test is a row of ``docs/versions.md``: its docstring is what is asked, and what it says is the answer,
*yes* where it says nothing. Where it raises, the error is the answer. Its class is its table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.functions import embedding
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_step
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.step_watch import StepWatch
from tests.probes import compiles_once_under_a_mode, why_no_redistribution

Say = Callable[[str], None]
Op = Callable[[DTensor], Any]
TRIES = 3  # calls that fill a cache, before one is looked at
# By what a reader calls them: ops that differ in which cache answers them, or did once.
CACHED: dict[str, Op] = {
    "`add`, and most ops": lambda a: a + a,
    "`mm`": lambda a: a @ _whole(a, 8, 8),
    "views: `t`": lambda a: a.t(),
    "in place: `add_`": lambda a: a.add_(a),
    "random: `uniform_`": lambda a: a.uniform_(),
    "lists: `stack`, `cat`": lambda a: torch.stack([a, a]),
    "lists: `_foreach_add`": lambda a: torch._foreach_add([a, a], [a, a]),
    "`argmax`": lambda a: a.argmax(1),
    "convolution": lambda a: torch.conv1d(_whole(a, 16, 1, 8), _whole(a, 1, 1, 2), stride=2),
    "without a rule: `glu`": lambda a: torch.nn.functional.glu(a, 1),
}


def _whole(a: DTensor, *shape: int) -> DTensor:
    return distribute_tensor(torch.ones(*shape), a.device_mesh, [Replicate()])


@pytest.fixture(autouse=True)
def asked(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Note what is asked: in which table, and in which words."""
    asked = getattr(request.node, "callspec", None)
    record_property("table", request.cls.__name__.removeprefix("Test"))
    record_property("asked", asked.params["op"] if asked else request.function.__doc__.rstrip("."))


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    """Give the answer of a probe."""

    def answer(text: str) -> None:
        record_property("answer", text)

    return answer


@pytest.fixture
def rows(device_mesh: DeviceMesh) -> DTensor:
    """A tensor that is split by rows."""
    return distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])


def is_hit(call: Callable[[], Any]) -> bool:
    """Tell whether a call finds its plan: no cache counts a miss, and nothing propagates past the caches."""
    caches = ShardingCaches()
    readers = caches.readers()
    before = [reader()[1] for reader in readers]
    with caches.counting_uncached() as uncached:
        call()
    return not uncached[0] and [reader()[1] for reader in readers] == before


def filled(call: Callable[[], Any]) -> None:
    """Call until the caches have what they keep."""
    for _ in range(TRIES):
        call()


def told(hits: bool) -> str:
    """Say what a later call does."""
    return "hits" if hits else "misses each time"


def proved(results: TestResults, *states: State) -> None:
    """Hold that rows of a capture have samples in each state, and that none was refused."""
    assert results.measurements(), "nothing was measured"
    for measurement in results.measurements():
        for state in states:
            samples = measurement.of(state)
            assert samples is not None, f"{measurement.label} has no {state}"
            assert samples.values, f"{measurement.label} has no {state}"
            assert not samples.refused, f"{measurement.label}: {samples.refused[0]}"


class TestOurs:
    """What of ours works."""

    def test_capture(self, dtdispatch: DtDispatch, rows: DTensor) -> None:
        """Captures: misses and hits, proved."""
        with dtdispatch.capture() as results:
            _ = rows + rows
        proved(results, State.MISS, State.HIT)

    @pytest.mark.dtdispatch(cold=True)
    def test_cold(self, dtdispatch: DtDispatch, rows: DTensor) -> None:
        """Cold rows, proved."""
        with dtdispatch.capture() as results:
            _ = rows + rows
        proved(results, State.COLD)

    def test_steps(self, dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
        """Counts of steps: a training step is steady."""
        steps = dtdispatch.steps(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp"))))
        assert steps.calls
        assert not steps.misses_per_step

    def test_reasons(self, dtdispatch: DtDispatch, device_mesh: DeviceMesh, say: Say) -> None:
        """Why a step missed."""
        extents = iter(range(8, 800, 4))

        def step() -> None:
            a = distribute_tensor(torch.ones(next(extents), 8), device_mesh, [Shard(0)])
            _ = a + a

        steps = dtdispatch.steps(step)
        reasons = {miss.cause or miss.reason for each in steps.steps for miss in each.missed}
        assert steps.misses_per_step >= 1
        assert reasons
        say("yes" if all(reasons) else "no reason is known")

    def test_budget(self, dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
        """Budgets of steps."""
        budget = dtdispatch.budget(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp"))))
        assert budget.measured_ns

    def test_trace(self, tmp_path: Path) -> None:
        """Traces for Perfetto."""
        (tmp_path / "test_it.py").write_text(
            "def test_it(dtdispatch, device_mesh):\n"
            "    import torch\n"
            "    from torch.distributed.tensor import Shard, distribute_tensor\n"
            "    a = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])\n"
            "    dtdispatch.steps(lambda: a + a)\n"
        )
        ran_pytest(tmp_path, "--dtdispatch-export=trace:trace.json", "test_it.py")
        assert "add.Tensor" in (tmp_path / "trace.json").read_text()

    def test_watch(self, rows: DTensor) -> None:
        """Loops outside pytest: StepWatch."""
        with StepWatch(print=lambda line: None) as watch:
            for _ in range(TRIES):
                _ = rows + rows
                watch.step()
        assert watch.summary()

    def test_compile(self, dtdispatch: DtDispatch, rows: DTensor) -> None:
        """Compiled functions: cold, warm, calls."""
        compiled = dtdispatch.compile(lambda a: a + a, rows, name="add", backend="aot_eager")
        assert compiled.graphs == 1

    @pytest.mark.dtdispatch(compile_rounds=1)
    def test_compile_dynamic(self, dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
        """Compiled functions with dynamic shapes."""
        function, indices = embedding(device_mesh)
        compiled = dtdispatch.compile(function, indices, dynamic=True)
        assert compiled.graphs == 1

    def test_compiled_in_a_capture(self, say: Say) -> None:
        """Compiled code stays compiled in a capture."""
        say("yes" if not compiles_once_under_a_mode() else "no: compiled again at each call")

    def test_ranks(self, tmp_path: Path, say: Say) -> None:
        """Two ranks (gloo): captures and redistributions."""
        chosen = ("--pyargs", "pytest_dtdispatch.suite.test_ranks", "-k", "test_add or redistribution or mlp")
        try:
            ran_pytest(tmp_path, "--dtdispatch-nproc=2", *chosen)
        except AssertionError as error:
            failed = sorted(set(re.findall(r"::test_(\w+)", str(error))))
            what = re.search(r"^E +(\w+Error: .*)", str(error), re.MULTILINE)
            say(f"no: {', '.join(failed)} fail{'s' * (len(failed) == 1)}" + (f": {what[1]}" if what else ""))

    @pytest.mark.dtdispatch(backend="local", device="cpu")
    def test_simulated_ranks(self, dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
        """Simulated ranks: `--dtdispatch-backend local`."""
        a = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
        with dtdispatch.capture() as results:
            _ = a + a
        assert results.measurements()

    def test_fsdp(self, dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
        """FSDP2 without CUDA."""
        steps = dtdispatch.steps(fsdp_training_step(mesh_factory((8,), dim_names=("dp",))))
        assert not steps.misses_per_step


class TestDTensor:
    """What DTensor itself does."""

    def test_rules(self, say: Say) -> None:
        """Ops with a sharding rule."""
        say(f"{len(ops_with_a_rule()):,}")

    def test_decomposed(self, rows: DTensor) -> None:
        """Ops with a decomposition and no rule (`glu`)."""
        torch.nn.functional.glu(rows, 1)

    def test_argmax(self, rows: DTensor) -> None:
        """`argmax`."""
        rows.argmax(1)

    def test_inference(self, rows: DTensor, say: Say) -> None:
        """`linear` in inference mode."""
        weight = distribute_tensor(torch.rand(8, 8), rows.device_mesh, [Replicate()])
        with torch.inference_mode():
            filled(lambda: torch.nn.functional.linear(rows, weight))
            say(told(is_hit(lambda: torch.nn.functional.linear(rows, weight))))

    def test_norm_in_inference(self, rows: DTensor, say: Say) -> None:
        """`layer_norm` in inference mode."""
        with torch.inference_mode():
            filled(lambda: torch.nn.functional.layer_norm(rows, (8,)))
            say(told(is_hit(lambda: torch.nn.functional.layer_norm(rows, (8,)))))

    def test_float_after_int(self, rows: DTensor, say: Say) -> None:
        """`a + 1`, and then `a + 7.5`."""
        filled(lambda: rows + 1)
        say("hits" if is_hit(lambda: rows + 7.5) else "misses")

    def test_another_alpha(self, rows: DTensor, say: Say) -> None:
        """Another `alpha=` of `add`."""
        filled(lambda: torch.add(rows, rows, alpha=2))
        say("hits" if is_hit(lambda: torch.add(rows, rows, alpha=3)) else "misses")

    def test_fake_tensors(self, rows: DTensor, say: Say) -> None:
        """DTensors of FakeTensors, in their mode."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = FakeTensorMode()
        fake = DTensor.from_local(mode.from_tensor(rows.to_local()), rows.device_mesh, [Shard(0)])
        with mode:
            filled(lambda: fake + fake)
            say(told(is_hit(lambda: fake + fake)))

    @pytest.mark.dtdispatch(backend="gloo", device="cpu", mesh=(1,))
    def test_implied_redistribution_on_gloo(self, device_mesh: DeviceMesh, say: Say) -> None:
        """`a @ a` redistributes on gloo, one rank."""
        why_not = why_no_redistribution(device_mesh)
        say("no: " + why_not.rpartition(": ")[2] if why_not else "yes")


class TestCaches:
    """Which cache answers."""

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("op", CACHED)
    def test_answers(self, rows: DTensor, op: str, say: Say) -> None:
        """Which cache answers a later call, and clearing which makes it miss."""

        def call() -> Any:
            return CACHED[op](rows)

        filled(call)
        say(answering_cache(call))


def answering_cache(call: Callable[[], Any]) -> str:
    """Say which cache has to be cleared for a call to miss: found by clearing each alone."""
    if not is_hit(call):
        return "none: misses each time"
    caches = ShardingCaches()
    missed = []
    for name, clear in clears_of(caches).items():
        filled(call)
        clear()
        if not is_hit(call):
            missed.append(name)
    return " or ".join(missed) or "both"


def clears_of(caches: ShardingCaches) -> dict[str, Callable[[], Any]]:
    """What clears each cache alone."""
    clears: dict[str, Callable[[], Any]] = {}
    if caches.has_native:
        clears["native"] = torch._C._clear_DTensor_sharding_propagator_cache
    dispatcher: Any = DTensor._op_dispatcher
    clears["python"] = dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear
    return clears


def ran_pytest(folder: Path, *arguments: str) -> None:
    """Run pytest in a folder, and hold that all passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dtdispatch", *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert not ran.returncode, ran.stdout[-20_000:] + ran.stderr[-2_000:]
