r"""Compare real models run with and without measurement, bit for bit.

It requires packages that this project does not install. Create a virtual environment for it in the root of a
checkout::

    python3.11 -m venv /tmp/models
    /tmp/models/bin/pip install "torch==2.13.*"
    /tmp/models/bin/pip install "torchtitan==0.3.*" triton "transformers==5.*" "torch==2.13.*" \
        numpy pytest pytest-benchmark
    PYTHONPATH=src:. OMP_NUM_THREADS=1 /tmp/models/bin/python benchmarks/real_models.py

It runs on fake process groups on the CPU, and takes some minutes. To select programs, pass their names:
``torchtitan``, ``torchtitan-full``, ``llama-trained``, ``llama-decoding``, ``transformer``.

Each program runs without measurement twice, with counted ops, captured, and with two measurements of its
embedding only. For each run the differences from the first one are printed, and its seconds. The exit status
is 1 if anything differs.

``benchmarks/real_models.py cost`` prints the CPU seconds of captures instead: one step, or token, of each
program with empty caches, unmeasured, captured by default and by ``TimeCaptureMode``; then 1,000 signatures
with one round and one hit, and three signatures on a mesh of three dimensions.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.optim import AdamW

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.models.watching import (
    CountedOps,
    Watch,
    calls_by_op,
    differences,
    watched,
)

STEPS, TOKENS, SHOWN = 3, 6, 30
PLAN, DEFAULT = Plan(rounds=1, repeat=2), Plan()
EMBEDDING = ("embedding.default",)  # no other measured op clears what its repetitions leave

Open = Callable[[], AbstractContextManager[Any]]
Program = Callable[[Watch, Open, int], None]  # the last argument is the number of steps, or tokens


def train(
    watch: Watch, capturing: Open, steps: int, model: Any, step_of: Callable[[], Any], clip: Any
) -> None:
    """Train with clipping and AdamW, and record all values of each step."""
    # Plain tensors and DTensors need separate groups: foreach ops of the optimizer take a whole group.
    sharded: list[Any] = []
    plain: list[Any] = []
    for parameter in model.parameters():
        (sharded if isinstance(parameter, DTensor) else plain).append(parameter)
    groups = [{"params": group} for group in (sharded, plain) if group]
    optimizer = AdamW(groups, lr=8e-4, foreach=True)
    with capturing():
        for step in map("step {}".format, range(steps)):
            optimizer.zero_grad()
            watch.see(f"{step}: loss", step_of())
            watch.see(f"{step}: norm of gradients", clip(sharded, 1.0))
            watch.see_gradients(step, model)
            optimizer.step()
            watch.see_parameters(step, model, optimizer)
            watch.see_random_state(step)
            watch.count_alive(step)


def torchtitan_llama(spmd_backend: str) -> Program:
    """Return torchtitan's debug model of Llama 3, with FSDP2 over 2 ranks and tensor parallelism over 4."""
    titan = importlib.import_module("torchtitan.models.llama3")
    registry = importlib.import_module("torchtitan.models.llama3.config_registry")
    attention = importlib.import_module("torchtitan.models.common.attention")
    dims: Any = importlib.import_module("torchtitan.distributed.parallel_dims")
    utils = importlib.import_module("torchtitan.distributed.utils")
    full = importlib.import_module("torchtitan.distributed.full_dtensor")
    losses = importlib.import_module("torchtitan.components.loss")
    dims.device_type = "cpu"
    utils.set_spmd_backend(spmd_backend)
    config = registry.llama3_debugmodel()
    config.model_spec = spec = titan.model_registry("debugmodel")
    for layer in spec.model.layers:  # torchtitan's attention is compiled for GPUs: use torch's on the CPU
        layer.attention.inner_attention = attention.ScaledDotProductAttention.Config()
    config.training.seq_len, config.training.local_batch_size = 64, 2
    config.parallelism.tensor_parallel_degree = 4
    config.parallelism.data_parallel_shard_degree = 2
    config.parallelism.spmd_backend = spmd_backend
    spec.model.update_from_config(config=config)

    parallel = dims.ParallelDims.from_config(config.parallelism, 8)
    context = utils.get_spmd_context(parallel_dims=parallel)

    def made() -> Any:
        with torch.device("meta"):
            model = spec.model.build()
        model = spec.parallelize_fn(
            model,
            parallel_dims=parallel,
            training=config.training,
            parallelism=config.parallelism,
            compile_config=config.compile,
            ac_config=config.activation_checkpoint,
            dump_folder="",
        )
        model.to_empty(device="cpu")
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        return model.train()

    def program(watch: Watch, capturing: Open, steps: int) -> None:
        torch.manual_seed(0)
        model = made()

        def step() -> Any:
            ids = torch.randint(0, 2048, (2, 65))
            inputs, labels = ids[:, :-1], ids[:, 1:]
            if spmd_backend == "full_dtensor":
                inputs, labels, _ = full.parallelize_inputs(parallel, inputs, labels, {})
            with context():
                loss = losses.cross_entropy_loss(model(inputs), labels, global_vocab_size=2048) / ids.numel()
                loss.backward()
            return loss

        train(watch, capturing, steps, model, step, utils.clip_grad_norm_)

    return program


