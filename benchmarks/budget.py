"""Check that a budget adds up, and that added time appears where it was added.

``python benchmarks/budget.py`` prints two tables. The first compares the difference between a step on
DTensors and the same local program on plain tensors with what the budget explains. The second slows one
operation at a time by a known time, and prints the share of it that appears in its own part, phase, module
and line, and the largest share by which another part moves. The two steps of a pair alternate. ``step`` is
the growth of the whole step: code that runs after a long wait is no longer cached, and also takes longer.

``python benchmarks/budget.py --loops 0 1 2 4`` prints budgets of the same models beside that many busy
loops: the time of waiting for a core, the wait that the steps themselves read from Linux's ``schedstat``, and
the unexplained time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import plain_twins
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.budget.model import Budget, CostShare
from pytest_dtdispatch.core.events import ns_by_part
from pytest_dtdispatch.meshes.groups import fake_mesh
from pytest_dtdispatch.suite import llama, models
from pytest_dtdispatch.torchapi.profiling import is_profiling

Step = Callable[[], Any]
TURNS, TURNS_BESIDE_LOOPS = 5, 3
ADDED_NS = 1_000_000
# Compiled from a string: its time is attributed to the line that calls it.
SPIN = """
import time

def spin(ns):
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass
"""
WIDTH, ROWS = 16, 4096


MODELS: tuple[tuple[str, tuple[int, ...], Callable[..., Step], Callable[..., Step]], ...] = (
    ("tensor-parallel block", (2, 4), models.tensor_parallel_step, plain_twins.plain_tensor_parallel_step),
    ("FSDP2 with AdamW", (8,), models.fsdp_training_step, plain_twins.plain_fsdp_training_step),
    ("Llama-like block", (4,), llama.llama_step, plain_twins.plain_llama_step),
)


def main() -> None:
    """Print both tables, or budgets beside busy loops."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--loops", type=int, nargs="+", help="busy loops beside budgets")
    if loops := parser.parse_args().loops:
        print_beside_loops(loops)
        return
    print(f"{'step':28}measured us  plain us  explained  unexplained us  least part us")
    for name, shape, step, plain in MODELS:
        with fake_mesh(shape) as mesh:
            print_sum(name, step(mesh), plain(mesh))
    print(f"\n{'slowed':20}  added us   step  own part   phase  module    line  other parts at most")
    with fake_mesh((2, 4)) as mesh:
        for name, place in PLACES.items():
            print_slowed(name, mesh, *place)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run busy loops in processes of their own."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def print_beside_loops(counts: Sequence[int]) -> None:
    """Print budgets of each model beside busy loops."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before the first loop")
    print(f"{'step':24}loops  measured us  waiting us  by hand us       unexplained us")
    for name, shape, prepare, _ in MODELS:
        with fake_mesh(shape) as mesh:
            step = prepare(mesh)
            for count in counts:
                with busy_loops(count):
                    for _ in range(TURNS_BESIDE_LOOPS):
                        print_waits(f"{name:24}{count:5}", step)


def print_waits(start: str, step: Step) -> None:
    """Print the waits of a budget, those read by the step itself, and the unexplained time.

    The step's own figure is the median wall time of steps without a profiler and a line tracer, less the
    median of the same times without the waits that the step reads.
    """
    walls, runs = [], []
    with Path("/proc/thread-self/schedstat").open(encoding="ascii") as file:

        def waited_ns() -> int:
            file.seek(0)
            return int(file.read().split()[1])

        def read_step() -> Any:
            waited, began = waited_ns(), time.perf_counter_ns()
            result = step()
            wall = time.perf_counter_ns() - began
            if sys.gettrace() is None and not is_profiling():
                walls.append(wall)
                runs.append(wall - waited_ns() + waited)
            return result

        budget = run_and_measure_budget(read_step, 3, 20, "step").budget
    by_hand_ns = statistics.median(walls) - statistics.median(runs)
    rest_ns = budget.unexplained_ns
    print(
        f"{start}{budget.measured_ns / 1e3:13,.0f}{budget.waiting_ns / 1e3:12,.0f}{by_hand_ns / 1e3:12,.0f}"
        f"{rest_ns / 1e3:12,.0f}{rest_ns / budget.measured_ns:9.1%}  {'noisy' * budget.is_noisy}",
        flush=True,
    )


def print_sum(name: str, step: Step, plain: Step) -> None:
    """Compare a budget with the same program on plain tensors."""
    budgets, plains = [], []
    for _ in range(TURNS):
        budgets.append(run_and_measure_budget(step, 3, 20, name).budget)
        plains.append(run_and_measure_budget(plain, 3, 20, name).budget.measured_ns)
    plain_ns = statistics.median(plains)
    explained = [1 - each.unexplained_ns / (each.measured_ns - plain_ns) for each in budgets]
    middle = sorted(budgets, key=lambda each: each.unexplained_ns)[TURNS // 2]
    least = min(min(ns_by_part(each.cells).values()) for each in budgets)
    print(
        f"{name:28}{middle.measured_ns / 1e3:12,.0f}{plain_ns / 1e3:10,.0f}"
        f"{statistics.median(explained):>11.1%}{middle.unexplained_ns / 1e3:16,.0f}{least / 1e3:15.1f}"
        f"   ({min(explained):.0%} to {max(explained):.0%} in {TURNS} turns)"
    )


@torch.library.custom_op("dtdispatch_bench::spin", mutates_args=())
def spin_in_op(local: torch.Tensor) -> torch.Tensor:
    """Spin for the time set for local ops, and clone a local tensor."""
    spin(slow["local op"])
    return local.clone()


class SlowBackward(torch.autograd.Function):
    """Identity whose backward spins for the time set for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient after spinning."""
        spin(slow["backward node"])
        return gradient


class Inner(torch.nn.Module):
    """Module that multiplies, wraps and redistributes."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.local = torch.ones(2)

    def forward(self, x: torch.Tensor) -> Any:
        """Run each operation on a line of its own."""
        spin(slow["python line"])
        y: Any = x @ self.weight
        z = DTensor.from_local(torch.ones(8, WIDTH), self.mesh, [Replicate(), Replicate()], run_check=False)
        spin_in_op(self.local)
        y.is_same_size(z)
        y = SlowBackward.apply(y)  # type: ignore[no-untyped-call]
        return (y + z).redistribute(placements=[Shard(0), Replicate()])


