"""Watch a program: every tensor that it names, its warnings, its random state, and what it leaves alive."""

from __future__ import annotations

import gc
import hashlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.call import OpCall
from pytest_dtdispatch.measuring.capture import DispatchCapture
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.tensors import local_of, random_tracker_states, shards_of_simulated_ranks

Facts = tuple[Any, ...]
KINDS_SHOWN = 4


@dataclass
class Watch:
    """What was seen of one run.

    It holds no tensor of the program: a tensor that is held changes what autograd does with it.

    Args:
        facts: by name, dtype, shape, strides, placements and a digest of every rank's bits.
        alive: by name, tensors that the run made and that were alive then, by type and shape.
        warned: what was warned, and how often.
    """

    facts: dict[str, Facts] = field(default_factory=dict)
    alive: dict[str, Counter[str]] = field(default_factory=dict)
    warned: Counter[str] = field(default_factory=Counter)

    def see(self, name: str, tensor: Any) -> None:
        """Note a tensor; one that is not there is noted as that."""
        self.facts[name] = ("none",) if tensor is None else facts_of(tensor)

    def see_random_state(self, name: str) -> None:
        """Note the state of the CPU's generator, and of DTensor's own."""
        self.see(f"{name}: random state", torch.get_rng_state())
        for key, state in random_tracker_states().items():
            self.see(f"{name}: random state of {key}", state)

    def see_gradients(self, name: str, model: nn.Module) -> None:
        """Note the gradient of every parameter."""
        for parameter_name, parameter in model.named_parameters():
            self.see(f"{name}: gradient of {parameter_name}", parameter.grad)

    def see_parameters(self, name: str, model: nn.Module, optimizer: Optimizer) -> None:
        """Note every parameter, and what the optimizer keeps of it."""
        for parameter_name, parameter in model.named_parameters():
            self.see(f"{name}: parameter {parameter_name}", parameter)
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    self.see(f"{name}: {key} of {parameter_name}", value)

    def count_alive(self, name: str) -> None:
        """Count the tensors of this run that are alive."""
        self.alive[name] = new_tensors_alive()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch a run; garbage is collected before and after, and never inside."""
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        gc.freeze()  # what is there already is not looked at any more
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
            self.count_alive("afterwards")
            self.warned.update(f"{w.category.__name__}: {w.message}" for w in caught)
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()
            gc.collect()


class CountedOps(DispatchCapture):
    """Count the DTensor ops of a program, and repeat none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def on_op(self, call: OpCall) -> Any:
        """Count the call, and make it."""
        self.calls[op_name(call.func)] += 1
        return call.run()


def calls_by_op(book: TestResults) -> Counter[str]:
    """How often a capture says that each op was called."""
    calls: Counter[str] = Counter()
    for measurement in book.measurements():
        if "." in measurement.op:  # else it is a conversion
            calls[measurement.op] += measurement.calls
    return calls


def watched(program: Callable[[Watch], None]) -> Watch:
    """Run a program that names to its watch what is worth comparing."""
    watch = Watch()
    with watch.running():
        program(watch)
    return watch


def differences(ones: Watch, others: Watch) -> list[str]:
    """Say what is not equal in two runs; nothing where they are equal bit for bit."""
    return [
        *_of_facts(ones.facts, others.facts),
        *(
            f"{name}: alive {differences_of_counts(counts, others.alive[name])}"
            for name, counts in ones.alive.items()
            if counts != others.alive[name]
        ),
        *(
            [f"warnings {differences_of_counts(ones.warned, others.warned)}"]
            if ones.warned != others.warned
            else []
        ),
    ]


def _of_facts(ones: dict[str, Facts], others: dict[str, Facts]) -> Iterator[str]:
    for name in ones.keys() | others.keys():
        one, other = ones.get(name, ("not seen",)), others.get(name, ("not seen",))
        if one != other:
            pairs = itertools.zip_longest(one, other)
            yield f"{name}: " + ", ".join(f"{a} became {b}" for a, b in pairs if a != b)


def differences_of_counts(ones: Counter[str], others: Counter[str]) -> str:
    """Say what was counted more often and less often; nothing where the counts are equal."""
    parts = []
    for more, word in ((others - ones, "more"), (ones - others, "fewer")):
        if more:
            kinds = ", ".join(f"{count} {what}" for what, count in more.most_common(KINDS_SHOWN))
            others_too = f" and {len(more) - KINDS_SHOWN} other kinds" if len(more) > KINDS_SHOWN else ""
            parts.append(f"{more.total()} {word} ({kinds}{others_too})")
    return ", ".join(parts)


def facts_of(tensor: torch.Tensor) -> Facts:
    """Describe a tensor so that two descriptions are equal only where every bit and every stride is."""
    placements = tensor.placements if isinstance(tensor, DTensor) else ()
    local = local_of(tensor)
    ranks = shards_of_simulated_ranks(local)
    return (
        str(tensor.dtype),
        f"shape {tuple(tensor.shape)}",
        f"strides {tensor.stride()}",
        f"placements {placements}",
        *(f"local strides {shard.stride()}" for shard in ranks),
        *(f"bits {_digest(shard)}" for shard in ranks),
    )


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()


def new_tensors_alive() -> Counter[str]:
    """Count every tensor that Python knows and that was not frozen, by type and shape."""
    return Counter(
        f"{type(thing).__name__}{tuple(thing.shape)}"
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor)
    )
