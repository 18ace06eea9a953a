"""Real models with and without a capture have bitwise equal results and side effects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.suite.decode import decode_token
from pytest_dtdispatch.suite.llama import BATCH, SEQUENCE, Sizes, llama, split
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.models.watching import CountedOps, Watch, calls_by_op, differences, watched
from tests.probes import FSDP_WITHOUT_CUDA, LOCAL_TENSOR, fake_group_writes, head_product_error, needs

pytestmark = pytest.mark.torch

STEPS, TOKENS, VOCABULARY = 2, 4, Sizes().tokens

Open = Callable[[], AbstractContextManager[Any]]
Program = Callable[[Watch, Open], None]


def train(watch: Watch, capturing: Open, model: nn.Module) -> None:
    optimizer = AdamW(model.parameters(), lr=0.01, foreach=True)
    with capturing():
        for step in map("step {}".format, range(STEPS)):
            optimizer.zero_grad()
            ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
            loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
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


def transformer(mesh: DeviceMesh) -> nn.Module:
    # torch's test model. Each data-parallel rank has its heads as plain tensors: on a CPU torch has no
    # sharding strategy for its attention.
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    plain = Transformer(ModelArgs(vocab_size=VOCABULARY))
    model: Any = Transformer.parallelize(plain, mesh["tp"], use_seq_parallel=True, local_output_for_attn=True)
    for layer in model.layers:
        fully_shard()(layer, mesh=mesh["dp"])
    fully_shard()(model, mesh=mesh["dp"])
    return model  # type: ignore[no-any-return]


def train_transformer(mesh: DeviceMesh, watch: Watch, capturing: Open) -> None:
    train(watch, capturing, transformer(mesh))


def train_llama(mesh: DeviceMesh, watch: Watch, capturing: Open) -> None:
    train(watch, capturing, split(llama(mesh.device_type), mesh))


def decode_llama(mesh: DeviceMesh, watch: Watch, capturing: Open) -> None:
    decode = decode_token(mesh)
    with capturing():
        for number in range(1, TOKENS + 1):
            watch.see(f"token {number}: result", decode(number))
            watch.count_alive(f"token {number}")


CASES: dict[str, tuple[Callable[[DeviceMesh, Watch, Open], None], MeshSpec, tuple[str, ...] | None]] = {
    "Transformer, FSDP2 and tensor parallelism": (
        train_transformer,
        *(MeshSpec((2, 2), "cpu", "fake"), ("dp", "tp")),
    ),
    "Llama trained": (train_llama, MeshSpec((4,), "cpu", "fake"), None),
    "Llama trained on simulated ranks": (train_llama, MeshSpec((2,), "cpu", "local"), None),
    "Llama decoding": (decode_llama, MeshSpec((4,), "cpu", "fake"), None),
    "Llama decoding on simulated ranks": (decode_llama, MeshSpec((2,), "cpu", "local"), None),
}


LONG = ("Transformer, FSDP2 and tensor parallelism", "Llama decoding on simulated ranks")


def marks(name: str) -> Iterator[pytest.MarkDecorator]:
    if name != "Llama trained":
        yield from (pytest.mark.slow, pytest.mark.long, *[pytest.mark.sweep] * (name not in LONG))
    if "FSDP2" in name:
        yield needs(FSDP_WITHOUT_CUDA)
    if "simulated" in name:
        yield needs(LOCAL_TENSOR)


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[*marks(name)]) for name in CASES])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Return the program on its mesh."""
    run, spec, dim_names = CASES[request.param]
    with closing(ProcessGroupOwner()) as owner:
        mesh = owner.mesh(spec, dim_names)
        if run is decode_llama and (missing := head_product_error(mesh)):
            pytest.skip(missing)

        def program(watch: Watch, capturing: Open) -> None:
            torch.manual_seed(0)
            run(mesh, watch, capturing)

        if "simulated" not in request.param and not fake_group_writes():
            pytest.skip("collectives of this torch's fake group leave their results undefined")
        yield program


@pytest.fixture(scope="module")
def counted(program: Program) -> CountedOps:
    """Count the ops of the first run, which is not compared with others: torch fills caches in it."""
    ops = CountedOps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program(Watch(), lambda: ops)
    return ops


@pytest.fixture(scope="module")
def plain(program: Program, counted: CountedOps) -> Watch:
    """Run the program without a capture."""
    return run(program)


@pytest.fixture(scope="module")
def captured(program: Program, counted: CountedOps) -> tuple[Watch, ResultStore]:
    """Run the program in a capture; return its observations and measurements."""
    book = ResultStore()
    return run(program, lambda: SignatureCapture(book, Plan(1, 2))), book


def run(program: Program, capturing: Open = nullcontext) -> Watch:
    return watched(lambda watch: program(watch, capturing))


def assert_equal(plain: Watch, other: Watch) -> None:
    found = "\n".join(differences(plain, other))
    assert not found, found


def test_captured_model_computes_equal_results(plain: Watch, captured: tuple[Watch, ResultStore]) -> None:
    assert_equal(plain, captured[0])


def test_capture_counts_exactly_the_ops_of_a_model(
    counted: CountedOps, captured: tuple[Watch, ResultStore]
) -> None:
    assert calls_by_op(captured[1]) == counted.calls


@pytest.mark.parametrize("program", ["Llama trained"], indirect=True)
@pytest.mark.parametrize(
    "capturing",
    [
        lambda: SignatureCapture(ResultStore(), Plan(1, 2), ops=("embedding.default",)),
        lambda: TimeCaptureMode(repeat_count=2, ops=("embedding.default",)),
    ],
    ids=["capture", "TimeCaptureMode"],
)
def test_measured_embedding_does_not_change_later_lookups(
    program: Program, plain: Watch, capturing: Open
) -> None:
    # No other op is measured, so entries of the embedding's repetitions stay in torch's caches.
    assert_equal(plain, run(program, capturing))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("program", ["Llama trained"], indirect=True)
def test_timed_calls_do_not_change_model_results(program: Program, plain: Watch) -> None:
    timed = TimeCaptureMode(repeat_count=2)
    assert_equal(plain, run(program, lambda: timed))
    assert len(timed.op_to_time["embedding.default"]) == STEPS
