"""A call of the program, from its first run to repetitions without visible effects on the program.

:class:`Before` saves the state that the call is about to change. After the call it becomes
:class:`Repeatable`, or :class:`NotRepeatable` if a change cannot be restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.replay.states import SavedState, States, containers_of
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
from pytest_dtdispatch.rounds.plan import Agreement, Plan, agreed
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.ops import modes_disabled
from pytest_dtdispatch.torchapi.tensors import memory_key, storages_of, version_of


def agreed_reason(agreement: Agreement | None, reason: str | None) -> str | None:
    """Return why a call cannot be repeated on all ranks; None if it can. Another rank may lack memory."""
    [is_repeated] = agreed(agreement, "the repetition", reason is None)
    return reason or (None if is_repeated else "runs once: another rank cannot repeat it")


@dataclass(frozen=True)
class NotRepeatable:
    """A call that cannot be repeated.

    Args:
        reason: why it cannot be repeated, in one line.
        mesh: mesh of the first DTensor of a whole callable, as text.
    """

    reason: str
    mesh: str = ""

    def skip_reason(self, plan: Plan) -> str:
        """Return the reason, and have other ranks skip the call too."""
        return agreed_reason(plan.agreement, self.reason) or self.reason

    def measure(self, caches: object, plan: Plan, inspects: bool = True) -> Figures:
        """Return figures without samples, with a note of the reason."""
        return Figures(notes=(self.skip_reason(plan),))

    def settled_again(self) -> NotRepeatable:
        """Return itself."""
        return self


@dataclass(eq=False)
class ReplayPhase:
    """State that the running call is about to change, in its first run or in its first repetition.

    Args:
        states: state that the call may change, other than contents of tensors.
        storages: storages of all tensors, for a whole callable; None for an op or a conversion.
        written_memory: keys of the memory that the call wrote to.
        grown: storages that were free before the program's call and allocated after it.
        skip_reason: why the call cannot be repeated; None if it can so far.
    """

    states: States
    storages: Storages | None
    written_memory: set[Any] = field(default_factory=set)
    grown: GrownStorages = field(default_factory=GrownStorages)
    skip_reason: str | None = None

    def save(self, tensor: torch.Tensor) -> None:
        """Save a tensor before it is written to."""
        raise NotImplementedError

    def refuse(self, reason: str | None) -> None:
        """Record why the call cannot be repeated, if there is a reason; the first reason is kept."""
        self.skip_reason = self.skip_reason or reason

    def recording_masks(self) -> AbstractContextManager[None]:
        """Return a context that saves masks of cached plans before they change, as no op reports that."""
        return observe.before("mask", self.save_mask)

    def save_mask(self, buffer: Any, *_: Any) -> None:
        """Save the mask of a cached plan."""
        self.states.masks.save(buffer)

    def save_version(self, tensor: torch.Tensor) -> None:
        """Save the version counters of a tensor and of its inner tensors."""
        for each in (tensor, *storages_of(tensor)):
            if version_of(each) is not None:
                self.states.versions.save(each)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is about to be written to has memory that no earlier one had."""
        refuse_uncopyable(tensor)
        if self.storages:
            self.save_version(tensor)
        memory = {memory_key(plain) for plain in storages_of(tensor)}
        is_new = not memory <= self.written_memory
        self.written_memory |= memory
        return is_new


