"""FSDP: micro-batches, parameters that are gathered again, repeated gathers and small groups."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from pytest_dtdispatch.torchapi.missing_api import fully_shard
from tests.advice.twins.model import WIDTH, Entry, Harm, Lookalike, Program, Step, Twin

LAYERS, BATCHES = 3, 3


def linears(count: int = LAYERS, width: int = WIDTH) -> Any:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def groups(model: Any, mesh: DeviceMesh, modules: Iterable[Any] | None = None, **options: Any) -> Any:
    """Make an FSDP group of each module, and one of the model."""
    for module in (*(model if modules is None else modules), model):
        fully_shard()(module, mesh=mesh, **options)
    return model


def batches(count: int = BATCHES, rows: int = 4) -> list[torch.Tensor]:
    """Return batches that differ by rank."""
    return [torch.rand(rows, WIDTH) + dist.get_rank() for _ in range(count)]


def gradients(model: Any) -> list[Any]:
    """Return the gradients of a model, and reset them."""
    found = [each.grad for each in model.parameters() if each.requires_grad]
    model.zero_grad()
    return found


def copies(model: Any) -> list[Any]:
    return [each.detach().clone() for each in model.parameters()]


# Micro-batches


def accumulated(
    mesh: DeviceMesh,
    last_only: bool,
    stays_gathered: bool = False,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    frozen: int = 0,
    **options: Any,
) -> Step:
    """Accumulate gradients over micro-batches."""
    model = linears()
    model[:frozen].requires_grad_(False)
    groups(model, mesh, reshard_after_forward=not stays_gathered, **options)
    stepped = optimizer([each for each in model.parameters() if each.requires_grad]) if optimizer else None
    inputs = batches()

    def step() -> object:
        for number, x in enumerate(inputs):
            is_last = number == len(inputs) - 1
            model.set_requires_gradient_sync(is_last or not last_only)
            model.set_reshard_after_backward(is_last or not stays_gathered)
            model(x).float().square().mean().backward()
        if stepped is None:
            return gradients(model)
        stepped.step()
        stepped.zero_grad()
        return copies(model)

    return step


def accumulated_ones(mesh: DeviceMesh, last_only: bool) -> Step:
    """Accumulate gradients that bfloat16 represents exactly."""
    policy = {"param_dtype": torch.bfloat16}
    if last_only:
        policy["reduce_dtype"] = torch.float32
    model = groups(linears(1), mesh, mp_policy=MixedPrecisionPolicy(**policy))  # type: ignore[arg-type]

    def step() -> object:
        for number in range(BATCHES):
            model.set_requires_gradient_sync(number == BATCHES - 1 or not last_only)
            model(torch.ones(2, WIDTH)).float().sum().backward()
        return gradients(model)

    return step


def ones_for_many_passes(mesh: DeviceMesh, last_only: bool) -> Step:
    """Accumulate more ones than bfloat16 can count, without another dtype for reductions."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = groups(linears(1), mesh, mp_policy=policy)

    def step() -> object:
        for number in range(300):
            model.set_requires_gradient_sync(number == 299 or not last_only)
            model(torch.ones(1, WIDTH)).float().sum().backward()
        return gradients(model)

    return step


class Chunked(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.body(x))
        return torch.stack([self.head(chunk).square().mean() for chunk in hidden.chunk(4)]).sum()


def chunked_loss(mesh: DeviceMesh, last_only: bool) -> Step:
    """Run backward for each chunk of a loss, and one for the body."""
    model: Any = Chunked()
    for module in (model.body, model.head):
        fully_shard()(module, mesh=mesh)
    x = batches(1, rows=8)[0]

    def step() -> object:
        hidden = model.body(x)
        leaf = hidden.detach().requires_grad_()
        for number, chunk in enumerate(leaf.chunk(4)):
            model.head.set_requires_gradient_sync(number == 3 or not last_only)
            model.head(chunk).square().mean().backward()
        hidden.backward(leaf.grad)
        return gradients(model.body), gradients(model.head)

    return step


