"""Replay has no side effects: captured and uncaptured programs compute bitwise equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.ops import open_modes, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.conftest import Capture
from tests.measured_runs import FEW, Make, captured, measured_call
from tests.sweep.observe import aliases, seen

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

Body = Callable[[Any, Any], Any]
Pair = Callable[[], tuple[Any, Any]]
NEVER_HITS = "never hits: torch does not cache this op, and each call propagates"


@dataclass
class Seen:
    values: list[Any]
    aliases: list[tuple[int, int, bool]]
    random: torch.Tensor
    error: tuple[type, str] | None
    measurements: tuple[Measurement, ...] = field(default=(), compare=False)


def run(body: Body, make: Pair, captured: bool) -> Seen:
    torch.manual_seed(7)
    args = make()
    book = ResultStore()
    error, result = None, None
    with SignatureCapture(book, Plan(2, 3)) if captured else nullcontext():
        try:
            result = body(*args)
        except Exception as raised:
            error = (type(raised), str(raised))
    random = torch.get_rng_state()
    values = tree_leaves((args, result))
    return Seen([seen(v) for v in values], aliases(values), random, error, book.measurements())


def works(body: Body, make: Pair) -> tuple[Measurement, ...]:
    """Compare a program that succeeds; skip it if this torch has no sharding rule."""
    captured = compared(body, make)
    if captured.error and "does not have a sharding strategy registered" in captured.error[1]:
        pytest.skip(f"this torch refuses it: {captured.error[1]}")
    assert captured.error is None
    return captured.measurements


def compared(body: Body, make: Pair) -> Seen:
    """Run a program uncaptured and captured; check equality and return the captured run."""
    plain, captured = run(body, make, captured=False), run(body, make, captured=True)
    for before, after in zip(plain.values, captured.values, strict=True):
        assert before == after
    assert captured.aliases == plain.aliases
    assert torch.equal(captured.random, plain.random)
    assert captured.error == plain.error
    return captured


@pytest.fixture
def two(shard: Make) -> Pair:
    """Create two DTensors, for the cases of each family."""
    return lambda: (shard(8, 8), shard(8, 8))


RESULTS: dict[str, Body] = {
    "in place: add_": lambda a, b: a.add_(b),
    "in place: add_ itself": lambda a, b: a.add_(a),
    "in place: +=": lambda a, b: a.__iadd__(b),
    "in place: copy_": lambda a, b: a.copy_(b),
    "in place: twice": lambda a, b: a.mul_(2.0).mul_(3.0),
    "in place: through a view": lambda a, b: a.view(4, 16).add_(1.0),
    "in place: through a detached": lambda a, b: a.detach().add_(b),
    "in place: masked_fill_": lambda a, b: a.masked_fill_(b > 0.5, 0.0),
    "out: add": lambda a, b: torch.add(a, b, out=b),
    "out: add new": lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
    "random: uniform_": lambda a, b: a.uniform_(),
    "random: of a generator": lambda a, b: a.uniform_(generator=torch.Generator().manual_seed(5)),
    "random: dropout in place": lambda a, b: F.dropout(a, 0.5, inplace=True),
    "random: rand_like twice": lambda a, b: (torch.rand_like(a), torch.rand_like(a)),
    "random: beside plain draws": lambda a, b: (torch.rand(3), torch.rand_like(a), torch.rand(3)),
    "view: view": lambda a, b: a.view(4, 16),
    "view: split": lambda a, b: a.split(4, 1),
    "view: detach": lambda a, b: a.detach(),
    "view: expand": lambda a, b: a.unsqueeze(1).expand(8, 3, 8),
    "foreach: _foreach_add_": lambda a, b: torch._foreach_add_([a, b], [b, a]),
    "foreach: _foreach_mul_": lambda a, b: torch._foreach_mul_([a, b], 2.0),
    "foreach: _foreach_lerp_": lambda a, b: torch._foreach_lerp_([a], [b], 0.5),
    "autograd: backward": lambda a, b: (a.requires_grad_() * b).sum().backward(),
    "autograd: twice": lambda a, b: [(a.requires_grad_() * b).sum().backward() for _ in range(2)],
    "autograd: in place": lambda a, b: (a.requires_grad_() * 2.0).mul_(b).sum().backward(),
    "autograd: no grad": lambda a, b: torch.no_grad()(lambda: a.requires_grad_().mul_(2.0))(),
    "autograd: inference": lambda a, b: torch.inference_mode()(lambda: (a @ b).sum())(),
    "other: redistributes": lambda a, b: a @ b,
    "other: item": lambda a, b: b.sum().item(),
    "other: is_same_size": lambda a, b: a.is_same_size(b),
}
RAISING: dict[str, Body] = {
    "shapes": lambda a, b: a + b[:, :3],
    "no strategy": lambda a, b: a.t_(),
    "mixed": lambda a, b: a + torch.ones(8, 8),
    "in place on a leaf": lambda a, b: a.requires_grad_().add_(1.0),
    "after an effect": lambda a, b: (a.add_(1.0), a.uniform_(), a.view(63)),
}


@pytest.mark.parametrize("body", RESULTS.values(), ids=RESULTS)
def test_captured_program_computes_the_same_results(two: Pair, body: Body) -> None:
    measured = works(body, two)
    assert measured
    without = [row for row in measured if not (row.steady and row.steady.ns)]
    for row in without:
        assert NEVER_HITS in row.figures.notes, (row.full_label, row.figures.notes)
    assert not without or propagates_on_every_call(body, two)


def propagates_on_every_call(body: Body, make: Pair) -> bool:
    """Return whether the third uncaptured call of a program still queries the propagator."""
    caches, args = ShardingCaches(), make()
    for _ in range(2):
        body(*args)
    before = [read()[1] for read in caches.readers()]
    with caches.counting_uncached() as count:
        body(*args)
    return count[0] > 0 or [read()[1] for read in caches.readers()] != before


@pytest.mark.parametrize("body", RAISING.values(), ids=RAISING)
def test_captured_program_raises_the_same_error(two: Pair, body: Body) -> None:
    assert compared(body, two).error is not None
    assert not open_modes()


def test_batch_norm_statistics_are_updated_once(shard: Make) -> None:
    def make() -> tuple[Any, Any]:
        return shard(8, 8, placement=Replicate()), [shard(8, placement=Replicate()) for _ in range(2)]

    measured = works(lambda a, running: F.batch_norm(a, running[0], running[1], training=True), make)
    assert any(measurement.of(State.MISS) for measurement in measured)


@contextmanager
def own_op(signature: str, run: Callable[[Any], Any], whole: Any) -> Iterator[Callable[[], Any]]:
    """Define a custom op without result, and call it once; skip if this torch refuses it."""
    with torch.library._scoped_library("dtdtest", "DEF") as defined:
        name = defined.define(f"{signature} -> ()")
        defined.impl(name, run, "CPU")
        defined.impl(name, lambda x: None, "Meta")
        op = getattr(torch.ops.dtdtest, name)
        register_sharding(op.default)(lambda x: [([], [Replicate()])])
        try:
            op(whole)
        except (RuntimeError, IndexError) as error:
            pytest.skip(f"this torch refuses an op that returns nothing: {error}")
        yield lambda: op(whole)


def test_op_with_external_effect_runs_once(shard: Make, capture: Capture) -> None:
    whole, noted = shard(8, 8, placement=Replicate()), list[bool]()
    with own_op("note(Tensor x)", lambda x: noted.append(True), whole) as note:
        noted.clear()
        [measured] = capture(note).values()
    assert noted == [True]
    assert measured.figures.notes == ("runs once: its effect is outside its tensors",)
    assert not list(measured.recorded())


def test_failed_repetition_restores_state_after_first_call(shard: Make, capture: Capture) -> None:
    whole, calls = shard(8, 8, placement=Replicate()), list[bool]()

    def draw(x: torch.Tensor) -> None:
        x.uniform_()
        calls.append(True)
        if len(calls) > 1:
            raise ValueError("the second call raises\nand has two lines")

    torch.manual_seed(3)
    expected, state = torch.empty(8, 8).uniform_(), torch.get_rng_state()
    with own_op("draw_(Tensor(a!) x)", draw, whole) as draw_again:
        calls.clear()
        torch.manual_seed(3)
        [measured] = capture(draw_again).values()
    assert len(calls) > 1
    assert measured.figures.notes == ("repeating it raised ValueError: the second call raises",)
    assert torch.equal(local_of(whole), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("body", "shapes", "reason"),
    [
        (lambda a, _: a.squeeze_(1), [(8, 1, 8), (8,)], "it changes a tensor's shape in place"),
        (
            lambda a, out: torch.add(a, 1, out=out),
            [(8, 8), (0, 8)],
            "it changed the layout of a tensor that it wrote to",
        ),
    ],
    ids=["squeeze_", "resized out"],
)
def test_op_that_changes_a_tensor_layout_runs_once(
    shard: Make, body: Body, shapes: list[tuple[int, ...]], reason: str
) -> None:
    [measured] = works(body, lambda: (shard(*shapes[0]), shard(*shapes[1])))
    assert measured.figures.notes == (f"runs once: {reason}",)
    assert not list(measured.recorded())


# Plans with a masked partial sum, as in vocabulary-parallel embeddings


Lookup = Callable[[int], torch.Tensor]


def unmasked(tensor: Any) -> torch.Tensor:
    """Reduce a masked partial sum, which releases its mask."""
    reduced: DTensor = tensor.redistribute(placements=[Replicate()])
    return reduced.to_local()


@pytest.fixture(params=["embedding", "gather"])
def program(request: pytest.FixtureRequest, shard: Make, mesh: Any) -> Lookup:
    """Return a program that computes a masked partial sum of new ids in each call, and reduces it."""
    table = shard(16, 4)

    def ids(number: int, *shape: int) -> DTensor:
        flat = (torch.arange(shape[0]) * 3 + number) % 16
        return distribute_tensor(flat.reshape(-1, *[1] * (len(shape) - 1)).expand(shape), mesh, [Replicate()])

    if request.param == "embedding":
        return lambda number: unmasked(F.embedding(ids(number, 5), table))
    return lambda number: unmasked(torch.gather(table, 0, ids(number, 1, 4)))


def in_capture(program: Lookup) -> list[torch.Tensor]:
    with SignatureCapture(ResultStore(), FEW):
        return [program(number) for number in range(3)]


def timed(program: Lookup) -> list[torch.Tensor]:
    with TimeCaptureMode(3):
        return [program(number) for number in range(3)]


def called(program: Lookup) -> list[torch.Tensor]:
    return [measured_call(program, 0)[0], program(1), program(2)]


@pytest.mark.parametrize("measured", [in_capture, timed, called])
def test_calls_with_other_ids_equal_unmeasured_calls(
    program: Lookup, measured: Callable[[Lookup], list[torch.Tensor]]
) -> None:
    plain = [program(number) for number in range(3)]
    for one, other in zip(measured(program), plain, strict=True):
        assert torch.equal(one, other)


def test_op_on_masked_partial_is_measured(shard: Make, mesh: Any) -> None:
    table = shard(16, 4)
    ids = distribute_tensor(torch.arange(5), mesh, [Replicate()])
    plain = F.embedding(ids, table).relu()
    results: list[Any] = []
    book = captured(lambda: results.append(F.embedding(ids, table).relu()))
    measured = {each.op: each for each in book.measurements()}
    [note] = measured["relu.default"].figures.notes
    assert note.startswith("redistributes f32[5,4]")
    assert measured["relu.default"].median_ns(State.HIT)
    assert torch.equal(local_of(results[0]), local_of(plain))
