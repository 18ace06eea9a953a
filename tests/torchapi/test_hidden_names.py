"""Torch without a private name that we use: everything works, or one line names the missing name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.observe import SLOW_PATH
from tests import hidden_names
from tests.hidden_names import GONE, NONE_AT_ALL, private_names

pytestmark = pytest.mark.torch

EVERY = private_names()
# A name used on every op, one used at import, one used only by steps, a probed one, and one of a pair.
SAMPLE = (
    "_local_tensor",
    "_profiler_enabled",
    "_propagate_op_sharding_dispatch_slow_path",
    "_planner_cache",
    "_clear_DTensor_sharding_propagator_cache",
)


def runs(tmp_path: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Run the tests without each of the names, in forks of one process that imports torch."""
    ran = subprocess.run(
        [sys.executable, hidden_names.__file__, str(tmp_path), *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return {found["name"]: found for found in map(json.loads, ran.stdout.splitlines())}


def complaint(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """Return the fault of a run; empty if it works, or is refused with one line that contains the name."""
    output = found["output"]
    if any(text in output for text in ("pytest_dtdispatch/", "Traceback", "INTERNALERROR")):
        return f"a traceback: {output[-1500:]}"
    if found["status"] == 0:
        of_tests = {tuple(row[:2]): row[2] for row in whole["counts"]}
        wrong = [row for row in found["counts"] if of_tests.get(tuple(row[:2]), row[2]) != row[2]]
        if step_lines(found) != step_lines(whole):
            wrong += step_lines(found)
        return f"other counts: {wrong}" if wrong else ""
    # The hidden name in our code, or the message of a check for it.
    names = found["name"] + GONE, "cannot be measured: it lacks"
    naming = [line for line in output.splitlines() if any(name in line for name in names)]
    return "" if naming else f"nothing names it: {output[-1500:]}"


def step_lines(found: dict[str, Any]) -> list[str]:
    """Return the line of the table with all counts of the step, the only one with wraps and unwraps."""
    return [
        line for line in found["output"].splitlines() if line.split()[:1] == ["step"] and "steady" in line
    ]


def test_names_are_read_from_the_sources() -> None:
    assert len(EVERY) > 60
    assert set(SAMPLE) <= set(EVERY)


def complaints(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    whole = found.pop(NONE_AT_ALL)
    assert whole["status"] == 0, whole["output"]
    metrics = {metric for _, metric, _ in whole["counts"]}
    assert metrics == {
        *("calls", "collectives", "collectives[0]", "collective_bytes", "collective_bytes[0]"),
        *("dtensor_growth", "implicit", "misses_per_step", "redistributes"),
        *("reads", "partial_reads"),
    }
    assert len(step_lines(whole)) == 1
    return {name: text for name, each in found.items() if (text := complaint(each, whole))}


@pytest.mark.long
def test_torch_without_a_name_works_or_is_refused(tmp_path: Path) -> None:
    pair = "_clear_DTensor_sharding_propagator_cache+_get_DTensor_sharding_propagator_cache_stats"
    found = runs(tmp_path, [NONE_AT_ALL, *SAMPLE, pair])
    of_pair = found.pop(pair)
    assert complaints(found) == {}
    if hasattr(DTensor._op_dispatcher, SLOW_PATH):
        # A torch that renames both functions of its native cache looks like one without such a cache.
        assert of_pair["status"] != 0
        assert (
            "cannot be measured: it lacks functions that clear and count the native cache"
            in of_pair["output"]
        )
        assert "unpropagated" not in of_pair["output"]


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
def test_torch_without_any_name_works_or_is_refused(tmp_path: Path, part: int) -> None:
    assert complaints(runs(tmp_path, [NONE_AT_ALL, *EVERY[part::4]])) == {}
