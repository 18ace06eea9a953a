"""Hooks that several users share: in place once, and gone with the last of them."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_dtdispatch.torchapi.hooks import SharedHook, held_by_name

pytestmark = pytest.mark.torch


class Owner:
    def answer(self) -> int:
        return 42


def plus_one(inner: Any) -> Any:
    return lambda: inner() + 1


def test_users_that_come_and_go_in_any_order_share_one_wrapper_and_leave_none() -> None:
    owner = Owner()
    hook = SharedHook(owner, "answer", plus_one)
    first, second = ExitStack(), ExitStack()
    first.enter_context(hook.in_place())
    second.enter_context(hook.in_place())
    first.close()
    assert owner.answer() == 43
    second.close()
    assert (owner.answer(), vars(owner)) == (42, {})


def test_an_attribute_that_the_object_itself_has_is_put_back() -> None:
    owner = SimpleNamespace(answer=lambda: 1)
    own = owner.answer
    with SharedHook(owner, "answer", plus_one).in_place():
        assert owner.answer() == 2
    assert owner.answer is own


def test_what_somebody_else_put_over_the_wrapper_stays() -> None:
    owner: Any = Owner()
    with SharedHook(owner, "answer", plus_one).in_place():
        wrapper = owner.answer
        owner.answer = lambda: wrapper() * 2
    assert owner.answer() == 86


def test_a_method_of_a_class_is_wrapped_where_it_is_defined() -> None:
    method = vars(Owner)["answer"]
    with SharedHook(Owner, "answer", lambda inner: lambda self: -inner(self)).in_place():
        assert Owner().answer() == -42
    assert vars(Owner)["answer"] is method


def test_threads_that_interleave_leave_nothing() -> None:
    owner = Owner()
    hook = SharedHook(owner, "answer", plus_one)
    answers: set[int] = set()

    def use() -> None:
        for _ in range(500):
            with hook.in_place():
                answers.add(owner.answer())

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, vars(owner)) == ({43}, {})


def test_a_module_that_is_imported_meanwhile_is_given_the_function_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inner() -> int:
        return 1

    home, late = ModuleType("home_of_inner"), ModuleType("imported_late")
    monkeypatch.setitem(sys.modules, home.__name__, home)
    setattr(home, "inner", inner)  # noqa: B010 (mypy knows of no such attribute)
    with ExitStack() as hooks:
        for hook in held_by_name("inner", inner, lambda: 2):
            hooks.enter_context(hook)
        monkeypatch.setitem(sys.modules, late.__name__, late)
        setattr(late, "inner", vars(home)["inner"])  # noqa: B010
        assert vars(late)["inner"]() == 2
    assert vars(home)["inner"] is vars(late)["inner"] is inner
