"""What every gate of a run does: judge once, when all is measured, and hand its verdicts to every output."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_dtdispatch.plugin.last_line import GATE_FAILED
from pytest_dtdispatch.plugin.plugin_object import PluginObject
from pytest_dtdispatch.report.document import Document

if TYPE_CHECKING:
    from pytest_dtdispatch.core.verdicts import Judgement
    from pytest_dtdispatch.report.reported_run import ReportedGate


class Gate(PluginObject):
    """The plugin object that judges a run."""

    def judge(self) -> dict[str, Judgement]:
        """Judge the run, by what it is held against."""
        raise NotImplementedError

    @functools.cached_property
    def judgements(self) -> dict[str, Judgement]:
        """What was judged, by what the run was held against; nothing where nothing was asked for."""
        return self.judge()

    @property
    def failures(self) -> list[str]:
        """Why the run must fail, as pytest's last line says it."""
        return [GATE_FAILED for judged in self.judgements.values() if judged.has_failed]

    def reported(self) -> ReportedGate | None:
        """Give what was judged; None where nothing was asked for."""
        from pytest_dtdispatch.report.reported_run import ReportedGate

        if not self.judgements:
            return None
        judged = self.judgements.values()
        return ReportedGate(
            ", ".join(self.judgements),
            tuple(row for one in judged for row in one.verdicts),
            bool(self.failures),
            self.document(),
            tuple(row for one in judged for row in one.failed),
        )

    def document(self) -> Document:
        """Say what was judged."""
        from pytest_dtdispatch.report.judgements import judgement_document

        said = [judgement_document(judged, where) for where, judged in self.judgements.items()]
        return Document(tuple(block for document in said for block in document.blocks))
