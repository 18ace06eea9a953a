"""Watched loops: events are reported once, at their step, without side effects on the loop."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from pytest_dtdispatch import DtDispatchError, StepWatch
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.torchapi.ops import open_modes
from tests.measured_runs import NamingMode
from tests.steps.test_measure import on_mesh
from tests.threads import in_thread

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap", "nothing_stays")]

Step = Callable[[int], Any]


def training_step(mesh: DeviceMesh) -> Step:
    weight: Any = torch.nn.Parameter(DTensor.from_local(torch.rand(8, 8), mesh, [Replicate()]))

    def step(rows: int) -> None:
        (on_mesh(mesh, rows) @ weight).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None
        weight.to_local()

    return step


def silent() -> StepWatch:
    return StepWatch(list[str]().append)


def watched(step: Step, rows: list[int]) -> tuple[StepWatch, list[str]]:
    lines: list[str] = []
    with StepWatch(lines.append) as watch:
        for each in rows:
            step(each)
            watch.step()
    return watch, lines


def test_tools_that_slow_steps_are_named(mesh: DeviceMesh) -> None:
    step = training_step(mesh)
    assert not watched(step, [4] * 3)[0].steps.tracers
    tracemalloc.start()
    try:
        watch, _ = watched(step, [4] * 3)
    finally:
        tracemalloc.stop()
    assert [*watch.steps.tracers] == ["tracemalloc"]
    assert "a tracer or profiler ran (tracemalloc)" in str(watch)


def test_injected_miss_is_reported_once_at_its_step(mesh: DeviceMesh) -> None:
    watch, lines = watched(training_step(mesh), [4] * 149 + [6] + [4] * 150)
    named = [line for line in lines if "miss:" in line or "misses:" in line]
    assert [line.partition(": ")[2].partition(":")[0] for line in named] == ["step 150"]
    assert "mm.default(f32[24,8]S0, f32[8,8]R)@4" in named[0]
    assert "test_step_watch.py:" in named[0]
    assert lines[0].startswith("dtdispatch: step 1: warm-up: ")
    [steady] = [line for line in lines if ": steady: " in line]
    assert steady.endswith(", 1 wrap, 1 unwrap, 0 misses")
    assert len(watch.steps) == 300
    assert [step.number for step in watch.steps.disturbed_steps] == [150]
    assert watch.steps.misses_per_step > 0
    assert "missed mm.default(f32[24,8]S0" in str(watch)


def test_endless_misses_are_reported_after_ten_steps(mesh: DeviceMesh) -> None:
    watch, lines = watched(lambda rows: on_mesh(mesh, rows) + 1, list(range(4, 18)))
    assert sum("warm-up" in line for line in lines) == 10
    assert all("1 miss: add.Tensor" in line for line in lines[10:])
    assert watch.steps.disturbed.steps == 4


def test_steps_before_the_first_op_are_warmup(mesh: DeviceMesh) -> None:
    step, lines = training_step(mesh), list[str]()
    with StepWatch(lines.append, max="misses=0") as watch:
        watch.step()  # such as that of an optimizer without gradients
        for rows in (4, 4, 6):
            step(rows)
            watch.step()
    assert watch.violation is not None
    assert (watch.violation.step, watch.steps.warmup.steps) == (4, 2)


def test_recurring_miss_is_listed_at_doubling_intervals(mesh: DeviceMesh) -> None:
    """Steps 1, 2, 4 and 8 of a cause have a line, with the sum since the previous line."""
    watch, lines = watched(lambda rows: on_mesh(mesh, rows) + 1, list(range(4, 34)))
    listed = [line for line in lines[10:] if "misses:" in line or "miss:" in line]
    numbers = [int(line.split()[2].strip(":")) for line in listed]
    assert numbers == [11, 12, 14, 18, 26]
    assert [line.partition("; ")[2].rpartition("; ")[2] for line in listed[2:]] == [
        f"{count} similar step{'s' * (count > 1)} with {count} miss{'es' * (count > 1)} before it"
        for count in (1, 3, 7)
    ]
    assert (watch.steps.disturbed.steps, watch.steps.unlisted.steps) == (20, 4)


def test_new_cause_is_listed_at_once(mesh: DeviceMesh) -> None:
    """A new cause does not wait for the interval of the first."""
    step: Step = lambda rows: on_mesh(mesh, rows) * 2 if rows == 30 else on_mesh(mesh, rows) + 1  # noqa: E731
    _, lines = watched(step, list(range(4, 34)))
    assert [line for line in lines if "step 27: 1 miss: mul.Tensor" in line]


def test_summary_of_a_watch_has_advice(mesh: DeviceMesh) -> None:
    watch, _ = watched(lambda rows: on_mesh(mesh, rows) + 1, list(range(4, 18)))
    assert "pad to a few sizes" in str(watch)
    steady, _ = watched(lambda rows: on_mesh(mesh, rows) + 1, [4] * 14)
    assert "saves at most" not in str(steady)


@pytest.mark.parametrize("keeps", [True, False])
def test_growing_list_is_reported_but_garbage_is_not(
    mesh: DeviceMesh, request: pytest.FixtureRequest, keeps: bool
) -> None:
    a, retained = on_mesh(mesh), list[Any]()
    lines: list[str] = []
    gc.disable()
    request.addfinalizer(gc.enable)
    with StepWatch(lines.append) as watch:
        for number in range(70):
            cycle: list[Any] = [a + a]
            cycle.append(cycle)  # a reference cycle: only garbage collection frees it
            if keeps and number > 2:
                retained.append(a + a)
            watch.step()
        for text in ("".join(lines), str(watch)):
            grown = [int(count) for count in re.findall(r"\+(\d+) DTensors since step", text)]
            assert len(grown) == keeps
            assert all(count <= len(retained) for count in grown)


def test_transfers_are_recorded_when_they_change(mesh: DeviceMesh) -> None:
    a, seen = on_mesh(mesh), list[tuple[int, int]]()
    with silent() as watch:
        for number in range(1, 71):
            for _ in range(1 if number < 30 else 2):
                a.redistribute(placements=[Replicate()])
            watch.step()
            latest = watch.steps.with_transfers
            if latest and (not seen or latest.number > seen[-1][0]):
                seen.append((latest.number, len(latest.counts.redistributions)))
    first, *others = (number for _, number in seen)
    assert first == 1
    assert [*dict.fromkeys(others)] == [1, 2]
    assert watch.steps.steady.steps == 69


def test_lines_go_to_standard_error(mesh: DeviceMesh, capsys: pytest.CaptureFixture[str]) -> None:
    with StepWatch() as watch:
        on_mesh(mesh) + 1
        watch.step()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dtdispatch: step 1: ")
    with pytest.raises(MeasurementError, match=r"^StepWatch\(print=3\): pass a function of a string$"):
        StepWatch(3)  # type: ignore[arg-type]


def test_second_watch_is_refused_and_first_continues(mesh: DeviceMesh) -> None:
    with silent() as watch:
        with pytest.raises(DtDispatchError, match="a StepWatch is open in this thread: end that first"):
            silent()
        on_mesh(mesh) + 1
        watch.step()
    assert watch.steps.calls == 1
    with StepCounter(), pytest.raises(DtDispatchError, match="steps are counted in this thread"):
        StepWatch()


def test_watch_in_another_thread_is_refused(mesh: DeviceMesh) -> None:
    with silent() as watch:
        on_mesh(mesh) + 1
        [opened], [stepped] = in_thread(StepWatch), in_thread(watch.step, "other")
        watch.step()
    assert isinstance(opened, DtDispatchError)
    assert "a StepWatch is open in thread 'MainThread'" in str(opened)
    assert isinstance(stepped, DtDispatchError)
    assert "step() in thread 'other_0': this StepWatch counts thread 'MainThread'" in str(stepped)
    assert len(watch.steps) == watch.steps.calls == 1


def test_calls_after_last_step_are_recorded_until_close(mesh: DeviceMesh) -> None:
    with silent() as watch:
        watch.step()
        on_mesh(mesh) + 1
    with pytest.raises(MeasurementError, match="closed"):
        watch.step()
    watch.close()
    assert len(watch.steps) == watch.steps.after.calls == 1
    assert "after the last step: 1 call, 1 miss" in str(watch)


def test_dropped_watch_leaves_nothing_behind(mesh: DeviceMesh) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = dict(vars(propagator))
    watch = silent()
    assert vars(propagator) != before
    del watch
    gc.collect()
    assert vars(propagator) == before
    assert not open_modes()
    silent().close()


def test_mode_opened_by_program_stays_open(mesh: DeviceMesh) -> None:
    a = on_mesh(mesh)
    with silent() as watch:
        with NamingMode() as mode:
            a + a
            watch.step()
            a + a
            watch.step()
            assert open_modes()[-1] is mode
        a + a
        watch.step()
    assert (watch.steps.warmup.calls, watch.steps.calls) == (1, 3)


def test_first_step_over_a_limit_is_stored_and_printed_once(mesh: DeviceMesh) -> None:
    step, lines = training_step(mesh), list[str]()
    with StepWatch(lines.append, max={"misses": 0}) as watch:
        for rows in (4, 4, 4, 6, 4, 8):
            step(rows)
            watch.step()
    assert watch.violation is not None
    assert watch.violation.step == 4
    [first, *_] = watch.violation.missed
    assert (first.op, first.values) == ("mm.default", ("[24,8]", "[16,8]"))
    assert first.place is not None
    assert first.place.file.endswith("test_step_watch.py")
    assert sum("over its limits" in line for line in lines) == 1
    assert [line for line in lines if line.startswith("dtdispatch: step 6: 5 misses: ")]
    assert "step 4 was the first over its limits: misses=0" in str(watch)


def test_limits_that_judge_no_step_are_reported(mesh: DeviceMesh) -> None:
    lines: list[str] = []
    with StepWatch(lines.append, max="misses=0") as watch:
        for rows in (4, 5, 6):
            on_mesh(mesh, rows) + 1
            watch.step()
    assert (watch.violation, watch.is_warm) == (None, False)
    assert lines[-1] == "dtdispatch: max judged nothing: no step came after the warm-up (3 steps)"


class Lines(list[str]):
    """Function that stores lines, and is false while it has none."""

    def __call__(self, line: str) -> None:
        self.append(line)


def test_stop_raises_once_at_the_end_of_a_step(mesh: DeviceMesh) -> None:
    step, lines = training_step(mesh), Lines()
    with StepWatch(lines, max="misses=0", warmup=0, stop=True) as watch:
        step(4)
        with pytest.raises(SystemExit) as ended:
            watch.step()
        for rows in (4, 6):
            step(rows)
            watch.step()
    assert ended.value.code == 1
    assert lines[0].startswith("dtdispatch: step 1: over its limits\n  misses=0, and step 1 has ")
    assert (len(watch.steps), watch.steps.warmup.steps) == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"max": "wraps=0"},
            r"^StepWatch: max='wraps=0' is not a list of limits .* of misses, cache_growth$",
        ),
        ({"stop": True}, r"^StepWatch\(stop=True\) has no limits: pass max, such as misses=0$"),
        ({"warmup": -1}, r"^StepWatch\(\): warmup=-1 is not a whole number of at least 0$"),
    ],
)
def test_invalid_limit_of_a_watch_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        StepWatch(**arguments)
