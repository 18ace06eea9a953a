"""What a whole callable changes: saved as each write comes by, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from pytest_dtdispatch.measuring.contents import (
    CHANGED_LAYOUT,
    Copy,
    NoCopyError,
    is_freed,
    layout_of,
    why_no_copy,
)
from pytest_dtdispatch.measuring.masks import Masks
from pytest_dtdispatch.measuring.optimizers import OptimizerStates
from pytest_dtdispatch.measuring.replay import RandomState, Specs, in_turn
from pytest_dtdispatch.torchapi.tensor_state import place_in_memory, set_versions, storages_of, version_of


class Versions:
    """How often tensors were written to, as autograd counts: a repetition must not add to it."""

    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._before: list[int] = []
        self._after: list[int] = []

    def save(self, tensor: torch.Tensor) -> None:
        """Save the versions of a tensor, and of what holds its contents, before it is written to."""
        for each in (tensor, *storages_of(tensor)):
            version = version_of(each)
            if version is not None and id(each) not in self._tensors:
                self._tensors[id(each)] = each
                self._before.append(version)

    def settle(self) -> None:
        """Note the versions that the program's call left behind; those that are saved later count as such."""
        self._after = [version_of(each) or 0 for each in self._tensors.values()]

    def rewind(self) -> None:
        """Put versions back to what they were before the call."""
        self._set(self._before)

    def restore(self) -> None:
        """Put versions back to what the program's call left behind."""
        later = self._before[len(self._after) :]
        self._set([*self._after, *later])

    def _set(self, versions: list[int]) -> None:
        """Set versions, the first saved last: a view that was saved later has the version of its base."""
        if versions:
            set_versions(list(self._tensors.values())[::-1], versions[::-1])


class SavedTensors:
    """Contents of every tensor that a callable writes to: before the program's own call, and after it.

    A tensor that the callable made in its first call and kept, as an optimizer keeps its moments, is saved
    when the first repetition is about to write to it: as the program's call left it.
    """

    def __init__(self) -> None:
        self.why_once = ""
        self._places: set[Any] = set()
        self._saved: list[tuple[torch.Tensor, Copy, tuple[Any, ...]]] = []
        self._kept: list[Copy] = []
        self._before: list[Copy] = []
        self._after: list[Copy] = []
        self._specs = Specs()
        self._versions = Versions()

    def save(self, tensor: torch.Tensor) -> None:
        """Save what a tensor holds, before the program's call writes to it."""
        self.why_once = self.why_once or why_no_copy(tensor)
        if self.why_once:
            self._saved.clear()  # nothing will be put back: give the memory free
            return
        self._versions.save(tensor)
        if not self._is_new(tensor):
            return
        try:
            self._saved.append((tensor, Copy(tensor), layout_of(tensor)))
        except NoCopyError as error:
            self.why_once = str(error)
            self._saved.clear()

    def save_kept(self, tensor: torch.Tensor) -> None:
        """Save what the program's call left in a tensor, before the first repetition writes to it."""
        if why_not := why_no_copy(tensor):
            raise NoCopyError(why_not)
        self._versions.save(tensor)
        if self._is_new(tensor):
            self._kept.append(Copy(tensor))
            self._specs.note(tensor)

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        if self.why_once:
            return self.why_once
        for tensor, before, layout in self._saved:
            if is_freed(tensor):
                continue
            if layout_of(tensor) != layout:
                return CHANGED_LAYOUT
            try:
                self._after.append(Copy(tensor))
            except NoCopyError as error:
                return str(error)
            self._before.append(before)
            self._specs.note(tensor)
        # The last saved goes first: a tensor may have been saved after a view of it was written to.
        self._before.reverse()
        self._saved.clear()
        self._versions.settle()
        return ""

    def rewind(self) -> None:
        """Put contents back to what they were before the call."""
        for copy in self._kept:
            copy.put_back()
        for copy in self._before:
            copy.put_back()
        self._versions.rewind()

    def restore(self) -> None:
        """Put everything back to what the program's call left behind."""
        in_turn(
            *(copy.put_back for copy in (*self._kept, *self._after)),
            self._versions.restore,
            self._specs.restore,
        )

    def _is_new(self, tensor: torch.Tensor) -> bool:
        places = {place_in_memory(plain) for plain in storages_of(tensor)}
        is_new = not places <= self._places
        self._places |= places
        return is_new


class Gradients:
    """The ``grad`` of every leaf that takes part: which tensor it was before the call, and which after.

    What the tensors hold is saved as each of them is written to. A tensor that retains its gradient is
    treated as a leaf, where an op of the call takes it.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._after: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._visited: dict[int, Any] = {}

    def note_leaves_behind(self, tensor: torch.Tensor) -> None:
        """Walk the autograd graph from a tensor to leaves not met before, and note their gradients."""
        if not tensor.requires_grad:
            return
        if tensor.is_leaf or tensor.retains_grad:
            self._note(tensor)
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or id(node) in self._visited:
                continue
            self._visited[id(node)] = node  # held, so that no other node takes its id
            if hasattr(node, "variable"):
                self._note(node.variable)
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

    def _note(self, leaf: torch.Tensor) -> None:
        if id(leaf) not in self._before:
            self._before[id(leaf)] = (leaf, leaf.grad)


class CallReplay:
    """What a program could notice of a callable that is called again: saved before, put back after.

    Example:
        >>> replay = CallReplay(leaves=[])
        >>> replay.settle()
        ''
        >>> replay.rewind()
        >>> replay.restore()
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.tensors = SavedTensors()
        self.gradients = Gradients()
        self.random = RandomState(leaves)
        self._masks = Masks()
        self._optimizers = OptimizerStates()

    def forget(self) -> None:
        """Hold nothing any more: the call raised, and its traceback, which may live on, must not either."""
        vars(self).clear()

    def watching(self) -> AbstractContextManager[None]:
        """Note what the program's call changes that no op tells of."""
        return self._masks.watching()

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        self.random.settle()
        self.gradients.settle()
        self._masks.settle()
        self._optimizers.settle()
        return self.tensors.settle()

    def repeating(self) -> AbstractContextManager[None]:
        """Note what repetitions change."""
        return self._masks.watching_repetitions()

    def rewind(self) -> None:
        """Put everything back to what it was before the call; what it made itself, to what it left."""
        self._masks.rewind()
        self._optimizers.restore()
        self.tensors.rewind()
        self.gradients.rewind()
        self.random.rewind()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        in_turn(
            self._masks.restore,
            self._optimizers.restore,
            self.tensors.restore,
            self.gradients.restore,
            self.random.restore,
        )
