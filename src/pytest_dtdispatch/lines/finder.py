"""Find the user's line that a thread runs: from its stack, and in backward from autograd nodes."""

from __future__ import annotations

import bisect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.lines.frames import Frames, StackView, view_stack
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.autograd import (
    is_in_backward,
    next_node_number,
    number_of,
    running_node,
)
from pytest_dtdispatch.torchapi.tensors import dead_reference

# Attributes of wrapped modules, which are omitted from qualified names.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


class ByIdentity:
    """Values by object; objects are compared by identity and referenced weakly.

    A lookup in torch's WeakIdKeyDictionary takes 1.5 us, and each event has several.

    Attributes:
        values: values by the id of their object.
    """

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def set(self, key: Any, value: Any) -> None:
        """Set the value of an object, until the object is deleted."""
        number = id(key)
        self.values[number] = value
        self._references[number] = weakref.ref(key, partial(self._forget, number))

    def get(self, key: Any) -> Any:
        """Return the value of an object; None if it has none."""
        return self.values.get(id(key))

    def objects(self) -> list[Any]:
        """Return all living objects."""
        objects = [reference() for reference in [*self._references.values()]]
        return [each for each in objects if each is not None]

    def _forget(self, number: int, _: object) -> None:
        del self.values[number], self._references[number]


class ModuleNames:
    """Qualified names of modules relative to the outermost called module, which has the name of its class.

    A module with several names has the first of them. Modules are referenced weakly.
    """

    def __init__(self) -> None:
        self._roots = ByIdentity()  # names of modules in each
        self._owners = ByIdentity()  # reference to the owning module, by parameter

    def name(self, running: Sequence[Any]) -> str:
        """Return the name of the innermost running module; ``running`` is sorted from the innermost outwards.

        A module that is not part of the outermost one, such as a graph of the compiler, has the name of the
        next module outwards.
        """
        names = self._names_in(running[-1], running[0])
        return str(next(filter(None, map(names.get, running))))

    def name_in_backward(self, running: Sequence[Any]) -> str:
        """Return the name in the largest cached root, as a checkpoint calls only part of a model again."""
        for module in running:
            roots = [names for names in [*self._roots.values.values()] if names.get(module)]
            if roots:
                return str(max(roots, key=lambda names: len(names.values)).get(module))
        return self.name(running)

    def names_of_owners(self, owners: Sequence[Any], running: Sequence[Any]) -> str:
        """Return the names of modules whose parameters are moved together, in the outermost running module.

        Those of other models have the names of :meth:`name_in_backward`.
        """
        names = self._names_in(running[-1], owners[0]) if running else ByIdentity()
        return ", ".join(names.get(each) or self.name_in_backward([each]) for each in owners)

    def name_of_owner(self, parameter: Any) -> str:
        """Return the name of the module that owns a parameter; empty if no module in the roots does."""
        if self._owners.get(parameter) is None:
            self._owners.set(parameter, dead_reference)
            modules = (module for names in [*self._roots.values.values()] for module in names.objects())
            for module in reversed([*modules]):  # the first owner is set last
                for each in vars(module).get("_parameters", {}).values():
                    if each is not None:
                        self._owners.set(each, weakref.ref(module))
        module = self._owners.get(parameter)()
        return "" if module is None else self.name_in_backward([module])

    def _names_in(self, root: Any, module: Any) -> ByIdentity:
        """Return the names in a root; recompute them if ``module`` is not among the cached ones."""
        names: ByIdentity | None = self._roots.get(root)
        if names is None or names.get(module) is None:
            names = ByIdentity()
            self._roots.set(root, names)
            for name, each in ask(named_modules, root, [("", root)]):
                path = ".".join(part for part in name.split(".") if part not in WRAPPERS)
                names.set(each, path or type(_unwrapped(each)).__name__)
            if names.get(module) is None:
                names.set(module, "")  # not part of the root: do not recompute the names for it again
        return names


def named_modules(root: Any) -> list[tuple[str, Any]]:
    """Return all modules of a root with their qualified names."""
    return list(root.named_modules())


def _unwrapped(module: Any) -> Any:
    for name in WRAPPERS:
        if name in vars(module).get("_modules", ()):
            return _unwrapped(getattr(module, name))
    return module


class NodeLines:
    """Lines that created the autograd nodes of a step, by the number of the node in the step.

    Attributes:
        is_recorded: whether all ops of the step are recorded.
    """

    def __init__(self) -> None:
        self.is_recorded = False
        self.first = 0
        # Number of nodes at each backward: steps with equal numbers are assumed to create equal nodes.
        self.backwards: list[int] = []
        self._numbers: list[int] = []
        self._lines: list[CodePlace] = []

    def begin(self) -> None:
        """Begin a step."""
        self.first = next_node_number()
        for each in (self.backwards, self._numbers, self._lines):
            each.clear()

    def record(self, number: int, place: CodePlace) -> None:
        """Record the line of a node. Only the first record of a node is kept: it is the nearest."""
        if number - self.first > (self._numbers[-1] if self._numbers else -1):
            self._numbers.append(number - self.first)
            self._lines.append(place)

    def find(self, number: int) -> CodePlace | None:
        """Return the line of a recorded node, or of one between two records of a line in a recorded step."""
        after = bisect.bisect(self._numbers, number)
        if after == 0:
            return None
        place = self._lines[after - 1]
        if self._numbers[after - 1] == number:
            return place
        return place if self.is_recorded and self._lines[after : after + 1] == [place] else None


