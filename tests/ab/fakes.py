"""Fake interpreters: scripts that answer the requests of an A/B run without measuring."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

ROW = "t.py::test_add::add.Tensor(f32[8]S0)@4"
PLAIN = "control::add::control"
# Starts in a third of the time of an interpreter that searches packages and imports json and random.
SCRIPT = """#!{python} -IS
import os, sys, time
spec = {spec}

def json(value):
    return str(value).replace("'", '"')

if sys.argv[1] == "-c":
    print("dtdispatch-probe " + json(spec["probe"]))
    sys.exit(0)
with open(spec["calls"], "a") as calls:
    calls.write(spec["name"] + "\\n")
exec(spec["does"])
def rows(values):
    return [[[*name.rsplit("::", 2)], value] for name, value in values.items()]

values = {{}}
for state, ns in (("hit", 7e3), ("miss", 1.3e6), ("control", 2e3)):
    factor = spec["factors"].get(state, 1.0)
    row = "control::add" if state == "control" else spec["row"]
    values[f"{{row}}::{{state}}"] = ns * factor * (0.99 + 0.005 * os.urandom(1)[0] / 255)
with open(os.environ["DTDISPATCH_AB_OUTPUT"], "w") as output:
    folders = [os.getcwd()] if "DTDISPATCH_AB_CHECKOUT" in os.environ else []
    content = {{"values": rows(values), "absent": {{}}, "folders": folders, **spec["only"]}}
    if spec["numbers"]:
        content["values"] = rows(spec["numbers"][os.environ["DTDISPATCH_AB_KIND"]])
        content["details"] = rows(spec["numbers"].get("details", {{}}))
        content["lines"] = rows(spec["numbers"].get("lines", {{}}))
    output.write(json(content))
"""


def fake_python(
    folder: Path,
    name: str,
    does: str = "",
    row: str = ROW,
    only: dict[str, object] | None = None,
    probe: dict[str, str] | None = None,
    numbers: Mapping[str, Mapping[str, object]] | None = None,
    **factors: float,
) -> Path:
    """Write a fake interpreter.

    Args:
        folder: its folder; each measuring process adds a line to the file ``calls`` in it.
        name: its name.
        does: Python code that a measuring process runs first.
        row: test and signature of its row.
        only: replaces the default values; reasons for absent rows.
        probe: overrides of its answer to the version probe.
        numbers: its answers in place of rows, by kind of request.
        **factors: factors of its hits, misses and plain ops.
    """
    good = {"plugin": version("pytest-dtdispatch"), "python": "3.12.3", "torch": "2.13.0", "build": "abc"}
    spec = {"name": name, "calls": str(folder / "calls"), "does": does, "row": row, "factors": factors}
    spec |= {"only": only or {}, "numbers": numbers or {}, "probe": {**good, **(probe or {})}}
    path = folder / name
    path.write_text(SCRIPT.format(python=sys.executable, spec=repr(spec)))
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    """Return the interpreters of all measuring processes, in the order of their runs."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
