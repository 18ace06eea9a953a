"""Resolution of flags, ini values and markers, for a run and for one test."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core import parsing
from pytest_dtdispatch.core.environment import read_world, why_no_world
from pytest_dtdispatch.core.parsing import Export, read_argument, read_choice
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.text import nearest, shown
from pytest_dtdispatch.errors import DevicesError, DtDispatchError, MeshError
from pytest_dtdispatch.gates.selection import EVERYTHING
from pytest_dtdispatch.plugin.pytest_internals import ini_value
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

AB_PROCESS = "pytest_dtdispatch.plugin.ab_process"  # plugin of a process of an A/B run
_SETTINGS = pytest.StashKey[Settings]()


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


def test_settings(item: pytest.Item) -> Settings:
    """Resolve the settings of a test: flags take precedence over markers, ini values and defaults."""
    settings, flagged = run_settings(item.config), flag_values(item.config)
    of_marker = {
        keyword: value
        for keyword, value in marker_values(item).items()
        if keyword not in flagged or keyword in ("max", "threshold")  # markers win; limits are merged
    }
    if "max" in of_marker:
        of_marker["max"] = {**settings.limits, **of_marker["max"], **flagged.get("max", {})}
    resolved = replace(settings, **of_marker)
    if "mesh" in flagged and len(resolved.dim_names or ()) != len(resolved.mesh):
        resolved = replace(resolved, dim_names=None)
    return _counting_if_parallel(item.config, resolved)


def flag_values(config: pytest.Config) -> dict[str, Any]:
    """Return the values of flags by setting."""
    values = ((each, config.getoption(each.dest, None)) for each in WITH_FLAG)
    return {each.name: _read(each, value, f"{each.flag}: ") for each, value in values if value is not None}


def marks(item: pytest.Item) -> list[pytest.Mark]:
    """Return the markers of a test, closest first."""
    return [*item.iter_markers(MARKER)]


def marker_values(item: pytest.Item) -> dict[str, Any]:
    """Return the values of a test's markers: the closest takes precedence, and limits of all are merged."""
    values: dict[str, Any] = {}
    for mark in marks(item):
        where = f"{test_line(item)}: marker dtdispatch"
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
    if is_distributed(config) and (settings or run_settings(config)).metric != "counts":
        return (
            "pytest-xdist runs tests in parallel, which makes latencies meaningless; run with -n0, "
            "or count with --dtdispatch-metric counts"
        )
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
    if config.pluginmanager.hasplugin(AB_PROCESS):
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
    if settings.measure and (reason := why_no_world(os.environ)):
        raise pytest.UsageError(reason)
    if world.is_many and nproc not in (1, world.local_size):
        raise pytest.UsageError(
            f"--dtdispatch-nproc: a launcher started {world.local_size} ranks here, not {nproc}"
        )
    if settings.measure and (reason := _why_no_metric(settings.metric, world.is_many or nproc > 1)):
        raise pytest.UsageError(f"--dtdispatch-metric {settings.metric}: {reason}")
    return {"mesh": (world.size,)} if world.is_many and settings.backend not in ("fake", "local") else {}


def _why_no_metric(metric: str, is_many: bool) -> str:
    """Return the reason why a metric is not available in this run; empty if it is."""
    if metric in ("time", "counts"):
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
    for each in WITH_INI:
        if each.name not in flagged and (value := ini_value(config, each.dest)) is not None:
            source = f"-o {each.dest}" if each.dest in overridden else f"{config.inipath}: {each.dest}"
            read = _read(each, value, f"{source}: ")
            if each.reader in ("files", "exports"):
                read = tuple(_beside(file, folder) for file in read)
            values[each.name] = read
    return values


def _beside(file: Path | Export, folder: Path) -> Path | Export:
    """Resolve a relative path in a folder."""
    if isinstance(file, Path):
        return folder / file
    return file if file.is_auto or file.is_stdout else file._replace(path=folder / file.path)


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
    if setting.reader == "limits":  # of built-in and registered kinds of results
        from pytest_dtdispatch.report.document import KINDS

        of_kinds = (limit for kind in KINDS.values() for limit in kind.limits)
        return parsing.read_limits(value, tuple(dict.fromkeys((*setting.choices, *of_kinds))))
    if setting.reader == "metric":  # built-in, or of a registered sampler
        from pytest_dtdispatch.rounds.sampler import SAMPLERS

        return read_choice(value, tuple(dict.fromkeys((*setting.choices, *SAMPLERS))))
    read = getattr(parsing, f"read_{setting.reader}")
    return read(value, setting.choices) if setting.choices else read(value)


def test_line(item: pytest.Item) -> str:
    """Return the source line of a test."""
    path, line, _ = item.location
    return f"{path}:{(line or 0) + 1}"