class ForwardLines:
    """Resolves stacks outside of backward to lines, modules and phases.

    Attributes:
        frames: owners of stack frames.
    """

    def __init__(self) -> None:
        self.frames = Frames()
        self._names = ModuleNames()
        self._is_after_backward = False

    def _forward(self, seen: StackView) -> CodePlace:
        file, line, running, phase, _, owners = seen
        if phase is not None:
            return CodePlace(file, line, "", phase)
        name = ""
        if owners:
            name = self._names.names_of_owners(owners, running)
        elif running:
            name = self._names.name(running)
        if running:
            self._is_after_backward = False
            return CodePlace(file, line, name, Phase.FORWARD)
        return CodePlace(file, line, name, Phase.OTHER if self._is_after_backward else Phase.FORWARD)

    def _module_in_backward(self, seen: StackView) -> str:
        """Return the name of the module that frames inside the engine belong to; empty if there is none."""
        if seen.owners:
            return self._names.names_of_owners(seen.owners, ())
        return self._names.name_in_backward(seen.running) if seen.running else ""


class LineFinder(ForwardLines):
    """Context manager that finds the running line of the user.

    A query takes microseconds, and there is no other overhead. Calls of modules, ops and optimizers are not
    patched, so that compiled code is unchanged. In backward, the result is the forward line that created the
    running node, if nodes were recorded in this step, or in an earlier step with as many nodes. Otherwise it
    is the line that called backward.

    Args:
        base: function that calls the step; its callers are not part of the step.

    Example:
        >>> with LineFinder() as finder:
        ...     place = finder.here()
        >>> place.line, str(place.phase)
        (2, 'forward')
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._base: CodeType | None = ask(attrgetter("__code__"), base, None)
        self._open = ExitStack()
        self._nodes = self._earlier_nodes = NodeLines()
        # The caller of the latest backward, and callers of running ones by thread. Their lines are resolved
        # only on a query, as that takes as long as two ops.
        self._caller: FrameType | None = None
        self._callers: dict[int, FrameType] = {}

    def __enter__(self) -> LineFinder:
        self._home = threading.get_ident()
        self._open.enter_context(observe.around({"backward": self.on_backward}))
        self.begin_step()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def begin_step(self) -> None:
        """Begin a step in the current thread, which must be the one that entered the context."""
        if self._nodes.is_recorded:
            self._earlier_nodes = self._nodes
            self._nodes = NodeLines()
        self._nodes.begin()
        self._is_after_backward = False

    def here(self) -> CodePlace:
        """Return the line that the current thread runs."""
        seen = self._view(sys._getframe(1))
        # Nodes of a device run in a separate thread, whose stack has no frame of the engine.
        if not seen.is_in_engine and (seen.phase is not None or not is_in_backward()):
            place = self._forward(seen)
        else:
            node = self._line_of_node()
            module = self._module_in_backward(seen) or node.module
            at = seen if seen.file else node  # code of the user that the engine calls, as in a checkpoint
            place = CodePlace(at.file, at.line, module, Phase.BACKWARD)
        if self._nodes.is_recorded and self._is_home:
            self._nodes.record(next_node_number() - 1, place)
        return place

    def record_node(self, node: Any, place: CodePlace) -> None:
        """Record the line that created a node."""
        number = number_of(node)
        if number is not None and self._is_home:
            self._nodes.record(number, place)

    def record(self) -> CodePlace:
        """Return the line that the current thread runs, and record it for the latest node.

        Call this for every op of a step, or for none.
        """
        self._nodes.is_recorded |= self._is_home
        return self.here()

    def on_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the engine, and record its caller."""
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
            self._caller = None  # it references everything that the step created
            self._is_after_backward |= is_home

    @property
    def _is_home(self) -> bool:
        return threading.get_ident() == self._home

    def _view(self, frame: FrameType | None) -> StackView:
        return view_stack(self.frames.outwards(frame, self._base), self._base)

    def _line_of_node(self) -> CodePlace:
        """Return the line that created the running node; otherwise the line that called backward."""
        node, nodes = running_node(), self._nodes
        number = None if node is None else number_of(node)
        if number is None:
            tensor = getattr(node, "variable", None)  # of nodes that accumulate its gradient
            name = "" if tensor is None else self._names.name_of_owner(tensor)
            return replace(self._line_of_backward(), module=name)
        earlier, number = self._earlier_nodes, number - nodes.first
        found = nodes.find(number)
        has_as_many = nodes.backwards == earlier.backwards[: len(nodes.backwards)]
        if not found and not nodes.is_recorded and has_as_many:
            found = earlier.find(number)
        return found or self._line_of_backward()

    def _line_of_backward(self) -> CodePlace:
        seen = self._view(self._callers.get(threading.get_ident(), self._caller))
        return CodePlace(seen.file, seen.line, "", Phase.BACKWARD)