class Before(ReplayPhase):
    """State before a call of the program.

    Tensors that an op or a conversion writes to are copied only after the call, and each repetition starts
    from these contents, as dispatch does not depend on them. Tensors that a whole callable writes to are
    copied before and after the call.

    Args:
        leaves: leaves of the arguments.
        storages: storages of all tensors, for a whole callable; None for an op or a conversion.
    """

    def __init__(self, leaves: Sequence[Any], storages: Storages | None = None) -> None:
        found = (storages.gradients(), storages.generators) if storages else ({}, [])
        super().__init__(States(leaves, *found), storages)
        self._leaves = leaves if storages is None else ()
        self._written: list[tuple[torch.Tensor, Copy | None, tuple[Any, ...]]] = []

    def save(self, tensor: torch.Tensor) -> None:
        """Save the layout of a tensor before the call writes to it, and for a whole callable its contents."""
        if self.skip_reason is not None:
            self._written.clear()  # frees the memory of copies
            return
        try:
            with modes_disabled():
                if self._is_new(tensor):
                    copy = Copy(tensor, self.storages.differ) if self.storages else None
                    self._written.append((tensor, copy, layout_of(tensor)))
        except NoCopyError as error:
            self.refuse(str(error))

    def forget(self) -> None:
        """Drop all references to tensors after the call raised, as its traceback references this object."""
        del self.states, self.storages, self.grown, self._leaves, self._written

    def settled(self) -> Repeatable | NotRepeatable:
        """Save the state after the program's call; the result is not repeatable if it cannot be restored."""
        before: list[Copy] = []
        after: list[Copy] = []
        try:
            with modes_disabled():
                for leaf in self._leaves:
                    self.states.specs.save(leaf)
                self.states.settle()
                for tensor, copy, layout in self._written:
                    if copy is None or not all(map(is_freed, storages_of(tensor))):
                        if layout_of(tensor) != layout:
                            raise NoCopyError("runs once: it changed the layout of a tensor that it wrote to")
                        after.append(Copy(tensor))
                        before.append(copy or after[-1])
                        self.states.specs.save(tensor)
                # A tensor may be saved after a write to its view: restore the first copy last.
                before.reverse()
                if self.storages:
                    self.storages.refuse_changed("it")
                    self.grown, self.storages = self.storages.grown(), self.storages.renewed()
                    for owner in self.storages.stateful:
                        for container in ask(containers_of, owner, list[Any]()):
                            self.states.optimizers.save(container)
                memory = self.written_memory
        except NoCopyError as error:  # more precise than a reason from a schema
            return NotRepeatable(str(error))
        if self.skip_reason is not None:
            return NotRepeatable(self.skip_reason)
        return Repeatable(self.states, self.storages, memory, self.grown, None, before, after)


@dataclass(eq=False)
class Repeatable(ReplayPhase):
    """State before and after a call of the program whose changes can be restored.

    Args:
        before: contents of tensors before each repetition.
        after: contents of tensors after the program's call.
        created: contents after the program's call of tensors that it created.
    """

    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)
    created: list[Copy] = field(default_factory=list)

    def save(self, tensor: torch.Tensor) -> None:
        """Save the contents of a tensor after the program's call, before the first repetition writes to it.

        The callable created it in its first call, as an optimizer creates its moments.
        """
        if self._is_new(tensor):
            self.created.append(Copy(tensor, self.storages.differ if self.storages else is_freed))
            self.states.specs.save(tensor)

    def settle_repetition(self) -> None:
        """Keep storages allocated that the first repetition did not allocate.

        Raises:
            NoCopyError: the call cannot be repeated again.
        """
        self.grown.keep_allocated()
        if self.storages:
            self.storages.refuse_changed("its repetition")

    def settled_again(self) -> Repeatable | NotRepeatable:
        """Save the state after later calls of the program, unless they prevent a repetition."""
        try:
            with modes_disabled():
                self.states.settle()
                if self.storages:
                    self.storages.refuse_changed("a later call")
                self.after = [Copy(copy.tensor) for copy in (*self.created, *self.after)]
        except NoCopyError as error:
            return NotRepeatable(str(error))
        return self

    @property
    def must_rewind(self) -> bool:
        """Whether repetitions of an op need a restored state; random states do not count."""
        return bool(self.before) or bool(self.states.masks)

    def rewind_op(self) -> None:
        """Restore the state before a repetition of an op: as little as possible, as timed calls follow."""
        self.states.masks.rewind()
        restore_all(self.before)

    def rewind(self) -> None:
        """Restore the state before the call; tensors that it created get their contents after the call."""
        states = self.states
        with modes_disabled():
            states.masks.rewind()
            states.optimizers.rewind()
            restore_all((*self.created, *self.before))
            for state in (self.grown, states.versions, states.gradients, states.random):
                state.rewind()

    def restore(self) -> None:
        """Restore the state after the program's call; restore each part even if another one fails."""
        states = self.states
        parts: list[SavedState | GrownStorages | Copy]
        parts = [states.masks, states.optimizers, self.grown, *self.created, *self.after]
        parts += [states.versions, states.specs, states.gradients, states.random]
        with modes_disabled(), ExitStack() as last_first:
            for part in reversed(parts):
                last_first.callback(part.restore)
