"""The section of a run in pytest's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import first_of
from pytest_dtdispatch.core.verdicts import LIMITS, RowVerdict, Verdict
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.plugin.finish import MOST_NAMES
from pytest_dtdispatch.plugin.gates import Gates
from pytest_dtdispatch.plugin.kinds import MEASURED
from pytest_dtdispatch.plugin.pytest_internals import add_to_last_line, terminal_width
from pytest_dtdispatch.report.document import Document, Span, Tone, View, notice, one_line, paragraph
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document, worst_text
from pytest_dtdispatch.report.notes import proved
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.terminal import brief_legend, document_lines, page_width

# Names of colors in pytest.
COLORS = {Tone.STRONG: "bold", Tone.GOOD: "green", Tone.NOTICE: "yellow", Tone.BAD: "red"}
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Section:
    """Section of a finished run.

    Args:
        run: judged run.
        records: records of its tests, by name in rows.
        gates: gates of the run.
        selection: tests that it selects.
        about: lines about the meter and the ranks.
        written: lines about written files.
        failures: kinds of failures other than of tests.
        verbosity: pytest's verbosity: 0 by default, 1 with ``-v``.
    """

    run: ReportedRun
    records: Mapping[str, TestRecord]
    gates: Gates
    selection: Selection
    about: Sequence[str]
    written: Document
    failures: Sequence[str]
    verbosity: int

    def print_to(self, reporter: Any) -> None:
        """Print the section, and add counts to pytest's last line."""
        view = replace(self.run.view, verbose=self.verbosity > 0, each_layer=self.verbosity > 0)
        width = page_width(reporter.isatty, terminal_width(reporter))
        nothing = "" if any(self.records.values()) else self._reason_for_nothing("passed" in reporter.stats)
        for document in self._documents(view, width, nothing):
            print_lines(reporter, document_lines(document, width, view))
        add_failures(reporter, self.failures)
        verdicts = [row.verdict for gate in self.run.gates for row in gate.verdicts]
        undecided = [verdict for verdict in verdicts if verdict is Verdict.INCONCLUSIVE]
        unmeasured = reporter.stats.get("passed", ()) if nothing else self._unmeasured()
        for word, rows in ((str(Verdict.INCONCLUSIVE), undecided), (NOT_MEASURED, unmeasured)):
            if rows:
                add_to_last_line(reporter, word, rows)

    def _documents(self, view: View, width: int, nothing: str) -> Iterator[Document]:
        """Yield results (not with ``-qq``), notices, judgements of gates, written files and the worst row."""
        compared = self.gates.compared(self.run, self.selection)
        shown = self.run.documents(view) if self.verbosity >= -1 and not nothing else {}
        unmatched = [*self._unmatched_globs()]
        if nothing:
            yield notice(f"nothing was measured: {self.gates.skip_reason or '; '.join(unmatched) or nothing}")
        elif self.verbosity >= -1:
            if compared and MEASURED.name in shown:  # one row has one figure
                shown[MEASURED.name] = self._comparison(compared, view)
            yield from shown.values()
            if self.verbosity >= 0:
                yield self._legends(shown.values(), view, width)
            yield notice(*unmatched)
        yield notice(*first_of([f"not measured: {text}" for text in self._unmeasured()], MOST_NAMES))
        yield self.run.notices
        has_thresholds = self.gates.settings.threshold or self.run.thresholds
        if has_thresholds and self.gates.baseline is None:
            yield notice(
                "gate: thresholds are set, but --benchmark-compare names no saved run: nothing was compared"
            )
        elif not self.run.gates and (reason := self.gates.reason_not_compared(self.run)):
            yield notice(f"not compared with the saved run: {reason}")
        yield from (judgement_document(gate, view) for gate in self.run.gates)
        yield self.written
        # Rows over their limits were listed by the gate.
        judged = [row for gate in self.run.gates if gate.where != LIMITS for row in gate.verdicts]
        of_tables = next((document.worst for document in shown.values() if document.worst), "")
        if text := worst_text(compared or judged) if compared or self.run.gates else of_tables:
            yield Document((paragraph(text, Tone.STRONG, hanging=1),))

    def _comparison(self, compared: Sequence[RowVerdict], view: View) -> Document:
        """Render rows without a threshold next to the saved run; a gate renders the others."""
        free = [row for row in compared if not row.criterion]
        blocks = (*comparison_blocks(free, view), *proved([*self.run.rows()]))
        meanings = {
            "change": "now against base",
            "99 % interval": "of the change, by bootstrap",
            "samples": "base + now",
        }
        legend = "base and now: the median of all samples, or the statistic of the threshold."
        return Document(blocks, legend, meanings)

    def _legends(self, shown: Iterable[Document], view: View, width: int) -> Document:
        """Render the environment, and explanations of visible columns."""
        explained = [document for document in shown if document.legend_of()]
        legends = [document.legend_of() for document in explained]
        if explained and not view.verbose:
            legends = [brief] if (brief := brief_legend(explained, width)) else []
        lines = (
            one_line(text, indent=1) for text in (self.gates.settings.environment().summary, *self.about)
        )
        return Document((*lines, *(paragraph(text, indent=1) for text in legends)))

    def _unmeasured(self) -> list[str]:
        """Return a line for each test without a result although it uses the fixture, with the reason."""
        unmeasured = [(test, record.unmeasured) for test, record in self.records.items()]
        return [f"{test}: {why}" for test, why in unmeasured if why]

    def _reason_for_nothing(self, has_passed: bool) -> str:
        """Return why no test was measured."""
        if not has_passed:
            return "no test passed"
        if self.gates.settings.measure_all:
            return "no capture received an op on DTensors in a test that passed"
        called = "made a call on DTensors through the dtdispatch fixture"
        return f"no test that passed {called}; --dtdispatch-all measures every test"

    def _unmatched_globs(self) -> Iterator[str]:
        """Yield a line for each glob that matches no op, with the ops that ran in its tests."""
        ran_by_glob: dict[str, set[str]] = {}
        for record in self.records.values():
            for glob in record.globs:
                ran_by_glob.setdefault(glob, set()).update(record.ops)
        for glob, ran in ran_by_glob.items():
            if ran and not any(fnmatchcase(op, glob) for op in ran):
                names = ", ".join(first_of(sorted(ran), MOST_NAMES))
                yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add the number of each kind of failure to pytest's last line, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        add_to_last_line(reporter, words, [words] * number, is_failure=True)


def print_lines(reporter: Any, lines: Iterable[tuple[Span, ...]]) -> None:
    """Print lines in their colours."""
    for line in lines:
        for piece in line:
            color = COLORS.get(piece.tone)
            reporter.write(piece.text, **({color: True} if color else {}))
        reporter.write("\n")
