"""Measure the seconds and the precision of one signature, beside pytest-benchmark's default.

``python benchmarks/cost.py``. Both plugins measure the same ops in the same process, op by op and in turns:
this one first in one turn and last in the next. The fastest turn of each counts, so that load on the machine
does not decide. The interval is the distribution-free interval of the median, from order statistics.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

OPS = ("a + a", "a.t()", "a.sum()", "b.view(100)", "b.detach()", "b.add_(b)")
LEVEL_Z = 2.5758  # of the standard normal distribution, two-sided 99 %
BOUND_S = 0.1
TURNS = 5
PRELUDE = """
    import pytest
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    @pytest.fixture
    def tensors(device_mesh):
        a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
        return {"a": a, "b": distribute_tensor(torch.rand(10, 10), device_mesh, [Replicate()])}

    OPS = {ops!r}
"""
OURS = """
    @pytest.mark.parametrize("op", OPS)
    def test_ours(dtdispatch, tensors, op):
        with dtdispatch.capture():
            eval(op, {}, tensors)
"""
THEIRS = """
    @pytest.mark.parametrize("op", OPS)
    def test_theirs(benchmark, tensors, op):
        code = compile(op, "op", "eval")
        benchmark(eval, code, {}, tensors)
"""


@dataclass(frozen=True)
class Cost:
    """Seconds that one benchmark took, and its samples in seconds."""

    seconds: float
    samples: tuple[float, ...]

    @property
    def half_width(self) -> float:
        """Half the width of the 99 % interval of the median, relative to the median."""
        low, high = median_interval(self.samples)
        return (high - low) / 2 / statistics.median(self.samples)


class Watch:
    """Plugin that times the call of each test and collects the samples in pytest-benchmark."""

    def __init__(self, turn: int) -> None:
        self.costs: dict[str, Cost] = {}
        self._turn = turn

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order tests so that both plugins measure an op before the next one."""
        if self._turn % 2:
            items.reverse()
        items.sort(key=lambda item: item.name.partition("[")[2])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Time one test."""
        start = perf_counter()
        yield
        self.costs[item.name] = Cost(perf_counter() - start, ())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Collect the samples of hits."""
        plugin: Any = session.config.pluginmanager.get_plugin("pytest-benchmark")
        for row in plugin.benchmarks:
            name, *rest = row.name.split("::")
            if not rest or rest[-1] == "hit":
                self.costs[name] = Cost(self.costs[name].seconds, tuple(row.stats.data))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 99 % interval of the median: the order statistics at n/2 -+ z*sqrt(n)/2.

    Source: the binomial distribution of the number of samples below the median, normal approximation.
    """
    ordered, n = sorted(samples), len(samples)
    reach = LEVEL_Z * math.sqrt(n) / 2
    return ordered[max(math.floor(n / 2 - reach), 0)], ordered[min(math.ceil(n / 2 + reach), n - 1)]


def main() -> int:
    """Print the table; return 1 if a signature takes longer than the bound, else 0."""
    torch.set_num_threads(1)
    turns = [Watch(turn) for turn in range(TURNS)]
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_cost.py")
        prelude = textwrap.dedent(PRELUDE).replace("{ops!r}", repr(OPS))
        test.write_text(prelude + textwrap.dedent(OURS) + textwrap.dedent(THEIRS))
        flags = ["-qq", "-p", "no:cacheprovider", "-p", "no:codspeed", "--benchmark-quiet", "--dtdispatch"]
        for watch in turns:
            if status := pytest.main([*flags, f"--rootdir={folder}", str(test)], plugins=[watch]):
                return int(status)
    least = {
        name: min((watch.costs[name] for watch in turns), key=lambda cost: cost.seconds)
        for name in turns[0].costs
    }
    print(f"\n{'op':14}{'ours s':>9}{'theirs s':>10}{'ours +-':>10}{'theirs +-':>11}{'hits':>7}{'rounds':>9}")
    for op in OPS:
        ours, theirs = least[f"test_ours[{op}]"], least[f"test_theirs[{op}]"]
        print(
            f"{op:14}{ours.seconds:9.3f}{theirs.seconds:10.3f}{ours.half_width:10.2%}{theirs.half_width:11.2%}"
            f"{len(ours.samples):7}{len(theirs.samples):9}"
        )
    worst = max(least[f"test_ours[{op}]"].seconds for op in OPS)
    print(f"one signature, miss and hit: {worst:.3f} s at most; the bound is {BOUND_S} s")
    return 1 if worst > BOUND_S else 0


if __name__ == "__main__":
    sys.exit(main())
