"""Independent reader of the file formats that PyTorch's check_results.py requires."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TypeVar

Key = tuple[str, str]
T = TypeVar("T")


def read_expected(path: Path) -> dict[Key, tuple[int, float]]:
    """Read an expected file: no header, blank lines skipped, four fields, numbers by float() or int()."""
    rows: dict[Key, tuple[int, float]] = {}
    with path.open() as file:
        for fields in csv.reader(file):
            if fields:
                _enter(rows, fields, (int(fields[2]), float(fields[3])))
    return rows


def read_results(path: Path) -> dict[Key, int]:
    """Read a results file: three fields on every line, no blank lines."""
    rows: dict[Key, int] = {}
    with path.open() as file:
        for fields in csv.reader(file):
            _enter(rows, fields, int(fields[2]))
    return rows


def _enter(rows: dict[Key, T], fields: list[str], value: T) -> None:
    key = fields[0].strip(), fields[1].strip()
    assert key not in rows, f"duplicate {key}"
    rows[key] = value
