"""Take the atlas of each interpreter's torch, and write the pages of ``docs/`` from them.

``python benchmarks/atlases.py FOLDER --python OLD --python NEW ...`` takes what FOLDER lacks, each version
twice, in some minutes each: ``FOLDER/1/2.13.0``, and in a second round, the newest first,
``FOLDER/2/2.13.0``. Then it writes ``docs/atlas_versions.md`` of all atlases in FOLDER, and its page of every
row and the data into ``docs/_static``. ``--page 2.13.0`` makes that version's own atlas of the second round
the one of ``docs/atlas.md``. Without ``--python`` the pages alone are written. Run it under ``taskset``, with
a core for itself, on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
STATIC = DOCS / "_static"
NAME = "atlas.md"
FIRST, SECOND = "1", "2"


def take(python: str, folder: Path) -> None:
    """Take the atlas of an interpreter's torch, unless it is there."""
    ask = "import torch; print(torch.__version__.partition('+')[0])"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    place = folder / version
    place.mkdir(parents=True, exist_ok=True)
    if not place.joinpath(NAME).with_suffix(".json").exists():
        print(f"{version}: {place}", flush=True)
        command = [python, "-m", "pytest_dtdispatch", "atlas", "--output", NAME]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=place, env=environment, check=True)


def write_versions(folder: Path) -> None:
    """Write the pages of all versions."""
    atlases = sorted(map(str, folder.glob("*/*/atlas.json")))
    with tempfile.TemporaryDirectory() as made:
        page = Path(made) / "atlas_versions.md"
        command = [
            sys.executable,
            "-m",
            "pytest_dtdispatch",
            "atlas-versions",
            "--merge",
            *atlases,
            "--output",
            str(page),
        ]
        subprocess.run(command, check=True)
        shutil.move(page, DOCS / page.name)
        for suffix in (".html", ".json"):
            shutil.move(page.with_suffix(suffix), STATIC / page.with_suffix(suffix).name)


def write_one(place: Path) -> None:
    """Write the pages of one version."""
    shutil.copyfile(place / NAME, DOCS / NAME)
    shutil.copyfile(place.joinpath(NAME).with_suffix(".html"), STATIC / "atlas.html")


def main() -> None:
    """Take and write what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of all atlases, a folder for each round and version")
    parser.add_argument("--python", action="append", default=[], help="an interpreter; may be given often")
    parser.add_argument("--page", help="the version whose own atlas goes into docs/atlas.md")
    asked = parser.parse_args()
    for number, pythons in ((FIRST, asked.python), (SECOND, reversed(asked.python))):
        for python in pythons:
            take(python, asked.folder / number)
    write_versions(asked.folder)
    if asked.page:
        write_one(asked.folder / SECOND / asked.page)


if __name__ == "__main__":
    main()
