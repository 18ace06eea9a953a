"""Find where in the user's program a thread is: by its stack, and in backward by autograd's nodes."""

from __future__ import annotations

import bisect
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from pytest_dtdispatch.core.places import CodePlace, Phase
from pytest_dtdispatch.measuring.module_names import ModuleNames
from pytest_dtdispatch.torchapi.autograd import (
    is_in_backward,
    next_node_number,
    number_of,
    parameter_of,
    running_node,
    watching_backward,
)
from pytest_dtdispatch.torchapi.frames import Frames, Whose

# Names of their own, as a member of an enum takes long to look up.
NOTHING, USER, MODULE, ENGINE, OPTIMIZER = (
    Whose.NOTHING,
    Whose.USER,
    Whose.MODULE,
    Whose.ENGINE,
    Whose.OPTIMIZER,
)
FORWARD = Phase.FORWARD
PHASES = {
    Whose.ENGINE: Phase.BACKWARD,
    Whose.BACKWARD: Phase.BACKWARD,
    Whose.CLIPPING: Phase.CLIPPING,
    Whose.OPTIMIZER: Phase.OPTIMIZER,
}


class Sight(NamedTuple):
    """What the stack shows, from the innermost frame out to the engine or to where the step was called.

    Args:
        file: of the innermost frame of the user's code.
        line: its number.
        running: modules, the innermost first.
        phase: that a function of torch tells, or none.
        is_in_engine: whether the engine called all of that.
    """

    file: str = ""
    line: int = 0
    running: Sequence[Any] = ()
    phase: Phase | None = None
    is_in_engine: bool = False


class NodePlaces:
    """Where a step made the nodes of its graph, by their numbers in the step."""

    def __init__(self) -> None:
        self.is_noted = False
        self.first = next_node_number()
        # How many nodes there were at each backward: by that it is known whether two steps make the same.
        self.backwards: list[int] = []
        self._numbers: list[int] = []
        self._places: list[CodePlace] = []

    def note(self, place: CodePlace) -> None:
        """Note where the latest node was made: what is noted first is nearest to it."""
        number = next_node_number() - 1 - self.first
        if number > (self._numbers[-1] if self._numbers else -1):
            self._numbers.append(number)
            self._places.append(place)

    def is_like(self, other: NodePlaces) -> bool:
        """Tell whether this step made so far as many nodes as another did up to there."""
        return self.backwards == other.backwards[: len(self.backwards)]

    def find(self, number: int) -> CodePlace | None:
        """Find where a node was made: noted there, or between two notes of one place; None where neither."""
        after = bisect.bisect(self._numbers, number)
        if after == 0:
            return None
        place = self._places[after - 1]
        if self._numbers[after - 1] == number:
            return place
        return place if self._places[after : after + 1] == [place] else None


class PlaceFinder:
    """Find where the program is, while this is open.

    A place takes microseconds where it is asked for, and nothing elsewhere: no call of a module, of an op or
    of an optimizer is hooked, so that compiled code stays as it is. In backward, a place is the forward line
    that made the node which runs. It is known where the nodes of the step were noted, or those of an earlier
    step that made as many; else the place is the line that called backward.

    Args:
        base: the code that calls the step; what called that is no part of the step.

    Example:
        >>> with PlaceFinder() as finder:
        ...     place = finder.here()
        >>> place.line, str(place.phase)
        (2, 'forward')
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        self._base: CodeType | None = getattr(base, "__code__", None)
        self._frames = Frames()
        self._names = ModuleNames()
        self._home = threading.get_ident()
        self._open = ExitStack()
        self._nodes = self._known = NodePlaces()
        # What called backward: of the latest, and of those that run, by their thread. Its line is looked up
        # where it is asked for: that takes as long as two ops.
        self._caller: FrameType | None = None
        self._callers: dict[int, FrameType] = {}
        self._is_after_backward = False

    def __enter__(self) -> PlaceFinder:
        self._home = threading.get_ident()
        with ExitStack() as entered:
            entered.enter_context(watching_backward(self))
            self._open = entered.pop_all()
        self.begin_step()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def begin_step(self) -> None:
        """Begin a step, in the thread that opened this."""
        if self._nodes.is_noted:
            self._known = self._nodes
        self._nodes = NodePlaces()
        self._is_after_backward = False

    def here(self) -> CodePlace:
        """Return the place of what the calling thread does."""
        place = self._place(self._look(sys._getframe(1)))
        if self._nodes.is_noted and self._is_home:
            self._nodes.note(place)
        return place

    def note(self) -> CodePlace:
        """Note where an op is called, every one of a step, so that later steps know; return the place."""
        self._nodes.is_noted |= self._is_home
        return self.here()

    def on_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the engine, and know where it was called."""
        __tracebackhide__ = True
        if is_in_backward():
            return run(*args, **kwargs)
        thread = threading.get_ident()
        self._caller = self._callers[thread] = sys._getframe(1)
        if self._is_home:
            self._nodes.backwards.append(next_node_number() - self._nodes.first)
        try:
            return run(*args, **kwargs)
        finally:
            del self._callers[thread]
            self._caller = None  # it holds all that the step made
            self._is_after_backward |= self._is_home

    @property
    def _is_home(self) -> bool:
        return threading.get_ident() == self._home

    def _look(self, frame: FrameType | None) -> Sight:
        """Walk the stack outwards."""
        known, learn, base = self._frames.known, self._frames.learn, self._base
        file, line, running, phase = "", 0, [], None
        whose, user = NOTHING, None
        while frame is not None and not (file and phase):
            code = frame.f_code
            whose = known.get(id(code)) or learn(code)
            if code is base:
                if file:
                    break
            elif whose is NOTHING:
                pass
            elif whose is USER:
                user = frame
                if not file:
                    file, line = code.co_filename, frame.f_lineno
            elif whose is MODULE:
                running.append(frame.f_locals["self"])
            elif phase is None:
                phase = _phase(whose, user)
                if whose is ENGINE:
                    break
            frame = frame.f_back
        return Sight(file, line, running, phase, whose is ENGINE)

    def _place(self, seen: Sight) -> CodePlace:
        file, line, running, phase, is_in_engine = seen
        # Nodes of a device run in a thread of its own, whose stack shows no engine.
        if is_in_engine or (phase is None and is_in_backward()):
            return self._in_backward(seen)
        if phase is not None:
            return CodePlace(file, line, "", phase)
        if running:
            self._is_after_backward = False
            return CodePlace(file, line, self._names.name(running), FORWARD)
        return CodePlace(file, line, "", Phase.OTHER if self._is_after_backward else FORWARD)

    def _in_backward(self, seen: Sight) -> CodePlace:
        """Take code of the user's that the engine calls, as in a checkpoint; else where its node was made."""
        made = self._made()
        module = made.module
        if seen.running:
            module = self._names.known_name(seen.running)
        at = seen if seen.file else made
        return CodePlace(at.file, at.line, module, Phase.BACKWARD)

    def _made(self) -> CodePlace:
        """Find where the node was made that runs; else where backward was called."""
        node = running_node()
        if node is None:
            return self._called()
        number, nodes = number_of(node), self._nodes
        if number is None:
            return replace(self._called(), module=self._names.name_of_owner(parameter_of(node)))
        if not nodes.is_noted and nodes.is_like(self._known):
            nodes = self._known
        return nodes.find(number - self._nodes.first) or self._called()

    def _called(self) -> CodePlace:
        """Find where backward was called."""
        seen = self._look(self._callers.get(threading.get_ident(), self._caller))
        return CodePlace(seen.file, seen.line, "", Phase.BACKWARD)


def _phase(whose: Whose, user: FrameType | None) -> Phase | None:
    """Tell a phase by a function of torch, which may have called code of the user's: a closure is none."""
    is_optimizer = user is None or isinstance(user.f_locals.get("self"), torch.optim.Optimizer)
    return PHASES[whose] if is_optimizer or whose is not OPTIMIZER else None
