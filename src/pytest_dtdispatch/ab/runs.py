"""A run of ``dtdispatch ab`` or ``matrix``: its sides, its file, and the status that it ends with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_dtdispatch.ab.model import (
    Run,
    Side,
)
from pytest_dtdispatch.ab.recording import Recorder, check_sides
from pytest_dtdispatch.ab.sides import probe
from pytest_dtdispatch.ab.worker import Workplace, workplace
from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.forms import AB_RUN
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

PASSED, REGRESSED, INCONCLUSIVE, CONTAMINATED = 0, 1, 3, 4
STATUS = (  # the first that a row has is the run's
    ({Verdict.REGRESSED, Verdict.MISSING}, REGRESSED),
    ({Verdict.CONTAMINATED}, CONTAMINATED),
    ({Verdict.INCONCLUSIVE}, INCONCLUSIVE),
)


@contextmanager
def recorded(
    known: Run, time_limit_s: float, output: Path | None, resume: Path | None
) -> Iterator[tuple[Workplace, Recorder]]:
    """Prepare all sides, ask them what they are, and begin or go on with a file."""
    with workplace(known.asked, time_limit_s) as place:
        target = output or resume
        if target is not None:
            checked_target(target, AB_RUN)
        told: dict[tuple[object, ...], Side] = {}  # each interpreter tells once what it is
        for arm in place.arms.values():
            if (arm.python, arm.import_path) not in told:
                told[arm.python, arm.import_path] = probe(arm, place.folder)
        sides = {name: told[arm.python, arm.import_path] for name, arm in place.arms.items()}
        if resume is not None:
            check_sides(resume, known.sides, sides)
        yield place, Recorder(replace(known, sides=sides), target)


def exit_status(has_compared: bool, verdicts: Sequence[RowVerdict]) -> int:
    """Give the status of the worst verdict; nothing compared is no success."""
    found = {verdict.verdict for verdict in verdicts}
    if not has_compared and Verdict.MISSING not in found:
        return INCONCLUSIVE
    return next((status for worst, status in STATUS if found & worst), PASSED)
