"""Print the files that one op passes on its way to the table, and one verdict on its way to the screen.

``python tools/call_path.py`` runs a test with one op in pytest, twice in this process, and traces
objects: the op's call, signature, figures, row and table; for the verdict, the rows of both runs and the
judgement. A file is passed if one of its functions receives such an object, has one in a variable or returns
one. The files are printed in the order in which they are first passed, for an op from ``__torch_dispatch__``
on. A file is marked if its folder was left before. ``core``, which defines the objects, ``torchapi`` and the
files that call pytest-benchmark are not counted.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed.tensor
import torch.testing._internal.distributed.fake_pg  # noqa: F401  (tracing its imports would take minutes)

import pytest_dtdispatch

FOLDER = str(Path(pytest_dtdispatch.__file__).parent) + os.sep
OP = {"OpOverload", "OpCall", "Signature", "Subject", "RanOp", "Samples", "Figures", "Measurement", "Table"}
VERDICT = {"TimedRow", "RowVerdict", "Judgement"}
UNCOUNTED = ("core", "torchapi", "plugin/pytest_benchmark")
LOOKED_AT = 4  # elements of a list, tuple or dictionary: the others are of the same types
TEST = """
from torch.distributed.tensor import Shard, distribute_tensor
import torch

def test_add(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
"""
FLAGS = (
    *("test_one_op.py", "-pno:cacheprovider", "--capture=sys", "--benchmark-quiet"),
    *("--dtdispatch", "--dtdispatch-rounds=10", "--dtdispatch-max-time=60"),
)
SAVE = ("--benchmark-save=base",)
JUDGE = ("--benchmark-compare", "--dtdispatch-fail=median:10000%")


class Follower:
    """Profile function that records the files whose functions handle one of the traced objects."""

    def __init__(self, carried: set[str], start: str) -> None:
        self._carried, self._start = carried, start
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Inspect the arguments of a call, and the local variables and the result of a return."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(FOLDER):
            return
        if self._start == code.co_name:
            self._start = ""
        name = code.co_filename.removeprefix(FOLDER).removesuffix(".py")
        if self._start or name in self.files or code.co_name == "<module>" or name.startswith(UNCOUNTED):
            return
        if any(map(self._carries, [*frame.f_locals.values(), argument])):
            self.files[name] = None

    def _carries(self, value: Any, depth: int = 3) -> bool:
        kind = type(value)
        if kind.__name__ in self._carried:
            return True
        inside: Iterable[Any] = ()
        if depth and kind in (list, tuple):
            inside = value[:LOOKED_AT]
        elif depth and kind is dict:
            inside = islice(value.values(), LOOKED_AT)
        return any(self._carries(one, depth - 1) for one in inside)


def files_passed(carried: set[str], start: str, flags: Sequence[str]) -> list[str]:
    """Run the test, and return the files that the objects pass."""
    follower, output = Follower(carried, start), io.StringIO()
    sys.setprofile(follower)
    try:  # no gate judges rows that were measured under a profile function
        with redirect_stdout(output), patch.object(sys, "getprofile", lambda: None):
            status = pytest.main([*FLAGS, *flags])
    finally:
        sys.setprofile(None)
    if status:
        raise SystemExit(output.getvalue()[-2000:])
    return [*follower.files]


def way(what: str, files: Sequence[str]) -> Iterator[str]:
    """Yield a line for each file; mark a file whose folder was left before."""
    yield f"{what}, {len(files)} files:"
    rooms = [name.partition(os.sep)[0] for name in files]
    for number, (name, room) in enumerate(zip(files, rooms, strict=True)):
        is_back = room in rooms[:number] and room != rooms[number - 1]
        yield f"{number + 1:3}  {name}{'  (back again)' * is_back}"


def main() -> None:
    """Print the files of the op and of the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("test_one_op.py").write_text(TEST)
        Path("pytest.ini").write_text("[pytest]\n")
        op = files_passed(OP, "__torch_dispatch__", SAVE)
        verdict = files_passed(VERDICT, "", JUDGE)
        os.chdir("/")
    print(*way("one op", op), *way("one verdict of a saved run", verdict), sep="\n")


if __name__ == "__main__":
    main()
