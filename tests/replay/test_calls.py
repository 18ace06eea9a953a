"""Callables measured end to end, whose state afterwards is that of one call."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from pytest_dtdispatch.core.checks import Setup
from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.replay.repeat import RanCallable, run_and_measure_call, run_call
from pytest_dtdispatch.replay.states import RandomState
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import PROPAGATED_AGAIN
from pytest_dtdispatch.torchapi.ops import close_modes_opened_since, open_modes, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.measured_runs import Make, NamingMode, measured_call

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

ROUNDS, REPEAT = 3, 4
PLAN = Plan(ROUNDS, REPEAT, max_time_s=60.0)  # enough for all rounds on a busy machine


Call = Callable[[Callable[[], Any]], Any]
Program = Callable[[Make, Call], Any]
PROGRAMS: dict[str, tuple[Program, str]] = {}


def measure(fn: Callable[..., Any], *args: Any, setup: Setup | None = None) -> tuple[Any, Figures]:
    result = measured_call(fn, *args, setup=setup, plan=PLAN)
    assert open_modes() == []
    return result


def counts(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples if samples.ns}


PROVED = {State.MISS: ROUNDS, State.HIT: ROUNDS * REPEAT}


def test_call_has_proved_misses_and_hits(shard: Make) -> None:
    a = shard(8, 8)
    result, figures = measure(lambda x, y: x * y + x, a, a)
    assert counts(figures) == PROVED
    assert (figures.rounds, figures.notes) == (ROUNDS, ())
    assert torch.equal(result.to_local(), (a * a + a).to_local())


def test_gradient_of_unread_leaf_is_restored() -> None:
    leaf, gradient = torch.ones(2, requires_grad=True), torch.ones(2)

    def accumulate() -> None:  # as FSDP2 does for its parameters
        leaf.grad = gradient * 2 if leaf.grad is None else leaf.grad + gradient

    run_and_measure_call(accumulate, (), None, ShardingCaches(), PLAN)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2]


def test_half_closed_mode_is_closed_before_restoring_tensors() -> None:
    noted = NamingMode()  # as if a signal interrupted its exit
    total = torch.zeros(2)
    _, ran = run_call(lambda: total.add_(1))
    assert isinstance(ran, RanCallable)
    with ran.repeating(one_thread=True) as prepare:
        assert prepare() == ()
        noted.__enter__()  # type: ignore[no-untyped-call]
        total.add_(1)
    left_open = close_modes_opened_since(())
    assert (left_open, len(noted.names), total.tolist()) == ([], 1, [1, 1])


def test_mesh_of_a_call_is_named(shard: Make) -> None:
    a = shard(8, 8)
    caches, plan = ShardingCaches(), Plan(1, 1)
    assert run_and_measure_call(lambda: a + a, (), None, caches, plan)[1] == "4"
    assert run_and_measure_call(lambda: torch.ones(3) + 1, (), None, caches, plan)[1] == ""


def test_only_calls_with_new_shapes_are_refused(shard: Make) -> None:
    calls, a = itertools.count(1), shard(8, 8)
    others = iter([shard(4 * n, 2) for n in range(1, 200)])

    def now_and_then() -> Any:
        x = a if next(calls) % 7 else next(others)
        return x + x

    _, figures = measure(now_and_then)
    [hits] = [samples for samples in figures.samples if samples.state is State.HIT]
    refused = {refusal.reason: refusal.count for refusal in hits.refused}
    assert refused.keys() == {PROPAGATED_AGAIN}
    assert len(hits.ns) + refused[PROPAGATED_AGAIN] == ROUNDS * REPEAT


# State after a measured callable


def program(body: Program, reason: str = "") -> Program:
    """Register a program: it runs a callable through `call`, and returns all state that could differ."""
    PROGRAMS[body.__name__] = body, reason
    return body


def runs_once(reason: str) -> Callable[[Program], Program]:
    """Register a program whose call is not repeatable, with the reason."""
    return partial(program, reason=f"runs once: {reason}")


@program
def writes_to_tensors_and_outside_views(shard: Make, call: Call) -> Any:
    a, base = shard(8, 8), torch.rand(6)
    row, head = a.view(4, 16), base[:2]

    def fn() -> Any:
        head.add_(1.0)
        base.mul_(2.0)
        row.add_(1.0)
        return a.add_(1.0).mul_(a)

    result = call(fn)
    return result, result is a, a, row, base, head


def test_each_repetition_starts_from_the_initial_state(shard: Make) -> None:
    a, base = shard(8, 8), torch.zeros(2)
    head, found = base[:1], []

    def fn() -> Any:
        found.append(base.tolist())
        head.add_(1.0)
        base.mul_(2.0)
        return a + a

    measure(fn)
    assert len(found) > ROUNDS * REPEAT
    assert set(map(tuple, found)) == {(0.0, 0.0)}
    assert base.tolist() == [2.0, 0.0]


@program
def gradients_are_accumulated_once(shard: Make, call: Call) -> Any:
    def seen(grad_is_there: bool) -> Any:
        a, b = (shard(8, 8, requires_grad=True) for _ in range(2))
        if grad_is_there:
            (a + b).sum().backward()
        grad, doubled = a.grad, a * 2
        doubled.retain_grad()
        call(lambda: (a * b + doubled).sum().backward(retain_graph=True))
        return a.grad, b.grad, doubled.grad, grad is not None, a.grad is grad

    return seen(False), seen(True)


@program
def writes_to_views_of_outside_tensors(shard: Make, call: Call) -> Any:
    a, plain = shard(8, 8), torch.rand(8)

    def fn() -> Any:
        a.split(4, 1)[0].add_(1.0)
        a.to_local().mul_(2.0)
        plain.chunk(2)[1].add_(1.0)
        with torch.inference_mode():
            plain.reshape(2, 4).mul_(3.0)
        return a + a

    call(fn)
    return a, plain


@program
def random_draws_with_a_generator_in_a_closure(shard: Make, call: Call) -> Any:
    a, own = shard(8, 8), torch.Generator().manual_seed(5)
    drawn = call(lambda: (torch.rand(2), torch.rand_like(a), a.uniform_(), torch.rand(3, generator=own)))
    return drawn, a, torch.rand(2), own.get_state()


@program
def random_draw_in_repetitions_only(shard: Make, call: Call) -> Any:
    a, calls = shard(8, 8), itertools.count()
    return call(lambda: (a + a, torch.rand(3) if next(calls) else None)[0])


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda parameters: AdamW(parameters, foreach=True),
    "AdamW one by one": lambda parameters: AdamW(parameters, foreach=False),
    "AdamW amsgrad": lambda parameters: Adam(parameters, amsgrad=True),
    "Adagrad": Adagrad,
    "SGD with momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "SparseAdam": SparseAdam,
}


def first_and_second_step(make: Callable[[Any], Optimizer], shard: Make, call: Call) -> Any:
    """Create the state of an optimizer in the first step, then step again."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    is_sparse = make is SparseAdam
    weight = table.weight if is_sparse else torch.nn.Parameter(shard(8, 8))
    optimizer = make([weight])
    ids = torch.tensor([1, 2])
    (table(ids).sum() if is_sparse else (weight * weight).sum()).backward()
    for _ in range(2):
        call(optimizer.step)
    return weight.detach(), [list(state.values()) for state in optimizer.state.values()]