class SlowSGD(torch.optim.SGD):
    """SGD that spins for the time set for optimizers."""

    def _init_group(self, *args: Any, **kwargs: Any) -> Any:
        spin(slow["optimizer"])
        return super()._init_group(*args, **kwargs)  # type: ignore[no-untyped-call]


def line_of(text: str) -> int:
    """Return the number of the first line of this file that starts with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.strip().startswith(text))


# The operations that are slowed, each with its part, phase, module and line.
PLACES: Mapping[str, tuple[str, str, str, str]] = {
    "propagation": ("propagation", "forward", "", "x.narrow(0, 0, next(rows))"),
    "redistribution": ("redistribution", "forward", "inner", "return (y + z).redistribute"),
    "wrap": ("wrapping", "forward", "inner", "z = DTensor.from_local"),
    "local op": ("local", "forward", "inner", "spin_in_op(self.local)"),
    "dispatch": ("dispatch", "forward", "inner", "y.is_same_size(z)"),
    "backward node": ("autograd", "backward", "inner", 'spin(slow["backward node"])'),
    "optimizer": ("other", "optimizer", "", 'spin(slow["optimizer"])'),
    "python line": ("other", "forward", "inner", 'spin(slow["python line"])'),
}
slow = dict.fromkeys(PLACES, 0)
made: dict[str, Any] = {}
exec(compile(SPIN, "<spin>", "exec"), made)
spin: Callable[[int], None] = made["spin"]


def training_step(mesh: DeviceMesh) -> Step:
    """Return a step that runs each operation once; its first op misses in every step."""
    inner = distribute_module(Inner(mesh), mesh)
    optimizer = SlowSGD(inner.parameters(), lr=0.01)
    x = distribute_tensor(torch.rand(ROWS, WIDTH), mesh, [Replicate(), Replicate()])
    batch = distribute_tensor(torch.rand(8, WIDTH), mesh, [Replicate(), Replicate()])
    rows = iter(range(8, ROWS))

    class Whole(torch.nn.Module):
        """Module that contains the inner module."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            """Run the inner module."""
            return self.inner(x)

    whole = Whole()

    def step() -> Any:
        x.narrow(0, 0, next(rows))  # a new number of rows in each step, so that it misses
        loss = whole(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@contextmanager
def slowed() -> Iterator[None]:
    """Patch torch to slow propagation and dispatch of one op each, redistribution in forward, and wraps."""
    api = sys.modules["torch.distributed.tensor._api"]
    redistribute = sys.modules["torch.distributed.tensor._redistribute"]
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    propagate = propagator.propagate_op_sharding_non_cached
    forward, wrap = redistribute.Redistribute.forward, api._FromTorchTensor.forward
    handlers: Any = DTensor._op_dispatcher._custom_op_handlers
    is_same_size = handlers[torch.ops.aten.is_same_size.default]

    def slow_propagate(schema: Any) -> Any:
        spin(slow["propagation"] if schema.op is torch.ops.aten.slice.Tensor else 0)
        return propagate(schema)

    def slow_forward(*args: Any) -> Any:
        spin(slow["redistribution"])
        return forward(*args)

    def slow_wrap(*args: Any) -> Any:
        spin(slow["wrap"])
        return wrap(*args)

    def slow_dispatch(*args: Any) -> Any:
        spin(slow["dispatch"])
        return is_same_size(*args)

    with ExitStack() as stack:
        stack.enter_context(patch.dict(handlers, {torch.ops.aten.is_same_size.default: slow_dispatch}))
        stack.enter_context(patch.object(propagator, "propagate_op_sharding_non_cached", slow_propagate))
        stack.enter_context(patch.object(redistribute.Redistribute, "forward", staticmethod(slow_forward)))
        stack.enter_context(patch.object(api._FromTorchTensor, "forward", staticmethod(slow_wrap)))
        yield


def print_slowed(name: str, mesh: DeviceMesh, part: str, phase: str, module: str, text: str) -> None:
    """Slow one operation, and print where the time appears."""
    step, line = training_step(mesh), f"{Path(__file__).name}:{line_of(text)}"
    pairs = []
    with slowed():
        for _ in range(TURNS):
            taken = []
            for ns in (0, ADDED_NS):
                slow[name] = ns
                taken.append(run_and_measure_budget(step, 3, 20, name).budget)
            slow[name] = 0
            pairs.append(taken)

    def added(of: Callable[[Budget], float]) -> float:
        return statistics.median(of(after) - of(before) for before, after in pairs) / ADDED_NS

    parts = {each for before, after in pairs for each in (*before.parts, *after.parts)}
    others = {each: added(lambda budget, each=each: budget.parts.get(each, 0.0)) for each in parts}  # type: ignore[misc]
    own = added(lambda budget: sum(ns for each, ns in budget.parts.items() if each.startswith(part)))
    most = max(others, key=lambda each: 0 if each.startswith(part) else abs(others[each]))
    print(
        f"{name:20}{ADDED_NS / 1e3:10,.0f}{added(lambda b: b.measured_ns):>7.1%}{own:>10.1%}"
        f"{added(lambda b: of_name(b.by_phase(), phase)):>8.1%}"
        f"{added(lambda b: of_name(b.by_module(), module)):>8.1%}"
        f"{added(lambda b: of_name(b.by_line(), line)):>8.1%}"
        f"{others[most]:>11.1%} {most}"
    )


def of_name(spent: list[CostShare], name: str) -> float:
    """Return the time of the share with a name."""
    return sum(each.ns for each in spent if each.name == name or (name and each.name.endswith(f"/{name}")))


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - began:.0f} s")
