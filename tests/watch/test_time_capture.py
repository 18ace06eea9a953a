"""The drop-in time-capture class: keys, fields and units of PyTorch's class, with proved figures."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from pytest_dtdispatch import TimeCaptureMode, Timing
from pytest_dtdispatch.errors import MeasurementError
from tests.measured_runs import Make

pytestmark = pytest.mark.torch


def test_clearing_only_the_python_cache_measures_a_miss(shard: Make) -> None:
    """The loop of PyTorch's timing script, which clears one of two caches and warms up inside the mode."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    a = shard(8, 8)  # small: kernels on several threads are delayed on a busy machine
    with TimeCaptureMode() as mode:
        for _ in range(5):
            propagator.propagate_op_sharding.cache.cache_clear()
            _ = a + a
        propagator.propagate_op_sharding.cache.cache_clear()
        _ = a + a
        miss, hit = mode.op_to_time["add.Tensor"][-1]
    assert len(mode.op_to_time["add.Tensor"]) == 6
    assert miss > 10 * hit


def test_fields_are_microseconds_of_the_last_samples(shard: Make) -> None:
    a = shard(8, 8)
    with TimeCaptureMode(repeat_count=7) as mode:
        a + a
    [timing] = mode.op_to_time["add.Tensor"]
    assert isinstance(timing, Timing)
    assert timing._fields == ("dispatch_with_cache_miss", "dispatch_with_cache_hit")
    seconds, hits = mode.time_list[0], mode.time_list[1:]
    assert len(hits) == 7
    assert timing.dispatch_with_cache_miss == pytest.approx(seconds * 1e6, abs=0.01)
    # Only hits: the median does not include the miss.
    assert timing.dispatch_with_cache_hit == pytest.approx(statistics.median(hits) * 1e6, abs=0.01)
    assert statistics.median(hits) < seconds


def test_unpropagated_signature_has_no_miss_time(shard: Make, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    a = shard(8, 8)
    with TimeCaptureMode(repeat_count=5) as mode:
        assert str(mode).startswith("nothing was timed")
        for _ in range(3):
            a + a
        a.is_same_size(a)
    add, same = (line for line in str(mode).splitlines() if "f32[8,8]" in line)
    assert add.split(")@4")[1].split()[0] == "3"
    assert "unpropagated" in same
    assert "1 of 2 rows are proved by the cache counters" in str(mode)
    assert repr(mode) == str(mode)
    [timing] = mode.op_to_time["is_same_size.default"]
    assert math.isnan(timing.dispatch_with_cache_miss)
    assert timing.dispatch_with_cache_hit > 0


@pytest.mark.parametrize("count", [0, -1])
def test_repeat_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(MeasurementError, match=f"repeat_count={count}: at least 1"):
        TimeCaptureMode(repeat_count=count)
