"""Repeat an op, or a whole callable, without changing the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.measuring import torchapi


@dataclass(frozen=True)
class OpCall:
    """An op with the arguments that a program called it with."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Make the call."""
        __tracebackhide__ = True
        return self.func(*self.args, **self.kwargs)

    def leaves(self) -> list[Any]:
        """Every argument, lists of tensors flattened."""
        leaves: list[Any] = torchapi.tree_leaves((self.args, self.kwargs))
        return leaves

    def written(self) -> list[torch.Tensor]:
        """Tensors that the op's schema says it writes to."""
        arguments = torchapi.arguments_of(self.func, self.args, self.kwargs)
        values = [argument.value for argument in arguments if argument.is_written]
        return [leaf for leaf in torchapi.tree_leaves(values) if isinstance(leaf, torch.Tensor)]

    def once_because(self) -> str | None:
        """Say why the call cannot be repeated, judged by its schema and tags; nothing where it can."""
        if not torchapi.is_op(self.func):
            return "a higher-order operator runs once"
        if torch.Tag.inplace_view in self.func.tags:
            return "runs once: it changes a tensor's shape in place"
        if torchapi.returns_nothing(self.func) and not self.written():
            return "runs once: its effect is outside its tensors"
        return None


class SavedTensors:
    """Contents of tensors before the program's own call and after it.

    Contents are copied to and from ``tensor.data``, which leaves version counters alone.
    """

    def __init__(self) -> None:
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]] = {}
        # Bound methods: this runs between timed calls, and the less there is of it the better.
        self._rewinds: list[tuple[Callable[[torch.Tensor], object], torch.Tensor]] = []
        self._after: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._rewinds)

    def save(self, tensor: torch.Tensor) -> None:
        """Save what a tensor holds, before it is written to."""
        local = torchapi.local_of(tensor)
        if id(local) not in self._saved:
            self._saved[id(local)] = (tensor, local.data.clone(), _layout(tensor))

    def settle(self) -> str | None:
        """Save what the program's call left behind.

        Returns:
            Why the call cannot be repeated, where it changed more than contents.
        """
        for tensor, before, layout in self._saved.values():
            target = torchapi.local_of(tensor).data
            if target.untyped_storage().nbytes() == 0 and before.numel():
                continue  # freed by the program: nobody can see what it held
            if _layout(tensor) != layout:
                return "runs once: it changed the layout of a tensor that it wrote to"
            self._after.append((target, target.clone()))
            self._rewinds.append((target.copy_, before))
        self._rewinds.reverse()
        return None

    def rewind(self) -> None:
        """Put contents back to what they were before the call.

        The last saved goes first: a tensor may have been saved after a view of it was written to.
        """
        for put, contents in self._rewinds:
            put(contents)

    def restore(self) -> None:
        """Put contents back to what the program's call left behind."""
        for target, contents in self._after:
            target.copy_(contents)


class RandomState:
    """Every state that random ops advance: of devices, of given generators, of DTensor's tracker.

    Args:
        leaves: arguments in which generators and devices are looked for.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._generators: dict[int, torch.Generator] = {}
        self._before = {f"tracker {name}": s.clone() for name, s in torchapi.random_tracker_states().items()}
        self._after = self._before
        self._advanced = False
        self._watch(torch.default_generator)
        self.watch(leaves)

    def watch(self, leaves: Sequence[Any]) -> None:
        """Note the states of generators and devices that were not met before."""
        for leaf in leaves:
            device = leaf if isinstance(leaf, torch.device) else getattr(leaf, "device", None)
            if isinstance(leaf, torch.Generator):
                self._watch(leaf)
            elif isinstance(device, torch.device) and device.type == "cuda":
                self._watch(torchapi.cuda_generator(device))

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
        """Put the states back to what the program's call left behind.

        Always: a callable may draw in a repetition though its first call drew nothing.
        """
        self._write(self._after)

    def _watch(self, generator: torch.Generator) -> None:
        if id(generator) not in self._generators:
            self._generators[id(generator)] = generator
            self._before[f"generator {id(generator)}"] = generator.get_state()

    def _read(self) -> dict[str, torch.Tensor]:
        states = {f"generator {key}": generator.get_state() for key, generator in self._generators.items()}
        tracked = torchapi.random_tracker_states()
        states.update({f"tracker {name}": state.clone() for name, state in tracked.items()})
        return states

    def _write(self, states: dict[str, torch.Tensor]) -> None:
        for key, generator in self._generators.items():
            generator.set_state(states[f"generator {key}"])
        tracked = torchapi.random_tracker_states()
        for name in tracked:
            if (state := states.get(f"tracker {name}")) is not None:
                tracked[name] = state.clone()


class Gradients:
    """The ``grad`` of every leaf that takes part: which tensor it was before the call, and which after.

    A tensor that retains its gradient is treated as a leaf, where an op of the call takes it.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._after: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._visited: dict[int, Any] = {}

    def leaves_behind(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Walk the autograd graph from a tensor to leaves not met before, and note their gradients."""
        if not tensor.requires_grad:
            return
        if tensor.is_leaf or tensor.retains_grad:
            yield from self._meet(tensor)
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or id(node) in self._visited:
                continue
            self._visited[id(node)] = node  # held, so that no other node takes its id
            if hasattr(node, "variable"):
                yield from self._meet(node.variable)
            nodes.extend(parent for parent, _ in node.next_functions)

    def settle(self) -> None:
        """Note the gradients that the program's call left behind."""
        self._visited.clear()
        self._after = [(leaf, leaf.grad) for leaf, _ in self._before.values()]

    def rewind(self) -> None:
        """Give every leaf the gradient that it had before the call."""
        for leaf, grad in self._before.values():
            leaf.grad = grad

    def restore(self) -> None:
        """Give every leaf the gradient that the program's call left behind."""
        for leaf, grad in self._after:
            leaf.grad = grad

    def _meet(self, leaf: torch.Tensor) -> Iterator[torch.Tensor]:
        if id(leaf) not in self._before:
            self._before[id(leaf)] = (leaf, leaf.grad)
            yield leaf


class Replay:
    """What a program could notice of a call that is made again: saved before, put back after.

    Args:
        leaves: every argument of the call, in which generators and devices are looked for.

    Example:
        >>> replay = Replay(leaves=[])
        >>> with torchapi.without_outer_modes(), replay.repeating():
        ...     replay.rewind()
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.tensors = SavedTensors()
        self.gradients = Gradients()
        self.random = RandomState(leaves)

    def settle(self) -> str | None:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        self.random.settle()
        self.gradients.settle()
        return self.tensors.settle()

    def rewind(self) -> None:
        """Put everything back to what it was before the call."""
        self.tensors.rewind()
        self.gradients.rewind()
        self.random.rewind()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Leave behind, at the end, what the program's own call left behind."""
        try:
            yield
        finally:
            self.tensors.restore()
            self.gradients.restore()
            self.random.restore()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    local = torchapi.local_of(tensor)
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    storage = local.untyped_storage().nbytes()
    return tensor.shape, placements, local.shape, local.stride(), local.storage_offset(), storage
