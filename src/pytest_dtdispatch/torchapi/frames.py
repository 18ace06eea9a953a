"""Whose code a frame of the stack runs, and which functions of torch tell what a program is at."""

from __future__ import annotations

import inspect
import os
import sysconfig
from enum import Enum
from pathlib import Path
from types import CodeType

import torch

from pytest_dtdispatch.torchapi.autograd import engine_code

# Code without a file that a user typed: all other is made by programs, as dataclasses make "<string>".
TYPED = ("<stdin>", "<ipython-input", "<doctest", "<console>")
PACKAGES = ("site-packages", "dist-packages")
COMPILED = "torchinductor_"


class Whose(Enum):
    """What a frame tells."""

    USER = "code of the user"
    MODULE = "the call of a module"
    ENGINE = "autograd's engine"
    BACKWARD = "what calls the engine"
    CLIPPING = "gradients are clipped"
    OPTIMIZER = "an optimizer works"
    NOTHING = "code of torch, of Python or of this plugin"


class Frames:
    """Tell whose code it is, once for each code object.

    Attributes:
        known: by the id of a code object: a walk over the stack asks it for every frame.
    """

    def __init__(self) -> None:
        ours = Path(__file__).parents[1]
        self._ours = _folder(ours)
        self._suite = _folder(ours / "suite")  # written as users write
        self._torch = tuple(
            _folder(Path(torch.__file__).parents[1] / name) for name in ("torch", "functorch")
        )
        paths = sysconfig.get_paths()
        self._python = tuple({_folder(paths[name]) for name in ("stdlib", "platstdlib")})
        self._optimizers = _folder(Path(torch.optim.__file__).parent)
        self._clipping = str(Path(torch.nn.utils.__file__).parent / "clip_grad.py")
        # By id, as to hash a code object takes longer than all else; held, so that its id stays its own.
        self.known: dict[int, Whose] = {}
        self._held: list[CodeType] = []
        self._know(engine_code(), Whose.ENGINE)
        for function, whose in (
            (torch.nn.Module.__call__, Whose.MODULE),
            (torch.nn.Module.zero_grad, Whose.OPTIMIZER),
            (torch.autograd.backward, Whose.BACKWARD),
            (torch.autograd.grad, Whose.BACKWARD),
        ):
            self._know(inspect.unwrap(function).__code__, whose)

    def learn(self, code: CodeType) -> Whose:
        """Tell whose code it is that is not known yet, and know it from now on."""
        return self._know(code, self._of_file(code.co_filename))

    def _know(self, code: CodeType, whose: Whose) -> Whose:
        self._held.append(code)
        self.known[id(code)] = whose
        return whose

    def _of_file(self, file: str) -> Whose:
        if file.startswith("<"):
            return Whose.USER if file.startswith(TYPED) else Whose.NOTHING
        if file == self._clipping:
            return Whose.CLIPPING
        if file.startswith(self._optimizers):
            return Whose.OPTIMIZER
        is_ours = file.startswith(self._ours) and not file.startswith(self._suite)
        if is_ours or file.startswith(self._torch) or COMPILED in file:
            return Whose.NOTHING
        is_installed = any(f"{os.sep}{folder}{os.sep}" in file for folder in PACKAGES)
        return Whose.NOTHING if file.startswith(self._python) and not is_installed else Whose.USER


def _folder(path: str | Path) -> str:
    return f"{path}{os.sep}"
