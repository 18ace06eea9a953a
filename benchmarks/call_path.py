"""Which files one op passes on its way to the table, and one verdict on its way to the screen.

``python benchmarks/call_path.py [PATH]`` runs a test with one op in pytest, with the package of a checkout
(this one where none is named), and follows what is carried: of the op its call, its signature, its figures,
the results that they stand in, the table; of the verdict the saved run, its rows, the thresholds, the
judgement, and from where results are handed out what was measured. A file is passed where a function of it is
given such a thing, holds one in a variable or returns one. Printed are the files in the order in which they
are first passed, an op's from ``__torch_dispatch__`` on; a verdict's rows until they are judged, and from
then on the judgement. Where the way comes back to a folder that it had left, the file is marked; but for
``torchapi``, and for ``core``, which holds the things themselves. What leads into pytest-benchmark
is named beside the way and not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "pytest_dtdispatch"
OUTPUT, STAGES = "CALL_PATH_OUTPUT", "CALL_PATH_STAGES"
OP = (  # names of classes, in this checkout or an earlier one; with their file where others have the name
    *("OpOverload", "OpCall", "Signature", "Subject", "Replay", "OpReplay", "RanCall"),
    *("Samples", "Figures", "Measurement"),
    *("Book", "TestResults", "Found", "Document", "Table", "Group"),
)
VERDICT = ("SavedRun", "saved.Row", "StateRow", "Threshold", "RowVerdict", "Judgement", "verdicts.Verdict")
HANDED_OUT = (*VERDICT, "Measurement", "Samples", "Book", "TestResults")
# What is followed, from the first call of a function of this name on; at once where it is empty.
OP_FROM = (("__torch_dispatch__", OP),)
VERDICT_FROM = (("", VERDICT), ("_publish", HANDED_OUT), ("judge_run", (*VERDICT, "Text")))
BESIDE = ("pytest_benchmark", "plugin/pytest_benchmark")
Stages = Sequence[tuple[str, Sequence[str]]]
FREE_ROOMS = ("torchapi", "core")  # may be come back to
LOOKED_AT = 4  # of a list, a tuple or a dictionary: what else is in it is alike
TEST = """
from torch.distributed.tensor import Shard, distribute_tensor
import torch

def test_add(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
"""
FLAGS = (
    "--dtdispatch",
    "--dtdispatch-rounds=10",
    "--dtdispatch-max-time=60",
    "-p",
    "no:cacheprovider",
    "--benchmark-quiet",
)
SAVE = ("--benchmark-save=base",)
JUDGE = ("--benchmark-compare", "--dtdispatch-fail=median:10000%")


class Follower:
    """Notes files of the package whose functions hold what is followed: a profile function."""

    def __init__(self, folder: str, stages: Stages) -> None:
        self._folder = folder
        self._starts = {start: frozenset(carried) for start, carried in stages}
        self._carried = self._starts.pop("", frozenset())
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Look at the arguments of a call, and at all that a function has when it returns."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self._folder):
            return
        if code.co_name in self._starts:
            self._carried = self._starts.pop(code.co_name)
        name = code.co_filename.removeprefix(self._folder).removesuffix(".py")
        if name in self.files or code.co_name == "<module>":
            return
        if any(map(self._carries, [*frame.f_locals.values(), argument])):
            self.files[name] = None

    def _carries(self, value: Any, depth: int = 3) -> bool:
        kind = type(value)
        module = str(kind.__module__).rpartition(".")[2]
        if kind.__name__ in self._carried or f"{module}.{kind.__name__}" in self._carried:
            return True
        inside: Iterable[Any] = ()
        if depth and kind in (list, tuple):
            inside = value[:LOOKED_AT]
        elif depth and kind is dict:
            inside = islice(value.values(), LOOKED_AT)
        return any(self._carries(one, depth - 1) for one in inside)


def follow() -> None:
    """Run pytest in this process on what the command line says, and write which files were passed."""
    import pytest

    import pytest_dtdispatch

    folder = str(Path(pytest_dtdispatch.__file__).parent) + os.sep
    follower = Follower(folder, json.loads(os.environ[STAGES]))
    sys.setprofile(follower)
    status = pytest.main(sys.argv[2:])
    sys.setprofile(None)
    Path(os.environ[OUTPUT]).write_text(json.dumps({"status": int(status), "files": [*follower.files]}))


def files_passed(checkout: Path, folder: Path, stages: Stages, *flags: str) -> list[str]:
    """Run the test in a process of its own, and return the files that were passed."""
    output = folder / "files.json"
    made = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str((checkout / "src").resolve())]),
        OUTPUT: str(output),
        STAGES: json.dumps(stages),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--follow", *FLAGS, *flags]
    done = subprocess.run(command, cwd=folder, env=made, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    if done.returncode or found.get("status"):
        raise SystemExit((done.stdout + done.stderr)[-2000:])
    files: list[str] = found["files"]
    return files


def write_entry_point(checkout: Path, folder: Path) -> None:
    """Let pytest load the plugin of this checkout, and not that of the one that is installed."""
    declared = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    plugin = re.search(rf'^dtdispatch = "({PACKAGE}[\w.]*)"$', declared, re.MULTILINE)
    if plugin is None:
        raise SystemExit(f"{checkout}/pyproject.toml declares no plugin of pytest")
    info = folder / f"{PACKAGE}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-dtdispatch\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\ndtdispatch = {plugin[1]}\n")


def way(what: str, files: Sequence[str]) -> Iterator[str]:
    """Give a line for each file; one in a folder that was left before is marked."""
    passed = [name for name in files if name not in BESIDE]
    yield f"{what}, {len(passed)} files:"
    left: set[str] = set()
    last = ""
    for number, name in enumerate(passed, start=1):
        room = name.partition(os.sep)[0]
        yield f"{number:3}  {name}{'  (back again)' if room in left else ''}"
        if room not in FREE_ROOMS:
            left |= {last} - {room, ""}
            last = room
    yield from (f"beside it, to pytest-benchmark: {name}" for name in files if name in BESIDE)


def main() -> None:
    """Print both ways."""
    parser = argparse.ArgumentParser(description="Print the files that one op and one verdict pass.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT, help="a checkout (default: this one)")
    checkout = parser.parse_args().path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_one_op.py").write_text(TEST)
        write_entry_point(checkout, folder)
        op = files_passed(checkout, folder, OP_FROM, *SAVE)
        verdict = files_passed(checkout, folder, VERDICT_FROM, *JUDGE)
    print(*way("one op", op), *way("one verdict of a saved run", verdict), sep="\n")


if __name__ == "__main__":
    follow() if sys.argv[1:2] == ["--follow"] else main()
