"""A call of the program, from its first run to repetitions without visible effects on the program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.replay.states import (
    CONTAINERS,
    Gradients,
    RandomState,
    SavedState,
    containers_of,
    refill,
    set_mask,
)
from pytest_dtdispatch.replay.storages import (
    Copy,
    GrownStorages,
    NoCopyError,
    Storages,
    is_freed,
    layout_of,
    refuse_uncopyable,
    restore_all,
)
from pytest_dtdispatch.rounds.plan import Agreement, agreed
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.ops import modes_disabled
from pytest_dtdispatch.torchapi.tensors import (
    memory_key,
    set_spec,
    set_version,
    spec_of,
    storages_of,
    version_of,
)


def agreed_reason(agreement: Agreement | None, reason: str | None) -> str | None:
    """Return why a call cannot be repeated on all ranks; None if it can. Another rank may lack memory."""
    [is_repeated] = agreed(agreement, "the repetition", reason is None)
    return reason or (None if is_repeated else "runs once: another rank cannot repeat it")


class Replay:
    """State before and after a call of the program, which repetitions restore.

    Tensors that an op or a conversion writes to are copied only after the call, and each repetition starts
    from these contents, as dispatch does not depend on them. Tensors that a whole callable writes to are
    copied before and after the call.

    Args:
        leaves: leaves of the arguments.
        storages: storages of all tensors, for a whole callable; None for an op or a conversion.

    Attributes:
        masks: masks of cached plans.
        optimizers: containers in the attributes of optimizers, and of objects that adjust them.
        versions: version counters of tensors.
        specs: specs of DTensors.
        gradients: gradients of leaves.
        random: random states.
        grown: storages that were free before the program's call and allocated after it.
        skip_reason: why the call cannot be repeated; None if it can so far.
        must_rewind: whether repetitions of an op need a restored state; random states do not count.
    """

    def __init__(self, leaves: Sequence[Any], storages: Storages | None = None) -> None:
        self.masks = SavedState(attrgetter("data", "refcount"), set_mask)
        self.optimizers = SavedState(methodcaller("copy"), refill, CONTAINERS)
        self.versions = SavedState(version_of, set_version)
        self.specs = SavedState(spec_of, set_spec, DTensor)
        self.gradients = Gradients(storages.gradients() if storages else {})
        self.random = RandomState(leaves, storages.generators if storages else ())
        self._states = self.masks, self.optimizers, self.versions, self.specs, self.gradients, self.random
        self.grown = GrownStorages()
        self.skip_reason: str | None = None
        self.must_rewind = False
        self._leaves = leaves if storages is None else ()
        self._storages = storages
        self._written: list[tuple[torch.Tensor, Copy | None, tuple[Any, ...]]] = []
        self._written_memory: set[Any] = set()
        self._before: list[Copy] = []  # contents before each repetition
        self._after: list[Copy] = []  # contents after the program's call
        self._created: list[Copy] = []  # the same of tensors that the call created

    def refuse(self, reason: str | None) -> None:
        """Record why the call cannot be repeated, if there is a reason; the first reason is kept."""
        self.skip_reason = self.skip_reason or reason

    def recording_masks(self) -> AbstractContextManager[None]:
        """Return a context that saves masks of cached plans before they change, as no op reports that."""
        return observe.before("mask", self.save_mask)

    def save_mask(self, buffer: Any, *_: Any) -> None:
        """Save the mask of a cached plan."""
        self.masks.save(buffer)

    def save_version(self, tensor: torch.Tensor) -> None:
        """Save the version counters of a tensor and of its inner tensors."""
        for each in (tensor, *storages_of(tensor)):
            if version_of(each) is not None:
                self.versions.save(each)

    def save(self, tensor: torch.Tensor) -> None:
        """Save the layout of a tensor before the call writes to it, and for a whole callable its contents."""
        if self.skip_reason is not None:
            self._written.clear()  # frees the memory of copies
            return
        try:
            with modes_disabled():
                if self._is_new(tensor):
                    copy = Copy(tensor, self._storages.differ) if self._storages else None
                    self._written.append((tensor, copy, layout_of(tensor)))
        except NoCopyError as error:
            self.refuse(str(error))

    def save_created(self, tensor: torch.Tensor) -> None:
        """Save the contents of a tensor after the program's call, before the first repetition writes to it.

        The callable created it in its first call, as an optimizer creates its moments.
        """
        if self._is_new(tensor):
            self._created.append(Copy(tensor, self._storages.differ if self._storages else is_freed))
            self.specs.save(tensor)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is about to be written to has memory that no earlier one had."""
        refuse_uncopyable(tensor)
        if self._storages:
            self.save_version(tensor)
        memory = {memory_key(plain) for plain in storages_of(tensor)}
        is_new = not memory <= self._written_memory
        self._written_memory |= memory
        return is_new

    def forget(self) -> None:
        """Drop all references to tensors after the call raised, as its traceback references this object."""
        vars(self).clear()

    def settle(self) -> None:
        """Save the state after the program's call; the call is not repeated if it cannot be restored."""
        try:
            with modes_disabled():
                for leaf in self._leaves:
                    self.specs.save(leaf)
                for state in self._states:
                    state.settle()
                for tensor, copy, layout in self._written:
                    if copy is None or not all(map(is_freed, storages_of(tensor))):
                        if layout_of(tensor) != layout:
                            raise NoCopyError("runs once: it changed the layout of a tensor that it wrote to")
                        self._after.append(Copy(tensor))
                        self._before.append(copy or self._after[-1])
                        self.specs.save(tensor)
                self._written.clear()
                # A tensor may be saved after a write to its view: restore the first copy last.
                self._before.reverse()
                if self._storages:
                    self._storages.refuse_changed("it")
                    self.grown, self._storages = self._storages.grown(), self._storages.renewed()
                    for owner in self._storages.stateful:
                        for container in ask(containers_of, owner, list[Any]()):
                            self.optimizers.save(container)
        except NoCopyError as error:  # more precise than a reason from a schema
            self.skip_reason = str(error)
        self.must_rewind = bool(self._before) or bool(self.masks)

    def settle_repetition(self) -> None:
        """Keep storages allocated that the first repetition did not allocate.

        Raises:
            NoCopyError: the call cannot be repeated again.
        """
        self.grown.keep_allocated()
        if self._storages:
            self._storages.refuse_changed("its repetition")

    def settle_again(self) -> None:
        """Save the state after later calls of the program, unless they prevent a repetition."""
        if self.skip_reason is not None:
            return
        try:
            with modes_disabled():
                for state in self._states:
                    state.settle()
                if self._storages:
                    self._storages.refuse_changed("a later call")
                self._after = [Copy(copy.tensor) for copy in (*self._created, *self._after)]
        except NoCopyError as error:
            self.refuse(str(error))

    def rewind_op(self) -> None:
        """Restore the state before a repetition of an op: as little as possible, as timed calls follow."""
        self.masks.rewind()
        restore_all(self._before)

    def rewind(self) -> None:
        """Restore the state before the call; tensors that it created get their contents after the call."""
        with modes_disabled():
            self.masks.rewind()
            self.optimizers.rewind()
            restore_all((*self._created, *self._before))
            for state in (self.grown, self.versions, self.gradients, self.random):
                state.rewind()

    def restore(self) -> None:
        """Restore the state after the program's call; restore each part even if another one fails."""
        parts: list[SavedState | GrownStorages | Copy]
        parts = [self.masks, self.optimizers, self.grown, *self._created, *self._after]
        parts += [self.versions, self.specs, self.gradients, self.random]
        with modes_disabled(), ExitStack() as last_first:
            for part in reversed(parts):
                last_first.callback(part.restore)
