"""Run a script as Python runs it: nothing of ours shows in it, and nothing of it is lost."""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from pytest_dtdispatch.errors import WatchError

INTERRUPTED, FAILED = 130, 1


@dataclass(frozen=True)
class Program:
    """What is run as ``__main__``.

    Args:
        name: as it was typed.
        path: the first of ``sys.argv``.
        folder: the first of ``sys.path``.
        code: of it; compiled when it is run, as it may have mistakes.
        attributes: of its module.
    """

    name: str
    path: str
    folder: str
    code: Callable[[], CodeType]
    attributes: dict[str, Any]


def script(name: str) -> Program:
    """Find a script."""
    path = os.path.abspath(name)  # noqa: PTH100 (links are not followed, as Python follows none)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise WatchError(f"watch {name}: cannot be read: {error.strerror}") from None
    attributes = {"__file__": path, "__cached__": None, "__loader__": SourceFileLoader("__main__", path)}
    folder = str(Path(os.path.realpath(path)).parent)
    return Program(name, name, folder, lambda: compile(source, path, "exec", dont_inherit=True), attributes)


def run(program: Program, arguments: Sequence[str]) -> int:
    """Run a program to its end, and return the status that Python would exit with."""
    module = types.ModuleType("__main__")
    vars(module).update(
        {"__builtins__": builtins, "__package__": None, "__spec__": None, **program.attributes}
    )
    sys.modules["__main__"] = module
    sys.argv[:] = [program.path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = program.folder
    try:
        exec(program.code(), vars(module))
    except SystemExit as left:
        return _status(left)
    except BaseException as error:
        return _failed(error)
    return 0


def _status(left: SystemExit) -> int:
    """Do with the code of an exit as Python does."""
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return FAILED


def _failed(error: BaseException) -> int:
    """Show an exception as Python does, without the frames that ran the program."""
    error.__traceback__ = _below(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def _below(frames: TracebackType | None) -> TracebackType | None:
    """Give what the program called: all but our own frame, and that which compiles."""
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames
