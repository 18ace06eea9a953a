"""Record when the modules and the phases of a program begin and end."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, NamedTuple

from pytest_dtdispatch.core.places import Phase
from pytest_dtdispatch.core.spans import TraceSpan
from pytest_dtdispatch.measuring.module_names import ModuleNames
from pytest_dtdispatch.measuring.timed import Timed
from pytest_dtdispatch.torchapi.program_hooks import watching_program


class _Begun(NamedTuple):
    """What has begun in a thread, and has not ended."""

    kind: str
    name: str
    timed: Timed
    arguments: dict[str, str | int]


class _Inside(threading.local):
    """What runs in a thread, from the outermost inwards."""

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.phases: list[Phase] = []


class ProgramTrace:
    """Record modules, backward, clipping and optimizers as spans, while this is open.

    Compiled code stays compiled: nothing inside of it is recorded, and the call of it is.

    Attributes:
        spans: those that have ended, in that order.

    Example:
        >>> import torch
        >>> with ProgramTrace() as trace:
        ...     output = torch.nn.Sequential(torch.nn.ReLU())(torch.ones(2))
        >>> [f"{span.kind} {span.name}" for span in trace.spans]
        ['module 0', 'module Sequential']
    """

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []
        self._names = ModuleNames()
        self._inside = _Inside()
        self._open = ExitStack()

    def __enter__(self) -> ProgramTrace:
        with ExitStack() as entered:
            entered.enter_context(watching_program(self))
            self._open = entered.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def begin_phase(self, name: str, call: str) -> _Begun | None:
        """Note that a phase begins; None where it is the phase already."""
        phase, phases = Phase(name), self._inside.phases
        if phases and phases[-1] is phase:
            return None
        phases.append(phase)
        return _Begun("phase", name, Timed("phase", lambda: name).show(), {"call": call} if call else {})

    def begin_module(self, module: Any) -> _Begun:
        """Note that a module is called."""
        modules = self._inside.modules
        modules.append(module)
        # Backward calls parts of a checkpoint anew: no module that has all of it is around them.
        name_of = self._names.known_name if self._inside.phases else self._names.name
        name = name_of(modules[::-1])
        arguments: dict[str, str | int] = {"class": type(module).__name__}
        return _Begun("module", name, Timed("module", lambda: name).show(), arguments)

    def end(self, begun: _Begun | None) -> None:
        """Note that something ends."""
        if begun is None:
            return
        when = begun.timed.end()
        (self._inside.modules if begun.kind == "module" else self._inside.phases).pop()
        self.spans.append(TraceSpan(begun.kind, begun.name, when, begun.arguments))
