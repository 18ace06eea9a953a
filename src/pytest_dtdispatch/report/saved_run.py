"""A run inside of the file that pytest-benchmark saves: encoded whole, and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.saved_file import read_saved
from pytest_dtdispatch.report.reported_run import ReportedRun

KEY = "dtdispatch"  # of the run in the file
VERSION = 1
NOTHING = "nothing in it was measured with --dtdispatch"
OTHER_VERSION = "another version of pytest-dtdispatch saved it: save it anew with this one"


def encode_run(run: ReportedRun) -> dict[str, Any]:
    """Make plain data of all that is reported of a run."""
    return {"version": VERSION, "run": encode(replace(run, traces=()))}  # a trace is a file of its own


def read_run(path: Path) -> ReportedRun:
    """Read a saved run.

    Args:
        path: of what ``--benchmark-json``, ``--benchmark-save`` or ``--benchmark-autosave`` wrote.

    Raises:
        ValueError: in one line, which file it is and what is wrong with it.
    """
    return replace(read_saved(path, decode_run), where=str(path))


def decode_run(members: Any) -> ReportedRun:
    """Read the members of such a file, which may come from anywhere.

    Raises:
        ValueError: in a few words, what is wrong with them.
    """
    plain = members.get(KEY) if isinstance(members, dict) and "benchmarks" in members else None
    if plain is None:
        raise ValueError(NOTHING)
    if not isinstance(plain, dict) or plain.get("version") != VERSION:
        raise ValueError(OTHER_VERSION)
    try:
        run: ReportedRun = decode(ReportedRun, plain.get("run"))
    except RecursionError:
        raise ValueError(f"its {KEY} is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"its {KEY} has {error}") from None
    if not run:
        raise ValueError(NOTHING)
    return run
