"""The steps of a loop as a trace, which is written at its end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.forms import TRACE
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.report.chrome_trace import chrome_trace
from pytest_dtdispatch.steps.step_trace import StepTrace
from pytest_dtdispatch.watch.model import LoopStep


class LoopTrace:
    """Keep the spans of every step, and write them.

    Args:
        path: of the file; it is looked at now, before anything ran.

    Raises:
        DtDispatchError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        checked_target(path, TRACE)
        self._path = path
        self._trace = StepTrace()

    def recording(self) -> AbstractContextManager[Any]:
        """Give what is open while steps run."""
        return self._trace

    def add(self, step: LoopStep) -> None:
        """Add a step that is over."""
        self._trace.add(str(step.number), step.counts)

    def write(self) -> str:
        """Write the file; say what was written."""
        write_whole(self._path, chrome_trace({"StepWatch": self._trace.spans}))
        return f"{many(len(self._trace.spans), 'span')} written to {self._path}"
