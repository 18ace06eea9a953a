"""Runs of the programs in tests/cases: one pytest session per folder, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

CASES = Path(__file__).with_name("cases")
SECONDS = 300  # limit of one session


def programs(folder: str) -> list[str]:
    """Return the names of the programs in a folder of tests/cases."""
    return sorted(path.stem for path in (CASES / folder).glob("test_*.py"))


def selected(request: pytest.FixtureRequest, **params: str) -> list[str]:
    """Return the programs of the selected tests of a file with these parameters, each once."""
    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    found = [spec.params for spec in specs if spec and params.items() <= spec.params.items()]
    return [*dict.fromkeys(each["program"] for each in found if "program" in each)]


def failures(
    folder: str,
    tmp_path: Path,
    *flags: str,
    programs: Sequence[str] = (),
    launcher: Sequence[str] = (sys.executable, "-m", "pytest"),
    env: Mapping[str, str] | None = None,
) -> dict[str, list[str]]:
    """Run the programs of a folder in a copy of it.

    Args:
        folder: folder of tests/cases.
        tmp_path: empty folder of the run.
        flags: flags of pytest, in addition to ``--dtdispatch``.
        programs: names of the programs; all if empty.
        launcher: command that starts pytest.
        env: additional environment variables.

    Returns:
        The name and first line of each failure or error, by program; empty for a program without failures.
    """
    here = tmp_path / folder
    shutil.copytree(CASES / folder, here)
    files = [f"{program}.py" for program in programs] or sorted(path.name for path in here.glob("test_*.py"))
    command = [*launcher, "--dtdispatch", "-q", "-pno:cacheprovider", "--junitxml=junit.xml", *flags, *files]
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200", **(env or {})}
    result = subprocess.run(
        command, cwd=here, env=os.environ | settings, capture_output=True, text=True, timeout=SECONDS
    )
    if not (here / "junit.xml").exists():
        raise AssertionError(
            f"{folder}: no results, exit status {result.returncode}\n{result.stdout}{result.stderr}"
        )
    failed: dict[str, list[str]] = defaultdict(list)
    for test in ElementTree.parse(here / "junit.xml").getroot().iter("testcase"):
        program = test.get("classname", "").split(".")[0]
        failed[program] += [
            f"{test.get('name')}: {each.get('message', '').partition(chr(10))[0]}"
            for each in test
            if each.tag in ("failure", "error")
        ]
    return failed
