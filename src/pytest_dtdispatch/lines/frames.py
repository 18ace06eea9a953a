"""Stack frames: the owner of their code, and the user's line, modules and phase of a stack."""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.optim import Optimizer

from pytest_dtdispatch.core.events import Part, Phase
from pytest_dtdispatch.lines.wrappers import wrapper_paths
from pytest_dtdispatch.torchapi.autograd import engine_code
from pytest_dtdispatch.torchapi.compiler import is_generated
from pytest_dtdispatch.torchapi.observe import missing_fsdp_name, owners_of_parameters

# Folders of the standard library; read once, because sysconfig takes as long as a step.
PYTHON = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
INSTALLED = ("site-packages", "dist-packages")  # folders of libraries


@dataclass(frozen=True, eq=False)
class FrameOwner:
    """Owner of the code of stack frames, compared by identity: members of an enum are slow to access.

    Args:
        phase: phase of a step that its frames imply; None if they imply none.
        part: part of a budget that its Python belongs to, if its frame is the innermost.
        is_library: whether it is a library of torch that calls its own functions dozens of times in a hook.
    """

    phase: Phase | None = None
    part: Part = Part.OTHER
    is_library: bool = False


class FrameOwners:
    """All owners of the code of stack frames."""

    USER = FrameOwner()
    MODULE = FrameOwner(part=Part.MODULES)  # the call of a module
    ENGINE = FrameOwner(Phase.BACKWARD, Part.AUTOGRAD)
    BACKWARD = FrameOwner(Phase.BACKWARD, Part.AUTOGRAD)  # a caller of the engine
    CLIPPING = FrameOwner(Phase.CLIPPING, Part.MODULES)  # of gradients
    OPTIMIZER = FrameOwner(Phase.OPTIMIZER, Part.OPTIMIZER)
    OPTIMIZER_HOOKS = FrameOwner(Phase.OPTIMIZER, Part.OPTIMIZER)  # the step of an optimizer and its hooks
    DDP = FrameOwner(part=Part.DDP, is_library=True)
    FSDP = FrameOwner(part=Part.FSDP_PYTHON, is_library=True)
    PIPELINE = FrameOwner(part=Part.PIPELINE, is_library=True)  # a schedule of pipeline stages
    NOTHING = FrameOwner()  # code of torch, of Python, of pytest or of this plugin


T = TypeVar("T")
OwnedFrames = Iterable[tuple[FrameOwner, FrameType]]


