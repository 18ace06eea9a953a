"""The table of settings, with the default, the parser and all ways to set each.

Flags take precedence over the marker, the marker over the ini file, and the ini file over the default. Every
start of pytest declares the table, so parsers are imported only when a value is set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    import pytest

    from pytest_dtdispatch.core.parsing import Export
    from pytest_dtdispatch.core.verdicts import Threshold

MARKER = "dtdispatch"
BACKENDS = ("auto", "fake", "gloo", "nccl", "local")
METRICS = ("time", "counts", "instructions", "verify")
EXPORTS = ("csv", "json", "github-action-benchmark", "bencher", "html", "markdown", "trace", "repro")
SERIES_EXPORTS = ("csv", "json", "html", "markdown")  # of several saved runs
LIMITS = (
    *("misses", "cache_growth", "spec_growth", "redistributes", "implicit", "collectives", "wraps"),
    *("collective_bytes", "collectives[DIM]", "collective_bytes[DIM]"),
    *("reads", "partial_reads", "dtensor_growth", "calls"),
    *("recompiles", "graph_breaks", "wrong"),
)
ALL = ("flag", "ini", "keyword")  # ways to set a value; the keyword is that of the marker
# Counts barely vary between calls, and callgrind is slow.
FEW = {"rounds": 12, "repeat": 3, "compile_rounds": 1}


class Setting(NamedTuple):
    """A row of the table, for the field of the same name."""

    name: str
    default: Any
    reader: str  # name of its parser in ``READERS`` of ``resolve.py``
    description: str
    metavar: str
    ways: tuple[str, ...]
    choices: tuple[str, ...] = ()
    dest: str = ""  # name in the ini file, from which the flag is derived

    @property
    def is_repeatable(self) -> bool:
        """Whether its value is a list."""
        return self.reader in ("exports", "files", "globs", "limits", "packages", "thresholds")

    @property
    def flag(self) -> str:
        """Flag on the command line."""
        return f"--{self.dest.replace('_', '-')}"

    @property
    def help(self) -> str:
        """Description and valid values."""
        return f"{self.description}: {', '.join(self.choices)}" if self.choices else self.description


def setting(
    default: Any,
    reader: str,
    description: str = "",
    metavar: str = "",
    ways: tuple[str, ...] = ("flag", "ini"),
    **more: Any,
) -> Any:
    """Return a field of the settings, with its table row in its metadata, without the name."""
    if "choices" in more and not metavar:
        metavar = "NAME"
    row = Setting("", default, reader, description, metavar, ways, **more)
    return field(default=default, metadata={"row": row})


@dataclass(frozen=True)
class Settings:
    """Settings of a run or of a test."""

    measure: bool = setting(
        False, "switch", "measure tests that use the dtdispatch fixture", dest="dtdispatch"
    )
    measure_all: bool = setting(
        False, "switch", "measure every test, in a capture around it", dest="dtdispatch_all"
    )
    budget: bool = setting(False, "switch", "report where the time of tests without the fixture goes")
    rounds: int | str = setting(
        "auto", "rounds", "proved misses of each signature, over eight passes; auto: 40", "N|auto", ALL
    )
    repeat: int = setting(10, "count", "hits recorded after each miss", "N", ALL)
    max_time: float = setting(
        1.0, "seconds", "seconds after which a signature gets no more passes, once it has 4", "S", ALL
    )
    cold: bool = setting(False, "switch", "measure cold misses too", ways=("ini", "keyword"))
    ops: tuple[str, ...] = setting(
        (), "globs", "measure only these ops, such as add*; may be repeated", "GLOB", ALL
    )
    mesh: tuple[int, ...] = setting(
        (4,), "mesh", "mesh of the device_mesh fixture, such as 2x4", "SHAPE", ALL
    )
    dim_names: tuple[str, ...] | None = setting(None, "names", ways=("keyword",))
    backend: str = setting("auto", "choice", "backend of the process group", ways=ALL, choices=BACKENDS)
    device: str = setting("auto", "choice", "device of the mesh", ways=ALL, choices=("auto", "cpu", "cuda"))
    rpc: bool = setting(False, "switch", ways=("keyword",))
    nproc: int = setting(1, "ranks", "ranks to start on this machine", "N")
    timeout: float = setting(60.0, "seconds", "seconds that ranks wait for each other", "S")
    rank_stat: str = setting(
        "median",
        "choice",
        "figure of all ranks, from the median of each",
        ways=("ini",),
        choices=("median", "max"),
    )
    threads: str = setting(
        "one", "choice", "intra-op threads of timed calls", ways=("ini",), choices=("one", "program")
    )
    metric: str = setting("time", "choice", "what captures and calls measure", choices=METRICS)
    profile: bool = setting(
        False, "switch", "list the functions whose instructions were counted", ways=("ini",)
    )
    max: Mapping[str, int] | None = setting(
        None, "limits", "fail a test that has more than N of these", "NAME=N,...", ALL, choices=LIMITS
    )
    # The compilation of a function depends on its test, so this is an argument of the marker.
    compile_rounds: int = setting(
        5, "count", "cold compiles of a function; as many warm ones follow", "N", ("ini", "keyword")
    )
    threshold: tuple[Threshold, ...] | None = setting(
        None,
        "thresholds",
        "fail if a row is slower, by more than PERCENT, than in the run of --benchmark-compare",
        "[STATE=]FIELD:PERCENT[,strict]",
        ALL,
        dest="dtdispatch_fail",
    )
    any_machine: bool = setting(False, "switch", "also compare with a saved run of another machine")
    expected: tuple[Path, ...] = setting(
        (), "files", "fail if a result differs from what this CSV file expects", "FILE"
    )
    improved: str = setting(
        "fail", "choice", "what a result better than expected does", ways=("ini",), choices=("fail", "warn")
    )
    export: tuple[Export, ...] = setting(
        (),
        "exports",
        "write results to FILE (repro: FOLDER; markdown:auto: a GitHub summary); may be repeated; formats",
        "FORMAT:FILE",
        choices=EXPORTS,
    )
    wrappers: tuple[str, ...] = setting(
        (), "packages", "packages that wrap collectives, whose lines are passed over", ways=("ini",)
    )
    annotations: bool = setting(True, "switch", "annotate rows that failed, on GitHub Actions", ways=("ini",))
    # A process of an A/B run only measures: its answer is compared with that of the other side.
    judges: bool = setting(True, "switch", ways=())

    @property
    def rounds_of_row(self) -> int:
        """Number of misses of a row."""
        if isinstance(self.rounds, int):
            return self.rounds
        # Eight passes of five misses. Counts of instructions barely vary between calls: few suffice.
        return FEW["rounds"] if self.metric == "instructions" else 40

    @property
    def limits(self) -> Mapping[str, int]:
        """Limits by name; empty if none is set."""
        return self.max or {}

    def environment(self) -> dict[str, Any]:
        """Return the environment of the figures."""
        from pytest_dtdispatch.meshes.spec import run_environment

        one_thread = self.threads == "one" and self.metric != "counts"
        return run_environment(self.mesh, self.device, self.backend, self.rank_stat, one_thread)

    def environment_texts(self) -> dict[str, str]:
        """Return the properties of the environment as texts."""
        import os
        import platform
        from importlib.metadata import version

        from pytest_dtdispatch.core.environment import cpu_model, software

        parts = {
            "CPU": cpu_model(),
            "Python": f"{platform.python_implementation()} {platform.python_version()}",
            "pytest-dtdispatch": version("pytest-dtdispatch"),
            "pytest": version("pytest"),
            "metric": self.metric,
            **{name.replace("_", " "): str(value) for name, value in self.environment().items()},
            **software(os.environ),
        }
        return {name: text for name, text in parts.items() if text}


SETTINGS: dict[str, Setting] = {
    each.name: row._replace(name=each.name, dest=row.dest or f"dtdispatch_{each.name}")
    for each, row in ((each, each.metadata["row"]) for each in fields(Settings))
}
WITH_FLAG = tuple(each for each in SETTINGS.values() if "flag" in each.ways)
WITH_INI = tuple(each for each in SETTINGS.values() if "ini" in each.ways)
KEYWORDS = tuple(each.name for each in SETTINGS.values() if "keyword" in each.ways)


def add_options(parser: pytest.Parser) -> None:
    """Declare every flag and every ini value."""
    group = parser.getgroup("dtdispatch", "DTensor dispatch overhead")
    for each in WITH_INI:
        kind: Literal["linelist"] | None = "linelist" if each.is_repeatable else None
        description = f"same as {each.flag}; the flag wins" if "flag" in each.ways else each.help
        parser.addini(each.dest, description, kind, default=None)
    for each in WITH_FLAG:
        if each.metavar:
            default = each.default
            text = "x".join(map(str, default)) if isinstance(default, tuple) else str(default or "")
            text = f"{each.help} (default: {text})" if text else each.help
            action = "append" if each.is_repeatable else "store"
            group.addoption(each.flag, action=action, metavar=each.metavar, dest=each.dest, help=text)
        else:
            group.addoption(each.flag, action="store_const", const=True, dest=each.dest, help=each.help)


def strange_flag(words: Sequence[str]) -> str:
    """Return an error message for the first unknown flag with our prefix; empty if there is none."""
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--dtdispatch-"):
            from pytest_dtdispatch.core.text import nearest

            return f"no flag {flag}{nearest(flag, [each.flag for each in WITH_FLAG])}"
    return ""


def has_settings(config: pytest.Config) -> bool:
    """Return whether any flag or ini value is set."""
    import pytest

    def has_ini(name: str) -> bool:
        try:
            return bool(config.getini(name))
        except (TypeError, pytest.UsageError):  # a number or a boolean in pytest's own TOML tables
            return True

    has_flag = any(getattr(config.option, each.dest, None) is not None for each in WITH_FLAG)
    return has_flag or any(has_ini(each.dest) for each in WITH_INI)


def marker_line() -> str:
    """Return the description of the marker for ``pytest --markers``."""
    keywords = ", ".join(f"{keyword}=..." for keyword in KEYWORDS)
    return f"{MARKER}({keywords}): what is measured in a test, and on which mesh"
