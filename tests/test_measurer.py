"""The object behind the fixture where nothing is measured: everything runs once."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.measurer import DtDispatch


@pytest.fixture
def unmeasured() -> DtDispatch:
    return DtDispatch()


def test_it_says_that_nothing_is_measured(unmeasured: DtDispatch) -> None:
    assert not unmeasured.enabled


def test_a_capture_runs_its_block_and_keeps_nothing(unmeasured: DtDispatch) -> None:
    ran = []
    with unmeasured.capture() as book:
        ran.append(1)
    assert ran == [1]
    assert book.measurements() == ()


def test_an_exception_leaves_a_capture_as_it_is(unmeasured: DtDispatch) -> None:
    error = RuntimeError("the test's own")
    with pytest.raises(RuntimeError) as raised, unmeasured.capture():
        raise error
    assert raised.value is error


def test_each_capture_has_a_book_of_its_own(unmeasured: DtDispatch) -> None:
    with unmeasured.capture() as one, unmeasured.capture() as other:
        assert one is not other


def test_a_call_is_made_once_and_gives_its_result(unmeasured: DtDispatch) -> None:
    calls = []

    def step(*args: int) -> tuple[int, ...]:
        calls.append(args)
        return args

    assert unmeasured.call(step, 1, 2, name="step") == (1, 2)
    assert unmeasured.call(step, 3) == (3,)
    assert calls == [(1, 2), (3,)]


def test_a_call_needs_no_name_and_may_repeat_one(unmeasured: DtDispatch) -> None:
    assert unmeasured.call(lambda: 1) == 1
    assert [unmeasured.call(abs, -number, name="abs") for number in (1, 2)] == [1, 2]


def test_what_a_call_raises_is_raised(unmeasured: DtDispatch) -> None:
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


def test_setup_may_leave_no_arguments(unmeasured: DtDispatch) -> None:
    assert unmeasured.call(lambda *args: args, 1, 2, setup=lambda: ()) == ()
