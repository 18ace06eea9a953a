"""Compare figures of the plugin with hand-written loops of the same call, in one process.

Run it on a quiet machine: ``python benchmarks/fidelity.py``. It prints ratios:

* hit: the plugin's figure of hits over that of a tight loop that only reads the clock between calls;
* miss: the plugin's figure of misses over that of a loop that clears both caches and times one call.

The plugin and the loops alternate, with about equal numbers of samples, and the least figure of each counts.
The plugin's figure of a long call is CPU time, that of the loops always wall time. Both loops run below
autograd, as a capture does. The last columns are the plugin's figures in microseconds.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.replay.capture import DispatchCapture, SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

TURNS = 12  # of each
MISSES, HITS = 10, 500  # of a loop in a turn
HIT_BOUND, MISS_BOUND = 0.03, 0.05


@dataclass(frozen=True)
class Figures:
    """Least samples in nanoseconds."""

    miss: float
    hit: float


class HandWritten(DispatchCapture):
    """Mode that enters below autograd as a capture does, and times the call in a plain loop."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: list[Figures] = []

    def on_op(self, call: OpCall) -> Any:
        """Time misses, then hits."""
        result = call.run()
        self.figures.append(Figures(time_misses(call), time_hits(call)))
        return result


def restorer(call: OpCall) -> Callable[[], None]:
    """Save what the op writes to; return a function that restores it, so that repetitions are equal."""
    locals_of = [tensor.to_local() for tensor in call.written if isinstance(tensor, DTensor)]
    saved = [(local, local.clone()) for local in locals_of]

    def restore() -> None:
        for local, contents in saved:
            local.copy_(contents)

    return restore


def time_hits(call: OpCall) -> float:
    """Return the least sample of a tight loop in nanoseconds."""
    func, args, kwargs = call.func, call.args, call.kwargs
    restore = restorer(call)
    for _ in range(50):
        func(*args, **kwargs)
    samples = []
    gc.disable()
    for _ in range(HITS):
        restore()
        start = perf_counter_ns()
        result = func(*args, **kwargs)
        end = perf_counter_ns()
        del result
        samples.append(end - start)
    gc.enable()
    return min(samples)


def time_misses(call: OpCall) -> float:
    """Return the least sample of a loop that clears the caches before each call, in nanoseconds."""
    func, args, kwargs = call.func, call.args, call.kwargs
    caches, restore = ShardingCaches(), restorer(call)
    samples = []
    for _ in range(MISSES):
        restore()
        gc.collect(1)
        gc.disable()
        caches.clear()
        start = perf_counter_ns()
        result = func(*args, **kwargs)
        end = perf_counter_ns()
        del result
        samples.append(end - start)
        gc.enable()
    return min(samples)


def ours(op: Callable[[], Any]) -> Figures:
    """Measure an op as ``dtdispatch.capture()`` does."""
    store = ResultStore()
    with SignatureCapture(store, Plan()):
        op()
    [measurement] = store.measurements()
    miss, hit = measurement.figure(State.MISS), measurement.figure(State.HIT)
    assert miss is not None
    assert hit is not None
    return Figures(miss, hit)


def by_hand(op: Callable[[], Any]) -> Figures:
    """Measure an op by hand-written loops."""
    with HandWritten() as mode:
        op()
    return mode.figures[0]


def compare(op: Callable[[], Any]) -> tuple[Figures, Figures]:
    """Measure an op both ways in turns, alternating which is first."""
    taken: dict[Callable[[Callable[[], Any]], Figures], list[Figures]] = {ours: [], by_hand: []}
    for turn in range(TURNS):
        for way in (ours, by_hand) if turn % 2 else (by_hand, ours):
            taken[way].append(way(op))
    return least(taken[ours]), least(taken[by_hand])


def least(turns: Sequence[Figures]) -> Figures:
    """Return the minimum of each figure."""
    return Figures(min(turn.miss for turn in turns), min(turn.hit for turn in turns))


def ops(owner: ProcessGroupOwner) -> dict[str, Callable[[], Any]]:
    """Return nine ops by name on a mesh of one dimension, and three on larger meshes."""
    shapes = ((2, 4), (2, 2, 2), (4,))  # the largest first, as all are of one process group
    two, three, mesh = (owner.mesh(MeshSpec(shape, "cpu", "fake")) for shape in shapes)
    a = distribute_tensor(torch.rand(512, 512), mesh, [Shard(0)])
    b = distribute_tensor(torch.rand(10, 10), mesh, [Replicate()])
    c = distribute_tensor(torch.rand(16, 16), two, [Shard(0), Shard(1)])
    d = distribute_tensor(torch.rand(16, 16), three, [Shard(0), Replicate(), Replicate()])
    return {
        "add 512x512 Shard(0)": lambda: a + a,
        "add_ 10x10": lambda: b.add_(b),
        "uniform_ 10x10": lambda: b.uniform_(),
        "view 10x10": lambda: b.view(100),
        "t 512x512 Shard(0)": lambda: a.t(),
        "sum 10x10": lambda: b.sum(),
        "softmax 10x10": lambda: torch.ops.aten._softmax(b, 0, False),
        "_foreach_add 2 x 10x10": lambda: torch._foreach_add([b, b], [b, b]),
        "argmax 512x512 Shard(0)": lambda: a.argmax(1),
        "cat 16x16 on 2x4": lambda: torch.cat([c, c], 1),
        "exp 16x16 on 2x2x2": lambda: d.exp(),
        "add 16x16 on 2x2x2": lambda: d + d,
    }


def main() -> int:
    """Print the table; return 1 if a ratio is off by more than its bound, else 0."""
    warnings.filterwarnings("ignore", message="DTensor random operators")
    torch.set_num_threads(1)
    owner = ProcessGroupOwner()
    off, every = 0, ops(owner)
    print(f"torch {torch.__version__}, one thread, least of {TURNS} turns; times in us")
    print(f"{'op':24}{'hit ratio':>10}{'miss ratio':>11}{'hit':>8}{'miss':>9}")
    for name, op in every.items():
        mine, plain = compare(op)
        hit, miss = mine.hit / plain.hit, mine.miss / plain.miss
        off += abs(hit - 1) > HIT_BOUND or abs(miss - 1) > MISS_BOUND
        print(f"{name:24}{hit:10.3f}{miss:11.3f}{mine.hit / 1e3:8.1f}{mine.miss / 1e3:9.1f}")
    owner.close()
    print(f"{off} of {len(every)} ops off by more than {HIT_BOUND:.0%} (hit) or {MISS_BOUND:.0%} (miss)")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
