"""Lines that a type checker must refuse, each marked with its error. Never executed."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.tensor import DTensor

from pytest_dtdispatch import DtDispatch, StepWatch, TimeCaptureMode, fake_mesh
from pytest_dtdispatch import TimeCapturMode as Misspelt  # type: ignore[attr-defined]
from pytest_dtdispatch.core.measurement import State

__all__ = ["Misspelt"]


def of_captures(dtdispatch: DtDispatch, weight: DTensor) -> None:
    dtdispatch.captur()  # type: ignore[attr-defined]
    dtdispatch.capture(rounds=3)  # type: ignore[call-arg]
    with dtdispatch.capture() as results:
        _ = weight + weight
    results.measurement()  # type: ignore[attr-defined]
    [row] = results.measurements()
    row.median_ns("miss")  # type: ignore[arg-type]
    row.median_ns(State.MIS)  # type: ignore[attr-defined]
    row.median_ns(State.MISS) + 1  # type: ignore[operator]
    row.label = "other"  # type: ignore[misc]


def of_calls(dtdispatch: DtDispatch, weight: DTensor, give: Callable[[], int]) -> None:
    text: str = dtdispatch.call(give)  # type: ignore[assignment]
    assert text
    dtdispatch.call(weight)  # type: ignore[arg-type]
    dtdispatch.call(give, name=3)  # type: ignore[arg-type]
    dtdispatch.steps(give, warmup="3")  # type: ignore[arg-type]
    dtdispatch.steps(give).misses_per_stp  # type: ignore[attr-defined]  # noqa: B018
    dtdispatch.scaling(give)  # type: ignore[arg-type]
    dtdispatch.compare([give, give])  # type: ignore[arg-type]
    dtdispatch.compare({"a": give})["a"].faster_than(0.2)  # type: ignore[arg-type]
    dtdispatch.compile(give, dynamic="yes")  # type: ignore[arg-type]
    dtdispatch.budget(give, steps="many")  # type: ignore[arg-type]
    dtdispatch.record(3)  # type: ignore[arg-type]


def of_loops() -> None:
    StepWatch(warm_up=3)  # type: ignore[call-arg]
    StepWatch(print=3)  # type: ignore[arg-type]
    StepWatch().step(1)  # type: ignore[call-arg]
    TimeCaptureMode(repeat_count="3")  # type: ignore[arg-type]
    with TimeCaptureMode() as mode:
        mode.op_to_time["add.Tensor"].dispatch  # type: ignore[attr-defined]  # noqa: B018
        mode.op_to_time["add.Tensor"][0].dispatch_with_hit  # type: ignore[attr-defined]  # noqa: B018
    with fake_mesh(2.5):  # type: ignore[arg-type]
        pass
