"""Repeat a whole callable without changing the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_dtdispatch.measuring.state import (
    Gradients,
    Masks,
    OptimizerStates,
    RandomState,
    Specs,
    Versions,
    in_turn,
)
from pytest_dtdispatch.measuring.storages import (
    Copy,
    Grown,
    NoCopyError,
    Storages,
    copy_in_layout,
    is_freed,
    layout_of,
    put_back_all,
    why_no_copy,
)
from pytest_dtdispatch.torchapi.tensor_state import place_in_memory, storages_of


class CallReplay:
    """What a program could notice of a callable that is called again: saved before, put back after.

    Saved is what every tensor that it writes to holds, before the program's own call and after it. A tensor
    that the callable made in its first call and kept, as an optimizer keeps its moments, is saved when the
    first repetition is about to write to it: as the program's call left it.

    Attributes:
        grown: storages that the program's call left allocated, and that were free before it.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.random = RandomState(leaves)
        self.masks = Masks()
        self.gradients = Gradients()
        self._optimizers = OptimizerStates()
        self._specs = Specs()
        self._versions = Versions()
        self._storages = Storages()
        self.grown = Grown()
        self._why_once = ""
        self._places: set[Any] = set()
        self._saved: list[tuple[torch.Tensor, Copy, tuple[Any, ...]]] = []
        self._kept: list[Copy] = []
        self._before: list[Copy] = []
        self._after: list[Copy] = []

    def save(self, tensor: torch.Tensor) -> None:
        """Save what a tensor holds, before the program's call writes to it."""
        try:
            self._why_once = self._why_once or why_no_copy(tensor)
            if not self._why_once:
                self._versions.note(tensor)
                if self._is_new(tensor):
                    self._saved.append((tensor, Copy(tensor, self._storages.were_other), layout_of(tensor)))
        except NoCopyError as error:
            self._why_once = str(error)
        if self._why_once:
            self._saved.clear()  # nothing will be put back: give the memory free

    def save_kept(self, tensor: torch.Tensor) -> None:
        """Save what the program's call left in a tensor, before the first repetition writes to it."""
        if why_not := why_no_copy(tensor):
            raise NoCopyError(why_not)
        self._versions.note(tensor)
        if self._is_new(tensor):
            self._kept.append(Copy(tensor, self._storages.were_other))
            self._specs.note(tensor)

    def forget(self) -> None:
        """Hold nothing any more: the call raised, and its traceback, which may live on, must not either."""
        vars(self).clear()

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        for state in (self.random, self.gradients, self.masks, self._optimizers):
            state.settle()
        if self._why_once:
            return self._why_once
        try:
            for tensor, before, layout in self._saved:
                if not all(map(is_freed, storages_of(tensor))):
                    self._after.append(copy_in_layout(tensor, layout))
                    self._before.append(before)
                    self._specs.note(tensor)
            if changed := self._storages.changed():
                return f"runs once: it {changed}"
            self.grown = self._storages.grown()
        except NoCopyError as error:
            return str(error)
        # The last saved goes first: a tensor may have been saved after a view of it was written to.
        self._before.reverse()
        self._saved.clear()
        self._versions.settle()
        self._storages = Storages()
        return ""

    def repeated(self) -> str:
        """Note what the first repetition allocated; say why there must be no other, where there must not."""
        self.grown.keep()
        changed = self._storages.changed()
        return changed and f"runs once: its repetition {changed}"

    def settle_again(self) -> str:
        """Note what calls of the program left behind that came later; say why they allow no repetition."""
        for state in (self.random, self.gradients, self.masks, self._versions, self._specs):
            state.settle()
        if changed := self._storages.changed():
            return f"runs once: a later call {changed}"
        try:
            self._after = [Copy(copy.tensor) for copy in (*self._kept, *self._after)]
        except NoCopyError as error:
            return str(error)
        return ""

    def rewind(self) -> None:
        """Put everything back to what it was before the call; what it made itself, to what it left."""
        self.masks.rewind()
        self._optimizers.restore()
        put_back_all((*self._kept, *self._before))
        self.grown.free()
        self._versions.rewind()
        self.gradients.rewind()
        self.random.rewind()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        in_turn(
            self.masks.restore,
            self._optimizers.restore,
            self.grown.put_back,
            *(copy.put_back for copy in (*self._kept, *self._after)),
            self._versions.restore,
            self._specs.restore,
            self.gradients.restore,
            self.random.restore,
        )

    def _is_new(self, tensor: torch.Tensor) -> bool:
        places = {place_in_memory(plain) for plain in storages_of(tensor)}
        is_new = not places <= self._places
        self._places |= places
        return is_new
