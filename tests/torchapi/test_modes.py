"""Dispatch modes: which are the program's, and running without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch.torchapi.modes import is_mode_of_program, open_modes, without_outer_modes

pytestmark = pytest.mark.torch


class Program(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_are_told_from_those_of_the_compiler() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert is_mode_of_program(Program())
    assert not is_mode_of_program(FakeTensorMode())
    assert not is_mode_of_program(object())


def test_modes_of_the_program_do_not_see_what_is_repeated() -> None:
    with Program() as mode:
        assert open_modes() == [mode]
        with without_outer_modes():
            assert open_modes() == []
        assert open_modes() == [mode]


def test_without_open_modes_there_is_nothing_to_close() -> None:
    with without_outer_modes():
        assert open_modes() == []
