"""Observe a program: named tensors, warnings, random state and live tensors."""

from __future__ import annotations

import gc
import hashlib
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

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import DispatchCapture
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.tensors import local_of, random_tracker_states, shards_of_simulated_ranks


@dataclass
class Watch:
    """Observations of one run, by name.

    It holds no tensors of the program, because a reference influences autograd. It records dtype, shape,
    strides, placements and a digest of every rank's bits, counts live tensors created by the run by type and
    shape, and records warnings.
    """

    facts: dict[str, Any] = field(default_factory=dict)

    def see(self, name: str, tensor: Any) -> None:
        """Record a tensor, or its absence."""
        self.facts[name] = None if tensor is None else facts_of(tensor)

    def see_random_state(self, name: str) -> None:
        """Record the states of the CPU's generator and of DTensor's."""
        for key, state in {"the CPU": torch.get_rng_state(), **random_tracker_states()}.items():
            self.see(f"{name}: random state of {key}", state)

    def see_gradients(self, name: str, model: nn.Module) -> None:
        """Record the gradient of every parameter."""
        for parameter_name, parameter in model.named_parameters():
            self.see(f"{name}: gradient of {parameter_name}", parameter.grad)

    def see_parameters(self, name: str, model: nn.Module, optimizer: Optimizer) -> None:
        """Record every parameter and its optimizer state."""
        for parameter_name, parameter in model.named_parameters():
            self.see(f"{name}: parameter {parameter_name}", parameter)
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    self.see(f"{name}: {key} of {parameter_name}", value)

    def count_alive(self, name: str) -> None:
        """Count all tensors tracked by the garbage collector and not frozen."""
        self.facts[f"{name}: alive"] = Counter(
            f"{type(thing).__name__}{tuple(thing.shape)}"
            for thing in gc.get_objects()
            if issubclass(type(thing), torch.Tensor)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Observe a run; garbage is collected before and after, but not during it."""
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        gc.freeze()  # excludes existing objects
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
            self.count_alive("afterwards")
            self.facts["warned"] = Counter(f"{w.category.__name__}: {w.message}" for w in caught)
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()
            gc.collect()


class CountedOps(DispatchCapture):
    """Counts the DTensor ops of a program, without repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def on_op(self, call: OpCall) -> Any:
        """Count the call, and run it."""
        self.calls[op_name(call.func)] += 1
        return call.run()


def calls_by_op(book: ResultStore) -> Counter[str]:
    """Return the number of calls of each op in a capture."""
    calls: Counter[str] = Counter()
    for measurement in book.measurements():
        if "." in measurement.op:  # otherwise a conversion
            calls[measurement.op] += measurement.calls
    return calls


def watched(program: Callable[[Watch], None]) -> Watch:
    """Run a program that passes the tensors to compare to its watch."""
    watch = Watch()
    with watch.running():
        program(watch)
    return watch


def differences(ones: Watch, others: Watch) -> list[str]:
    """Describe the differences of two runs; empty if they are bitwise equal."""
    return [
        f"{name}: {ones.facts.get(name, 'not seen')} became {others.facts.get(name, 'not seen')}"
        for name in ones.facts.keys() | others.facts.keys()
        if ones.facts.get(name, "not seen") != others.facts.get(name, "not seen")
    ]


def facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describe a tensor; two descriptions are equal only if all bits and strides are."""
    placements = tensor.placements if isinstance(tensor, DTensor) else ()
    shards = shards_of_simulated_ranks(local_of(tensor))
    locals_ = [(shard.stride(), _digest(shard)) for shard in shards]
    return (tensor.dtype, tuple(tensor.shape), tensor.stride(), placements, *locals_)


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()
