"""Repeat an op, or a whole callable, without changing the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.measuring.contents import (
    CHANGED_LAYOUT,
    Copy,
    NoCopyError,
    is_freed,
    layout_of,
    why_no_copy,
)
from pytest_dtdispatch.measuring.masks import Masks
from pytest_dtdispatch.torchapi.generators import cuda_generator, random_tracker_states
from pytest_dtdispatch.torchapi.op_schemas import arguments_of, is_op, leaves_of, returns_nothing, tree_leaves
from pytest_dtdispatch.torchapi.tensor_state import set_spec, spec_of


class OpCall(NamedTuple):
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
        return leaves_of(self.args, self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """Tensors that the op's schema says it writes to."""
        arguments = arguments_of(self.func, self.args, self.kwargs)
        values = [argument.value for argument in arguments if argument.is_written]
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]

    def once_because(self) -> str | None:
        """Say why the call cannot be repeated, judged by its schema and tags; nothing where it can."""
        if not is_op(self.func):
            return "a higher-order operator runs once"
        if torch.Tag.inplace_view in self.func.tags:
            return "runs once: it changes a tensor's shape in place"
        if returns_nothing(self.func) and not self.written():
            return "runs once: its effect is outside its tensors"
        return None


class WrittenTensors:
    """Contents of the tensors that one op writes to, as the program's call left them.

    One copy is held, and taken after the call: each repetition starts from what the program's call left
    behind, as dispatch does not depend on what tensors hold.
    """

    def __init__(self) -> None:
        self._why_once = ""
        self._layouts: dict[int, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        self._copies: list[Copy] = []

    def __bool__(self) -> bool:
        return bool(self._copies)

    def note(self, tensor: torch.Tensor) -> None:
        """Note how a tensor lies in memory, before it is written to."""
        self._why_once = self._why_once or why_no_copy(tensor)
        if not self._why_once:
            self._layouts[id(tensor)] = (tensor, layout_of(tensor))

    def settle(self) -> str:
        """Copy what the program's call left behind; say why the call cannot be repeated, where it cannot."""
        if self._why_once:
            return self._why_once
        for tensor, layout in self._layouts.values():
            if is_freed(tensor):
                continue
            if layout_of(tensor) != layout:
                return CHANGED_LAYOUT
            try:
                self._copies.append(Copy(tensor))
            except NoCopyError as error:
                return str(error)
        return ""

    def rewind(self) -> None:
        """Put contents back to what the program's call left behind."""
        for copy in self._copies:
            copy.put_back()


class Specs:
    """What says where DTensors live, as the program's call left it."""

    def __init__(self) -> None:
        self._specs: list[tuple[DTensor, Any]] = []

    def note(self, tensor: Any) -> None:
        """Note what says where a tensor lives, if it is a DTensor."""
        if isinstance(tensor, DTensor):
            self._specs.append((tensor, spec_of(tensor)))

    def restore(self) -> None:
        """Put it back."""
        for tensor, spec in self._specs:
            set_spec(tensor, spec)


class RandomState:
    """Every state that random ops advance: of devices, of given generators, of DTensor's tracker."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._generators: dict[int, torch.Generator] = {}
        self._before = {f"tracker {name}": s.clone() for name, s in random_tracker_states().items()}
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
        tracked = random_tracker_states()
        states.update({f"tracker {name}": state.clone() for name, state in tracked.items()})
        return states

    def _write(self, states: dict[str, torch.Tensor]) -> None:
        for key, generator in self._generators.items():
            generator.set_state(states[f"generator {key}"])
        tracked = random_tracker_states()
        for name in tracked:
            if (state := states.get(f"tracker {name}")) is not None:
                tracked[name] = state.clone()


class OpReplay:
    """What a program could notice of an op that is made again: noted before, put back after."""

    def __init__(self, call: OpCall) -> None:
        self._leaves = call.leaves()
        self._tensors = WrittenTensors()
        self._specs = Specs()
        self._random = RandomState(self._leaves)
        self._masks = Masks()
        for tensor in call.written():
            self._tensors.note(tensor)

    @property
    def rewinds(self) -> bool:
        """Whether anything must be put back before each repetition; random states need not be."""
        return bool(self._tensors) or bool(self._masks)

    def watching(self) -> AbstractContextManager[None]:
        """Note what the program's call changes beside its arguments."""
        return self._masks.watching()

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        for leaf in self._leaves:
            self._specs.note(leaf)
        self._random.settle()
        self._masks.settle()
        return self._tensors.settle()

    def repeating(self) -> AbstractContextManager[None]:
        """Note what repetitions change."""
        return self._masks.watching_repetitions()

    def rewind(self) -> None:
        """Put back what a repetition must find; no plan of propagation depends on a random draw."""
        self._masks.rewind()
        self._tensors.rewind()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        in_turn(self._masks.restore, self._random.restore, self._tensors.rewind, self._specs.restore)


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
