"""Hooks of several users at one place: each is called, and nothing is left with the last of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_dtdispatch.torchapi.hooks import together, wrapped

pytestmark = pytest.mark.torch


class Owner:
    def answer(self) -> int:
        return 42

    def other(self) -> int:
        return 43


def plus(number: int) -> Any:
    return lambda inner: lambda *args: inner(*args) + number


@pytest.mark.parametrize("is_first_closed", [True, False])
def test_users_come_and_go_in_any_order_and_leave_nothing(is_first_closed: bool) -> None:
    owner = Owner()
    first, second = ExitStack(), ExitStack()
    first.enter_context(wrapped(owner, "answer", plus(1)))
    second.enter_context(wrapped(owner, "answer", plus(10)))
    assert owner.answer() == 53
    (first if is_first_closed else second).close()
    assert owner.answer() == (52 if is_first_closed else 43)
    (second if is_first_closed else first).close()
    assert (owner.answer(), vars(owner)) == (42, {})


def test_an_attribute_that_the_object_itself_has_is_put_back() -> None:
    owner = SimpleNamespace(answer=lambda: 1)
    own = owner.answer
    with wrapped(owner, "answer", plus(1)):
        assert owner.answer() == 2
    assert owner.answer is own


def test_what_somebody_else_put_over_the_wrapper_stays() -> None:
    owner: Any = Owner()
    with wrapped(owner, "answer", plus(1)):
        wrapper = owner.answer
        owner.answer = lambda: wrapper() * 2
    assert owner.answer() == 86


def test_a_method_of_a_class_is_wrapped_where_it_is_defined() -> None:
    method = vars(Owner)["answer"]
    with wrapped(Owner, "answer", plus(1)):
        assert Owner().answer() == 43
    assert vars(Owner)["answer"] is method


def test_threads_that_interleave_leave_nothing() -> None:
    owner = Owner()

    def use(_: int) -> set[int]:
        found = set()
        for _ in range(500):
            with wrapped(owner, "answer", plus(1)):
                found.add(owner.answer())
        return found

    with ThreadPoolExecutor(3) as pool:
        assert set().union(*pool.map(use, range(3))) <= {43, 44, 45}
    assert vars(owner) == {}


def test_a_module_imported_meanwhile_is_given_the_function_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> int:
        return 1

    home, late = ModuleType("home_of_inner"), ModuleType("imported_late")
    monkeypatch.setitem(sys.modules, home.__name__, home)
    setattr(home, "inner", inner)  # noqa: B010 (mypy knows of no such attribute)
    with wrapped(home, "inner", plus(1)):
        monkeypatch.setitem(sys.modules, late.__name__, late)
        setattr(late, "inner", vars(home)["inner"])  # noqa: B010
        assert vars(late)["inner"]() == 2
    assert vars(home)["inner"] is vars(late)["inner"] is inner


def test_a_module_that_takes_the_function_later_is_given_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, taker = ModuleType("owner"), ModuleType("taker")
    owner.answer = Owner().answer  # type: ignore[attr-defined]
    own = vars(owner)["answer"]
    monkeypatch.setitem(sys.modules, "owner", owner)
    monkeypatch.setitem(sys.modules, "taker", taker)
    for _ in range(2):  # it was there, and had no such name, when others were looked for
        with wrapped(owner, "answer", plus(1)):
            pass
    with wrapped(owner, "answer", plus(1)):
        taker.answer = vars(owner)["answer"]  # type: ignore[attr-defined]
    assert vars(taker)["answer"] is own


def test_a_module_that_takes_the_function_from_a_wrapped_module_later_is_wrapped_by_the_next_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, late = (ModuleType(name) for name in ("home_of_inner", "imported_late"))
    vars(home)["inner"] = inner = lambda: 1
    for module in (home, late):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with wrapped(home, "inner", plus(1)):
        vars(late)["inner"] = vars(home)["inner"]
        with wrapped(home, "inner", plus(10)):
            assert (vars(home)["inner"](), vars(late)["inner"]()) == (12, 12)
        assert (vars(home)["inner"](), vars(late)["inner"]()) == (2, 2)
    assert vars(home)["inner"] is vars(late)["inner"] is inner


def test_a_module_that_took_the_function_since_the_last_use_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, taker = ModuleType("home_of_inner"), ModuleType("taker")
    vars(home)["inner"] = inner = lambda: 1
    for module in (home, taker):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        with wrapped(home, "inner", plus(1)):
            pass
    vars(taker)["inner"] = inner
    with wrapped(home, "inner", plus(1)):
        assert vars(taker)["inner"]() == 2
    assert vars(home)["inner"] is vars(taker)["inner"] is inner


def test_modules_are_gone_through_once_for_hooks_that_are_put_in_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    class Watched(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                looked.append(name)
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, "watched", Watched("watched"))
    homes = [ModuleType(f"home_{number}") for number in range(3)]
    for home in homes:
        vars(home)["inner"] = lambda: 1
        monkeypatch.setitem(sys.modules, home.__name__, home)
    for _ in range(2):  # the second time nobody else took the functions
        with together(*(wrapped(home, "inner", plus(1)) for home in homes)):
            assert [vars(home)["inner"]() for home in homes] == [2, 2, 2]
        assert [vars(home)["inner"]() for home in homes] == [1, 1, 1]
    assert len(looked) == 1


@contextmanager
def one_that_fails(owner: Owner) -> Iterator[None]:
    with wrapped(owner, "other", plus(1)), wrapped(owner, "nothing", plus(1)):
        yield


def test_hooks_of_which_one_cannot_be_put_in_leave_nothing() -> None:
    owner = Owner()
    hooks = together(wrapped(owner, "answer", plus(1)), one_that_fails(owner))
    with pytest.raises(AttributeError, match="'nothing'"):
        hooks.__enter__()
    assert (owner.answer(), vars(owner)) == (42, {})
