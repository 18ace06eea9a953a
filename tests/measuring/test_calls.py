"""Whole callables: measured end to end, and left as after one call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.measuring.guard import Setup
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeat import run_and_measure_call, run_call
from pytest_dtdispatch.measuring.replay import RandomState
from pytest_dtdispatch.measuring.rounds import PROPAGATED_AGAIN
from pytest_dtdispatch.torchapi.ops import close_modes_opened_since, open_modes, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.measuring.runs import Make, NamingMode, measured_call
from tests.probes import compiles_once_under_a_mode, needs_that

pytestmark = pytest.mark.torch

ROUNDS, REPEAT = 3, 4


Call = Callable[[Callable[[], Any]], Any]
Program = Callable[[Make, Call], Any]
PROGRAMS: dict[str, Program] = {}


def measure(fn: Callable[..., Any], *args: Any, setup: Setup | None = None) -> tuple[Any, Figures]:
    result = measured_call(fn, *args, setup=setup, plan=Plan(ROUNDS, REPEAT))
    assert open_modes() == []
    return result


def counts(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples if samples.ns}


PROVED = {State.MISS: ROUNDS, State.HIT: ROUNDS * REPEAT}


def test_a_call_is_measured_on_misses_and_on_hits(shard: Make) -> None:
    a = shard(8, 8)
    result, figures = measure(lambda x, y: x * y + x, a, a)
    assert counts(figures) == PROVED
    assert (figures.rounds, figures.notes) == (ROUNDS, ())
    assert torch.equal(result.to_local(), (a * a + a).to_local())


def test_a_mode_that_a_repetition_leaves_half_closed_is_closed_before_anything_is_put_back() -> None:
    noted = NamingMode()  # one that a signal interrupted as it was closed
    total = torch.zeros(2)
    _, ran = run_call(lambda: total.add_(1))
    with ran.repeating(one_thread=True) as prepare:
        assert prepare() == ()
        noted.__enter__()  # type: ignore[no-untyped-call]
        total.add_(1)
    left_open = close_modes_opened_since(())
    assert (left_open, len(noted.names), total.tolist()) == ([], 1, [1, 1])


def test_the_mesh_of_a_call_is_named(shard: Make) -> None:
    a = shard(8, 8)
    caches, plan = ShardingCaches(), Plan(1, 1)
    assert run_and_measure_call(lambda: a + a, (), None, caches, plan)[1] == "4"
    assert run_and_measure_call(lambda: torch.ones(3) + 1, (), None, caches, plan)[1] == ""


def test_a_call_that_meets_a_new_shape_now_and_then_has_those_calls_refused(shard: Make) -> None:
    calls, a = [0], shard(8, 8)
    others = iter([shard(4 * n, 2) for n in range(1, 200)])

    def now_and_then() -> Any:
        calls[0] += 1
        x = next(others) if calls[0] % 7 == 0 else a
        return x + x

    _, figures = measure(now_and_then)
    [hits] = [samples for samples in figures.samples if samples.state is State.HIT]
    refused = {refusal.reason: refusal.count for refusal in hits.refused}
    assert refused.keys() == {PROPAGATED_AGAIN}
    assert len(hits.ns) + refused[PROPAGATED_AGAIN] == ROUNDS * REPEAT


# What a callable leaves behind


def program(body: Program) -> Program:
    """List a program: it calls something by what it is given, and returns all that it could tell by."""
    PROGRAMS[body.__name__] = body
    return body


@program
def a_closure_that_is_written_to_is_left_as_after_one_call(shard: Make, call: Call) -> Any:
    a, plain = shard(8, 8), torch.rand(3)

    def fn() -> Any:
        plain.mul_(2.0)
        return a.add_(1.0).mul_(a)

    result = call(fn)
    return a, plain, result, result is a


@program
def a_view_made_outside_and_written_through_inside_is_left_as_after_one_call(shard: Make, call: Call) -> Any:
    a, base = shard(8, 8), torch.rand(6)
    row, head = a.view(4, 16), base[:2]

    def fn() -> Any:
        head.add_(1.0)
        base.mul_(2.0)
        row.add_(1.0)
        return a.mul_(2.0)

    return call(fn), a, row, base, head


def test_each_repetition_starts_from_what_the_first_call_found(shard: Make) -> None:
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
        grad = a.grad
        call(lambda: (a * b).sum().backward())
        return a.grad, b.grad, grad is not None, a.grad is grad

    return seen(False), seen(True)


@program
def a_retained_gradient_is_accumulated_once(shard: Make, call: Call) -> Any:
    a = shard(8, 8, requires_grad=True)
    doubled = a * 2
    doubled.retain_grad()
    call(lambda: doubled.sum().backward(retain_graph=True))
    return a.grad, doubled.grad


def test_a_graph_that_can_be_walked_once_is_walked_by_the_program(shard: Make) -> None:
    a = shard(8, 8, requires_grad=True)
    loss = (a * a).sum()
    _, figures = measure(loss.backward)
    assert torch.equal(a.grad.to_local(), 2 * a.detach().to_local())
    assert len(figures.notes) == 1
    assert figures.notes[0].startswith(
        "repeating it raised RuntimeError: Trying to backward through the graph"
    )
    assert counts(figures) == {}


@program
def parameters_and_their_optimizer_take_one_step(shard: Make, call: Call) -> Any:
    weight = torch.nn.Parameter(shard(8, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for _ in range(2):  # the first step makes the momentum buffers, which then exist
        (weight * weight).sum().backward()
        optimizer.step()

    def step() -> None:
        (weight * weight).sum().backward()
        optimizer.step()

    call(step)
    return weight.detach(), weight.grad, optimizer.state[weight]["momentum_buffer"]


@program
def running_statistics_are_updated_once(shard: Make, call: Call) -> Any:
    a, layer, batch = shard(8, 8), torch.nn.BatchNorm1d(8), torch.rand(4, 8)
    call(lambda: (a + a, layer(batch)))
    return layer.running_mean, layer.running_var, layer.num_batches_tracked


@program
def views_that_ops_of_the_callable_make_are_followed_to_what_they_show(shard: Make, call: Call) -> Any:
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


@needs_that(compiles_once_under_a_mode)
def test_compiled_code_is_measured_compiled(shard: Make) -> None:
    graphs = CompileCounter()
    torch._dynamo.reset()
    a = shard(8, 8)
    before = a.to_local().clone()

    def add(x: Any) -> Any:
        return x.add_(1.0)

    _, figures = measure(torch.compile(add, backend=graphs), a)
    torch._dynamo.reset()
    assert graphs.frame_count == 1
    assert counts(figures) == PROVED
    assert torch.equal(a.to_local(), before + 1.0)


@program
def random_draws_are_made_once(shard: Make, call: Call) -> Any:
    a = shard(8, 8)
    return call(lambda: (torch.rand(2), torch.rand_like(a), a.uniform_())), a, torch.rand(2)


@program
def a_generator_in_a_closure_advances_once(shard: Make, call: Call) -> Any:
    a, generator = shard(8, 8), torch.Generator().manual_seed(5)
    drawn = call(lambda: (torch.rand(3, generator=generator), a + a))
    return drawn, generator.get_state()


@program
def a_draw_that_only_a_repetition_makes_leaves_the_random_state_alone(shard: Make, call: Call) -> Any:
    a, calls = shard(8, 8), [0]

    def fn() -> Any:
        calls[0] += 1
        if calls[0] > 1:
            torch.rand(3)
        return a + a

    return call(fn)


def plain_result(fn: Callable[[], Any]) -> Any:
    return fn()


def measured_result(fn: Callable[[], Any]) -> Any:
    return measure(fn)[0]


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_a_measured_program_is_left_as_after_one_call(shard: Make, body: Program) -> None:
    seen = []
    for call in (plain_result, measured_result):
        torch.manual_seed(11)
        leaves = [*tree_leaves(body(shard, call)), torch.get_rng_state()]
        seen.append([local_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
    plain, measured = seen
    assert len(plain) == len(measured) > 1
    for before, after in zip(plain, measured, strict=True):
        assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after


# Arguments and errors


def test_setup_gives_each_call_fresh_arguments(shard: Make) -> None:
    made: list[Any] = []
    given: list[Any] = []

    def setup() -> tuple[Any]:
        made.append(shard(8, 8))
        return (made[-1],)

    def fn(x: Any) -> Any:
        given.append(x)
        return x.add_(1.0)

    result, figures = measure(fn, setup=setup)
    assert result is made[0]
    assert len(made) == len(given) > sum(PROVED.values())
    assert all(one is other for one, other in zip(made, given, strict=True))
    assert counts(figures) == PROVED


def test_what_setup_propagates_proves_nothing_of_the_callable(shard: Make) -> None:
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
def test_a_miss_finds_nothing_that_setup_left_in_the_caches(shard: Make, cold: bool) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    plan = Plan(ROUNDS, REPEAT, cold=cold)

    def add_first() -> None:
        a + a

    _, _, figures = run_and_measure_call(lambda: a + a, (), add_first, caches, plan)
    assert counts(figures) == PROVED | ({State.COLD: ROUNDS} if cold else {})
    misses, hits = (s.median_ns for s in figures.samples if s.state in (State.MISS, State.HIT))
    assert misses > 10 * hits


def test_a_callable_that_changes_a_shape_in_place_runs_once(shard: Make) -> None:
    calls: list[Any] = []
    a = torch.rand(8, 1)

    def fn() -> Any:
        calls.append(shard(8, 8) + 1)
        return a.squeeze_(1)

    result, figures = measure(fn)
    assert len(calls) == 1
    assert result is a
    assert result.shape == (8,)
    assert figures.notes == ("runs once: it changed the layout of a tensor that it wrote to",)


def test_a_callable_may_reshape_what_it_made_itself(shard: Make) -> None:
    a = shard(8, 8)

    def fn() -> Any:
        scratch = torch.rand(3, 1)
        scratch.squeeze_(1)
        return a + a

    _, figures = measure(fn)
    assert counts(figures) == PROVED


def test_the_device_is_waited_for_where_the_process_uses_one(
    shard: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, waits = shard(8, 8), [0]

    def synchronize() -> None:
        waits[0] += 1

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    measure(lambda: a + a)
    assert waits[0] == 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    measure(lambda: a + a)
    assert waits[0] == 1, "once for the rounds in a row, which these few are"


def test_the_generator_of_a_cuda_device_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    random = RandomState([])
    random.watch([torch.device("cuda", 0)])
    first = torch.rand(3, generator=generator)
    random.settle()
    after = generator.get_state()
    random.rewind()
    assert torch.equal(torch.rand(3, generator=generator), first)
    random.rewind()
    random.restore()
    assert torch.equal(generator.get_state(), after)


# Errors from elsewhere


class StoppedError(Exception):
    """What one thread makes another raise, to stop it."""


def stop_this_thread() -> None:
    this = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(this, ctypes.py_object(StoppedError))


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("numbers", "fail", "told"),
    [
        ([1], raising(LookupError("the callable's own")), LookupError),
        ([5], stop_this_thread, StoppedError),
        ([5], raising(ValueError("no more\nof this")), "repeating it raised ValueError: no more"),
        (range(5, 9), raising(AssertionError()), "repeating it raised AssertionError"),
    ],
    ids=["in the first call", "of another thread", "in a repetition", "in each repetition, and says nothing"],
)
def test_an_error_is_of_the_program_or_a_note(
    numbers: Sequence[int], fail: Callable[[], None], told: str | type[Exception]
) -> None:
    calls, total = [0], torch.zeros(2)

    def fn() -> None:
        calls[0] += 1
        total.add_(1)
        if calls[0] in numbers:
            fail()

    if isinstance(told, str):
        assert measure(fn)[1].notes == (told,)
    else:
        with pytest.raises(told):
            measure(fn)
    assert open_modes() == []
    assert total.tolist() == [1, 1]
