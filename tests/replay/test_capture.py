"""Captures: proved samples, reasons for unproved ones, and interaction with other modes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import conv2d
from torch.testing._internal.two_tensor import TwoTensor

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.errors import DtDispatchWarning, MeasurementError
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from tests.conftest import Capture
from tests.measured_runs import Make, NamingMode, captured
from tests.probes import NATIVE_CACHE, needs, needs_rule

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_stays")]

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"


def refused(measurement: Measurement, state: State) -> dict[str, int]:
    return {r.reason: r.count for s in measurement.figures.samples if s.state is state for r in s.refused}


# Proofs


def test_misses_take_longer_than_hits(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)  # small: kernels on several threads are delayed on a busy machine
    add = capture(lambda: a + a, rounds=6, repeat=5)["add.Tensor"]
    assert add.miss_over_hit is not None
    assert add.miss_over_hit > 10


BROKEN: dict[str, tuple[Callable[[Any], Any], State, str]] = {
    CLEAR: (lambda clear: None, State.MISS, "propagation did not run"),
    STATS: (lambda stats: (0, stats()[1]), State.HIT, "no cache counter moved"),
}


@needs(NATIVE_CACHE)
@pytest.mark.parametrize("name", BROKEN)
def test_samples_unproved_by_counters_are_refused(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    a, (broken, state, reason) = shard(8, 8), BROKEN[name]
    monkeypatch.setattr(torch._C, name, partial(broken, getattr(torch._C, name)))
    add = capture(lambda: a + a, rounds=4, repeat=1)["add.Tensor"]
    assert add.of(state) is None
    assert refused(add, state) == {reason: 4}
    assert add.proof == f"{reason} (4x)"


PROVED = {State.MISS: 3, State.HIT: 12}
WAYS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any], dict[State, int], str]] = {
    "add.Tensor": ((8, 8), lambda a: a + a, PROVED, "proved"),
    "is_same_size.default": ((8, 8), lambda a: a.is_same_size(a), {State.CALL: 12}, "unpropagated"),
    # The Python cache handles these.
    "argmax.default": ((8, 8), lambda a: a.argmax(1), PROVED, "proved"),
    "convolution.default": ((1, 3, 4, 4), lambda a: conv2d(a, torch.ones_like(a)), PROVED, "proved"),
}


@pytest.mark.parametrize("op", [pytest.param(op, marks=[needs_rule(op)] * ("argmax" in op)) for op in WAYS])
def test_samples_of_each_op_are_proved_or_unpropagated(shard: Make, capture: Capture, op: str) -> None:
    shape, body, counts, proof = WAYS[op]
    a = shard(*shape, placement=Replicate())
    try:
        body(a)
    except RuntimeError as error:  # old convolution rules require a bias
        pytest.skip(f"this torch refuses {op}: {error}")
    measured = capture(lambda: body(a), rounds=3, repeat=4)[op]
    assert {s.state: len(s.ns) for s in measured.figures.samples if s.state is not State.LOCAL} == counts
    assert (measured.figures.rounds, measured.proof) == (3, proof)
    assert any(note.startswith("unpropagated: ") for note in measured.figures.remarks) == (
        counts is not PROVED
    )


# Captured ops


def test_backward_is_captured(shard: Make, capture: Capture) -> None:
    a = shard(8, 8, requires_grad=True)
    measured = capture(lambda: (a * a).sum().backward())
    assert {"mul.Tensor", "sum.default", "expand.default", "ones_like.default"} <= measured.keys()
    assert torch.allclose(a.grad.to_local(), 2 * a.to_local())


# Nesting and errors


def test_nested_capture_is_refused_and_outer_continues(shard: Make) -> None:
    a, book = shard(8, 8), ResultStore()
    with SignatureCapture(book, Plan(1, 1)):
        with (
            pytest.raises(MeasurementError, match="captures cannot be nested"),
            SignatureCapture(book, Plan(1, 1)),
        ):
            pytest.fail("the inner capture was entered")
        a + a
    assert [m.op for m in book.measurements()] == ["add.Tensor"]


def test_exception_propagates_and_closes_the_capture(shard: Make) -> None:
    a, book = shard(8, 8), ResultStore()

    def body() -> None:
        with SignatureCapture(book, Plan(1, 1)):
            a + a
            a.redistribute(placements=[Replicate()])
            raise KeyError

    with pytest.raises(KeyError):
        body()
    with SignatureCapture(book, Plan(1, 1)):
        a + a
    assert [(m.op, m.calls) for m in book.measurements()] == [("add.Tensor", 2), ("redistribute", 1)]


@pytest.mark.parametrize("name", ["_dispatch", "_sharding_prop"])
def test_debug_logging_of_the_dispatcher_is_warned_of(
    shard: Make, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, f"torch.distributed.tensor.{name}")
    with pytest.warns(DtDispatchWarning, match=rf"{name} has level DEBUG"):
        captured(lambda: None)


# Modes of the program


@pytest.mark.parametrize(
    ("mode", "seen", "count"),
    [
        (CommDebugMode, lambda mode: list(mode.get_comm_counts().items()), 1),
        (NamingMode, lambda mode: mode.names, 3),
    ],
)
def test_outer_mode_observes_equal_events_under_capture(
    shard: Make, capture: Capture, mode: Callable[[], Any], seen: Callable[[Any], list[Any]], count: int
) -> None:
    a = shard(8, 8)

    def body() -> None:
        a @ a
        a + a
        a.uniform_()

    with mode() as plain:
        body()
    with mode() as around:
        measured = capture(body)
    assert seen(around) == seen(plain)
    assert len(seen(plain)) == count
    assert measured["mm.default"].of(State.MISS)
    assert measured["add.Tensor"].of(State.HIT)


def debug_mode() -> Any:
    from torch.utils._debug_mode import DebugMode

    return DebugMode()


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(CommDebugMode, id="CommDebugMode"),
        pytest.param(debug_mode, id="DebugMode", marks=needs("torch.utils._debug_mode")),
    ],
)
def test_mode_that_hides_dtensor_ops_is_warned_about(
    shard: Make, capture: Capture, mode: Callable[[], Any]
) -> None:
    a, inside = shard(8, 8), mode()

    def body() -> None:
        a + a
        with inside:
            a * a
        a - a

    with pytest.warns(DtDispatchWarning, match=f"^{type(inside).__name__} was opened inside the capture"):
        assert capture(body).keys() == {"add.Tensor", "sub.Tensor"}


@pytest.mark.parametrize(("mode", "is_passed_on"), [(NamingMode, True), (CommDebugMode, False)])
def test_mode_that_hides_no_dtensor_op_is_accepted(
    shard: Make, capture: Capture, mode: Callable[[], Any], is_passed_on: bool
) -> None:
    a = shard(8, 8)

    def body() -> None:
        a + a
        with mode():
            torch.ones(3) + 1
            if is_passed_on:
                a + a
            torch.ones(3) + 1

    assert capture(body).keys() == {"add.Tensor"}


# Compiled code


def test_compiling_inside_a_capture_does_not_warn(shard: Make) -> None:
    """AOT opens modes while it traces. Users cannot change that, so no warning mentions them."""
    a = shard(8, 8)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DtDispatchWarning)
        with SignatureCapture(ResultStore(), Plan(1, 1)):
            on_plain = torch.compile(lambda x: x + x, backend="aot_eager")(torch.ones(3))
            on_dtensor = torch.compile(lambda x: x * x, backend="aot_eager")(a)
    assert torch.equal(on_plain, torch.full((3,), 2.0))
    assert torch.equal(on_dtensor.to_local(), a.to_local() ** 2)
    torch._dynamo.reset()


# DTensors inside a tensor subclass, and local shards that a collective has not filled yet


def test_ops_on_dtensors_inside_a_subclass_are_measured(shard: Make) -> None:
    a, b, plain = shard(8, 8), shard(8, 8), TwoTensor(torch.ones(4), torch.zeros(4))
    pair, results = TwoTensor(a, b), list[Any]()
    measured = captured(lambda: results.extend([pair + pair, plain + plain])).measurements()
    assert [(each.op, each.calls) for each in measured] == [("add.Tensor", 2)]
    assert measured[0].of(State.MISS)
    assert measured[0].of(State.HIT)
    assert torch.equal(results[0].a.to_local(), (a + a).to_local())
    assert torch.equal(results[0].b.to_local(), (b + b).to_local())
    assert torch.equal(results[1].a, torch.full((4,), 2.0))


def test_async_shard_has_a_separate_row(shard: Make) -> None:
    a = shard(8, 8)
    waiting = a.redistribute(placements=[Replicate()], async_op=True)
    ready = a.redistribute(placements=[Replicate()])
    book = captured(lambda: (waiting + waiting, ready + ready, waiting + ready))
    measured = book.measurements()
    assert [(each.label, each.calls) for each in measured] == [
        ("add.Tensor(f32[8,8]R async, f32[8,8]R async)@4", 1),
        ("add.Tensor(f32[8,8]R, f32[8,8]R)@4", 1),
        ("add.Tensor(f32[8,8]R async, f32[8,8]R)@4", 1),
    ]
    assert all(each.of(State.HIT) for each in measured)