def tiny_llama(mesh: Any) -> Any:
    """Return a small Llama of transformers on a mesh, with a sharded vocabulary."""
    transformers = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config)
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for name in ("mlp.gate_proj", "mlp.up_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        plan[f"model.layers.*.{name}"] = ColwiseParallel()
    for name in ("mlp.down_proj", "self_attn.o_proj"):
        plan[f"model.layers.*.{name}"] = RowwiseParallel()
    return parallelize_module(model, mesh, plan)


def transformers_training(mesh: Any) -> Program:
    def program(watch: Watch, capturing: Open, steps: int) -> None:
        torch.manual_seed(0)
        model = tiny_llama(mesh)

        def step() -> Any:
            ids = torch.randint(0, 128, (2, 17))
            with loss_parallel():
                logits = model(ids[:, :-1], use_cache=False).logits
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
            return loss

        train(watch, capturing, steps, model, step, nn.utils.clip_grad_norm_)

    return program


def fsdp_transformer(mesh: Any) -> Program:
    """Return a training of the Transformer in torch's own tests, with FSDP2."""
    tested = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")

    def program(watch: Watch, capturing: Open, steps: int) -> None:
        torch.manual_seed(0)
        model = tested.Transformer(tested.ModelArgs(dropout_p=0.0))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

        def step() -> Any:
            loss = model(torch.randint(0, 8, (2, 8))).sum()
            loss.backward()
            return loss

        train(watch, capturing, steps, model, step, nn.utils.clip_grad_norm_)

    return program


def transformers_decoding(mesh: Any) -> Program:
    """Return a decoding with a growing cache of plain tensors, each rank's heads."""

    def program(watch: Watch, capturing: Open, steps: int) -> None:
        torch.manual_seed(0)
        model = tiny_llama(mesh).eval()
        ids, cache = torch.randint(0, 128, (2, 5)), None
        with torch.no_grad(), capturing():
            for token in range(steps):
                out = model(ids, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                watch.see(f"token {token}: ids", ids)
                watch.see(f"token {token}: logits", out.logits)
                for index, layer in enumerate(cache.layers):
                    watch.see(f"token {token}: keys of layer {index}", layer.keys)
                    watch.see(f"token {token}: values of layer {index}", layer.values)
                # On a fake group argmax always returns an id of rank 0: the offset selects the others.
                best = out.logits.full_tensor()[:, -1].argmax(-1, keepdim=True)
                ids = (best + 17 * token) % 128
                watch.count_alive(f"token {token}")

    return program


def compare(name: str, program: Program) -> bool:
    """Run a program plainly and measured; print the differences, and return whether there are none."""
    steps = TOKENS if name == "llama-decoding" else STEPS

    def timed(opening: Open) -> tuple[Watch, float]:
        start = perf_counter()
        watch = watched(lambda watch: program(watch, opening, steps))
        return watch, perf_counter() - start

    def report(what: str, opening: Open) -> bool:
        """Run the program again; print differences from its plain run, and return whether there are none."""
        try:
            other, other_s = timed(opening)
        except Exception as error:  # any exception is a finding of this script
            print(f"  {what}: raised {type(error).__name__}: {str(error).splitlines()[0]}")
            return False
        found = differences(plain, other)
        print(f"  {what}: {len(found)} differences, {other_s:.2f} s")
        for line in found[:SHOWN]:
            print(f"    {line}")
        return not found

    program(Watch(), nullcontext, steps)
    plain, plain_s = timed(nullcontext)
    print(f"\n{name}: {len(plain.facts)} facts seen, {plain_s:.2f} s")
    counted, store = CountedOps(), ResultStore()
    equal = [
        report("plain again", nullcontext),
        report("ops counted", lambda: counted),
        report("captured", lambda: SignatureCapture(store, PLAN)),
        report("embedding captured", lambda: SignatureCapture(ResultStore(), PLAN, EMBEDDING)),
        report("embedding timed", lambda: TimeCaptureMode(2, EMBEDDING)),
    ]
    calls = calls_by_op(store)
    print(f"  {len(store.measurements())} rows of {calls.total()} calls; {counted.calls.total()} ops ran")
    if found := (counted.calls - calls) | (calls - counted.calls):
        print(f"    {found}")
    return all(equal) and not found


class Timed:
    """Context manager that measures the CPU time of its block and of entering and leaving ``inner``."""

    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self.inner = inner

    def __enter__(self) -> None:
        self.began = process_time()
        self.inner.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.inner.__exit__(*raised)
        self.cpu_s = process_time() - self.began


def cost(name: str, program: Program) -> None:
    """Print the time of a step that starts with empty caches, plain and captured."""

    def seconds(inner: AbstractContextManager[Any]) -> float:
        def opened() -> Timed:
            ShardingCaches().clear_all()
            return timed

        timed = Timed(inner)
        program(NULL_WATCH, opened, 1)
        return timed.cpu_s

    seconds(nullcontext())
    store, mode = ResultStore(), TimeCaptureMode()
    plain_s = min(seconds(nullcontext()) for _ in range(3))
    captured_s, timed_s = seconds(SignatureCapture(store, DEFAULT)), seconds(mode)
    rows, calls = len(store.measurements()), sum(map(len, mode.op_to_time.values()))
    print(
        f"{name}: {plain_s:.3f} s; captured {captured_s:.2f} s ({captured_s / plain_s:.1f} times), "
        f"{rows} rows; timed {timed_s:.2f} s ({timed_s / plain_s:.1f} times), {calls} calls",
        flush=True,
    )


def cost_of_signatures(mesh: Any, count: int, plan: Plan) -> None:
    """Print the time of many new signatures of one op."""
    whole = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]
    tensors = [DTensor.from_local(torch.rand(2, 3 + number), mesh, whole) for number in range(2 * count)]

    def seconds(inner: AbstractContextManager[Any]) -> float:
        with (timed := Timed(inner)):
            for _ in range(count):
                tensor = tensors.pop()
                tensor + tensor
        return timed.cpu_s

    plain_s, captured_s = seconds(nullcontext()), seconds(SignatureCapture(ResultStore(), plan))
    shape = "x".join(map(str, mesh.shape))
    print(f"{count} signatures on {shape}, {plan.rounds} rounds: {captured_s:.2f} s; plain {plain_s:.2f} s")


class NullWatch(Watch):
    """Watch that records nothing."""

    def __getattribute__(self, name: str) -> Any:
        return lambda *seen: None


NULL_WATCH = NullWatch()


def program_of(name: str, owner: ProcessGroupOwner) -> Program:
    if name.startswith("torchtitan"):
        owner.group(MeshSpec((2, 4), "cpu", "fake"))
        return torchtitan_llama("full_dtensor" if name == "torchtitan-full" else "partial_dtensor")
    mesh = owner.mesh(MeshSpec((4,), "cpu", "fake"))
    return {
        "llama-trained": transformers_training,
        "llama-decoding": transformers_decoding,
        "transformer": fsdp_transformer,
    }[name](mesh)


PROGRAMS = ("torchtitan", "torchtitan-full", "llama-trained", "llama-decoding", "transformer")


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    is_cost = names[:1] == ["cost"]
    equal = True
    for name in names[is_cost:] or PROGRAMS:
        owner = ProcessGroupOwner()
        if is_cost:
            cost(name, program_of(name, owner))
        else:
            equal &= compare(name, program_of(name, owner))
        owner.close()
    if is_cost:
        for shape, count, plan in (((4,), 1000, Plan(1, 1)), ((2, 2, 2), 3, DEFAULT)):
            owner = ProcessGroupOwner()
            cost_of_signatures(owner.mesh(MeshSpec(shape, "cpu", "fake")), count, plan)
            owner.close()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
