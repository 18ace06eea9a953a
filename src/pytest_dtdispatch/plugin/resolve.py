"""Resolution of flags, ini values and markers, for a run and for one test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core.environment import read_world, why_no_world
from pytest_dtdispatch.core.parsing import (
    read_argument,
    read_choice,
    read_count,
    read_exports,
    read_files,
    read_globs,
    read_limits,
    read_mesh,
    read_names,
    read_packages,
    read_ranks,
    read_rounds,
    read_seconds,
    read_switch,
    read_thresholds,
)
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.text import nearest, shown
from pytest_dtdispatch.errors import DevicesError, DtDispatchError, MeshError
from pytest_dtdispatch.gates.selection import EVERYTHING
from pytest_dtdispatch.plugin.pytest_internals import ini_value, unknown_ini_names
from pytest_dtdispatch.plugin.settings import (
    FEW,
    KEYWORDS,
    MARKER,
    SETTINGS,
    WITH_FLAG,
    WITH_INI,
    Setting,
    Settings,
)

# Parsers by the name in the table of settings, which must not import them. Those with choices take these too.
READERS: Mapping[str, Callable[..., Any]] = {
    "choice": read_choice,
    "count": read_count,
    "exports": read_exports,
    "files": read_files,
    "globs": read_globs,
    "limits": read_limits,
    "mesh": read_mesh,
    "names": read_names,
    "packages": read_packages,
    "ranks": read_ranks,
    "rounds": read_rounds,
    "seconds": read_seconds,
    "switch": read_switch,
    "thresholds": read_thresholds,
}
_SETTINGS = pytest.StashKey[Settings]()
RUN = pytest.StashKey[Any]()  # the ``run.Run`` of a session that measures


@dataclass(frozen=True)
class TestContext:
    """Settings of one test.

    Args:
        test: name of the test in rows.
        line: source line of the test.
        settings: settings, resolved from flags, its markers and ini values.
        markers: its markers, closest first.
        marked: values of its markers by keyword: the closest takes precedence, and limits of all are merged.
        skip_reason: why nothing is measured in it; empty if it is.
    """

    __test__ = False  # pytest collects classes whose names begin with Test

    test: str
    line: str
    settings: Settings
    markers: tuple[pytest.Mark, ...]
    marked: Mapping[str, Any]
    skip_reason: str


_CONTEXT = pytest.StashKey[TestContext]()


def context_of(item: pytest.Item) -> TestContext:
    """Return the settings of a test, resolved once unless its markers change.

    Raises:
        pytest.UsageError: a marker, a flag or an ini value is invalid.
    """
    markers = tuple(item.iter_markers(MARKER))
    if _CONTEXT in item.stash and item.stash[_CONTEXT].markers == markers:
        return item.stash[_CONTEXT]
    config, (path, number, _) = item.config, item.location
    line = f"{path}:{(number or 0) + 1}"
    marked = _marker_values(markers, line)
    settings, flagged = run_settings(config), flag_values(config)
    # A flag wins over a marker, except thresholds and limits, which are merged.
    winning = flagged.keys() - {"max", "threshold"}
    values = {name: value for name, value in marked.items() if name not in winning}
    if "max" in values:
        values["max"] = {**settings.limits, **values["max"], **flagged.get("max", {})}
    settings = replace(settings, **values)
    if "mesh" in flagged and len(settings.dim_names or ()) != len(settings.mesh):
        settings = replace(settings, dim_names=None)
    settings = _counting_if_parallel(config, settings)
    skip_reason = reason_not_measured(config, settings)
    item.stash[_CONTEXT] = TestContext(row_nodeid(item), line, settings, markers, marked, skip_reason)
    return item.stash[_CONTEXT]


def run_settings(config: pytest.Config) -> Settings:
    """Resolve the settings of the run: flags take precedence over ini values and defaults."""
    if _SETTINGS not in config.stash:
        config.stash[_SETTINGS] = _resolve(config)
    return config.stash[_SETTINGS]


def valid_settings(config: pytest.Config) -> Settings | None:
    """Resolve the settings of the run; None if they are invalid, which is reported later."""
    try:
        return run_settings(config)
    except pytest.UsageError:
        return None


def flag_values(config: pytest.Config) -> dict[str, Any]:
    """Return the values of flags by setting."""
    values = ((each, config.getoption(each.dest, None)) for each in WITH_FLAG)
    return {each.name: _read(each, value, f"{each.flag}: ") for each, value in values if value is not None}


def _marker_values(markers: Collection[pytest.Mark], line: str) -> dict[str, Any]:
    """Return the values of markers, closest first: the closest wins, and limits of all are merged."""
    values: dict[str, Any] = {}
    where = f"{line}: marker dtdispatch"
    for mark in markers:
        if mark.args:
            raise pytest.UsageError(f"{where} takes keywords only, not {shown(mark.args[0])}")
        for keyword, value in mark.kwargs.items():
            if keyword not in KEYWORDS:
                valid = f"{', '.join(KEYWORDS)}{nearest(keyword, KEYWORDS)}"
                raise pytest.UsageError(f"{where} has no keyword {keyword!r}; valid: {valid}")
            read = _read(SETTINGS[keyword], value, f"{where}: {keyword}=")
            closer = values.get(keyword, read)
            values[keyword] = {**read, **closer} if keyword == "max" else closer
    return values


def checked(keyword: str, value: Any) -> Any:
    """Parse a value from the code of a test."""
    return read_argument(keyword, value, partial(_value, SETTINGS[keyword]), MeshError)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert errors: skip a test whose devices are missing, and fail other tests with one line."""
    try:
        yield
    except DevicesError as error:
        raise pytest.skip.Exception(str(error)) from None
    except DtDispatchError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def requested_flags(config: pytest.Config, names: Collection[str]) -> list[str]:
    """Return the flags of these settings that are on the command line."""
    return [SETTINGS[name].flag for name in flag_values(config) if name in names]


