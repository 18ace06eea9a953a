"""Private names of torch in our code, and runs in which one of them is missing.

A name is hidden only from our files, which are compiled with another name in its place. Torch itself works
as usual. The names are read from the sources, so new ones are found automatically.

Run as a script, with a folder and names: prints a line of JSON for each name. Each run is a fork of this
process, which has imported torch but none of our modules.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

TORCHAPI = Path(__file__).parents[1] / "src" / "pytest_dtdispatch" / "torchapi"
PACKAGE = "pytest_dtdispatch.torchapi."
GONE = "_gone"
NONE_AT_ALL = "_no_name_at_all"
ANY = re.compile(r"(?<!\w)_[a-zA-Z]\w*")
OWN = re.compile(r"(?:^|def |class |self\.|cls\.|for )(_[a-zA-Z]\w*)", re.MULTILINE)
TESTS = """
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

def made(mesh, grad=False):
    return DTensor.from_local(torch.ones(4, 4, requires_grad=grad), mesh, [Shard(0)])

def step_of(mesh):
    a = made(mesh, grad=True)

    def step():
        (a + a).sum().backward()
        b = DTensor.from_local(a.detach().to_local(), mesh, [Shard(0)])
        b.redistribute(placements=[Replicate()])

    return step

def test_capture(dtdispatch, device_mesh):
    a = made(device_mesh)
    with dtdispatch.capture():
        a + a
        a.add_(1)
        a.uniform_()
        a.redistribute(placements=[Replicate()])
        torch.ops.aten.is_same_size(a, a)

def test_steps(dtdispatch, device_mesh):
    dtdispatch.steps(step_of(device_mesh), warmup=1, steps=2)

def test_compile(dtdispatch, device_mesh):
    a = made(device_mesh)
    dtdispatch.compile(lambda x: x + x, a, name="twice", backend="eager")

def test_budget(dtdispatch, device_mesh):
    dtdispatch.budget(step_of(device_mesh), steps=1)

def test_compare(dtdispatch, device_mesh):
    a = made(device_mesh)
    dtdispatch.compare({"one": lambda: a + a, "other": lambda: a + a}, name="both")
"""
# Additional tests for names used in these files.
OF_FILES = {"compiler": "compile", "observe": "budget", "profiling": "budget", "tensors": "compare"}
PLUGINS = ("benchmark", "cacheprovider", "xdist", "codspeed", "hypothesispytest")
FLAGS = (
    *(f"-pno:{plugin}" for plugin in PLUGINS),
    *("-vv", "--assert=plain", "--dtdispatch", "--dtdispatch-rounds=1", "--dtdispatch-repeat=1"),
    *("--dtdispatch-export=csv:results.csv", "test_it.py"),
)


def names_by_file() -> dict[str, set[str]]:
    """Return the private names of torch by file: those that the file uses but does not define."""
    texts = {path.stem: path.read_text() for path in sorted(TORCHAPI.glob("*.py"))}
    return {file: {*ANY.findall(text)} - {*OWN.findall(text)} for file, text in texts.items()}


def private_names() -> list[str]:
    return sorted(set().union(*names_by_file().values()))


class Finder:
    """Import hook that runs our files without a name, or without several: ``one+other``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, module: str, path: object = None, target: object = None) -> Any:
        file = TORCHAPI / f"{module.removeprefix(PACKAGE)}.py"
        if not module.startswith(PACKAGE) or not file.exists():
            return None
        return importlib.util.spec_from_file_location(module, file, loader=self)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        hidden = re.compile(rf"(?<!\w)({self._name.replace('+', '|')})\b")
        text = hidden.sub(rf"\1{GONE}", Path(module.__file__).read_text())
        exec(compile(text, module.__file__, "exec"), vars(module))


def run_without(name: str, folder: Path, tests: str) -> dict[str, Any]:
    """Run the tests in a fork in which our files do not find a name."""
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]")
    if not (pid := os.fork()):
        run_in_child(name, folder, tests)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    results = folder / "results.csv"
    rows = [tuple(row) for row in csv.reader(results.open())] if results.exists() else []
    counts = sorted(row for row in rows if not row[1].endswith("_ns"))
    return {"name": name, "status": status, "output": (folder / "out.txt").read_text(), "counts": counts}


def run_in_child(name: str, folder: Path, tests: str) -> None:
    status = 99
    try:
        os.chdir(folder)
        out = os.open("out.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.path.insert(0, str(TORCHAPI.parents[1]))
        sys.dont_write_bytecode = True
        sys.meta_path.insert(0, Finder(name))
        import pytest

        status = int(pytest.main([*FLAGS, "-k", tests]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def tests_of(name: str) -> str:
    files = [file for file, names in names_by_file().items() if name in names]
    more = {OF_FILES[file] for file in files if file in OF_FILES}
    return " or ".join(["capture", "steps", *sorted(more)])


if __name__ == "__main__":
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.testing._internal.distributed.fake_pg  # noqa: F401
    from torch.distributed.tensor import DTensor  # noqa: F401

    for each in sys.argv[2:]:
        print(json.dumps(run_without(each, Path(sys.argv[1], each), tests_of(each))), flush=True)