def adversaries(mesh: DeviceMesh, last_only: bool) -> Step:
    """Train two models in turn, each with two micro-batches."""
    models = [groups(linears(2), mesh) for _ in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    inputs = batches(2)

    def step() -> object:
        for model, optimizer in zip(models, optimizers, strict=True):
            for number, x in enumerate(inputs):
                model.set_requires_gradient_sync(number == 1 or not last_only)
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [copies(each) for each in models]

    return step


def epochs(mesh: DeviceMesh, last_only: bool = False, stays_gathered: bool = False) -> Step:
    """Step the optimizer after each pass, as in the epochs of PPO."""
    model = groups(linears(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    [x] = batches(1)

    def step() -> object:
        for number in range(2):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model.set_reshard_after_backward(number == 1 or not stays_gathered)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
        return copies(model)

    return step


def actor_and_critic(mesh: DeviceMesh, last_only: bool) -> Step:
    """Run one pass of each of two equal models, then both optimizers."""
    models = [groups(linears(), mesh) for _ in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    [x] = batches(1)

    def step() -> object:
        for number, model in enumerate(models):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return [copies(each) for each in models]

    return step


def two_losses_of_two_heads(mesh: DeviceMesh, last_only: bool) -> Step:
    """Run backward of two losses through one trunk, each with a head of its own that is as large."""
    trunk, first, second = (groups(linears(1), mesh) for _ in range(3))
    [x] = batches(1)

    def step() -> object:
        for number, head in enumerate((first, second)):
            if last_only:
                trunk.set_requires_gradient_sync(number == 1)
            head(trunk(x)).square().mean().backward()
        return [gradients(each) for each in (trunk, first, second)]

    return step


def closures(mesh: DeviceMesh, last_only: bool) -> Step:
    """Let an optimizer call a closure twice, and update the weights after each, as LBFGS does."""
    model = groups(linears(), mesh)
    [x] = batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> object:
        passes = iter(range(2))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            model.set_requires_gradient_sync(next(passes) == 1 or not last_only)
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        optimizer.zero_grad()
        return copies(model)

    return step


def lbfgs(mesh: DeviceMesh, last_only: bool) -> Step:
    """Let LBFGS call a closure three times in each step."""
    model = groups(linears(2), mesh)
    [x] = batches(1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def step() -> object:
        passes = iter(range(100))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            model.set_requires_gradient_sync(next(passes) % 3 == 2 or not last_only)
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
        optimizer.zero_grad()
        return copies(model)

    return step


def replicated_model(mesh: DeviceMesh, last_only: bool, stays_gathered: bool = False) -> Step:
    """Accumulate gradients of replicas, which FSDP's hooks reduce."""
    replicate = importlib.import_module("torch.distributed._composable.replicate_with_fsdp").replicate
    model = linears(2)
    for module in (*model, model):
        replicate(module, mesh=mesh)
    inputs = batches()

    def step() -> object:
        for number, x in enumerate(inputs):
            is_last = number == len(inputs) - 1
            model.set_requires_gradient_sync(is_last or not last_only)
            model.set_reshard_after_backward(is_last or not stays_gathered)
            model(x).square().mean().backward()
        return gradients(model)

    return step


def norm_of_each_pass(mesh: DeviceMesh, last_only: bool) -> Step:
    """Log the norm of the gradients after each pass, as for a noise scale."""
    model, inputs = groups(linears(), mesh), batches(2)

    def step() -> object:
        norms = []
        for number, x in enumerate(inputs):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model(x).square().mean().backward()
            norms.append(nn.utils.get_total_norm([each.grad for each in model.parameters()]))
        return norms, gradients(model)

    return step


def gradients_of_each_task(mesh: DeviceMesh, last_only: bool) -> Step:
    """Store the gradients of each task, as PCGrad does."""
    model, inputs = groups(linears(), mesh), batches(2)

    def step() -> object:
        tasks = []
        for number, x in enumerate(inputs):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model(x).square().mean().backward()
            tasks.append([each.clone() for each in gradients(model)])
        return tasks

    return step


def clipped_each_pass(mesh: DeviceMesh, last_only: bool) -> Step:
    """Clip the accumulated gradients after each pass."""
    model, inputs = groups(linears(), mesh), batches(2)

    def step() -> object:
        for number, x in enumerate(inputs):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model(x).square().mean().backward()
            found = [each for each in model.parameters() if each.grad is not None]
            nn.utils.clip_grad_norm_(found, 0.1)
        return gradients(model)

    return step


def scaled_by_hooks(mesh: DeviceMesh, last_only: bool) -> Step:
    """Scale the accumulated gradients in a hook on each parameter."""
    model, inputs = groups(linears(), mesh), batches(2)

    def scale(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(scale)

    def step() -> object:
        for number, x in enumerate(inputs):
            model.set_requires_gradient_sync(number == 1 or not last_only)
            model(x).square().mean().backward()
        return gradients(model)

    return step


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def of(program: Callable[..., Step], **options: Any) -> tuple[Callable[..., Step], Callable[..., Step]]:
    """Return a program that reduces in each pass, and one that reduces in the last."""
    return partial(program, last_only=False, **options), partial(program, last_only=True, **options)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
HSDP: Any = {"names": ("replicate", "shard")}
SYNC = "micro-batches"


def sync_twin(name: str, saves: int, programs: tuple[Program, Program], **options: Any) -> Twin:
    return Twin(SYNC, name, *programs, "collectives", saves, **options)


def sync_lookalike(
    name: str, harm: Harm, effect: str, programs: tuple[Program, Program], **options: Any
) -> Lookalike:
    return Lookalike(SYNC, name, *programs, harm, effect, **options)


MICRO_BATCHES: list[Entry] = [
    sync_twin("three batches", 6, of(accumulated), is_quick=True),
    sync_twin("with AdamW", 6, of(accumulated, optimizer=adamw)),
    sync_twin("parameters stay gathered", 6, of(accumulated, stays_gathered=True)),
    sync_twin("frozen base", 2, of(accumulated, frozen=2)),
    sync_twin("HSDP, replicated", 6, of(accumulated), shape=(2, 1), **HSDP),
    sync_twin("HSDP, sharded", 12, of(accumulated), shape=(1, 2), **HSDP),
    sync_twin(
        "HSDP, parameters stay gathered", 12, of(accumulated, stays_gathered=True), shape=(1, 2), **HSDP
    ),
    sync_twin("bfloat16, reduced in float32", 6, of(accumulated, mp_policy=BF16)),
    sync_twin("bfloat16, reduced in bfloat16", 2, of(accumulated_ones)),
    sync_twin("loss in chunks", 3, of(chunked_loss)),
    sync_twin("replicas", 4, of(replicated_model)),
    sync_twin("adversaries", 4, of(adversaries)),
    sync_lookalike(
        "epochs",
        Harm.OTHER_RESULTS,
        "the first update is lost",
        of(epochs),
        is_quick=True,
    ),
    sync_lookalike(
        "actor and critic", Harm.OTHER_RESULTS, "the actor is never trained", of(actor_and_critic)
    ),
    sync_lookalike("LBFGS", Harm.OTHER_RESULTS, "gradients of two of three calls are lost", of(lbfgs)),
    sync_lookalike("closures", Harm.OTHER_RESULTS, "the first update is lost", of(closures)),
    sync_lookalike(
        "norm of each pass", Harm.RAISES, "there is no gradient", of(norm_of_each_pass), error="NoneType"
    ),
    sync_lookalike(
        "gradients of each task",
        Harm.RAISES,
        "there is no gradient of the first task",
        of(gradients_of_each_task),
        error="NoneType",
    ),
    sync_lookalike(
        "clipped after each pass",
        Harm.OTHER_RESULTS,
        "the first gradients are not clipped",
        of(clipped_each_pass),
    ),
    sync_lookalike(
        "scaled by hooks",
        Harm.OTHER_RESULTS,
        "the first gradients are not scaled",
        of(scaled_by_hooks),
    ),
    sync_twin("trunk of two heads", 1, of(two_losses_of_two_heads)),
]


# Parameters that are gathered again


def in_batches(mesh: DeviceMesh, stays_gathered: bool, **options: Any) -> Step:
    return accumulated(mesh, last_only=True, stays_gathered=stays_gathered, **options)


def whole_model(mesh: DeviceMesh, stays_gathered: bool) -> Step:
    """Accumulate gradients of one group, which is the whole model."""
    model, inputs = fully_shard()(linears(2), mesh=mesh), batches()

    def step() -> object:
        for number, x in enumerate(inputs):
            is_last = number == len(inputs) - 1
            model.set_requires_gradient_sync(is_last)
            model.set_reshard_after_backward(is_last or not stays_gathered)
            model(x).square().mean().backward()
        return gradients(model)

    return step


def adversary(mesh: DeviceMesh, stays_gathered: bool) -> Step:
    """Train a critic on two batches, and a generator in one pass, through the critic with its new weights."""
    generator = groups(linears(2), mesh)
    critic = groups(linears(2), mesh, reshard_after_forward=not stays_gathered)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, critic)]
    noise, real = batches(2)

    def step() -> object:
        generated = generator(noise)
        for number, x in enumerate((real, generated.detach())):
            critic.set_requires_gradient_sync(number == 1)
            critic.set_reshard_after_backward(number == 1 or not stays_gathered)
            critic(x).square().mean().backward()
        optimizers[1].step()
        critic(generated).mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return copies(generator), copies(critic)

    return step


def decoded(mesh: DeviceMesh, stays_gathered: bool, calls: int = 4) -> Step:
    """Call a model for each token, without gradients."""
    model = groups(linears(), mesh)
    [first] = batches(1)

    @torch.no_grad()
    def step() -> object:
        x = first
        if stays_gathered:
            for layer in model:
                layer.set_reshard_after_forward(False)
                layer.unshard()
        for _ in range(calls):
            x = model(x)
        if stays_gathered:
            for layer in model:
                layer.reshard()
        return x

    return step


def distilled(mesh: DeviceMesh, stays_gathered: bool) -> Step:
    """Call a frozen teacher in each micro-batch of a student; the teacher's weights follow the student's."""
    student = groups(linears(2), mesh, reshard_after_forward=False)
    teacher = groups(linears(2), mesh)
    teacher.requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    inputs = batches()

    def step() -> object:
        if stays_gathered:
            for layer in teacher:
                layer.set_reshard_after_forward(False)
        for number, x in enumerate(inputs):
            is_last = number == len(inputs) - 1
            student.set_requires_gradient_sync(is_last)
            student.set_reshard_after_backward(is_last)
            with torch.no_grad():
                target = teacher(x)
            (student(x) - target).square().mean().backward()
        if stays_gathered:
            for layer in teacher:
                layer.reshard()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        return copies(teacher)

    return step


def evaluated_with_means(mesh: DeviceMesh, stays_gathered: bool) -> Step:
    """Evaluate a model with its weights, and again with averages of them, which are copied into it."""
    model = groups(linears(), mesh)
    means = [each.detach() * 0.5 for each in model.parameters()]
    [x] = batches(1)

    @torch.no_grad()
    def step() -> object:
        results = []
        for weights in ([each.clone() for each in model.parameters()], means):
            for weight, value in zip(model.parameters(), weights, strict=True):
                weight.copy_(value)
            if stays_gathered:
                for layer in model:
                    layer.set_reshard_after_forward(False)
            results.append(model(x))
        return results

    return step


def one_pass(mesh: DeviceMesh, stays_gathered: bool) -> Step:
    """Step the optimizer after the only pass."""
    model = groups(linears(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    [x] = batches(1)

    def step() -> object:
        model.set_reshard_after_backward(not stays_gathered)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def unsharded(
    program: Callable[..., Step], **options: Any
) -> tuple[Callable[..., Step], Callable[..., Step]]:
    """Return a program that gathers parameters again, and one that does not reshard them in between."""
    return partial(program, stays_gathered=False, **options), partial(program, stays_gathered=True, **options)


GATHERED = "kept gathered"


def gathered_twin(name: str, saves: int, programs: tuple[Program, Program], **options: Any) -> Twin:
    return Twin(GATHERED, name, *programs, "collectives", saves, **options)


def gathered_lookalike(
    name: str, harm: Harm, effect: str, programs: tuple[Program, Program], **options: Any
) -> Lookalike:
    return Lookalike(GATHERED, name, *programs, harm, effect, **options)


GATHERED_AGAIN: list[Entry] = [
    gathered_twin("three batches", 15, unsharded(in_batches), is_quick=True),
    gathered_twin("frozen base", 12, unsharded(in_batches, frozen=2)),
    gathered_twin("with AdamW", 15, unsharded(in_batches, optimizer=adamw)),
    gathered_twin("HSDP", 15, unsharded(in_batches), shape=(1, 2), **HSDP),
    gathered_twin("adversary", 8, unsharded(adversary), is_quick=True),
    gathered_twin("whole model", 2, unsharded(whole_model)),
    gathered_twin("decode loop", 9, unsharded(decoded), is_quick=True),
    gathered_twin("teacher", 4, unsharded(distilled)),
    gathered_lookalike(
        "epochs",
        Harm.OTHER_RESULTS,
        "the second pass uses the weights before the first update",
        unsharded(epochs),
    ),
    gathered_lookalike(
        "evaluation with means",
        Harm.RAISES,
        "weights cannot be copied into parameters that stay gathered",
        unsharded(evaluated_with_means),
        error="mixed torch.Tensor and DTensor",
    ),
    gathered_lookalike("one pass", Harm.OTHER_RESULTS, "the loss never falls", unsharded(one_pass)),
    gathered_lookalike(
        "replicas",
        Harm.SAVES_NOTHING,
        "nothing is gathered",
        unsharded(replicated_model, last_only=True),
        counted="collectives",
    ),
    gathered_lookalike(
        "one call",
        Harm.SAVES_NOTHING,
        "each group is gathered once with and without the change",
        unsharded(decoded, calls=1),
        counted="collectives",
    ),
]


# Groups that are gathered for each call


def chunked_head(mesh: DeviceMesh, is_group: bool) -> Step:
    """Call a head for each chunk, in the forward of a model that has a group of its own."""
    model: Any = Chunked()
    groups(model, mesh, (model.body, model.head)[: 1 + is_group])
    [x] = batches(1, rows=8)

    def step() -> object:
        model(x).backward()
        return gradients(model)

    return step


class Looped(nn.Module):
    """A block that is applied several times, as in a universal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(3):
            x = self.block(x)
        return x


def looped(mesh: DeviceMesh, is_group: bool, is_first_group: bool = False) -> Step:
    model: Any = Looped()
    groups(model, mesh, [model.first] * is_first_group + [model.block] * is_group)
    [x] = batches(1)

    def step() -> object:
        model(x).square().mean().backward()
        return gradients(model)

    return step


def whole_model_in_batches(mesh: DeviceMesh, is_group: bool) -> Step:
    """Call a model of one group for each micro-batch."""
    model: Any = linears(2)
    if is_group:
        fully_shard()(model, mesh=mesh)
    else:
        for each in model.parameters():
            dist.broadcast(each.detach(), 0)
    inputs = batches()

    def step() -> object:
        for x in inputs:
            model(x).square().mean().backward()
        return gradients(model)

    return step


def blocks_in_turn(mesh: DeviceMesh, is_group: bool) -> Step:
    """Call two models in turn; neither calls the other."""
    first, second = linears(1), linears(1)
    for model in (first, second)[: 1 + is_group]:
        fully_shard()(model, mesh=mesh)
    inputs = batches(2)

    def step() -> object:
        for x in inputs:
            second(first(x)).square().mean().backward()
        return gradients(first), gradients(second)

    return step


def chunked_passes(mesh: DeviceMesh, is_group: bool) -> Step:
    """Run backward for each chunk of a loss; no module calls the head."""
    model: Any = Chunked()
    for module in (model.body, model.head)[: 1 + is_group]:
        fully_shard()(module, mesh=mesh)
    [x] = batches(1, rows=8)

    def step() -> object:
        hidden = model.body(x)
        leaf = hidden.detach().requires_grad_()
        for chunk in leaf.chunk(4):
            model.head(chunk).square().mean().backward()
        hidden.backward(leaf.grad)
        return gradients(model.body), gradients(model.head)

    return step


def grouped(program: Callable[..., Step], **options: Any) -> tuple[Callable[..., Step], Callable[..., Step]]:
    return partial(program, is_group=True, **options), partial(program, is_group=False, **options)


REPEATED_GATHERS: list[Entry] = [
    Twin("repeated gathers", "head in chunks", *grouped(chunked_head), "all_gather", 8, is_quick=True),
    Twin("repeated gathers", "block in a loop", *grouped(looped), "all_gather", 6),
    Twin("repeated gathers", "loop of one group", *grouped(looped, is_first_group=True), "all_gather", 5),
    Lookalike(
        "repeated gathers",
        "whole model in micro-batches",
        *grouped(whole_model_in_batches),
        Harm.OTHER_RESULTS,
        "no rank has the gradients of the other",
    ),
    Lookalike(
        "repeated gathers",
        "models in turn",
        *grouped(blocks_in_turn),
        Harm.OTHER_RESULTS,
        "no rank has the gradients of the other",
    ),
    Lookalike(
        "repeated gathers",
        "backward of each chunk",
        *grouped(chunked_passes),
        Harm.OTHER_RESULTS,
        "no rank has the gradients of the head on the other",
    ),
]


# Small groups


def by_list(model: Any, mesh: DeviceMesh, of_each: int, **options: Any) -> Any:
    """Make one group of several layers."""
    layers = [*model]
    for first in range(0, len(layers), of_each):
        fully_shard()(layers[first : first + of_each], mesh=mesh, **options)
    fully_shard()(model, mesh=mesh)
    return model


class Cast(nn.Linear):
    """A layer with a dtype of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


def many_layers(
    mesh: DeviceMesh,
    of_each: int,
    layers: int = 8,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
) -> Step:
    model = nn.Sequential(*(Cast(dtypes[number % len(dtypes)]) for number in range(layers)))
    by_list(model, mesh, of_each) if of_each > 1 else groups(model, mesh)
    stepped = optimizer(model.parameters()) if optimizer else None
    [x] = batches(1)

    def step() -> object:
        model(x).float().square().mean().backward()
        if stepped is None:
            return gradients(model)
        stepped.step()
        stepped.zero_grad()
        return copies(model)

    return step


def policies(mesh: DeviceMesh, of_each: int) -> Step:
    """Compute every second layer in bfloat16."""
    model = linears(8)
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    if of_each > 1:
        by_list(model, mesh, of_each, mp_policy=narrow)
    else:
        for number, layer in enumerate(model):
            options: dict[str, Any] = {"mp_policy": narrow} if number % 2 else {}
            fully_shard()(layer, mesh=mesh, **options)
        fully_shard()(model, mesh=mesh)
    [x] = batches(1)

    def step() -> object:
        model(x).square().mean().backward()
        return gradients(model)

    return step


def ensemble(mesh: DeviceMesh, of_each: int) -> Step:
    """Train models one after another, each with a backward of its own."""
    models = [linears(1, WIDTH) for _ in range(8)]
    for model in models if of_each == 1 else ():
        fully_shard()(model, mesh=mesh)
    if of_each > 1:
        fully_shard()(models, mesh=mesh)
    [x] = batches(1)

    def step() -> object:
        found = []
        for model in models:
            model(x).square().mean().backward()
            found.append(gradients(model))
        return found

    return step


class Towers(nn.Module):
    """Two stacks of layers; a call runs one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(linears(4) for _ in range(2))

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        result: torch.Tensor = self.towers[number](x)
        return result


def towers(mesh: DeviceMesh, of_each: int) -> Step:
    """Run a backward for each tower."""
    model: Any = Towers()
    layers = [layer for tower in model.towers for layer in tower]
    for first in range(0, 8, of_each):
        fully_shard()(layers[first : first + of_each] if of_each > 1 else layers[first], mesh=mesh)
    fully_shard()(model, mesh=mesh)
    [x] = batches(1)

    def step() -> object:
        for number in range(2):
            model(x, number).square().mean().backward()
        return gradients(model)

    return step


def listed(
    program: Callable[..., Step], of_each: int, **options: Any
) -> tuple[Callable[..., Step], Callable[..., Step]]:
    return partial(program, of_each=1, **options), partial(program, of_each=of_each, **options)


SMALL_GROUPS: list[Entry] = [
    Twin("small groups", "eight layers", *listed(many_layers, 8), "collectives", 21),
    Twin("small groups", "twelve layers", *listed(many_layers, 12, layers=12), "collectives", 33),
    Twin("small groups", "with AdamW", *listed(many_layers, 8, optimizer=adamw), "collectives", 21),
    Lookalike(
        "small groups",
        "two dtypes",
        *listed(many_layers, 8, dtypes=(torch.float32, torch.bfloat16)),
        Harm.RAISES,
        "one group has one dtype",
        error="uniform original parameter dtype",
    ),
    Lookalike(
        "small groups",
        "policies",
        *listed(policies, 8),
        Harm.OTHER_RESULTS,
        "one group has one policy",
    ),
    Lookalike(
        "small groups",
        "ensemble",
        *listed(ensemble, 8),
        Harm.RAISES,
        "one group has one root module",
        error="FSDP requires a single root module",
    ),
    Twin("small groups", "towers", *listed(towers, 8), "collectives", 21, is_at_most=True),
]
TABLE: list[Entry] = [*MICRO_BATCHES, *GATHERED_AGAIN, *REPEATED_GATHERS, *SMALL_GROUPS]
