"""Patches of one attribute by several users: each wraps it, and the last one restores it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from pytest_dtdispatch.torchapi.patches import calling, patched

pytestmark = pytest.mark.torch


class Owner:
    def answer(self) -> int:
        return 42

    def other(self) -> int:
        return 43


def plus(number: int) -> Any:
    return lambda inner: lambda *args: inner(*args) + number


@pytest.mark.parametrize("is_first_closed", [True, False])
def test_patches_close_in_any_order(is_first_closed: bool) -> None:
    owner = Owner()
    first, second = ExitStack(), ExitStack()
    first.enter_context(patched(owner, "answer", plus(1)))
    second.enter_context(patched(owner, "answer", plus(10)))
    assert owner.answer() == 53
    (first if is_first_closed else second).close()
    assert owner.answer() == (52 if is_first_closed else 43)
    (second if is_first_closed else first).close()
    assert (owner.answer(), vars(owner)) == (42, {})


def test_own_attribute_of_an_object_is_restored() -> None:
    owner = SimpleNamespace(answer=lambda: 1)
    own = owner.answer
    with patched(owner, "answer", plus(1)):
        assert owner.answer() == 2
    assert owner.answer is own


def test_value_set_over_the_wrapper_is_retained() -> None:
    owner: Any = Owner()
    with patched(owner, "answer", plus(1)):
        wrapper = owner.answer
        owner.answer = lambda: wrapper() * 2
    assert owner.answer() == 84, "the wrapper in it is off"


def test_restored_replacement_is_the_original() -> None:
    """A program may patch an attribute while it is patched, and undo that later."""
    constant = SimpleNamespace(call=partial(int, 3))
    for owner, name, value in ((torch.Tensor, "cpu", torch.ones(2)), (constant, "call", constant)):
        with patched(owner, name, calling(lambda inner, *args: None)):
            ours = mock.patch.object(owner, name, None)
            ours.start()
        ours.stop()
        assert getattr(value, name)() is not None
        with patched(owner, name, calling(lambda inner, *args: inner(*args))):
            assert getattr(value, name)() is not None
    assert "cpu" not in vars(torch.Tensor)


def test_method_can_be_mocked_by_its_signature() -> None:
    with (
        patched(torch.Tensor, "cpu", calling(lambda inner, *args: inner(*args))),
        mock.patch.object(torch.Tensor, "cpu", autospec=True) as spy,
    ):
        torch.ones(1).cpu()
    assert spy.call_count == 1


def test_method_is_patched_on_its_class() -> None:
    method = vars(Owner)["answer"]
    with patched(Owner, "answer", plus(1)):
        assert Owner().answer() == 43
    assert vars(Owner)["answer"] is method


def test_stored_methods_are_patched_by_code() -> None:
    stored = Owner().answer  # like a hook of a module
    with patched(Owner, "answer", plus(1)):
        assert stored() == 43
    assert stored() == 42


def test_interleaved_threads_restore_the_attribute() -> None:
    owner = Owner()

    def use(_: int) -> set[int]:
        found = set()
        for _ in range(500):
            with patched(owner, "answer", plus(1)):
                found.add(owner.answer())
        return found

    with ThreadPoolExecutor(3) as pool:
        assert set().union(*pool.map(use, range(3))) <= {43, 44, 45}
    assert vars(owner) == {}


def with_closure(number: int) -> Callable[[], int]:
    def inner(*, more: int = 1) -> int:
        return number + more

    return inner


@pytest.mark.parametrize("inner", [lambda: 42, with_closure(41)], ids=["plain", "closure"])
def test_every_reference_to_a_function_is_patched(inner: Callable[[], int]) -> None:
    home, early = ModuleType("home"), ModuleType("early")
    vars(home)["inner"] = vars(early)["inner"] = inner
    holder = type("Holder", (), {"method": staticmethod(inner)})

    def by_default(function: Callable[[], int] = inner) -> int:
        return function()

    references = [vars(early)["inner"], holder().method, {"key": inner}["key"], by_default]
    references += [lambda: inner(), partial(inner)]
    with patched(home, "inner", plus(1)), patched(home, "inner", plus(10)):
        late = vars(home)["inner"]
        assert [each() for each in (*references, late)] == [53] * 7
    assert [each() for each in (*references, late)] == [42] * 7
    assert late is inner


def test_patched_function_has_its_arguments_and_defaults() -> None:
    home = ModuleType("home")

    def inner(first: int, second: int = 2, *, third: int = 3) -> int:
        return first + second + third

    vars(home)["inner"] = inner
    code, defaults = inner.__code__, inner.__kwdefaults__
    with patched(home, "inner", lambda inner: lambda *args, **kwargs: inner(*args, **kwargs)):
        assert (inner(1), inner(1, 1), inner(1, second=1, third=1)) == (6, 5, 3)
    assert (inner.__code__, inner.__kwdefaults__) == (code, defaults)


def test_module_attribute_set_by_others_is_retained() -> None:
    home = ModuleType("home")
    vars(home)["inner"] = lambda: 1
    with patched(home, "inner", plus(1)):
        vars(home)["inner"] = other = with_closure(6)
        with patched(home, "inner", plus(10)):
            assert other() == 17
    assert vars(home)["inner"] is other
    assert other() == 7


def test_no_module_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []

    class Watched(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                scanned.append(name)
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, "watched", Watched("watched"))
    home = ModuleType("home")
    vars(home)["inner"] = lambda: 1
    with patched(home, "inner", plus(1)):
        assert vars(home)["inner"]() == 2
    assert not scanned


@contextmanager
def failing_patches(owner: Owner) -> Iterator[None]:
    with patched(owner, "other", plus(1)), patched(owner, "nothing", plus(1)):
        yield


def test_failing_patch_removes_the_others() -> None:
    owner = Owner()
    with pytest.raises(AttributeError, match="'nothing'"), failing_patches(owner):
        pass
    assert (owner.answer(), vars(owner)) == (42, {})
