"""A call of the program, from its first run to repetitions that the program does not notice.

:class:`Before` saves what the call is about to change. After the call it becomes :class:`Repeatable`, or
:class:`NotRepeatable` if a change cannot be restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.replay.states import SavedState, States
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
from pytest_dtdispatch.torchapi.ops import unnoticed
from pytest_dtdispatch.torchapi.tensors import memory_key, storages_of, version_of


def agreed_reason(agreement: Agreement | None, reason: str | None) -> str | None:
    """Return why a call is not repeated, on this rank or on another, which may lack memory; None if it is."""
    [is_repeated] = agreed(agreement, "the repetition", reason is None)
    return reason or (None if is_repeated else "runs once: another rank cannot repeat it")


@dataclass(frozen=True)
class NotRepeatable:
    """A call that runs once.

    Args:
        reason: why, in one line.
        mesh: of the first DTensor of a whole callable, as text.
    """

    reason: str
    mesh: str = ""

    def skip_reason(self, plan: Plan) -> str:
        """Return the reason, and make other ranks skip the call too."""
        return agreed_reason(plan.agreement, self.reason) or self.reason

    def measure(self, caches: object, plan: Plan, *row: str, inspects: bool = True) -> Figures:
        """Return figures without samples, which note the reason."""
        return Figures(notes=(self.skip_reason(plan),))

    def settled_again(self) -> NotRepeatable:
        """Return itself."""
        return self


@dataclass(eq=False)
class Phase:
    """Saves what the call that runs is about to change: in its first run or in its first repetition.

    Args:
        states: that the call may change, other than contents of tensors.
        storages: of all tensors, for a whole callable; None for an op or a conversion.
        regions: memory that the call wrote to, by keys.
        grown: storages that the program's call left allocated, and that were free before it.
        skip_reason: why the call runs once; None as long as no reason is found.
    """

    states: States
    storages: Storages | None
    regions: set[Any] = field(default_factory=set)
    grown: GrownStorages = field(default_factory=GrownStorages)
    skip_reason: str | None = None

    def save(self, tensor: torch.Tensor) -> None:
        """Save a tensor that is about to be written to."""
        raise NotImplementedError

    def refuse(self, reason: str | None) -> None:
        """Do not repeat the call if there is a reason; the first one counts."""
        self.skip_reason = self.skip_reason or reason

    def recording_masks(self) -> AbstractContextManager[None]:
        """Save every mask of a cached plan that is about to change: no op reports it."""
        return observe.before("mask", lambda buffer, *_: self.states.masks.save(buffer))

    def save_version(self, tensor: torch.Tensor) -> None:
        """Save the version counters of a tensor and of its inner tensors."""
        for each in (tensor, *storages_of(tensor)):
            if version_of(each) is not None:
                self.states.versions.save(each)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is about to be written to shows other memory than earlier ones."""
        refuse_uncopyable(tensor)
        if self.storages:
            self.save_version(tensor)
        regions = {memory_key(plain) for plain in storages_of(tensor)}
        is_new = not regions <= self.regions
        self.regions |= regions
        return is_new


class Before(Phase):
    """A call that the program is about to make, or makes right now.

    Ops and conversions are copied after the call: each repetition starts from what the call left, as dispatch
    does not depend on contents, and one copy is enough. Tensors that a whole callable writes to are copied
    before the call and after it.

    Args:
        leaves: of the arguments.
        storages: of all tensors, before a whole callable runs; None for an op or a conversion.
    """

    def __init__(self, leaves: Sequence[Any], storages: Storages | None = None) -> None:
        super().__init__(States(leaves, storages.gradients() if storages else {}), storages)
        self._leaves = leaves if storages is None else ()
        self._written: list[tuple[torch.Tensor, Copy | None, tuple[Any, ...]]] = []

    def save(self, tensor: torch.Tensor) -> None:
        """Save the layout of a tensor before the call writes to it, and for a whole callable its contents."""
        if self.skip_reason is not None:
            self._written.clear()  # frees the memory of copies
            return
        try:
            with unnoticed():
                if self._is_new(tensor):
                    copy = Copy(tensor, self.storages.differ) if self.storages else None
                    self._written.append((tensor, copy, layout_of(tensor)))
        except NoCopyError as error:
            self.refuse(str(error))

    def forget(self) -> None:
        """Drop all references after the call raised: its traceback, which may live on, references this."""
        vars(self).clear()

    def settled(self) -> Repeatable | NotRepeatable:
        """Save what the program's call left; the result is not repeatable if that cannot be restored."""
        try:
            with unnoticed():
                repeatable = self._repeatable()
        except NoCopyError as error:  # more precise than a reason from a schema
            return NotRepeatable(str(error))
        return repeatable if self.skip_reason is None else NotRepeatable(self.skip_reason)

    def _repeatable(self) -> Repeatable:
        before: list[Copy] = []
        after: list[Copy] = []
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
        before.reverse()  # a tensor may be saved after a write to a view of it: its first copy comes last
        if self.storages:
            self.storages.refuse_changed("it")
            self.grown, self.storages = self.storages.grown(), self.storages.renewed()
            for optimizer in self.storages.optimizers:
                for state in ask(lambda each: list(each.state.values()), optimizer, list[Any]()):
                    self.states.optimizers.save(state)
        return Repeatable(self.states, self.storages, self.regions, self.grown, None, before, after)


@dataclass(eq=False)
class Repeatable(Phase):
    """A call that the program has made, and whose changes can be restored.

    Args:
        before: contents that each repetition starts from.
        after: contents that the program's call left.
        created: contents that it left in tensors that it created.
    """

    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)
    created: list[Copy] = field(default_factory=list)

    def save(self, tensor: torch.Tensor) -> None:
        """Save what the program's call left in a tensor, before the first repetition writes to it.

        These are tensors that the callable created in its first call, as an optimizer creates its moments.
        """
        if self._is_new(tensor):
            self.created.append(Copy(tensor, self.storages.differ if self.storages else is_freed))
            self.states.specs.save(tensor)

    def settle_repetition(self) -> None:
        """Keep allocated what the first repetition did not allocate; raise if there can be no other one."""
        self.grown.keep_allocated()
        if self.storages:
            self.storages.refuse_changed("its repetition")

    def settled_again(self) -> Repeatable | NotRepeatable:
        """Save what later calls of the program left, if they allow a repetition."""
        try:
            with unnoticed():
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
        """Restore what a repetition of an op starts from: as little as possible, between timed calls."""
        self.states.masks.rewind()
        restore_all(self.before)

    def rewind(self) -> None:
        """Restore the state before the call; tensors that it created get what it left in them."""
        states = self.states
        with unnoticed():
            states.masks.rewind()
            states.optimizers.rewind()
            restore_all((*self.created, *self.before))
            for state in (self.grown, states.versions, states.gradients, states.random):
                state.rewind()

    def restore(self) -> None:
        """Restore what the program's call left, each part even if another one fails."""
        states = self.states
        parts: list[SavedState | GrownStorages | Copy]
        parts = [states.masks, states.optimizers, self.grown, *self.created, *self.after]
        parts += [states.versions, states.specs, states.gradients, states.random]
        with unnoticed(), ExitStack() as last_first:
            for part in reversed(parts):
                last_first.callback(part.restore)
