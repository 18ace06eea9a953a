"""Private names of torch: what is said where one is gone, and what is asked of op schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.measuring.caches import ShardingCaches
from pytest_dtdispatch.torchapi import names as torchapi

pytestmark = pytest.mark.torch

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"


def unsupported() -> str:
    """Ask for the caches; return the one line that is said where they are not there."""
    with pytest.raises(UnsupportedTorchError) as raised:
        ShardingCaches()
    text = str(raised.value)
    assert "\n" not in text
    assert torch.__version__ in text
    return text


def test_a_torch_without_the_dispatcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DTensor, "_op_dispatcher")
    assert "propagate_op_sharding" in unsupported()


def test_a_torch_whose_propagator_has_no_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    monkeypatch.setattr(propagator, "propagate_op_sharding", object())
    assert "propagate_op_sharding.cache.cache_clear" in unsupported()


@pytest.mark.parametrize(
    ("gone", "lacks"),
    [(CLEAR, "clear function beside its stats"), (STATS, "stats function beside its clear")],
)
def test_a_native_cache_with_one_of_its_two_functions_is_refused(
    monkeypatch: pytest.MonkeyPatch, gone: str, lacks: str
) -> None:
    monkeypatch.delattr(torch._C, gone)
    assert lacks in unsupported()


def test_a_cold_cache_that_torch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _redistribute

    every = {cache.name for cache in torchapi.cold_caches()}
    monkeypatch.delattr(_redistribute, "_gen_transform_infos")
    monkeypatch.delattr(_redistribute, "_planner_cache")
    assert every - {cache.name for cache in torchapi.cold_caches()} == {
        "transform plans",
        "redistribution planners",
    }


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "written"),
    [
        (torch.ops.aten.add.Tensor, (1, 2), {}, []),
        (torch.ops.aten.add_.Tensor, (1, 2), {}, ["self"]),
        (torch.ops.aten.add.out, (1, 2), {"out": 3}, ["out"]),
        (torch.ops.aten._foreach_mul_.Scalar, ([1], 2), {}, ["self"]),
        (
            torch.ops.aten.native_batch_norm.default,
            (1, None, None, 2, 3, True, 0.1, 0.1),
            {},
            ["running_mean", "running_var"],
        ),
    ],
    ids=["pure", "in place", "out", "foreach", "undeclared"],
)
def test_written_arguments_are_known(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[str]
) -> None:
    assert [a.name for a in torchapi.arguments_of(func, args, kwargs) if a.is_written] == written


def test_an_op_of_another_namespace_shows_it() -> None:
    assert torchapi.op_name(torch.ops.aten.add.Tensor) == "add.Tensor"
    assert torchapi.op_name(torch.ops.prims.add.default) == "prims.add.default"


class Program(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_are_told_from_those_of_the_compiler() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert torchapi.is_mode_of_program(Program())
    assert not torchapi.is_mode_of_program(FakeTensorMode())
    assert not torchapi.is_mode_of_program(object())


def test_modes_of_the_program_do_not_see_what_is_repeated() -> None:
    with Program() as mode:
        assert torchapi.open_modes() == [mode]
        with torchapi.without_outer_modes():
            assert torchapi.open_modes() == []
        assert torchapi.open_modes() == [mode]


def test_without_open_modes_there_is_nothing_to_close() -> None:
    with torchapi.without_outer_modes():
        assert torchapi.open_modes() == []
