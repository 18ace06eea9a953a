"""Real models, captured and not: equal bit for bit, in what they compute and in what they leave behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture, TimeCaptureMode
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks
from tests.models.llama import VOCABULARY, Cache, parallel_llama
from tests.models.watching import CountedOps, Watch, calls_by_op, differences, watched
from tests.probes import FSDP_WITHOUT_CUDA, LOCAL_TENSOR, fake_group_writes, needs, why_no_product_of_heads

pytestmark = pytest.mark.torch

STEPS, TOKENS = 2, 4

Open = Callable[[], AbstractContextManager[Any]]
Program = Callable[[Watch, Open], None]


def train(
    watch: Watch,
    capturing: Open,
    model: nn.Module,
    loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    optimizer = AdamW(model.parameters(), lr=0.01, foreach=True)
    with capturing():
        for step in map("step {}".format, range(STEPS)):
            optimizer.zero_grad()
            loss = loss_of(model, torch.randint(0, VOCABULARY, (2, 8)))
            watch.see(f"{step}: loss", loss)
            assert all(torch.isfinite(shard) for shard in shards_of(loss))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            watch.see_gradients(step, model)
            optimizer.step()
            watch.see_parameters(step, model, optimizer)
            watch.see_random_state(step)
            watch.count_alive(step)


def shards_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    return shards_of_simulated_ranks(local_of(tensor))


def backward_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    return loss


def parallel_backward_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with loss_parallel():
        return backward_of(model, ids)


def transformer(mesh: DeviceMesh) -> nn.Module:
    # torch's own test model. Each data-parallel rank has its heads as plain tensors: on a CPU torch has no
    # sharding strategy for its attention.
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    plain = Transformer(ModelArgs(vocab_size=VOCABULARY))
    model: Any = Transformer.parallelize(plain, mesh["tp"], use_seq_parallel=True, local_output_for_attn=True)
    for layer in model.layers:
        fully_shard()(layer, mesh=mesh["dp"])
    fully_shard()(model, mesh=mesh["dp"])
    return model  # type: ignore[no-any-return]


def training_of_transformer(mesh: DeviceMesh) -> Program:
    def program(watch: Watch, capturing: Open) -> None:
        torch.manual_seed(0)
        train(watch, capturing, transformer(mesh), backward_of)

    return program


def skip_where(missing: str) -> None:
    if missing:
        pytest.skip(missing)


def training_of_llama(mesh: DeviceMesh, layers: int) -> Program:
    skip_where(why_no_product_of_heads(mesh))

    def program(watch: Watch, capturing: Open) -> None:
        torch.manual_seed(0)
        train(watch, capturing, parallel_llama(mesh, layers, dropout=0.1), parallel_backward_of)

    return program


def decoding_of_llama(mesh: DeviceMesh, layers: int) -> Program:
    skip_where(why_no_product_of_heads(mesh))

    def program(watch: Watch, capturing: Open) -> None:
        torch.manual_seed(0)
        model = parallel_llama(mesh, layers).eval()
        cache: Cache = {}
        ids, position = torch.randint(0, VOCABULARY, (2, 3)), 0
        with torch.no_grad(), capturing():
            for token in range(TOKENS):
                logits: Any = model(ids, position, cache)
                position += ids.shape[1]
                watch.see(f"token {token}: ids", ids)
                watch.see(f"token {token}: logits", logits)
                for layer, pair in cache.items():
                    for kind, tensor in zip(("keys", "values"), pair, strict=True):
                        watch.see(f"token {token}: {kind} of layer {layer}", tensor)
                # On a fake group the best is always an id of rank 0: the others get their turn by this sum.
                best = logits.full_tensor()[:, -1].argmax(-1, keepdim=True)
                ids = (best + 5 * token) % VOCABULARY
                watch.count_alive(f"token {token}")

    return program


def on(make: Callable[..., Program], name: str, *args: Any) -> Callable[[ProcessGroupOwner], Program]:
    """Make a program on a mesh of this name."""
    shape, backend, dim_names = {
        "fake": ((4,), "fake", None),
        "fake 2x2": ((2, 2), "fake", ("dp", "tp")),
        "local": ((2,), "local", None),
    }[name]
    return lambda owner: make(owner.mesh(Place(shape, "cpu", backend), dim_names), *args)


CASES = {
    "Transformer, FSDP2 and tensor parallelism": on(training_of_transformer, "fake 2x2"),
    "Llama trained": on(training_of_llama, "fake", 1),
    "Llama trained on simulated ranks": on(training_of_llama, "local", 1),
    "Llama decoding": on(decoding_of_llama, "fake", 2),
    "Llama decoding on simulated ranks": on(decoding_of_llama, "local", 1),
}


QUICK = ["Llama trained", "Llama decoding"]


def marks(name: str) -> Iterator[pytest.MarkDecorator]:
    if name not in QUICK:
        yield from (pytest.mark.slow, pytest.mark.long)
    if "FSDP2" in name:
        yield needs(FSDP_WITHOUT_CUDA)
    if "simulated" in name:
        yield needs(LOCAL_TENSOR)


PARAMS = [pytest.param(name, marks=[*marks(name)]) for name in CASES]


@pytest.fixture(scope="module", params=PARAMS)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """The program, run once already: torch builds and keeps much when a program first runs."""
    with closing(ProcessGroupOwner()) as owner:
        program = CASES[request.param](owner)
        if "simulated" not in request.param and not fake_group_writes():
            pytest.skip("the fake group of this torch leaves undefined what its collectives write")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(Watch(), nullcontext)
        yield program


@pytest.fixture(scope="module")
def plain(program: Program) -> Watch:
    """The program without a capture."""
    return run(program)


@pytest.fixture(scope="module")
def captured(program: Program) -> tuple[Watch, TestResults]:
    """The program in a capture, and what that measured."""
    book = TestResults()
    return run(program, lambda: SignatureCapture(book, Plan(1, 2, quick_warmup=0))), book


def run(program: Program, capturing: Open = nullcontext) -> Watch:
    return watched(lambda watch: program(watch, capturing))


def assert_equal(plain: Watch, other: Watch) -> None:
    found = "\n".join(differences(plain, other))
    assert not found, found


def test_two_runs_without_a_capture_are_equal(program: Program, plain: Watch) -> None:
    # Else the other tests would say nothing.
    assert_equal(plain, run(program))


def test_a_model_computes_in_a_capture_what_it_computes_without(
    plain: Watch, captured: tuple[Watch, TestResults]
) -> None:
    assert_equal(plain, captured[0])


def test_a_capture_counts_the_ops_that_a_model_runs_and_no_other(
    program: Program, plain: Watch, captured: tuple[Watch, TestResults]
) -> None:
    counted = CountedOps()
    assert_equal(plain, run(program, lambda: counted))
    assert calls_by_op(captured[1]) == counted.calls


@pytest.mark.parametrize("program", QUICK, indirect=True)
@pytest.mark.parametrize(
    "capturing",
    [
        lambda: SignatureCapture(TestResults(), Plan(1, 2, quick_warmup=0), ops=("embedding.default",)),
        lambda: TimeCaptureMode(repeat_count=2, ops=("embedding.default",)),
    ],
    ids=["capture", "TimeCaptureMode"],
)
def test_a_model_looks_up_other_ids_after_its_embedding_alone_was_measured(
    program: Program, plain: Watch, capturing: Open
) -> None:
    # No other op is measured, so nothing clears what the embedding's repetitions left in torch's caches.
    assert_equal(plain, run(program, capturing))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("program", ["Llama decoding"], indirect=True)
def test_a_model_computes_when_each_of_its_calls_is_timed_what_it_computes_without(
    program: Program, plain: Watch
) -> None:
    timed = TimeCaptureMode(repeat_count=2)
    assert_equal(plain, run(program, lambda: timed))
    assert len(timed.op_to_time["embedding.default"]) == TOKENS
