"""Steps with inputs of several shapes, such as decode loops and batches: counts, output and errors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.signatures import MAX_LENGTH
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.report.document import Tone, View
from pytest_dtdispatch.steps.events import Miss, QueriedCache
from pytest_dtdispatch.steps.measure import run_and_count, shape_of
from pytest_dtdispatch.steps.model import Steady, StepCounts, Steps, read_calls
from pytest_dtdispatch.steps.table import document
from tests.probes import LOCAL_TENSOR, needs
from tests.steps.test_measure import clear_as_a_program_does

pytestmark = pytest.mark.torch

Step = Callable[[Any], Any]
MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "shape of self [9,8], was [8,8]", QueriedCache.NATIVE)


def count(step: Step, inputs: Iterable[Any], warmup: int = 0) -> Steps:
    clear_as_a_program_does()
    return run_and_count(read_calls(step, warmup, None, inputs, "step"))


def steps_of(shapes: Iterable[str], misses: list[int], warmup: int = 0) -> Steps:
    counted = tuple(StepCounts(hits=3, events=(MISS,) * n, cache_growth=(("native", n),)) for n in misses)
    return Steps("decode", counted[:warmup], counted[warmup:], tuple(shapes))


GROWN = replace(steady := steps_of("aba", [1, 0, 0]), steps=(*steady.steps[:2], StepCounts(spec_growth=1)))


def one(value: Any) -> None:
    del value


def two(left: Any, right: Any) -> None:
    del left, right


# Inputs of a step, and the arguments of its calls


@pytest.mark.parametrize(
    ("step", "inputs", "how", "line"),
    [
        (one, [], {}, "inputs has no items: pass at least one"),
        (one, [1, 2], {"warmup": 2}, "inputs has 2 items: warmup=2 leaves none of them to"),
        (one, [1], {"warmup": 1}, "inputs has 1 item: warmup=1 leaves none of them to count"),
        (one, iter(()), {}, "inputs has no items"),
        (one, iter((1, 2)), {"warmup": 3}, "inputs has 2 items: warmup=3 leaves none"),
        (one, 7, {}, "inputs=7 cannot be iterated over: pass a list of inputs"),
        (one, [1], {"steps": 5}, "steps=5 with inputs: each input is a step, so omit steps="),
        (one, [1], {"warmup": -1}, "warmup=-1 is not a whole number of at least 0"),
        (one, [1], {"warmup": "2"}, "warmup='2' is not a whole number of at least 0"),
        (lambda: None, [1], {}, "the step takes no arguments, and is called with one input"),
        (two, [1], {}, "the step takes arguments (left, right), and is called with one input"),
        (7, [1], {}, "a value of type int is not callable: pass a function"),
    ],
)
def test_invalid_arguments_are_one_line(step: Any, inputs: Any, how: dict[str, Any], line: str) -> None:
    with pytest.raises(MeasurementError) as refused:
        DtDispatch().steps(step, inputs=inputs, **how)
    assert str(refused.value).startswith(f"steps(): {line}")
    assert "\n" not in str(refused.value)


def test_numbers_of_steps_have_defaults() -> None:
    alike, inputs = read_calls(dict, None, None, None, None), read_calls(one, None, None, [1], None)
    assert (alike.name, alike.warmup, alike.steps) == ("dict", 3, 5)
    assert (inputs.name, inputs.warmup) == ("one", 0)
    assert read_calls(lambda x: x, 1, None, [1, 2], None).name == "step"


class Items:
    """A sequence with only ``__getitem__``, like a map-style dataset."""

    def __getitem__(self, at: int) -> int:
        return [8, 16][at]


@pytest.mark.parametrize("inputs", [{8: 1, 16: 2}, Items(), iter([8, 16])], ids=lambda x: type(x).__name__)
def test_unmeasured_step_runs_once_per_input(inputs: Any) -> None:
    seen: list[int] = []
    steps = DtDispatch().steps(seen.append, inputs=inputs)
    assert seen == [8, 16]
    assert (steps.steps, steps.inputs, steps.steady_after) == ((), (), (0, 0))


@pytest.mark.parametrize("run", [count, lambda step, inputs: DtDispatch().steps(step, inputs=inputs)])
def test_inputs_are_requested_lazily_and_errors_propagate(run: Callable[..., Any]) -> None:
    log: list[str] = []

    def inputs() -> Iterator[int]:
        for n in itertools.count():
            log.append(f"made {n}")
            yield 1 // (2 - n)

    with pytest.raises(ZeroDivisionError):
        run(lambda n: log.append("ran"), inputs())
    assert log == ["made 0", "ran", "made 1", "ran", "made 2"]
    numbers = iter((0, 1, 2))
    with pytest.raises(ZeroDivisionError):
        run(lambda n: n // next(numbers), range(9))
    assert next(numbers) == 1


# Text of an input


@dataclass
class Batch:
    tokens: Any
    scale: float = 0.5


class Unshowable:
    def __repr__(self) -> str:
        raise ValueError("of the program")


class Array:
    dtype, shape = "float32", (8, 2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(8, 4), "f32[8,4]"),
        (torch.tensor(1.0), "f32[]"),
        ((torch.zeros(2), 3), "(f32[2], 3)"),
        ([torch.zeros(2), [torch.zeros(3)]], "(f32[2], (f32[3]))"),
        ({"ids": torch.zeros(2), "n": 7}, "{ids: f32[2], n: 7}"),
        (Batch(torch.zeros(2)), "Batch(tokens=f32[2], scale=0.5)"),
        (Array(), "float32[8,2]"),
        (None, "None"),
        ("a\nb", r"'a\nb'"),
        (Unshowable(), "<Unshowable that cannot be shown>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_input_text_has_cache_relevant_properties(value: Any, text: str) -> None:
    assert shape_of(value) == text


def test_placements_and_mesh_are_part_of_a_shape(group_owner: ProcessGroupOwner) -> None:
    line, grid = (group_owner.mesh(MeshSpec(shape, "cpu", "fake")) for shape in ((4,), (2, 2)))
    local = torch.zeros(2, 8)
    assert shape_of(DTensor.from_local(local, line, [Shard(0)])) == "f32[8,8]S0@4"
    assert shape_of((DTensor.from_local(local, grid, [Replicate(), Shard(1)]), 1)) == "(f32[2,16]RS1@2x2, 1)"


def test_shape_text_ignores_values_but_separates_long_inputs() -> None:
    assert shape_of([torch.zeros(4), Items()]) == shape_of([torch.ones(4), Items()])
    short, other = shape_of(list(range(999))), shape_of([*range(998), 5])
    assert len(short) == len(other) == MAX_LENGTH
    assert short != other


# Steady steps


@pytest.mark.parametrize(
    ("shapes", "misses", "warmup", "steady"),
    [
        ("aaaa", [0, 0, 0, 0], 0, Steady(0, 0)),
        ("aabcab", [1, 0, 1, 1, 0, 0], 0, Steady(3, 4)),
        ("abcd", [1, 0, 0, 0], 0, Steady(1, 1)),
        ("abab", [1, 1, 0, 1], 0, None),
        ("a", [1], 0, None),
        ("", [], 0, Steady(0, 0)),
        # Shapes of the warm-up are cached, its steps are not counted.
        ("abca", [1, 1, 1, 0], 2, Steady(3, 1)),
        ("aba", [1, 1, 0], 2, Steady(2, 0)),
    ],
)
def test_step_is_steady_after_its_last_miss(
    shapes: str, misses: list[int], warmup: int, steady: Steady | None
) -> None:
    assert steps_of(shapes, misses, warmup).steady_after == steady


# Counts


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=["replicated", "sharded"])
def test_growing_cache_misses_at_each_token(mesh: DeviceMesh, placement: Any) -> None:
    cache: Any = DTensor.from_local(torch.rand(2, 4, 8), mesh, [placement])

    def step(token: DTensor) -> None:
        nonlocal cache
        cache = torch.cat([cache, token], dim=1)
        scores = torch.softmax(token @ cache.transpose(1, 2), -1)
        scores @ cache

    steps = count(step, (DTensor.from_local(torch.rand(2, 1, 8), mesh, [placement]) for _ in range(6)))
    assert len(steps.steps) == 6
    assert all(one.misses for one in steps.steps)
    assert (len(set(steps.inputs)), steps.steady_after) == (1, None)
    assert all("shape of" in miss.reason for miss in steps.steps[-1].missed)


@pytest.mark.parametrize("backend", ["fake", pytest.param("local", marks=needs(LOCAL_TENSOR))])
def test_batches_of_three_sizes_are_steady_after_three(group_owner: ProcessGroupOwner, backend: str) -> None:
    mesh = group_owner.mesh(MeshSpec((4,), "cpu", backend))
    weight = DTensor.from_local(torch.rand(8, 8), mesh, [Replicate()])
    rows = [2, 4, 8, *random.Random(0).choices([2, 4, 8], k=17)]
    batches = [DTensor.from_local(torch.rand(n, 8), mesh, [Shard(0)]) for n in rows]
    steps = count(lambda batch: (batch @ weight).relu(), batches)
    assert steps.inputs[:3] == ("f32[8,8]S0@4", "f32[16,8]S0@4", "f32[32,8]S0@4")
    assert (set(steps.inputs[3:]), steps.steady_after) == (set(steps.inputs[:3]), (3, 3))
    assert [one.misses for one in steps.steps] == [2] * 3 + [0] * 17
    again = count(lambda batch: (batch @ weight).relu(), batches, warmup=2)
    assert (len(again.warmup), [one.misses for one in again.steps]) == (2, [2] + [0] * 17)
    assert again.inputs == steps.inputs


def test_input_generation_is_excluded_from_step_counts(mesh: DeviceMesh) -> None:
    def inputs() -> Iterator[DTensor]:
        for n in (2, 4, 8):
            a: Any = DTensor.from_local(torch.rand(n, 8), mesh, [Shard(0)])
            yield (a * 2).redistribute(placements=[Replicate()])

    steps = count(lambda a: a.redistribute(placements=[Shard(1)]), inputs())
    assert (steps.misses, steps.redistributes_per_step, steps.collectives) == (0, 1, {})
    assert steps.dtensor_growth == 0


# Output


@pytest.mark.parametrize(
    ("steps", "state", "tone"),
    [
        (steps_of("ab", [1, 0]), "steady after 1 shape", Tone.GOOD),
        (steps_of("aa", [0, 0]), "steady", Tone.GOOD),
        (steps_of("ab", [0, 1]), "misses, grows, unsteady", Tone.BAD),
        (GROWN, "steady after 1 shape, grows", Tone.BAD),
    ],
)
def test_steps_with_inputs_have_a_state(steps: Steps, state: str, tone: Tone) -> None:
    table: Any = document({"test_step": (steps,)}, View()).blocks[0]
    line = table.groups[0].lines[0]
    assert (line.status, line.tone) == (state, tone)
