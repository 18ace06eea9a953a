"""Ranks make the same number of calls if one of them sleeps at random, so none waits for a timeout.

To repeat the test under load, 17 times on 2, 3 and 4 ranks:

    for i in 1 2; do timeout 1h python -c "while True: pass" & done
    for i in $(seq 17); do python -m pytest -q -m "" tests/plugin/test_rank_uneven.py; done
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rank_runs import IMPORTS, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]

UNEVEN = """
import random
from torch.distributed.tensor.experimental import register_sharding
from pytest_dtdispatch import TimeCaptureMode

lengths = random.SystemRandom()  # not rewound by measuring
pytestmark = pytest.mark.dtdispatch(max_time=0.2)

def rest():
    if RANK == 1:
        time.sleep(lengths.uniform(0, 0.02))

@torch.library.custom_op("uneven::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    rest()
    return x.clone()

slow.register_fake(torch.empty_like)

@register_sharding(torch.ops.uneven.slow.default)
def of_slow(x):
    return [([Replicate()], [Replicate()])]  # other inputs are gathered first

@pytest.fixture
def step(a):
    def step():
        rest()
        return a.full_tensor()
    return step

def test_capture(dtdispatch, a):
    with dtdispatch.capture():
        slow(a)
        a.redistribute(placements=[Replicate()])

def test_time_capture(a):
    with TimeCaptureMode(2):
        slow(a)

def test_call(dtdispatch, step):
    dtdispatch.call(step)

def test_compare(dtdispatch, step, a):
    dtdispatch.compare({"slow": step, "other": a.full_tensor, "slow again": step})

def test_steps(dtdispatch, step):
    dtdispatch.steps(step, steps=2)

def test_budget(dtdispatch, step):
    dtdispatch.budget(step, steps=2)

def test_scaling(dtdispatch, step):
    dtdispatch.scaling(lambda size: step, sizes=(1, 2))

def test_compile(dtdispatch, a):
    gather = lambda: a.redistribute(placements=[Replicate()])
    dtdispatch.compile(gather, backend="eager", setup=rest)
"""
TESTS = UNEVEN.count("\ndef test_")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.sweep) for ranks in (3, 4))])
def test_randomly_delayed_ranks_stay_synchronized(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "test_uneven.py").write_text(f"{IMPORTS}\n{UNEVEN}")
    run = run_ranks(tmp_path, ranks, "-o", "dtdispatch_compile_rounds=1")
    assert run.status == 0, run.text
    assert f"{TESTS} passed" in run.text
