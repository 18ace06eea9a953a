"""The object behind the fixture where nothing is measured: everything runs once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import DtDispatchError, GateError


@pytest.fixture
def unmeasured() -> DtDispatch:
    return DtDispatch()


def test_a_capture_runs_its_block_and_keeps_nothing(unmeasured: DtDispatch) -> None:
    assert not unmeasured.enabled
    ran = []
    with unmeasured.capture() as book, unmeasured.capture() as other:
        ran.append(1)
    assert ran == [1]
    assert book is not other
    assert book.measurements() == ()
    error = RuntimeError("the test's own")
    with pytest.raises(RuntimeError) as raised, unmeasured.capture():
        raise error
    assert raised.value is error


def test_a_call_is_made_once_and_gives_its_result(unmeasured: DtDispatch) -> None:
    calls = []

    def step(*args: int) -> tuple[int, ...]:
        calls.append(args)
        return args

    assert unmeasured.call(step, 1, 2, name="step") == (1, 2)
    assert unmeasured.call(step, 3) == (3,)
    assert calls == [(1, 2), (3,)]
    assert [unmeasured.call(abs, -number, name="abs") for number in (1, 2)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        unmeasured.call(divmod, 1, 0)


@pytest.mark.parametrize(("prepared", "result"), [((5, 2), (2, 1)), (None, (3, 1))])
def test_setup_comes_first_and_may_replace_the_arguments(
    unmeasured: DtDispatch, prepared: tuple[int, int] | None, result: tuple[int, int]
) -> None:
    made = []

    def setup() -> tuple[int, int] | None:
        made.append("setup")
        return prepared

    def divide(a: int, b: int) -> tuple[int, int]:
        made.append("call")
        return divmod(a, b)

    assert unmeasured.call(divide, 7, 2, name="divide", setup=setup) == result
    assert made == ["setup", "call"]
    assert unmeasured.call(lambda *args: args, 1, 2, setup=lambda: ()) == ()


def test_a_scaling_makes_and_calls_each_size_once_from_the_largest_down(unmeasured: DtDispatch) -> None:
    seen: list[Any] = []

    def add(size: int) -> Callable[[], Any]:
        seen.append(f"make {size}")
        return lambda: seen.append(size)

    scaling = unmeasured.scaling(add, iter((4, 16, 8)), max_exponent=1e-6)
    assert seen == ["make 16", 16, "make 8", 8, "make 4", 4]
    assert scaling.points == ()
    assert unmeasured.scaling(add, (1, 2), name="other").name == "other"


def test_a_scaling_has_sizes_if_none_are_given(unmeasured: DtDispatch) -> None:
    sizes: list[int] = []
    unmeasured.scaling(lambda size: lambda: sizes.append(size))
    assert sizes == [64, 32, 16, 8]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"sizes": (8,)}, "sizes=(8,) is not two or more whole numbers of at least 1 that differ"),
        ({"sizes": (8, 8)}, "sizes=(8, 8) is not two or more whole numbers of at least 1 that differ"),
        ({"sizes": (8, 0)}, "sizes=(8, 0) is not two or more whole numbers of at least 1 that differ"),
        ({"sizes": 8}, "sizes=8 is not two or more whole numbers of at least 1 that differ"),
        ({"max_exponent": 0}, "max_exponent=0 is not a number above 0"),
        ({"max_exponent": "1.3"}, "max_exponent='1.3' is not a number above 0"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused_before_anything_is_made(
    unmeasured: DtDispatch, arguments: dict[str, Any], complaint: str
) -> None:
    made: list[int] = []
    with pytest.raises(DtDispatchError) as raised:
        unmeasured.scaling(lambda size: lambda: made.append(size), **arguments)
    assert str(raised.value) == complaint
    assert made == []


def test_what_a_scaling_makes_must_be_callable(unmeasured: DtDispatch) -> None:
    with pytest.raises(DtDispatchError) as raised:
        unmeasured.scaling(lambda size: [size], (2, 4))  # type: ignore[arg-type, return-value]
    assert str(raised.value) == "make(4) returned [4]: it must return a callable without arguments"


def test_what_a_scaling_s_callables_raise_is_raised(unmeasured: DtDispatch) -> None:
    with pytest.raises(ZeroDivisionError):
        unmeasured.scaling(lambda size: 1 // 0, (2, 4))  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        unmeasured.scaling(lambda size: lambda: 1 // 0, (2, 4))


def test_a_compile_runs_everything_once_and_compiles_nothing(unmeasured: DtDispatch) -> None:
    calls: list[tuple[int, ...]] = []

    def step(*args: int) -> int:
        calls.append(args)
        return sum(args)

    compiled = unmeasured.compile(step, 1, 2, others=[(3,), (4, 5)])
    assert calls == [(1, 2), (3,), (4, 5)]
    assert compiled.results == compiled.eager_results == (3, 3, 9)
    assert (compiled.result, compiled.function) == (3, None)
    assert compiled.graphs == compiled.graph_breaks == compiled.recompiles == compiled.propagations == 0


def test_a_gate_fails_a_test_as_an_assertion_does() -> None:
    assert issubclass(GateError, AssertionError)
    assert issubclass(GateError, DtDispatchError)
