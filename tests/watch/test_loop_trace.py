"""A loop that is watched writes its steps as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.errors import DtDispatchError

pytestmark = pytest.mark.torch


def test_every_step_is_in_the_trace_with_what_it_did(mesh: DeviceMesh, tmp_path: Path) -> None:
    path, lines = tmp_path / "trace.json", list[str]()
    with StepWatch(print=lines.append, trace=path) as watch:
        for rows in (2, 2, 2, 2, 3, 2):
            made: Any = DTensor.from_local(torch.rand(rows, 4), mesh, [Shard(0)])
            (made + made).redistribute(placements=[Replicate()])
            watch.step()
    spans = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    steps = [span for span in spans if span["cat"] == "step"]
    assert [span["name"] for span in steps] == [f"step {number}" for number in range(1, 7)]
    for kind, count in (("wrap", 6), ("redistribution", 6), ("miss", watch.steps.misses)):
        assert len([span for span in spans if span["cat"] == kind]) == count
    assert lines[-1] == f"dtdispatch: {len(spans):,} spans written to {path}"


def test_a_trace_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DtDispatchError, match="there is no folder"):
        StepWatch(trace=tmp_path / "nowhere" / "trace.json")
    other = tmp_path / "notes.json"
    other.write_text("{}")
    with pytest.raises(DtDispatchError, match="holds something else, not a trace"):
        StepWatch(trace=other)
    assert other.read_text() == "{}"
    with StepWatch():
        pass