class Frames:
    """Owners of frames, computed once for each code object.

    Attributes:
        owners: owners by the id of a code object, because hashing it takes longer than the rest of a lookup.
            Callers that run for each frame read it directly: a call of :meth:`owner` would double the time.
    """

    def __init__(self) -> None:
        ours, of_torch = f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}"
        self._suite = f"{ours}suite{os.sep}"  # treated as user code
        self._hidden = (ours, of_torch, f"{Path(torch.__file__).parents[1] / 'functorch'}{os.sep}")
        self._of_paths = {  # the first path that a file starts with decides
            str(Path(torch.nn.utils.__file__).parent / "clip_grad.py"): FrameOwners.CLIPPING,
            f"{Path(torch.optim.__file__).parent}{os.sep}": FrameOwners.OPTIMIZER,
            f"{of_torch}nn/parallel{os.sep}": FrameOwners.DDP,
            f"{of_torch}distributed/pipelining{os.sep}": FrameOwners.PIPELINE,
        }
        if not missing_fsdp_name():
            for folder in ("distributed/fsdp", "distributed/_composable/fsdp"):
                self._of_paths[f"{of_torch}{folder}{os.sep}"] = FrameOwners.FSDP
        self._plans = f"{of_torch}distributed/tensor/parallel/"  # styles of `parallelize_module`
        self._wrappers = wrapper_paths()
        self.owners: dict[int, FrameOwner] = {}
        self._codes: list[CodeType] = []  # references, so that no other code object gets their ids
        # Code between the line that calls an op and its propagation.
        folders = ("rounds", "replay", "lines", "steps", "torchapi")
        files = ("distributed/tensor/", "_tensor.py", "functional.py", "_ops.py", "_compile.py")
        self._between = (
            *(f"{ours}{folder}{os.sep}" for folder in folders),
            *(f"{of_torch}{file}" for file in files),
        )
        # Further files of torch whose functions do what their arguments say.
        thin = (
            *("nn/", "autograd/", "utils/_contextlib.py", "optim/optimizer.py", "_dynamo/eval_frame.py"),
            *("distributed/distributed_c10d.py", "distributed/c10d_logger.py"),
            "distributed/_functional_collectives.py",
        )
        self._thin = tuple(f"{of_torch}{file}" for file in thin)
        self._cache(engine_code(), FrameOwners.ENGINE)
        for function, owner in (
            (torch.nn.Module.__call__, FrameOwners.MODULE),
            (torch.nn.Module.zero_grad, FrameOwners.OPTIMIZER),
            (torch.autograd.backward, FrameOwners.BACKWARD),
            (torch.autograd.grad, FrameOwners.BACKWARD),
        ):
            self._cache(inspect.unwrap(function).__code__, owner)
        self._cache(Optimizer.profile_hook_step(len).__code__, FrameOwners.OPTIMIZER_HOOKS)

    def owner(self, code: CodeType) -> FrameOwner:
        """Return the owner of a code object."""
        return self.owners.get(id(code)) or self._cache(code, self._of_file(code.co_filename))

    def outwards(self, frame: FrameType | None, base: CodeType | None = None) -> OwnedFrames:
        """Yield owned frames, and frames of ``base``, with their owners, from the innermost outwards."""
        owners, owner_of, nothing = self.owners, self.owner, FrameOwners.NOTHING
        while frame is not None:
            code = frame.f_code
            owner = owners.get(id(code)) or owner_of(code)
            if owner is not nothing or code is base:
                yield owner, frame
            frame = frame.f_back

    def is_called_directly(self) -> bool:
        """Return whether user code called the running op, with only DTensor and this plugin in between."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(self._between):
            frame = frame.f_back
        return frame is not None and self.owner(frame.f_code) is FrameOwners.USER

    def called_by(self) -> str:
        """Return the function of torch or a library that user code called, if its code made the running call.

        It is empty for a module of torch, an autograd function and a thin wrapper: what they do is determined
        by the arguments of the user.
        """
        frame: FrameType | None = sys._getframe(1)
        inner: FrameType | None = None
        while frame is not None and self.owner(frame.f_code) is not FrameOwners.USER:
            name, file = frame.f_code.co_name, frame.f_code.co_filename
            is_thin = file.startswith((*self._between, *self._thin)) and not file.startswith(self._plans)
            if not is_thin or "object" in name:
                inner = frame
            frame = frame.f_back
        if frame is None:
            return ""
        if inner is not None:
            return inner.f_code.co_name
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        is_of_library = any(f"{os.sep}{folder}{os.sep}" in file for folder in INSTALLED)
        return name if is_of_library and name != "forward" else ""

    def is_in_fsdp(self) -> bool:
        """Return whether the innermost code that is not hidden is FSDP's."""
        owner, _ = next(iter(self.outwards(sys._getframe(1))), (FrameOwners.NOTHING, None))
        return owner is FrameOwners.FSDP

    def input_of(self, tensor: Any) -> ModuleInput | None:
        """Return the argument of a running forward that a plan of ``parallelize_module`` converts.

        It is None if the tensor is not, or not only, one argument, or if the code of the forward does more
        with this argument than to pass it on.
        """
        frame: FrameType | None = sys._getframe(1)
        is_planned = False
        while frame is not None and self.owner(frame.f_code) is not FrameOwners.USER:
            is_planned |= frame.f_code.co_filename.startswith(self._plans)
            frame = frame.f_back
        comprehensions = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
        while frame is not None and frame.f_code.co_name in comprehensions:
            frame = frame.f_back
        if not is_planned or frame is None or frame.f_code.co_name != "forward":
            return None
        code, variables = frame.f_code, frame.f_locals
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = [name for name in arguments if variables.get(name) is tensor]
        caller = frame.f_back  # Module._call_impl
        if len(names) != 1 or caller is None or "kwargs" not in caller.f_locals:
            return None
        uses = uses_of_variable(code, names[0])
        if uses is None:
            return None
        positional, named = caller.f_locals.get("args", ()), caller.f_locals["kwargs"]
        return ModuleInput(variables[arguments[0]], names[0], named, len(positional), uses)

    def _cache(self, code: CodeType, owner: FrameOwner) -> FrameOwner:
        self._codes.append(code)
        self.owners[id(code)] = owner
        return owner

    def _of_file(self, file: str) -> FrameOwner:
        if file.startswith("<"):  # typed by the user, or generated, such as "<string>" by dataclasses
            is_typed = file.startswith(("<stdin>", "<ipython-input", "<doctest", "<console>"))
            return FrameOwners.USER if is_typed else FrameOwners.NOTHING
        for path, owner in self._of_paths.items():
            if file.startswith(path):
                return owner
        is_hidden = file.startswith(self._hidden) and not file.startswith(self._suite)
        is_python = file.startswith(PYTHON) and not any(folder in file for folder in INSTALLED)
        # Packages that run tests, and code that the compiler writes.
        parts = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}", "torchinductor_")
        is_hidden |= file.startswith(self._wrappers) or any(part in file for part in parts)
        return FrameOwners.NOTHING if is_hidden or is_python else FrameOwners.USER


