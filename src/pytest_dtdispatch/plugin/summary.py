"""The section of the terminal that a run has at its end: tables, and what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.results import TestResults

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.plugin.rank_tests import RankSession
    from pytest_dtdispatch.report.measurements import Table
    from pytest_dtdispatch.report.terminal import Text

    BuildTable = Callable[[Mapping[str, Sequence[Measurement]], bool], Table]


Found = Mapping[str, TestResults]


def _of(found: Found, kind: str) -> dict[str, tuple[Any, ...]]:
    return {test: of_kind for test, results in found.items() if (of_kind := results.of(kind))}


class Section:
    """The plugin's section of the terminal.

    Attributes:
        width: columns of the terminal.
    """

    def __init__(self, terminalreporter: Any, verbosity: int) -> None:
        self.width: int = terminalreporter._tw.fullwidth
        self._reporter = terminalreporter
        self._verbosity = verbosity

    def open(self) -> None:
        """Print its title."""
        self._reporter.ensure_newline()
        self._reporter.section("dtdispatch")

    def print_lines(self, lines: Iterable[tuple[Text, ...]]) -> None:
        """Print lines of coloured pieces."""
        for line in lines:
            for piece in line:
                self._reporter.write(piece.text, **({piece.color: True} if piece.color else {}))
            self._reporter.write("\n")

    def print_found(
        self, found: Found, settings: Settings, meter: Sequence[str], ranks: RankSession | None
    ) -> None:
        """Print tables, or with ``-qq`` only how much there is."""
        if self._verbosity < -1:
            self._print_numbers(found)
            return
        legends = [*self._print_tables(found, settings, ranks is not None)]
        if self._verbosity < 0:
            return
        from pytest_dtdispatch.plugin.environment import run_environment
        from pytest_dtdispatch.report.terminal import legend_lines

        for summary in (run_environment(settings).summary, *meter, *([ranks.summary] if ranks else [])):
            self._reporter.write_line(f"  {summary}")
        for legend in legends:
            for text in legend_lines(self.width, legend):
                self._reporter.write_line(text)

    def _print_numbers(self, found: Found) -> None:
        if rows := sum(len(results.measurements()) for results in found.values()):
            self._reporter.write_line(f"{rows} signatures and calls were measured")
        if steps := sum(map(len, _of(found, "steps").values())):
            self._reporter.write_line(f"{steps} steps were counted")

    def _print_tables(self, found: Found, settings: Settings, is_many: bool) -> Iterable[str]:
        """Print every table that has a line, and give the legend of each."""
        from pytest_dtdispatch.compiled import table as compiled
        from pytest_dtdispatch.instructions.profile_text import profile_lines
        from pytest_dtdispatch.scaling.table import scaling_lines
        from pytest_dtdispatch.steps import table as counts

        is_verbose = self._verbosity > 0
        if measured := {test: calls for test, results in found.items() if (calls := results.calls())}:
            build, legend = _kind_of_table(settings, is_many)
            self._print_table(build(measured, is_verbose))
            self.print_lines(profile_lines(measured, self.width))
            self.print_lines(scaling_lines(_of(found, "scaling"), self.width))
            yield legend
        if counted := _of(found, "steps"):
            self._print_table(counts.build_counts_table(counted, verbose=is_verbose))
            yield counts.LEGEND
        if variants := _of(found, "compiled"):
            self._print_table(compiled.build_compile_table(variants, is_verbose))
            self.print_lines(compiled.effect_lines(variants, self.width))
            yield compiled.LEGEND

    def _print_table(self, table: Table) -> None:
        from pytest_dtdispatch.report.terminal import table_lines

        self.print_lines(table_lines(table, self.width))


def _kind_of_table(settings: Settings, is_many: bool) -> tuple[BuildTable, str]:
    from pytest_dtdispatch.instructions import table as instructions
    from pytest_dtdispatch.measuring.sampler import SAMPLERS
    from pytest_dtdispatch.ranks import table as over_ranks
    from pytest_dtdispatch.report import measurements as table
    from pytest_dtdispatch.report import terminal

    if is_many:
        return over_ranks.build_ranks_table, over_ranks.LEGEND
    sampler = SAMPLERS.get(settings.metric)
    if sampler is not None and not sampler.unit.is_time:
        legend = instructions.LEGEND.format(units=sampler.unit.name.capitalize())
        return instructions.build_instructions_table, legend
    return table.build_table, terminal.LEGEND
