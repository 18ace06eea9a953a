"""The summary of a job of GitHub Actions, which a run's own is appended to."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.parsing import AUTO
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import Span, Tone
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.summary import MOST_BYTES, stopped_summary, summary

VARIABLE = "GITHUB_STEP_SUMMARY"
NONE_HERE = f"no summary was written: --dtdispatch-markdown auto finds no {VARIABLE} here"


def is_job_summary(markdown: Path | str | None) -> bool:
    """Tell whether a summary goes where the job has its own: other commands write there too."""
    if markdown is None or markdown == AUTO:
        return markdown == AUTO
    named = os.environ.get(VARIABLE, "")
    return bool(named) and os.path.realpath(named) == os.path.realpath(markdown)


class JobSummary:
    """The file of the job's summary; without one, a run says so and loses nothing.

    Raises:
        DtDispatchError: where the file cannot be written.
    """

    def __init__(self) -> None:
        named = os.environ.get(VARIABLE)
        self._path = Path(named).absolute() if named else None
        if self._path:
            checked_target(self._path)

    def append(self, run: ReportedRun, why_not: str) -> Span:
        """Append what fits behind what is there already; say what was done.

        Args:
            run: that is told of.
            why_not: why no whole run is known, which is told then; empty where one is.
        """
        if self._path is None:
            return Span(NONE_HERE, Tone.NOTICE)
        try:
            there = self._path.stat().st_size if self._path.exists() else 0
            is_told = not why_not or run.gates  # which say why they judged nothing
            text = summary(run, MOST_BYTES - there) if is_told else stopped_summary(why_not)
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"\n{text}" if there else text)
        except OSError as error:
            raise DtDispatchError(f"{self._path} cannot be written: {error.strerror}") from None
        return Span(f"a summary was appended to {self._path}")
