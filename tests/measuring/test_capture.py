"""Captures: what is proved, what is said where it is not, and other modes beside them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.two_tensor import TwoTensor

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.errors import CaptureError, DtDispatchWarning, UnsupportedTorchError
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.rounds import NO_COUNTER_MOVED, NOT_PROPAGATED, PROPAGATED_AGAIN
from pytest_dtdispatch.torchapi.ops import open_modes
from tests.measuring.runs import Make, NamingMode, captured
from tests.probes import NATIVE_CACHE, compiles_once_under_a_mode, needs, needs_rule, needs_that

pytestmark = pytest.mark.torch

Capture = Callable[..., dict[str, Measurement]]

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"


@pytest.fixture(autouse=True)
def clean_mode_stack() -> Iterator[None]:
    yield
    assert open_modes() == []


def refused(measurement: Measurement, state: State) -> dict[str, int]:
    return {r.reason: r.count for s in measurement.samples if s.state is state for r in s.refused}


# What is proved


def test_every_sample_of_an_op_is_proved(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)  # small: a kernel that runs on several threads waits for a busy machine
    add = capture(lambda: a + a, rounds=6, repeat=5)["add.Tensor"]
    counts = {samples.state: len(samples.ns) for samples in add.samples}
    assert counts == {State.MISS: 6, State.HIT: 30, State.LOCAL: 30}
    assert (add.rounds, add.proof, add.notes) == (6, "proved", ())
    assert add.miss_over_hit is not None
    assert add.miss_over_hit > 10


@needs(NATIVE_CACHE)
def test_a_miss_without_propagation_is_refused(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, CLEAR, lambda: None)
    a = shard(8, 8)
    add = capture(lambda: a + a, rounds=4)["add.Tensor"]
    assert add.of(State.MISS) is None
    assert refused(add, State.MISS) == {NOT_PROPAGATED: 4}
    assert add.proof == "propagation did not run (4x)"
    assert add.of(State.HIT)


class Forgetful:
    """The native cache, emptied whenever its counters are read: the next call propagates again.

    Args:
        after: reads after which it starts to forget.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
        self._clear, self._stats = getattr(torch._C, CLEAR), getattr(torch._C, STATS)
        self._left = after
        self._total = [0, 0]
        monkeypatch.setattr(torch._C, CLEAR, self.clear)
        monkeypatch.setattr(torch._C, STATS, self.stats)

    def clear(self) -> None:
        self._clear()
        self._total = [0, 0]

    def stats(self) -> tuple[int, int]:
        hits, misses = self._stats()
        counted = (self._total[0] + hits, self._total[1] + misses)
        self._left -= 1
        if self._left < 0:
            self._total = list(counted)
            self._clear()
        return counted


