"""Storages that a call frees, resizes, replaces or allocates: freed memory is neither read nor written."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.comparing.scaling import run_and_measure_sizes
from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.replay.repeat import run_call
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import FEW, measured_call
from tests.plugin_runs import ALONE, MEASURED
from tests.probes import FSDP_WITHOUT_CUDA, fake_group_writes, has, on_a_fake_mesh
from tests.threads import in_thread

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

N = 64
FREED = "runs once: it freed the storage of a tensor"
REPLACED = "runs once: it gave a tensor another storage"


FRESH_MODELS = """
    import pytest
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)
            self.scale = nn.Parameter(torch.rand(16))

        def forward(self, x):
            return self.inner(x) * self.scale

    def program(mesh, whole_step):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 16), Rooted())
        for layer in (model[0], model[1].inner, model[1], model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.rand(4, 16)

        def forward():
            return model(x)

        def step():
            loss = forward().square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return (step if whole_step else forward), model, x

    CASES = [("call", False), ("call", True), ("compare", False), ("scaling", False), ("compile", False)]

    @pytest.mark.parametrize(("method", "whole_step"), CASES)
    def test_fresh(dtdispatch, device_mesh, method, whole_step):
        made = [program(device_mesh, whole_step) for _ in range(3)]
        (run, one, _), (plain, two, _), (other, _, _) = made
        if method == "call":
            dtdispatch.call(run, name="row")
        elif method == "compare":
            dtdispatch.compare({"a": run, "b": other}, name="row")
        elif method == "scaling":
            dtdispatch.scaling(lambda size: run if size == 1 else other, (1, 2), name="row")
        else:
            dtdispatch.compile(run, name="row", backend="eager", fullgraph=False)
        plain()
        if not WRITES:
            return  # gathers read uninitialized memory, which differs between programs
        for ours, theirs in zip(one.parameters(), two.parameters()):
            assert torch.equal(ours.to_local(), theirs.to_local())
        assert torch.equal(one(made[0][2]), two(made[1][2]))
"""


READS_WHAT_IS_FREE = """
    import threading
    import torch

    def test_read_and_freed(dtdispatch):
        weight, seen = torch.ones(64), torch.zeros(64)

        def fn():
            seen.add_(weight)
            weight.untyped_storage().resize_(0)

        dtdispatch.call(fn, name="freed")
        assert seen.tolist() == [1.0] * 64

    def test_allocated_as_an_object_knows(dtdispatch):
        weight, seen, known = torch.ones(64), torch.zeros(64), []
        weight.untyped_storage().resize_(0)

        def fn():
            if not known:
                weight.untyped_storage().resize_(256)
                weight.fill_(3)
                known.append(True)
            seen.add_(weight)

        dtdispatch.call(fn, name="allocated")
        assert seen.tolist() == weight.tolist() == [3.0] * 64

    def test_freed_by_a_later_variant(dtdispatch):
        weight, seen = torch.ones(64), torch.zeros(64)
        free = lambda: [weight.untyped_storage().resize_(0)] and None
        dtdispatch.compare({"reads": lambda: [seen.add_(weight)] and None, "frees": free}, name="compared")
        assert seen.tolist() == [1.0] * 64

    def test_freed_by_the_second_call(dtdispatch):
        weight, seen, calls = torch.ones(64), torch.zeros(64), []

        def fn():
            calls.append(seen.add_(weight).sum().item())
            if len(calls) == 2:
                weight.untyped_storage().resize_(0)

        dtdispatch.call(fn, name="second")
        assert calls == [64.0, 64.0]
        assert seen.tolist() == [1.0] * 64

    def test_freed_by_a_thread_between_repetitions(dtdispatch):
        weight, repeated = torch.ones(64), []

        def fn():
            weight.add_(1)
            repeated.append(weight.sum().item())
            if len(repeated) == 3:
                thread = threading.Thread(target=weight.untyped_storage().resize_, args=(0,))
                thread.start()
                thread.join()

        dtdispatch.call(fn, name="meanwhile")
        assert repeated[:3] == [128.0] * 3
"""


@pytest.mark.long  # a process of its own
def test_freed_storage_is_never_read_or_written(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    files = {"test_free": READS_WHAT_IS_FREE}
    if has(FSDP_WITHOUT_CUDA):
        writes = on_a_fake_mesh(lambda _: fake_group_writes())
        files["test_fresh"] = f"    WRITES = {writes}\n{FRESH_MODELS}"
    pytester.makepyfile(**files)
    result = pytester.runpytest_subprocess(*ALONE, *MEASURED, "--dtdispatch-max-time=0.01")
    text = result.stdout.str()
    assert result.ret == 0, text[-2000:]
    result.assert_outcomes(passed=5 * len(files))
    assert text.count("runs once: ") == 4, "models that never ran need no data"
    assert FREED in text
    assert "runs once: its repetition freed the storage of a tensor" in text
    assert "reads: runs once: a later call freed the storage of a tensor" in text
    assert "not repeated: a tensor that it writes to was freed, resized or moved after the first call" in text


def free(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def is_measured(figures: Figures) -> bool:
    return any(samples.state is State.CALL and samples.ns for samples in figures.samples)


def freed_after_a_write(w: Any, seen: Any) -> None:
    seen.add_(w.add_(1))
    free(w)


def freed_without_an_op(w: Any, seen: Any) -> None:
    seen.add_(1)
    free(w)


def freed_by_a_thread(w: Any, seen: Any) -> None:
    seen.add_(w)
    in_thread(lambda: free(w))


def data_replaced(w: Any, seen: Any) -> None:
    w.add_(1)
    w.data = w.data * 3
    seen.add_(w)


def data_replaced_without_an_op(w: Any, seen: Any) -> None:
    w.data = w.data * 2


def swapped(w: Any, seen: Any) -> None:
    w.add_(seen + 2)
    torch.utils.swap_tensors(w, seen)


def set_to_another(w: Any, seen: Any) -> None:
    seen.add_(w.add_(1))
    w.set_((w * 2).untyped_storage())


def moved_to_another_device(w: Any, seen: Any) -> None:
    seen.add_(w)
    module, swaps = nn.Module(), torch.__future__.get_swap_module_params_on_conversion()
    module.w = w
    torch.__future__.set_swap_module_params_on_conversion(True)
    module.to("meta")
    torch.__future__.set_swap_module_params_on_conversion(swaps)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (freed_after_a_write, FREED),
        (freed_without_an_op, FREED),
        (freed_by_a_thread, FREED),
        (data_replaced, REPLACED),
        (data_replaced_without_an_op, REPLACED),
        (swapped, REPLACED),
        (moved_to_another_device, REPLACED),
        (set_to_another, REPLACED),
    ],
)
def test_freed_or_replaced_storage_matches_a_single_call(fn: Callable[..., None], reason: str) -> None:
    def left_by(call: Callable[[Callable[[], None]], Any]) -> list[Any]:
        w, seen = (nn.Parameter(torch.full((N,), value), requires_grad=False) for value in (1.0, 0.0))
        tensors = w, w.detach(), seen
        call(lambda: fn(w, seen))
        return [each.device if is_gone(each) else each.tolist() for each in tensors]

    def measured(run: Callable[[], None]) -> None:
        _, figures = measured_call(run)
        assert figures.notes == (reason,)
        assert not figures.samples

    assert left_by(measured) == left_by(lambda run: run())


def is_gone(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or not tensor.untyped_storage().nbytes()


def test_initially_freed_storage_is_freed_before_each_repetition() -> None:
    w, found = torch.ones(N), []
    free(w)

    def fn() -> None:
        found.append(w.untyped_storage().nbytes())
        w.untyped_storage().resize_(4 * N)
        w.fill_(3)

    _, figures = measured_call(fn)
    assert is_measured(figures)
    assert set(found) == {0}
    assert w.tolist() == [3.0] * N


@pytest.mark.parametrize("collected", [None, 0, 1, 2])
def test_storage_allocated_and_freed_by_call_stays_free(collected: int | None) -> None:
    stored: list[torch.Tensor] = []

    def fn() -> None:
        if not stored:
            stored.append(torch.empty(N))
            if collected is not None:
                gc.collect(collected)  # moves objects of the call to an older generation
        stored[0].untyped_storage().resize_(4 * N)
        stored[0].fill_(2)
        free(stored[0])

    assert is_measured(measured_call(fn)[1])
    assert stored[0].untyped_storage().nbytes() == 0


def variants(x: torch.Tensor, writes_and_runs_once: Callable[[], None]) -> None:
    def add_one() -> None:
        x.add_(1)

    variants_of_row = Variants("row", {"a": add_one, "b": writes_and_runs_once})
    run_and_measure_variants(variants_of_row, ShardingCaches(), FEW)


def sizes(x: torch.Tensor, writes_and_runs_once: Callable[[], None]) -> None:
    make = {2: lambda: x.add_(1), 1: writes_and_runs_once}
    run_and_measure_sizes(run_call, make.__getitem__, (1, 2), ShardingCaches(), FEW)


@pytest.mark.parametrize("measure", [variants, sizes])
def test_repetitions_preserve_writes_of_nonrepeatable_calls(measure: Callable[..., None]) -> None:
    x, sparse = torch.ones(4), torch.eye(3).to_sparse()

    def writes_and_runs_once() -> None:
        x.mul_(10)
        sparse.mul_(2)

    measure(x, writes_and_runs_once)
    assert x.tolist() == [20.0] * 4
