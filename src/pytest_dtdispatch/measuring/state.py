"""What a call changes beside what tensors hold: noted before it and after, and put back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pytest_dtdispatch.torchapi.tensor_state import (
    cuda_generator,
    mask_hook,
    mask_of,
    random_tracker_states,
    set_mask,
    set_spec,
    set_versions,
    spec_of,
    storages_of,
    version_of,
)


class Noted:
    """Something of several objects, as it was, and as the program's call left it."""

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, Any], None]) -> None:
        self._read = read
        self._write = write
        self._before: dict[int, tuple[Any, Any]] = {}
        self._after: list[tuple[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def note(self, owner: Any) -> None:
        """Note it of an object that was not met before."""
        if id(owner) not in self._before:
            self._before[id(owner)] = (owner, self._read(owner))

    def settle(self) -> None:
        """Note what the program's call left behind."""
        self._after = [(owner, self._read(owner)) for owner, _ in self._before.values()]

    def rewind(self) -> None:
        """Put it back to what it was when it was noted."""
        for owner, value in reversed(self._before.values()):  # a later view has the version of its base
            self._write(owner, value)

    def restore(self) -> None:
        """Put it back to what the program's call left behind, of objects met later to what it was then."""
        self.rewind()
        for owner, value in reversed(self._after):
            self._write(owner, value)


class Specs(Noted):
    """What says where DTensors live."""

    def __init__(self) -> None:
        super().__init__(spec_of, set_spec)

    def note(self, owner: Any) -> None:
        """Note what says where a tensor lives, if it is a DTensor."""
        if isinstance(owner, DTensor):
            super().note(owner)


class Masks(Noted):
    """Masks that cached plans keep, which the program's call may change and no op tells of."""

    def __init__(self) -> None:
        super().__init__(mask_of, set_mask)

    def watching(self) -> AbstractContextManager[None]:
        """Note every mask that is about to change."""
        return mask_hook.telling(self.note)

    def repeating(self) -> AbstractContextManager[None]:
        """Note the masks of new plans too, where the call itself changed one; else cost nothing."""
        return self.watching() if self else nullcontext()


class Versions(Noted):
    """How often tensors were written to, as autograd counts: a repetition must not add to it."""

    def __init__(self) -> None:
        super().__init__(version_of, lambda tensor, version: set_versions([tensor], [version]))

    def note(self, owner: torch.Tensor) -> None:
        """Note the versions of a tensor, and of what holds its contents, before it is written to."""
        for each in (owner, *storages_of(owner)):
            if version_of(each) is not None:
                super().note(each)


class RandomState:
    """Every state that random ops advance: of devices, of given generators, of DTensor's tracker."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._generators: dict[int, torch.Generator] = {}
        self._before = self._after = self._read()
        self._advanced = False
        self.watch((torch.default_generator, *leaves))

    def watch(self, leaves: Sequence[Any]) -> None:
        """Note the states of generators and devices that were not met before."""
        for leaf in leaves:
            device = leaf if isinstance(leaf, torch.device) else getattr(leaf, "device", None)
            if isinstance(leaf, torch.Generator):
                self._watch(leaf)
            elif isinstance(device, torch.device) and device.type == "cuda":
                self._watch(cuda_generator(device))

    def settle(self) -> None:
        """Note the states that the program's call left behind."""
        self._after = self._read()
        self._advanced = self._before.keys() != self._after.keys() or any(
            not torch.equal(before, self._after[name]) for name, before in self._before.items()
        )

    def rewind(self) -> None:
        """Put the states back to what they were before the call."""
        if self._advanced:
            self._write(self._before)

    def restore(self) -> None:
        """Put the states back to what the program's call left behind."""
        self._write(self._after)  # also where it drew nothing: a repetition may

    def _watch(self, generator: torch.Generator) -> None:
        if id(generator) not in self._generators:
            self._generators[id(generator)] = generator
            self._before[f"generator {id(generator)}"] = generator.get_state()

    def _read(self) -> dict[str, torch.Tensor]:
        states = {f"generator {key}": generator.get_state() for key, generator in self._generators.items()}
        return states | {f"tracker {name}": state.clone() for name, state in random_tracker_states().items()}

    def _write(self, states: dict[str, torch.Tensor]) -> None:
        for key, generator in self._generators.items():
            generator.set_state(states[f"generator {key}"])
        tracked = random_tracker_states()
        for name in tracked:
            if (state := states.get(f"tracker {name}")) is not None:
                tracked[name] = state.clone()


class Gradients(Noted):
    """The ``grad`` of every leaf that takes part: which tensor it was before the call, and which after.

    What the tensors hold is saved as each of them is written to. A tensor that retains its gradient is
    treated as a leaf, where an op of the call takes it.
    """

    def __init__(self) -> None:
        super().__init__(attrgetter("grad"), lambda leaf, grad: setattr(leaf, "grad", grad))
        self._visited: dict[int, Any] = {}

    def note_leaves_behind(self, tensor: torch.Tensor) -> None:
        """Walk the autograd graph from a tensor to leaves not met before, and note their gradients."""
        if not tensor.requires_grad:
            return
        if tensor.is_leaf or tensor.retains_grad:
            self.note(tensor)
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or id(node) in self._visited:
                continue
            self._visited[id(node)] = node  # held, so that no other node takes its id
            if hasattr(node, "variable"):
                self.note(node.variable)
            nodes.extend(parent for parent, _ in node.next_functions)

    def settle(self) -> None:
        """Note the gradients that the program's call left behind."""
        self._visited.clear()
        super().settle()


class OptimizerStates(Noted):
    """Entries of every live optimizer's state, as the program's call left them.

    Tensors among the entries are the same objects after; what they hold is put back as that of any tensor.
    """

    def __init__(self) -> None:
        super().__init__(dict, dict.update)

    def settle(self) -> None:
        """Note the entries of every optimizer that is alive."""
        optimizers = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]
        for state in (state for optimizer in optimizers for state in optimizer.state.values()):
            if isinstance(state, dict):
                self.note(state)


def in_turn(*put_back: Callable[[], object]) -> None:
    """Call each, whatever another raises; then raise the first error, if there was one."""
    errors = []
    for each in put_back:
        try:
            each()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