class ModuleInput(NamedTuple):
    """An argument of a running forward.

    Args:
        module: the module.
        name: name of the argument.
        call: keyword arguments of the call, an object of its own for each call.
        positional: number of positional arguments of the call.
        uses: how the code of the forward uses the argument.
    """

    module: Any
    name: str
    call: dict[str, Any]
    positional: int
    uses: VariableUses


class VariableUses(NamedTuple):
    """Uses of a variable in code.

    Args:
        loads: number of times that the code loads it, other than for an attribute.
        attributes: attributes of it that the code loads.
    """

    loads: int
    attributes: frozenset[str]


@functools.lru_cache(maxsize=1024)  # slow, and called for each conversion
def uses_of_variable(code: CodeType, name: str) -> VariableUses | None:
    """Return how code uses a variable; None if it assigns to it."""
    # Ends of the names of instructions on local variables.
    kinds = ("FAST", "FAST_CHECK", "FAST_BORROW", "FAST_AND_CLEAR", "DEREF", "CLOSURE")
    loads, attributes = 0, frozenset[str]()
    for each, following in pairwise(dis.get_instructions(code)):  # the last one returns or raises
        # Since Python 3.13 one instruction may load or store two variables.
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if name not in names or not each.opname.endswith(kinds):
            continue
        if each.opname.startswith(("STORE_", "DELETE_")):
            return None
        if following.opname in ("LOAD_ATTR", "LOAD_METHOD") and names[-1] == name:
            attributes |= {str(following.argval)}
        elif not each.opname.endswith("CLOSURE"):
            loads += names.count(name)
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            found = uses_of_variable(inner, name)
            if found is None:
                return None
            loads, attributes = loads + found.loads, attributes | found.attributes
    return VariableUses(loads, attributes)


def running_instance(frame: FrameType | None, kind: type[T]) -> T | None:
    """Return the instance of a class whose innermost method runs in a frame or its callers."""
    while frame is not None:
        # The first check is cheap: reading the local variables of a frame copies them.
        if frame.f_code.co_varnames[:1] == ("self",):
            found = frame.f_locals["self"]
            if isinstance(found, kind):
                return found
        frame = frame.f_back
    return None


class StackView(NamedTuple):
    """Summary of a stack, from the innermost frame out to the engine or to the caller of the step.

    Args:
        file: file of the innermost frame of user code; empty if there is none.
        line: line number in that file.
        running: running modules, the innermost first.
        phase: phase that a frame of torch implies; None if there is none.
        is_in_engine: whether the engine called all these frames.
        owners: modules whose parameters FSDP moves, if it does so inside the innermost module.
    """

    file: str
    line: int
    running: Sequence[Any]
    phase: Phase | None
    is_in_engine: bool
    owners: Sequence[Any]


def owners_in(frame: FrameType) -> Sequence[Any]:
    """Return the modules that own the parameters of a frame of FSDP; empty in its other frames."""
    for name in frame.f_code.co_varnames[:2]:
        if name in ("self", "handle"):
            return owners_of_parameters(frame.f_locals.get(name))
    return ()


def view_stack(frames: OwnedFrames, base: CodeType | None = None) -> StackView:
    """Summarize frames from the innermost out; continue beyond ``base`` if no frame inside is user code."""
    file, line, running, phase, user, caller = "", 0, list[Any](), None, None, None
    owners: Sequence[Any] = ()
    is_compiled = False  # whether the line and the modules are those of the caller
    for owner, frame in frames:
        if frame.f_code is base:
            if file:
                break
        elif owner is FrameOwners.USER:
            user, caller = frame, None
            if not file or is_compiled:
                file, line, is_compiled = frame.f_code.co_filename, frame.f_lineno, is_generated(frame)
                running = [] if is_compiled else running
        elif owner is FrameOwners.MODULE:
            running.append(frame.f_locals["self"])
        elif owner is FrameOwners.FSDP:
            owners = owners or (() if running else owners_in(frame))
        elif owner.phase and phase in (None, Phase.BACKWARD):  # a checkpoint calls it in the engine
            caller = caller or owner
            phase = _phase(owner, user, caller)
            if owner is FrameOwners.ENGINE:
                return StackView(file, line, running, phase, True, owners)
        if file and phase:
            break
    return StackView(file, line, running, phase, False, owners)


def _phase(owner: FrameOwner, user: FrameType | None, caller: FrameOwner) -> Phase | None:
    """Return the phase of a torch function; None for a closure that an optimizer calls.

    Hooks of an optimizer are part of its phase: the wrapper of ``step`` calls them, not its algorithm.
    """
    is_step = owner in (FrameOwners.OPTIMIZER, FrameOwners.OPTIMIZER_HOOKS)
    if is_step and user is not None and caller is not FrameOwners.OPTIMIZER_HOOKS:
        return owner.phase if issubclass(type(user.f_locals.get("self")), Optimizer) else None
    return owner.phase
