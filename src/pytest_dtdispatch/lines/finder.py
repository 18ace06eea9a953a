"""Find where in the user's program a thread is: by its stack, and in backward by autograd's nodes."""

from __future__ import annotations

import bisect
import functools
import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.autograd import (
    engine_code,
    is_in_backward,
    next_node_number,
    number_of,
    running_node,
)

# Code without a file that a user typed: all other is made by programs, as dataclasses make "<string>".
TYPED = ("<stdin>", "<ipython-input", "<doctest", "<console>")
INSTALLED = ("site-packages", "dist-packages")
# Parts of paths: of packages that run a test and are no part of it, and of code that the compiler writes.
HIDDEN = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}", "torchinductor_")


# Between the line that calls an op and its propagation: folders of ours, and files of torch.
BETWEEN = ("rounds", "replay", "lines", "steps", "torchapi")
CALLING = ("distributed/tensor/", "_tensor.py", "functional.py", "_ops.py", "_compile.py")


class FrameOwner(Enum):
    """What a frame tells."""

    USER = "code of the user"
    MODULE = "the call of a module"
    ENGINE = "autograd's engine"
    BACKWARD = "what calls the engine"
    CLIPPING = "gradients are clipped"
    OPTIMIZER = "an optimizer works"
    OPTIMIZER_HOOKS = "the step of an optimizer, which calls hooks before and after it"
    NOTHING = "code of torch, of Python, of pytest or of this plugin"


# Names of their own, as a member of an enum takes long to look up.
NOTHING, USER, MODULE = FrameOwner.NOTHING, FrameOwner.USER, FrameOwner.MODULE
ENGINE, OPTIMIZER, OPTIMIZER_HOOKS = FrameOwner.ENGINE, FrameOwner.OPTIMIZER, FrameOwner.OPTIMIZER_HOOKS
FORWARD = Phase.FORWARD
PHASES = {
    FrameOwner.ENGINE: Phase.BACKWARD,
    FrameOwner.BACKWARD: Phase.BACKWARD,
    FrameOwner.CLIPPING: Phase.CLIPPING,
    FrameOwner.OPTIMIZER: Phase.OPTIMIZER,
    FrameOwner.OPTIMIZER_HOOKS: Phase.OPTIMIZER,
}


OwnedFrames = Iterable[tuple[FrameOwner, FrameType]]


class Frames:
    """Whose code it is, found once for each code object.

    Attributes:
        known: by the id of a code object: a walk over the stack asks it for every frame.
    """

    def __init__(self) -> None:
        ours = Path(__file__).parents[1]
        installed = Path(torch.__file__).parents[1]
        self._suite = _folder(ours / "suite")  # written as users write
        self._hidden = tuple(map(_folder, (ours, installed / "torch", installed / "functorch")))
        self._python = _folders_of_python()
        self._optimizers = _folder(Path(torch.optim.__file__).parent)
        self._clipping = str(Path(torch.nn.utils.__file__).parent / "clip_grad.py")
        # By id, as to hash a code object takes longer than all else; held, so that its id stays its own.
        self.known: dict[int, FrameOwner] = {}
        self._codes: list[CodeType] = []
        of_torch = (f"{_folder(installed / 'torch')}{file}" for file in CALLING)
        self._between = (*(_folder(ours / room) for room in BETWEEN), *of_torch)
        self._know(engine_code(), FrameOwner.ENGINE)
        for function, owner in (
            (torch.nn.Module.__call__, FrameOwner.MODULE),
            (torch.nn.Module.zero_grad, FrameOwner.OPTIMIZER),
            (torch.autograd.backward, FrameOwner.BACKWARD),
            (torch.autograd.grad, FrameOwner.BACKWARD),
        ):
            self._know(inspect.unwrap(function).__code__, owner)
        self._know(Optimizer.profile_hook_step(len).__code__, OPTIMIZER_HOOKS)

    def learn(self, code: CodeType) -> FrameOwner:
        """Find whose code it is that is not known yet, and know it from now on."""
        return self._know(code, self._of_file(code.co_filename))

    def outwards(self, frame: FrameType | None, base: CodeType | None = None) -> OwnedFrames:
        """Walk the stack: frames that tell something, and that of a base, with whose they are."""
        known, learn = self.known, self.learn
        while frame is not None:
            code = frame.f_code
            owner = known.get(id(code)) or learn(code)
            if owner is not NOTHING or code is base:
                yield owner, frame
            frame = frame.f_back

    def is_called_directly(self, frame: FrameType | None) -> bool:
        """Return whether the user's code called an op, with only DTensor's own code and ours in between."""
        while frame is not None and frame.f_code.co_filename.startswith(self._between):
            frame = frame.f_back
        return frame is not None and (self.known.get(id(frame.f_code)) or self.learn(frame.f_code)) is USER

    def _know(self, code: CodeType, owner: FrameOwner) -> FrameOwner:
        self._codes.append(code)
        self.known[id(code)] = owner
        return owner

    def _of_file(self, file: str) -> FrameOwner:
        if file.startswith("<"):
            return FrameOwner.USER if file.startswith(TYPED) else FrameOwner.NOTHING
        if file == self._clipping:
            return FrameOwner.CLIPPING
        if file.startswith(self._optimizers):
            return FrameOwner.OPTIMIZER
        is_hidden = file.startswith(self._hidden) and not file.startswith(self._suite)
        is_python = file.startswith(self._python) and not any(folder in file for folder in INSTALLED)
        if is_hidden or is_python or any(part in file for part in HIDDEN):
            return FrameOwner.NOTHING
        return FrameOwner.USER


