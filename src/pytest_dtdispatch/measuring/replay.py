"""Repeat an op, or a whole callable, without changing the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pytest_dtdispatch.measuring.op_call import OpCall
from pytest_dtdispatch.measuring.state import (
    Copy,
    Gradients,
    NoCopyError,
    Noted,
    OptimizerStates,
    RandomState,
    Specs,
    Versions,
    copy_in_layout,
    layout_of,
    why_no_copy,
)
from pytest_dtdispatch.torchapi.tensor_state import mask_hook, mask_of, place_in_memory, set_mask, storages_of


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
        try:
            copies = (copy_in_layout(tensor, layout) for tensor, layout in self._layouts.values())
            self._copies = [copy for copy in copies if copy]
        except NoCopyError as error:
            return str(error)
        return ""

    def rewind(self) -> None:
        """Put contents back to what the program's call left behind."""
        for copy in self._copies:
            copy.put_back()


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
        try:
            for tensor, before, layout in self._saved:
                if after := copy_in_layout(tensor, layout):
                    self._after.append(after)
                    self._before.append(before)
                    self._specs.note(tensor)
        except NoCopyError as error:
            return str(error)
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


class CommonReplay:
    """What repeating an op and repeating a callable have in common: random states, masks of cached plans."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.random = RandomState(leaves)
        self._masks = Noted(mask_of, set_mask)

    def watching(self) -> AbstractContextManager[None]:
        """Note what the program's call changes that no op tells of."""
        return mask_hook.telling(self._masks.note)

    def repeating(self) -> AbstractContextManager[None]:
        """Note the masks of new plans too, where the call itself changed one; else cost nothing."""
        return self.watching() if self._masks else nullcontext()


class OpReplay(CommonReplay):
    """What a program could notice of an op that is made again: noted before, put back after."""

    def __init__(self, call: OpCall) -> None:
        self._leaves = call.leaves()
        super().__init__(self._leaves)
        self._tensors = WrittenTensors()
        self._specs = Specs()
        for tensor in call.written():
            self._tensors.note(tensor)

    @property
    def rewinds(self) -> bool:
        """Whether anything must be put back before each repetition; random states need not be."""
        return bool(self._tensors) or bool(self._masks)

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        for leaf in self._leaves:
            self._specs.note(leaf)
        self.random.settle()
        self._masks.settle()
        return self._tensors.settle()

    def rewind(self) -> None:
        """Put back what a repetition must find; no plan of propagation depends on a random draw."""
        self._masks.rewind()
        self._tensors.rewind()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        in_turn(self._masks.restore, self.random.restore, self._tensors.rewind, self._specs.restore)


class CallReplay(CommonReplay):
    """What a program could notice of a callable that is called again: saved before, put back after."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__(leaves)
        self.tensors = SavedTensors()
        self.gradients = Gradients()
        self._optimizers = OptimizerStates()

    def forget(self) -> None:
        """Hold nothing any more: the call raised, and its traceback, which may live on, must not either."""
        vars(self).clear()

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        self.random.settle()
        self.gradients.settle()
        self._masks.settle()
        self._optimizers.settle()
        return self.tensors.settle()

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
