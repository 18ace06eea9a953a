"""Interpreters that measure nothing: scripts that answer what a run asks of an interpreter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ROW = "t.py::test_add::add.Tensor(f32[8]S0)@4"
# It starts in a third of the time of an interpreter that looks for packages and imports json and random.
SCRIPT = """#!{python} -IS
import os, sys, time
told = {told}

def json(value):
    return str(value).replace("'", '"')

if sys.argv[1] == "-c":
    print("dtdispatch-probe " + json(told["probe"]))
    sys.exit(0)
with open(told["calls"], "a") as calls:
    calls.write(told["name"] + "\\n")
exec(told["does"])
def rows(values):
    return [[[*name.rsplit("::", 2)], value] for name, value in values.items()]

values = {{}}
for state, ns in (("hit", 7e3), ("miss", 1.3e6), ("local", 2e3)):
    factor = told["factors"].get(state, 1.0)
    values[f"{{told['row']}}::{{state}}"] = ns * factor * (0.99 + 0.005 * os.urandom(1)[0] / 255)
with open(os.environ["DTDISPATCH_AB_OUTPUT"], "w") as output:
    folders = [os.getcwd()] if "DTDISPATCH_AB_CHECKOUT" in os.environ else []
    content = {{"values": rows(values), "absent": {{}}, "folders": folders, **told["only"]}}
    if told["numbers"]:
        content["values"] = rows(told["numbers"][os.environ["DTDISPATCH_AB_KIND"]])
        content["details"] = rows(told["numbers"].get("details", {{}}))
        content["lines"] = rows(told["numbers"].get("lines", {{}}))
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
    """Write an interpreter.

    Args:
        folder: that it is written to; each measuring process adds a line to ``calls`` in it.
        name: of the interpreter.
        does: Python code that a measuring process runs first.
        row: test and signature that it measures.
        only: its values, where they are not the usual ones; why others are absent.
        probe: what it says of itself, where that is not what a good one says.
        numbers: that it answers with in place of rows, by what it is asked for.
        **factors: what its hits, misses and plain ops are multiplied by.
    """
    good = {"plugin": version("pytest-dtdispatch"), "python": "3.12.3", "torch": "2.13.0", "build": "abc"}
    told = {"name": name, "calls": str(folder / "calls"), "does": does, "row": row, "factors": factors}
    told |= {"only": only or {}, "numbers": numbers or {}, "probe": {**good, **(probe or {})}}
    path = folder / name
    path.write_text(SCRIPT.format(python=sys.executable, told=repr(told)))
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    """Name the interpreters of all measuring processes, in the order they ran."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []
