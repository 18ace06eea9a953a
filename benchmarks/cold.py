"""How much faster a cold compile is where an earlier run left its caches on the disk.

``python benchmarks/cold.py [PAIRS]`` (10): fresh processes, one with an empty folder of caches and one with a
folder that was filled, by turns. It prints what the second takes of the first, cold and warm: the estimate of
Hodges and Lehmann with its 95 % interval. The bound on cold compiles is 15 %, up and down.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_dtdispatch.stats.rank_sums import hodges_lehmann, shift_interval

PAIRS = 10
BOUND = 0.15
PROGRAM = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def program(x):
    return (x * 3).sin().cos() + x

def tensor(mesh):
    return distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])
"""
TEST = """
from program import program, tensor

def test_program(dtdispatch, device_mesh):
    dtdispatch.compile(program, tensor(device_mesh))
"""
FILL = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from program import program, tensor

torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
torch.compile(program)(tensor(init_device_mesh("cpu", (4,))))
"""


def medians(where: Path, caches: Path) -> dict[str, float]:
    """Compile in a process of its own, and give the median of each state in seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "--dtdispatch", "--benchmark-json=rows.json"]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True)
    rows = json.loads((where / "rows.json").read_text())["benchmarks"]
    return {row["fullname"].rpartition("::")[2]: row["stats"]["median"] for row in rows}


def fill(where: Path, caches: Path) -> None:
    """Compile the program as a user does, so that its kernels are on the disk."""
    (where / "fill.py").write_text(FILL)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    subprocess.run([sys.executable, "fill.py"], cwd=where, env=environment, check=True)
    assert list((caches / "fxgraph").rglob("*")), "the folder was not filled"


def ratio_text(base: list[float], head: list[float]) -> tuple[float, str]:
    """Say how long head takes, as a multiple of base."""
    log_base, log_head = ([math.log(value) for value in values] for values in (base, head))
    ratio = math.exp(hodges_lehmann(log_base, log_head))
    low, high = map(math.exp, shift_interval(log_base, log_head))
    return ratio, f"{ratio:.3f} (95 %: {low:.3f} to {high:.3f})"


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    empty: list[dict[str, float]] = []
    filled: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "program.py").write_text(PROGRAM)
        (where / "test_cold.py").write_text(TEST)
        fill(where, where / "filled")
        for pair in range(pairs):
            sides = [(empty, where / f"empty{pair}"), (filled, where / "filled")]
            for of_side, caches in sides if pair % 2 == 0 else reversed(sides):
                of_side.append(medians(where, caches))
    cold_empty, cold_filled = ([each["compile-cold"] for each in side] for side in (empty, filled))
    warm = [each["compile-warm"] for each in filled]
    ratio, text = ratio_text(cold_empty, cold_filled)
    print(f"cold compiles beside a filled folder take {text} of those beside an empty one, {pairs} pairs")
    print(f"warm compiles take {ratio_text(cold_filled, warm)[1]} of cold ones")
    print(f"the bound on the first is {1 - BOUND:.2f} to {1 + BOUND:.2f}")
    return int(not 1 - BOUND <= ratio <= 1 + BOUND)


if __name__ == "__main__":
    sys.exit(main())
