"""What is said of a torch that lacks a name which was not probed for, because every known torch has it."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from types import FrameType

import torch

from pytest_dtdispatch.errors import UnsupportedTorchError, first_said

HOME = Path(__file__).parent
LOOKS_UP = ("__getattr__", "__getattribute__")  # a module or class of torch's own may look names up
OF_IMPORTS = Path(importlib.__file__).parent
FROZEN = "<frozen importlib"


def what_torch_lacks(error: BaseException | None) -> str:
    """Say in one line what torch lacks, where an error says so: a file of this folder asked in vain for it.

    Returns:
        The line; empty where the error, and those that led to it, say something else.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, UnsupportedTorchError):
            return str(error)
        if isinstance(error, (AttributeError, ImportError)) and _was_asked_for_here(error):
            said = first_said(error)
            return (
                f"torch {torch.__version__} lacks what this needs of it ({said}); torch 2.5 to 2.15 have it"
            )
        error = error.__cause__ or error.__context__
    return ""


def _was_asked_for_here(error: BaseException) -> bool:
    """Tell whether the innermost frame is one of ours, those left out that look names up."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    while frames and _looks_up(frames[-1]):
        frames.pop()
    return bool(frames) and Path(frames[-1].f_code.co_filename).parent == HOME


def _looks_up(frame: FrameType) -> bool:
    code = frame.f_code
    is_import = code.co_filename.startswith(FROZEN) or Path(code.co_filename).parent == OF_IMPORTS
    return is_import or code.co_name in LOOKS_UP