PROGRAMS |= {name: (partial(first_and_second_step, make), "") for name, make in OPTIMIZERS.items()}


@program
def tensor_created_by_the_first_call(shard: Make, call: Call) -> Any:
    sums: list[Any] = []
    source = shard(8, 8)

    def fn() -> None:
        if not sums:
            sums.append(torch.zeros_like(source))
        sums[0].add_(1)

    call(fn)
    return sums


@program
def versions_and_running_statistics(shard: Make, call: Call) -> Any:
    norm, x = torch.nn.BatchNorm1d(4), torch.rand(8, 4, requires_grad=True)
    buffer, base = torch.zeros(4), torch.zeros(4)

    def forward() -> torch.Tensor:
        buffer.add_(1)
        base[:2].add_(1)
        loss: torch.Tensor = (x * buffer).sum() + norm(x).sum()
        return loss

    call(forward).backward()
    statistics = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return buffer, base, buffer._version, base._version, x.grad, statistics


@program
def backward_before_a_write(shard: Make, call: Call) -> Any:
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * weight).sum()

    def fn() -> None:
        loss.backward(retain_graph=True)
        with torch.no_grad():
            weight.add_(1)

    call(fn)
    return weight.detach(), weight.grad


@program
def writes_to_tensors_of_every_kind(shard: Make, call: Call) -> Any:
    values = [torch.rand(3, 4)[:, 1], torch.rand(0, 4), torch.tensor(3.0), torch.tensor([float("inf"), -0.0])]
    conjugate, flags = torch.rand(3, dtype=torch.complex64).conj(), torch.tensor([True, False])
    call(lambda: ([each.mul_(-1).add_(1) for each in (*values, conjugate)], flags.logical_not_()))
    return values, conjugate.resolve_conj(), flags


@program
def write_to_overlapping_memory(shard: Make, call: Call) -> Any:
    expanded, other = torch.zeros(1, 4).expand(3, 4), torch.zeros(3)

    def fn() -> None:
        expanded.index_put_((torch.tensor([0]),), torch.tensor(1.0))
        other.add_(1)
        scratch = torch.rand(3, 1)
        scratch.squeeze_(1)  # tensors created by the call may be reshaped

    call(fn)
    return expanded, other


NO_COPY = "it writes to a {} tensor, whose contents cannot be restored"


@runs_once(NO_COPY.format("sparse_coo"))
def sparse_gradient(shard: Make, call: Call) -> Any:
    table, other = torch.nn.Embedding(10, 4, sparse=True), torch.zeros(3)

    def fn() -> None:
        other.add_(1)
        table(torch.tensor([1, 2])).sum().backward()

    fn()
    call(fn)
    assert table.weight.grad is not None
    return table.weight.grad.to_dense(), other


@runs_once(NO_COPY.format("sparse_coo"))
def sparse_tensor_created_by_the_first_call(shard: Make, call: Call) -> Any:
    created: list[torch.Tensor] = []

    def fn() -> None:
        if not created:
            created.append(torch.eye(3).to_sparse())
        created[0].mul_(2)

    call(fn)
    return created[0].to_dense(), created[0].shape


@runs_once(NO_COPY.format("nested"))
def write_to_nested_tensor(shard: Make, call: Call) -> Any:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    call(lambda: nested.mul_(2))
    return [*nested.unbind(), nested.dim()]


@runs_once("it changed the layout of a tensor that it wrote to")
def shape_changed_in_place(shard: Make, call: Call) -> Any:
    a = torch.rand(8, 1)
    return call(lambda: a.squeeze_(1)), a.shape


@partial(program, reason="repeating it raised RuntimeError: Trying to backward through the graph")
def graph_that_supports_one_backward(shard: Make, call: Call) -> Any:
    a = shard(8, 8, requires_grad=True)
    call((a * a).sum().backward)
    return a.grad, a.shape


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize(("body", "reason"), PROGRAMS.values(), ids=PROGRAMS)
def test_measured_program_ends_as_after_one_call(shard: Make, body: Program, reason: str) -> None:
    def measured(fn: Callable[[], Any]) -> Any:
        result, figures = measure(fn)
        assert [note.startswith(reason) for note in figures.notes] == [True] * bool(reason), figures.notes
        assert bool(counts(figures)) is not bool(reason)
        return result

    def left_by(call: Call) -> list[Any]:
        torch.manual_seed(11)
        leaves = [*tree_leaves(body(shard, call)), torch.get_rng_state()]
        return [local_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    plain, left = left_by(lambda fn: fn()), left_by(measured)
    assert len(plain) == len(left) > 1
    for before, after in zip(plain, left, strict=True):
        assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after


# Arguments and errors


def test_setup_provides_fresh_arguments_per_call(shard: Make) -> None:
    created: list[Any] = []
    arguments: list[Any] = []

    def setup() -> tuple[Any]:
        created.append(shard(8, 8))
        return (created[-1],)

    def fn(x: Any) -> Any:
        arguments.append(x)
        return x.add_(1.0)

    result, figures = measure(fn, setup=setup)
    assert result is created[0]
    assert len(created) == len(arguments) > sum(PROVED.values())
    assert all(one is other for one, other in zip(created, arguments, strict=True))
    assert counts(figures) == PROVED


def test_propagations_in_setup_do_not_prove_misses(shard: Make) -> None:
    a, others = shard(8, 8), iter(range(4, 4000, 4))

    def setup() -> None:
        fresh = shard(next(others), 2)
        fresh + fresh

    _, figures = measure(lambda: a.redistribute(placements=[Replicate()]), setup=setup)
    assert counts(figures) == {State.CALL: ROUNDS * REPEAT}
    _, figures = measure(lambda: a + a, setup=setup)
    assert counts(figures) == PROVED
    assert not any(samples.refused for samples in figures.samples)


@pytest.mark.parametrize("cold", [False, True], ids=["miss", "cold"])
def test_caches_filled_by_setup_are_cleared_before_misses(shard: Make, cold: bool) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    plan = Plan(ROUNDS, REPEAT, cold=cold)

    def add_first() -> None:
        a + a

    _, _, figures = run_and_measure_call(lambda: a + a, (), add_first, caches, plan)
    assert counts(figures) == PROVED | ({State.COLD: ROUNDS} if cold else {})
    misses, hits = (s.median_ns for s in figures.samples if s.state in (State.MISS, State.HIT))
    assert misses > 10 * hits


def test_device_is_synchronized_before_each_pass(shard: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    a, waits = shard(8, 8), list[bool]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(True))
    measure(lambda: a + a)
    assert waits == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    measure(lambda: a + a)
    assert waits == [True] * ROUNDS


def test_generator_of_a_cuda_device_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    random = RandomState([])
    random.save_all([torch.device("cuda", 0)])
    first = torch.rand(3, generator=generator)
    random.settle()
    after = generator.get_state()
    random.rewind()
    assert torch.equal(torch.rand(3, generator=generator), first)
    random.rewind()
    random.restore()
    assert torch.equal(generator.get_state(), after)


# Errors


class StoppedError(Exception):
    """Raised by one thread in another to stop it."""


@pytest.mark.parametrize(
    ("numbers", "error", "expected"),
    [
        ([1], LookupError("the callable's own"), LookupError),
        ([5], StoppedError, StoppedError),
        ([5], ValueError("no more\nof this"), "repeating it raised ValueError: no more"),
        (range(5, 9), AssertionError(), "repeating it raised AssertionError"),
    ],
    ids=["in the first call", "of another thread", "in a repetition", "in each repetition, and has no text"],
)
def test_error_propagates_or_becomes_a_note(
    numbers: Sequence[int], error: Any, expected: str | type[Exception]
) -> None:
    calls, total = itertools.count(1), torch.zeros(2)

    def fn() -> None:
        total.add_(1)
        if next(calls) not in numbers:
            return
        if error is StoppedError:
            this = ctypes.c_ulong(threading.get_ident())
            ctypes.pythonapi.PyThreadState_SetAsyncExc(this, ctypes.py_object(error))
        else:
            raise error

    if isinstance(expected, str):
        assert measure(fn)[1].notes == (expected,)
    else:
        with pytest.raises(expected):
            measure(fn)
    assert open_modes() == []
    assert total.tolist() == [1, 1]
