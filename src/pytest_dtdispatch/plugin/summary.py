"""The section of the terminal that a run has at its end: tables, and what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.core.measurement import Contains, Measurement

if TYPE_CHECKING:
    from pytest_dtdispatch.compiled.model import CompiledVariant
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.plugin.rank_tests import RankSession
    from pytest_dtdispatch.report.measurements import Table
    from pytest_dtdispatch.report.terminal import Text
    from pytest_dtdispatch.scaling.model import Scaling
    from pytest_dtdispatch.steps.model import Steps

    BuildTable = Callable[[Mapping[str, Sequence[Measurement]], bool], Table]


@dataclass
class Found:
    """What a run found, by test: of each the last run of it.

    Args:
        measured: rows.
        scalings: fits of how rows grow.
        counted: counts of steps.
        compiled: compiled functions, whose rows are measured too.
    """

    measured: dict[str, tuple[Measurement, ...]] = field(default_factory=dict)
    scalings: dict[str, tuple[Scaling, ...]] = field(default_factory=dict)
    counted: dict[str, tuple[Steps, ...]] = field(default_factory=dict)
    compiled: dict[str, tuple[CompiledVariant, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.measured.values()) or any(self.counted.values())


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
        if rows := sum(map(len, found.measured.values())):
            self._reporter.write_line(f"{rows} signatures and calls were measured")
        if steps := sum(map(len, found.counted.values())):
            self._reporter.write_line(f"{steps} steps were counted")

    def _print_tables(self, found: Found, settings: Settings, is_many: bool) -> Iterable[str]:
        """Print every table that has a line, and give the legend of each."""
        from pytest_dtdispatch.compiled import table as compiled
        from pytest_dtdispatch.instructions.profile_text import profile_lines
        from pytest_dtdispatch.scaling.table import scaling_lines
        from pytest_dtdispatch.steps import table as counts

        is_verbose = self._verbosity > 0
        if measured := {test: rest for test, rows in found.measured.items() if (rest := _uncompiled(rows))}:
            build, legend = _kind_of_table(settings, is_many)
            self._print_table(build(measured, is_verbose))
            self.print_lines(profile_lines(measured, self.width))
            self.print_lines(scaling_lines(found.scalings, self.width))
            yield legend
        if counted := {test: steps for test, steps in found.counted.items() if steps}:
            self._print_table(counts.build_counts_table(counted, verbose=is_verbose))
            yield counts.LEGEND
        if variants := {test: variants for test, variants in found.compiled.items() if variants}:
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


def _uncompiled(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(row for row in rows if row.contains is not Contains.COMPILED)