@needs(NATIVE_CACHE)
def test_a_second_call_that_misses_is_refused_as_a_hit(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = shard(8, 8)
    # The rehearsal and the first round are sound; then every call propagates.
    Forgetful(monkeypatch, after=55)
    add = capture(lambda: a + a, rounds=6, repeat=5)["add.Tensor"]
    hits, misses = add.of(State.HIT), add.of(State.MISS)
    assert hits is not None
    assert misses is not None
    assert refused(add, State.HIT).keys() == {PROPAGATED_AGAIN}
    assert len(hits.ns) + refused(add, State.HIT)[PROPAGATED_AGAIN] == 30
    assert len(misses.ns) == 6
    assert "propagation ran again" in add.proof


@needs(NATIVE_CACHE)
def test_an_op_that_propagates_on_every_call_never_hits(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Forgetful(monkeypatch)
    a = shard(8, 8)
    add = capture(lambda: a + a, rounds=3)["add.Tensor"]
    assert add.of(State.HIT) is None
    assert refused(add, State.HIT) == {PROPAGATED_AGAIN: 1}
    assert add.notes == ("never hits: propagation runs on every call",)
    misses = add.of(State.MISS)
    assert misses is not None
    assert len(misses.ns) == 3


@needs(NATIVE_CACHE)
def test_hits_that_no_counter_shows_are_refused(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = getattr(torch._C, STATS)
    monkeypatch.setattr(torch._C, STATS, lambda: (0, stats()[1]))
    a = shard(8, 8)
    add = capture(lambda: a + a, rounds=2, repeat=3)["add.Tensor"]
    assert add.of(State.HIT) is None
    assert refused(add, State.HIT) == {NO_COUNTER_MOVED: 6}


def test_an_op_that_never_asks_the_propagator_has_calls_and_no_miss(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)
    op = capture(lambda: a.is_same_size(a), rounds=2, repeat=3)["is_same_size.default"]
    calls = op.of(State.CALL)
    assert calls is not None
    assert len(calls.ns) == 6
    assert op.of(State.MISS) is None
    assert op.of(State.HIT) is None
    assert op.proof == "unpropagated"
    assert any(note.startswith("unpropagated: ") for note in op.remarks)


def convolve(a: DTensor) -> Any:
    return torch.nn.functional.conv2d(a, torch.ones_like(a))


@pytest.mark.parametrize(
    ("op", "shape", "body"),
    [
        pytest.param(
            "argmax.default", (8, 8), lambda a: a.argmax(1), id="argmax", marks=needs_rule("argmax.default")
        ),
        pytest.param("convolution.default", (1, 3, 4, 4), convolve, id="convolution"),
    ],
)
def test_an_op_that_the_python_cache_answers_is_proved_on_it(
    shard: Make, capture: Capture, op: str, shape: tuple[int, ...], body: Callable[[Any], Any]
) -> None:
    from torch.distributed.tensor import Replicate

    a = shard(*shape, placement=Replicate())
    try:
        body(a)
    except RuntimeError as error:  # old rules of convolution know no call without a bias
        pytest.skip(f"this torch refuses {op}: {error}")
    measured = capture(lambda: body(a), rounds=3, repeat=4)[op]
    counts = {s.state: len(s.ns) for s in measured.samples if s.state is not State.LOCAL}
    assert counts == {State.MISS: 3, State.HIT: 12}
    assert measured.proof == "proved"


@needs(NATIVE_CACHE)
def test_a_torch_without_a_native_cache_is_not_called_proved_by_the_python_one(
    shard: Make, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This torch does have the native cache: with its functions hidden, no counter would move."""
    a = shard(8, 8)
    monkeypatch.delattr(torch._C, CLEAR)
    monkeypatch.delattr(torch._C, STATS)
    a + a
    with pytest.raises(UnsupportedTorchError, match="what clears and counts the native cache"):
        capture(lambda: a + a)


def test_a_cold_call_is_taken_where_it_is_asked_for(shard: Make) -> None:
    a = shard(8, 8)
    [add] = captured(lambda: a + a, plan=Plan(rounds=3, repeat=2, cold=True)).measurements()
    cold = add.of(State.COLD)
    assert cold is not None
    assert len(cold.ns) == 3


# What is captured


def test_a_signature_is_measured_once_and_each_call_counted(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)
    add = capture(lambda: [a + a for _ in range(5)], rounds=2, repeat=3)["add.Tensor"]
    assert add.calls == 5
    misses = add.of(State.MISS)
    assert misses is not None
    assert len(misses.ns) == 2


def test_only_the_ops_asked_for_are_measured(shard: Make) -> None:
    a = shard(8, 8)
    book = captured(lambda: ((a + a) * a - a).t(), "add*", "mu?.Tensor")
    assert [m.op for m in book.measurements()] == ["add.Tensor", "mul.Tensor"]


def test_ops_on_plain_tensors_are_not_measured(shard: Make, capture: Capture) -> None:
    assert capture(lambda: torch.ones(3) + torch.ones(3)) == {}


def test_a_backward_is_captured(shard: Make, capture: Capture) -> None:
    a = shard(8, 8, requires_grad=True)
    measured = capture(lambda: (a * a).sum().backward())
    assert {"mul.Tensor", "sum.default", "expand.default", "ones_like.default"} <= measured.keys()
    assert torch.allclose(a.grad.to_local(), 2 * a.to_local())


# Nesting and errors


def test_a_capture_inside_a_capture_is_refused_and_the_outer_goes_on(shard: Make) -> None:
    a, book = shard(8, 8), TestResults()
    with SignatureCapture(book, Plan(1, 1)):
        with (
            pytest.raises(CaptureError, match="captures cannot be nested"),
            SignatureCapture(book, Plan(1, 1)),
        ):
            pytest.fail("the inner capture was entered")
        a + a
    assert [m.op for m in book.measurements()] == ["add.Tensor"]


def test_an_exception_inside_a_capture_comes_out_and_leaves_no_mode_open(shard: Make) -> None:
    a, book = shard(8, 8), TestResults()

    def body() -> None:
        with SignatureCapture(book, Plan(1, 1)):
            a + a
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert open_modes() == []
    with SignatureCapture(book, Plan(1, 1)):
        a + a
    assert [(m.op, m.calls) for m in book.measurements()] == [("add.Tensor", 2)]


@pytest.mark.parametrize("name", ["_dispatch", "_sharding_prop"])
def test_debug_logging_of_the_dispatcher_is_warned_of(shard: Make, name: str) -> None:
    logger = logging.getLogger(f"torch.distributed.tensor.{name}")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        with (
            pytest.warns(DtDispatchWarning, match=rf"{name} is at DEBUG"),
            SignatureCapture(TestResults(), Plan(1, 1)),
        ):
            pass
    finally:
        logger.setLevel(level)


# Modes of the program


def test_a_debug_mode_around_a_capture_counts_as_it_counts_without_one(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)
    with CommDebugMode() as plain:
        a @ a
        a + a
    with CommDebugMode() as around:
        measured = capture(lambda: (a @ a, a + a))
    assert dict(around.get_comm_counts()) == dict(plain.get_comm_counts())
    assert sum(plain.get_comm_counts().values()) == 1
    assert measured["mm.default"].of(State.MISS)


def test_a_mode_around_a_capture_sees_each_op_once(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)
    with NamingMode() as plain:
        a + a
        a.uniform_()
    with NamingMode() as around:
        measured = capture(lambda: (a + a, a.uniform_()))
    assert around.names == plain.names
    assert len(plain.names) == 2
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
def test_a_mode_that_hides_dtensor_ops_is_named_in_a_warning(
    shard: Make, capture: Capture, mode: Callable[[], Any]
) -> None:
    a, inside = shard(8, 8), mode()

    def body() -> None:
        with inside:
            a + a

    with pytest.warns(DtDispatchWarning, match=f"^{type(inside).__name__} was opened inside the capture"):
        assert capture(body) == {}


def test_a_mode_that_hides_some_dtensor_ops_is_named_too(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)

    def body() -> None:
        a + a
        with CommDebugMode():
            a * a
        a - a

    with pytest.warns(DtDispatchWarning, match="CommDebugMode"):
        assert capture(body).keys() == {"add.Tensor", "sub.Tensor"}


def test_a_mode_that_passes_dtensor_ops_on_is_no_matter(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)

    def body() -> None:
        with NamingMode():
            torch.ones(3) + 1
            a + a
            torch.ones(3) + 1

    assert capture(body).keys() == {"add.Tensor"}


def test_a_mode_that_hid_no_dtensor_op_is_no_matter(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)

    def body() -> None:
        a + a
        with CommDebugMode():
            torch.ones(3) + 1

    assert capture(body).keys() == {"add.Tensor"}


# Compiled code


@needs_that(compiles_once_under_a_mode)
def test_compiled_code_stays_compiled_under_a_capture(shard: Make) -> None:
    a = shard(8, 8)
    graphs = CompileCounter()
    torch._dynamo.reset()
    double = torch.compile(lambda x: x + x, backend=graphs)
    book = TestResults()
    with SignatureCapture(book, Plan(1, 1)):
        first, second = double(a), double(a)
    assert graphs.frame_count == 1
    assert torch.equal(first.to_local(), (a + a).to_local())
    assert torch.equal(second.to_local(), (a + a).to_local())
    assert [(m.op, m.calls) for m in book.measurements()] == [("add.Tensor", 2)]
    torch._dynamo.reset()


def test_compiling_inside_a_capture_warns_of_nothing(shard: Make) -> None:
    """AOT opens modes of its own while it traces: they hide nothing that a user could do about."""
    a = shard(8, 8)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DtDispatchWarning)
        with SignatureCapture(TestResults(), Plan(1, 1)):
            on_plain = torch.compile(lambda x: x + x, backend="aot_eager")(torch.ones(3))
            on_dtensor = torch.compile(lambda x: x * x, backend="aot_eager")(a)
    assert torch.equal(on_plain, torch.full((3,), 2.0))
    assert torch.equal(on_dtensor.to_local(), a.to_local() ** 2)
    torch._dynamo.reset()


# DTensors inside a tensor subclass, and local shards that a collective has not filled yet


def measured_and_result(run: Callable[[], Any]) -> tuple[Any, tuple[Measurement, ...]]:
    results: list[Any] = []
    book = captured(lambda: results.append(run()))
    return results[0], book.measurements()


def test_ops_on_dtensors_inside_a_subclass_are_measured(shard: Make) -> None:
    a, b = shard(8, 8), shard(8, 8)
    pair = TwoTensor(a, b)
    result, measured = measured_and_result(lambda: pair + pair)
    assert [(each.op, each.calls) for each in measured] == [("add.Tensor", 2)]
    assert measured[0].of(State.MISS)
    assert measured[0].of(State.HIT)
    assert torch.equal(result.a.to_local(), (a + a).to_local())
    assert torch.equal(result.b.to_local(), (b + b).to_local())


def test_a_subclass_without_dtensors_is_left_alone(shard: Make) -> None:
    pair = TwoTensor(torch.ones(4), torch.zeros(4))
    result, measured = measured_and_result(lambda: pair + pair)
    assert measured == ()
    assert torch.equal(result.a, torch.full((4,), 2.0))


def test_a_shard_that_was_not_waited_for_has_a_row_of_its_own(shard: Make) -> None:
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