def runs_nothing(flags: object) -> bool:
    """Return whether parsed flags request something other than running tests."""
    others = ("help", "version", "collectonly", "markers", "showfixtures", "show_fixtures_per_test")
    return any(getattr(flags, dest, False) for dest in others)


def reason_not_measured(config: pytest.Config, settings: Settings | None = None) -> str:
    """Return the reason why nothing is measured with these settings, or those of the run; empty if it is."""
    if is_distributed(config) and (settings or run_settings(config)).metric not in ("counts", "verify"):
        remedy = "run with -n0, or count with --dtdispatch-metric counts"
        return f"pytest-xdist runs tests in parallel, which makes latencies meaningless; {remedy}"
    codspeed = config.pluginmanager.get_plugin("codspeed_plugin")
    if getattr(codspeed, "is_codspeed_enabled", False):
        return "pytest-codspeed measures this run; leave out --codspeed"
    for off, on in (("disable", "enable"), ("skip", "only")):
        if config.getoption(f"benchmark_{off}", False) and not config.getoption(f"benchmark_{on}", False):
            return f"--benchmark-{off} is set"
    return ""


def is_distributed(config: pytest.Config) -> bool:
    """Return whether pytest-xdist runs the tests, in this process or in others."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"


def selected_beginnings(config: pytest.Config) -> tuple[str, ...]:
    """Return prefixes of the names of tests on the command line; that of all tests if unknown."""
    starts, args = [], config.args
    is_ini = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_ini or {*args} <= {*config.getini("addopts")}:  # no arguments on the command line
        return EVERYTHING
    for arg in args:
        path, colons, names = arg.partition("::")
        within = os.path.relpath(config.invocation_params.dir / path, config.rootpath)
        if within.startswith(".") or config.getoption("pyargs"):
            return EVERYTHING
        starts += [f"{Path(within).as_posix()}{colons}{names}{end}" for end in ("/", "::", "[")]
    return tuple(map(row_key, starts))


def test_roots(config: pytest.Config) -> tuple[Path, ...]:
    """Return the folders that names of tests may be relative to."""
    named = (config.invocation_params.dir / arg.partition("::")[0] for arg in config.args)
    packages = map(Path, sys.path if config.getoption("pyargs") else ())
    return (config.rootpath, *(path for path in named if path.is_dir()), *packages)


def row_nodeid(item: pytest.Item) -> str:
    """Return the name of a test in its rows: its node id, with --pyargs by module instead of path.

    Rows of an installed suite must have the same name in every environment, so that runs can be compared.
    """
    module = getattr(getattr(item, "module", None), "__name__", "")
    if not item.config.getoption("pyargs", False) or "." not in module:
        return item.nodeid
    _, separator, inside = item.nodeid.partition("::")
    return f"{module.replace('.', '/')}.py{separator}{inside}"


def _resolve(config: pytest.Config) -> Settings:
    of_ini, of_flags = _ini_values(config), flag_values(config)
    values = {**of_ini, **of_flags}
    if "max" in values:
        values["max"] = {**of_ini.get("max", {}), **of_flags.get("max", {})}
    if values.get("measure_all"):
        values["measure"] = True
    if config.pluginmanager.hasplugin("pytest_dtdispatch.plugin.ab_process"):
        values |= {"judges": False, "max": None, "threshold": None, "expected": (), "export": ()}
    settings = Settings(**values)
    if settings.budget and settings.metric != "time":
        raise pytest.UsageError(f"--dtdispatch-budget: a budget measures time, not {settings.metric}")
    few = FEW if settings.metric == "instructions" else {}
    return _counting_if_parallel(config, Settings(**{**_of_ranks(settings), **few, **values}))


def _counting_if_parallel(config: pytest.Config, settings: Settings) -> Settings:
    """Count if pytest-xdist makes latencies meaningless, there are limits, and no metric was requested."""
    counts = settings.limits and not settings.budget and "metric" not in flag_values(config)
    return replace(settings, metric="counts") if counts and is_distributed(config) else settings


def _of_ranks(settings: Settings) -> dict[str, Any]:
    """Check settings for many ranks; return the defaults that differ with many ranks."""
    world, nproc = read_world(os.environ), settings.nproc
    if world.is_many and nproc not in (1, world.local_size):
        started = f"a launcher started {world.local_size} ranks here"
        raise pytest.UsageError(f"--dtdispatch-nproc: {started}, not {nproc}")
    if settings.measure:
        reason = why_no_world(os.environ)
        if reason:
            raise pytest.UsageError(reason)
        reason = _why_no_metric(settings.metric, world.is_many or nproc > 1)
        if reason:
            raise pytest.UsageError(f"--dtdispatch-metric {settings.metric}: {reason}")
    return {"mesh": (world.size,)} if world.is_many and settings.backend not in ("fake", "local") else {}


def _why_no_metric(metric: str, is_many: bool) -> str:
    """Return the reason why a metric is not available in this run; empty if it is."""
    if metric in ("time", "counts", "verify"):
        return ""
    if metric == "instructions":
        return "instructions are counted in one process, not on ranks" if is_many else ""
    from pytest_dtdispatch.rounds.sampler import SAMPLERS

    sampler = SAMPLERS[metric]
    if is_many and not sampler.unit.is_time:
        return f"{sampler.unit.name} are measured in one process, as only times are merged over ranks"
    return sampler.why_not() or (sampler.why_not_on_ranks if is_many else "")


def _ini_values(config: pytest.Config) -> dict[str, Any]:
    """Return the ini values by setting; files are relative to the ini file."""
    flagged = flag_values(config).keys() - {"max"}
    overridden = {text.partition("=")[0] for text in config.getoption("override_ini") or ()}
    folder = config.inipath.parent if config.inipath else config.rootpath
    values: dict[str, Any] = {}

    def source(name: str) -> str:
        return f"-o {name}" if name in overridden else f"{config.inipath}: {name}"

    for name in unknown_ini_names(config):
        if name.startswith("dtdispatch_"):
            suggestion = nearest(name, [each.dest for each in WITH_INI])
            raise pytest.UsageError(f"{source(name)}: no such ini value{suggestion}")
    for each in WITH_INI:
        value = None if each.name in flagged else ini_value(config, each.dest)
        if value is None:
            continue
        read = _read(each, value, f"{source(each.dest)}: ")
        if each.name == "expected":
            read = tuple(folder / path for path in read)
        if each.name == "export":
            read = tuple(export.below(folder) for export in read)
        values[each.name] = read
    return values


def _read(setting: Setting, value: Any, source: str) -> Any:
    """Parse a value.

    Args:
        setting: setting of the value.
        value: unparsed value.
        source: text before the value in the error message.

    Raises:
        pytest.UsageError: the value is invalid.
    """
    try:
        return _value(setting, value)
    except ValueError as error:
        raise pytest.UsageError(f"{source}{shown(value)} is not {error}") from None


def _value(setting: Setting, value: Any) -> Any:
    """Parse a value of a setting.

    Raises:
        ValueError: the value is invalid; the message has the valid ones.
    """
    choices = setting.choices
    if setting.name == "max":  # limits of built-in and registered kinds of results
        from pytest_dtdispatch.report.document import KINDS

        choices += tuple(limit for kind in KINDS.values() for limit in kind.limits if limit not in choices)
    if setting.name == "metric":  # built-in, or of a registered sampler
        from pytest_dtdispatch.rounds.sampler import SAMPLERS

        choices += tuple(name for name in SAMPLERS if name not in choices)
    read = READERS[setting.reader]
    return read(value, choices) if choices else read(value)
