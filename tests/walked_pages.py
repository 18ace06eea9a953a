"""Follow a page of the manual as a reader does: write its files, run its commands, record their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLUMNS = 100  # width of the terminal in all pages
# A fenced block, with the reason if it is not run.
BLOCK = re.compile(r"(?:<!-- not run: ([^\n]+) -->\n+)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
COMMAND = re.compile(r"^\$ (.*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
SECTION = re.compile(r"^=+ dtdispatch =+\n(.*?)^=+ ", re.DOTALL | re.MULTILINE)
FAILS = re.compile(r"failed|GateError|[1-9]\d* regressed")
BUILD = "import sys; from hatchling.build import build_wheel as build; build(sys.argv[1])"
# Prefixes of CI, pytest and the plugin: hidden from the commands of a page.
HIDDEN = ("GITHUB_", "DTDISPATCH_", "PYTEST_", "CI")
SOMEBODY = {
    f"GIT_{who}_{field}": value
    for who in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Somebody"), ("EMAIL", "somebody@example.org"))
}


@dataclass(frozen=True)
class Ran:
    """A command of a page, with its output and the output shown on the page."""

    command: str
    status: int
    printed: str
    shown: str = ""
    place: tuple[int, int] = (0, 0)  # position of the shown output in the page

    @property
    def expected_status(self) -> int:
        """Return the exit status that the shown output implies."""
        return int(bool(FAILS.search(self.shown)))

    @property
    def section(self) -> str:
        """Return the relevant part of the output: our section of a run of pytest, or all of it."""
        found = SECTION.search(self.printed)
        return found[1] if found else self.printed

    @property
    def missing(self) -> list[str]:
        """Return the shown lines that were not printed, ignoring figures and further columns."""
        printed = [" ".join(line.split()) for line in self.printed.splitlines()]
        return [line for line in self.shown.splitlines() if not any(map(_begins(line), printed))]


def _begins(line: str) -> Callable[[str], bool]:
    """Return a predicate that compares the start of lines, up to the first figure or column.

    On another machine figures and columns differ, the legend may explain other columns, and another row may
    have the largest time.
    """
    first, *_ = re.split(r"(?<=^worst:)|  |; |-?\d|\.\.\.$", line.strip())
    return lambda printed: printed.startswith(first.strip())


def reasons_not_to_run(page: Path) -> list[str]:
    """Return the reasons of blocks that are not run."""
    return [found[1] for found in BLOCK.finditer(page.read_text()) if found[1]]


def examples(page: Path) -> Iterator[str]:
    """Return the Python blocks of a page."""
    return (found[3] for found in BLOCK.finditer(page.read_text()) if found[2] == "python")


def walk(page: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Ran]:
    """Write the files of a page and run its commands, in the order of the page, in this folder."""
    last: Ran | None = None
    content, end = page.read_text(), 0
    for number, found in enumerate(BLOCK.finditer(content), start=1):
        reason, kind, text = found.groups()
        is_next, end = not content[end : found.start()].strip(), found.end()
        if kind == "text" and last and is_next:  # part of the command
            yield Ran(last.command, last.status, last.printed, text, found.span(3))
        elif last:
            yield last
        last = None
        if kind == "python" and not reason:
            named = FILE.match(text)
            (folder / (named[1] if named else f"test_example_{number}.py")).write_text(text)
        elif kind == "console" and not reason:
            *before, last = (_run(one[1], folder, environment) for one in COMMAND.finditer(text))
            yield from before
    if last:
        yield last


def _run(command: str, folder: Path, environment: Mapping[str, str]) -> Ran:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return Ran(command, done.returncode, done.stdout)


def install(folder: Path) -> dict[str, str]:
    """Build the wheel, unpack it, and return the environment of a reader who installed it.

    All dependencies are already installed, so ``pip`` is a no-op.
    """
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True)
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    tools = folder / "bin"
    tools.mkdir()
    programs = {
        "pip": "#!/bin/sh\n",
        "dtdispatch": f'#!/bin/sh\nexec {sys.executable} -m pytest_dtdispatch "$@"\n',
    }
    for name, program in programs.items():
        (tools / name).write_text(program)
        (tools / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    return {
        **inherited,
        **SOMEBODY,
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(folder / "site"),
    }


def copy_of_the_repository(folder: Path) -> None:
    """Copy the files that git tracks, with this interpreter instead of the environment of ``make``."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    tools = folder / ".venv" / "bin"  # created by `make` otherwise
    tools.mkdir(parents=True)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    (tools.parent / "ready").touch()