def _folder(path: str | Path) -> str:
    return f"{path}{os.sep}"


@functools.cache  # it takes as long as a step
def _folders_of_python() -> tuple[str, ...]:
    return tuple(_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


# What wraps a module and is no part of the names that the program gave.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


class ModuleNames:
    """Name modules from the outermost one that was called, which goes by its class.

    A module that is held under several names has the first. Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._roots = WeakIdKeyDictionary()  # a module may have an __eq__ of its own

    def name(self, running: Sequence[Any]) -> str:
        """Name the innermost of the modules that run, given from there outwards.

        One that the outermost does not hold, as a graph of the compiler's, is part of the next one.
        """
        names = self._names_in(running[-1], running[0])
        return str(next(name for module in running if (name := names.get(module))))

    def known_name(self, running: Sequence[Any]) -> str:
        """Name it by the largest known root that has it: a checkpoint calls a part of that anew."""
        for module in running:
            if known := [names for names in self._roots.values() if names.get(module)]:
                return str(max(known, key=len)[module])
        return self.name(running)

    def _names_in(self, root: Any, module: Any) -> WeakIdKeyDictionary:
        """Return the names in a root, looked up anew where a module was added since."""
        names: WeakIdKeyDictionary | None = self._roots.get(root)
        if names is None or module not in names:
            names = self._roots[root] = WeakIdKeyDictionary()
            for name, each in ask(lambda each: list(each.named_modules()), root, [("", root)]):
                path = ".".join(part for part in name.split(".") if part not in WRAPPERS)
                names[each] = path or type(_unwrapped(each)).__name__
            names.setdefault(module, "")  # it is not held there, and not looked for again
        return names


def _unwrapped(module: Any) -> Any:
    inner = next(
        (getattr(module, name) for name in WRAPPERS if name in vars(module).get("_modules", ())), None
    )
    return module if inner is None else _unwrapped(inner)


class StackView(NamedTuple):
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


def look(frames: OwnedFrames, base: CodeType | None = None) -> StackView:
    """Look at frames from the innermost out, beyond the base where none inside is of the user."""
    file, line, running, phase, user, caller = "", 0, list[Any](), None, None, None
    for owner, frame in frames:
        if frame.f_code is base:
            if file:
                break
        elif owner is USER:
            user, caller = frame, None
            if not file:
                file, line = frame.f_code.co_filename, frame.f_lineno
        elif owner is MODULE:
            running.append(frame.f_locals["self"])
        elif phase is None:
            caller = caller or owner
            phase = _phase(owner, user, caller)
            if owner is ENGINE:
                return StackView(file, line, running, phase, is_in_engine=True)
        if file and phase:
            break
    return StackView(file, line, running, phase)


def _phase(owner: FrameOwner, user: FrameType | None, caller: FrameOwner) -> Phase | None:
    """Return the phase that a function of torch begins; none of a closure that an optimizer calls.

    Hooks of an optimizer belong to it: their caller is not its algorithm, but what wraps that.
    """
    if owner not in (OPTIMIZER, OPTIMIZER_HOOKS) or caller is OPTIMIZER_HOOKS or user is None:
        return PHASES[owner]
    return PHASES[owner] if issubclass(type(user.f_locals.get("self")), Optimizer) else None


class NodePlaces:
    """Where a step made the nodes of its graph, by their numbers in the step."""

    def __init__(self) -> None:
        self.is_recorded = False
        self.first = 0
        # How many nodes there were at each backward: by that it is known whether two steps make the same.
        self.backwards: list[int] = []
        self._numbers: list[int] = []
        self._places: list[CodePlace] = []

    def begin(self) -> None:
        """Begin a step, after one in which no node was noted."""
        self.first = next_node_number()
        self.backwards.clear()

    def note(self, place: CodePlace) -> None:
        """Note where the latest node was made: what is noted first is nearest to it."""
        number = next_node_number() - 1 - self.first
        if number > (self._numbers[-1] if self._numbers else -1):
            self._numbers.append(number)
            self._places.append(place)

    def find(self, number: int) -> CodePlace | None:
        """Find where a node was made: noted there, or between two notes of one place; None where neither."""
        after = bisect.bisect(self._numbers, number)
        if after == 0:
            return None
        place = self._places[after - 1]
        if self._numbers[after - 1] == number:
            return place
        return place if self._places[after : after + 1] == [place] else None


class ForwardPlaces:
    """Name the places of what the program does outside of backward."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._names = ModuleNames()
        self._is_after_backward = False

    def _forward(self, seen: StackView) -> CodePlace:
        file, line, running, phase, _ = seen
        if phase is not None:
            return CodePlace(file, line, "", phase)
        if running:
            self._is_after_backward = False
            return CodePlace(file, line, self._names.name(running), FORWARD)
        return CodePlace(file, line, "", Phase.OTHER if self._is_after_backward else FORWARD)


class PlaceFinder(ForwardPlaces):
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
        super().__init__()
        self._base: CodeType | None = ask(attrgetter("__code__"), base, None)
        self._home = threading.get_ident()
        self._open = ExitStack()
        self._nodes = self._known = NodePlaces()
        # What called backward: of the latest, and of those that run, by their thread. Its line is looked up
        # where it is asked for: that takes as long as two ops.
        self._caller: FrameType | None = None
        self._callers: dict[int, FrameType] = {}

    def __enter__(self) -> PlaceFinder:
        self._home = threading.get_ident()
        self._open.enter_context(observe.around({"backward": self.on_backward}))
        self.begin_step()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def begin_step(self) -> None:
        """Begin a step, in the thread that opened this."""
        if self._nodes.is_recorded:
            self._known = self._nodes
            self._nodes = NodePlaces()
        self._nodes.begin()
        self._is_after_backward = False

    def here(self) -> CodePlace:
        """Return the place of what the calling thread does."""
        place = self._place(self._look(sys._getframe(1)))
        if self._nodes.is_recorded and self._is_home:
            self._nodes.note(place)
        return place

    def is_called_directly(self) -> bool:
        """Return whether the user's code called the op that runs."""
        return self._frames.is_called_directly(sys._getframe(1))

    def note(self) -> CodePlace:
        """Note where an op is called, every one of a step, so that later steps know; return the place."""
        self._nodes.is_recorded |= self._is_home
        return self.here()

    def on_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the engine, and know where it was called."""
        __tracebackhide__ = True
        if is_in_backward():
            return run(*args, **kwargs)
        thread, nodes = threading.get_ident(), self._nodes
        self._caller = self._callers[thread] = sys._getframe(1)
        is_home = thread == self._home
        if is_home:
            nodes.backwards.append(next_node_number() - nodes.first)
        try:
            return run(*args, **kwargs)
        finally:
            del self._callers[thread]
            self._caller = None  # it holds all that the step made
            self._is_after_backward |= is_home

    @property
    def _is_home(self) -> bool:
        return threading.get_ident() == self._home

    def _look(self, frame: FrameType | None) -> StackView:
        return look(self._frames.outwards(frame, self._base), self._base)

    def _place(self, seen: StackView) -> CodePlace:
        # Nodes of a device run in a thread of its own, whose stack shows no engine.
        if not seen.is_in_engine and (seen.phase is not None or not is_in_backward()):
            return self._forward(seen)
        made = self._made()
        module = self._names.known_name(seen.running) if seen.running else made.module
        at = seen if seen.file else made  # code of the user's that the engine calls, as in a checkpoint
        return CodePlace(at.file, at.line, module, Phase.BACKWARD)

    def _made(self) -> CodePlace:
        """Find where the node was made that runs; else where backward was called."""
        node, nodes = running_node(), self._nodes
        number = None if node is None else number_of(node)
        if number is None:
            return self._called()
        if not nodes.is_recorded and nodes.backwards == self._known.backwards[: len(nodes.backwards)]:
            nodes = self._known  # a step that made so far as many nodes
        return nodes.find(number - self._nodes.first) or self._called()

    def _called(self) -> CodePlace:
        """Find where backward was called."""
        seen = self._look(self._callers.get(threading.get_ident(), self._caller))
        return CodePlace(seen.file, seen.line, "", Phase.BACKWARD)
