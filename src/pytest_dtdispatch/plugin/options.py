"""Settings: what flags, ini file and markers resolve to. A run where none of them is given needs none."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.parsing import AUTO, Export
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.core.verdicts import Threshold
from pytest_dtdispatch.core.world import read_world, why_no_world
from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.plugin import flags
from pytest_dtdispatch.plugin.flags import KEYWORDS, MARKER, OPTIONS, WITH_FLAG, Option
from pytest_dtdispatch.plugin.given import (
    flag_values,
    gate_flags,
    ini_values,
    read_given,
    read_value,
    spelled_out,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.core.environment import Environment

COUNT_INSTRUCTIONS = "--dtdispatch-metric instructions"
# Counts hardly differ from call to call, and callgrind is slow.
FEW = {"rounds": 5, "repeat": 2, "compile_rounds": 1}
MOST_ROUNDS = 20  # where as many are taken as are enough
# What means something in a run that measures nothing too: whether it does, and where ops run.
UNMEASURED = ("measure", "measure_all", "mesh", "backend", "device", "timeout")


@dataclass(frozen=True)
class Settings:
    """What is measured in a test, and where: each field is the option of its name in ``flags.py``."""

    measure: bool = False
    measure_all: bool = False
    budget: bool = False
    rounds: int | str = 20
    repeat: int = 10
    max_time: float = 1.0
    cold: bool = False
    ops: tuple[str, ...] = ()
    mesh: tuple[int, ...] = (4,)
    dim_names: tuple[str, ...] | None = None
    backend: str = "auto"
    device: str = "auto"
    rpc: bool = False
    nproc: int = 1
    timeout: float = 60.0
    rank_stat: str = "median"
    threads: str = "one"
    metric: str = "time"
    profile: bool = False
    max_misses_per_step: int | None = None
    max_cache_growth: int | None = None
    max_spec_growth: int | None = None
    max_redistributes: int | None = None
    max_collectives: int | None = None
    max_wraps: int | None = None
    compile_backend: str = "inductor"
    compile_rounds: int = 5
    max_recompiles: int | None = None
    max_graph_breaks: int | None = None
    threshold: tuple[Threshold, ...] | None = None
    any_machine: bool = False
    expected: tuple[Path, ...] = ()
    improved: str = "fail"
    export: tuple[Export, ...] = ()

    @property
    def most_rounds(self) -> int:
        """The most rounds that are taken of a signature."""
        if isinstance(self.rounds, int):
            return self.rounds
        # A count of instructions hardly differs from call to call: few are always enough.
        return FEW["rounds"] if self.metric == "instructions" else MOST_ROUNDS

    @property
    def limits(self) -> dict[str, int]:
        """Limits that are given, by their names."""
        every = {name: getattr(self, field) for name, field in flags.LIMITS.items()}
        return {name: most for name, most in every.items() if most is not None}

    def environment(self) -> Environment:
        """Describe what the figures stand on."""
        from pytest_dtdispatch.meshes.place import run_environment

        one_thread = self.threads == "one" and self.metric != "counts"
        return run_environment(self.mesh, self.device, self.backend, self.rank_stat, one_thread)

    @property
    def stops_when_enough(self) -> bool:
        """Whether no round is added once the median is known closely."""
        return self.rounds == AUTO and self.metric not in ("counts", "instructions")


def with_role(role: str) -> tuple[Option, ...]:
    """Choose options by what they are."""
    return tuple(option for option in OPTIONS if option.role == role)


[SAVED_RUN_GATE] = with_role(flags.SAVED_RUN_GATE)
_SETTINGS = pytest.StashKey[Settings]()
_BY_KEYWORD = {option.field: option for option in OPTIONS if option.in_marker}


def run_settings(config: pytest.Config) -> Settings:
    """Resolve what holds for the whole run: flag beats ini beats default."""
    if _SETTINGS not in config.stash:
        config.stash[_SETTINGS] = _resolve(config)
    return config.stash[_SETTINGS]


def valid_settings(config: pytest.Config) -> Settings | None:
    """Resolve what holds for the run; None where there is a mistake, which is told when it is configured."""
    try:
        return run_settings(config)
    except pytest.UsageError:
        return None


def refuse_idle_flags(config: pytest.Config, settings: Settings) -> None:
    """Refuse flags that say how to measure in a run that does not."""
    idle = gate_flags(config, [option.field for option in WITH_FLAG if option.field not in UNMEASURED])
    if idle and not settings.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")


def _resolve(config: pytest.Config) -> Settings:
    given = {**ini_values(config), **flag_values(config)}
    if given.get("measure_all"):
        given["measure"] = True
    if given.get("profile") and given.get("measure") and given.get("metric") != "instructions":
        raise pytest.UsageError(
            "--dtdispatch-profile: only instructions are profiled; add " + COUNT_INSTRUCTIONS
        )
    if given.get("budget") and given.get("metric", "time") != "time":
        raise pytest.UsageError(f"--dtdispatch-budget: a budget is one of time, not of {given['metric']}")
    if "improved" in flag_values(config) and given.get("measure") and not given.get("expected"):
        raise pytest.UsageError(
            "--dtdispatch-improved: it is about expected results; add --dtdispatch-expected FILE"
        )
    if given.get("metric") == "instructions":
        given = {**FEW, **given}
    return Settings(**{**_of_ranks(config, given), **given})


def _of_ranks(config: pytest.Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is asked of many ranks; return what is another default on them."""
    if given.get("measure") and (why_not := why_no_world(os.environ)):
        raise pytest.UsageError(why_not)
    world = read_world(os.environ)
    asked = config.getoption("dtdispatch_nproc") is not None and given["nproc"] > 1
    if asked and world.is_many and given["nproc"] != world.local_size:
        raise pytest.UsageError(
            f"--dtdispatch-nproc: a launcher started {world.local_size} ranks here, not {given['nproc']}"
        )
    is_many = world.is_many or given.get("nproc", 1) > 1
    if given.get("measure") and (why_not := _why_no_metric(given.get("metric", "time"), is_many)):
        raise pytest.UsageError(f"--dtdispatch-metric {given['metric']}: {why_not}")
    has_real_mesh = world.is_many and given.get("backend") not in ("fake", "local")
    return {"mesh": (world.size,)} if has_real_mesh else {}


def _why_no_metric(metric: str, is_many: bool) -> str:
    """Say why a metric cannot be had in this run; empty where it can."""
    if metric in ("time", "counts"):
        return ""
    if metric == "instructions":
        return "instructions are counted in one process, not on ranks" if is_many else ""
    from pytest_dtdispatch.measuring.sampler import SAMPLERS

    sampler = SAMPLERS[metric]
    if is_many and not sampler.unit.is_time:
        return f"{sampler.unit.name} are taken in one process, as only times are merged over ranks"
    return sampler.why_not() or (sampler.why_not_on_ranks if is_many else "")


def test_settings(item: pytest.Item) -> Settings:
    """Resolve what holds for one test: flag beats marker beats ini beats default."""
    settings, flagged = run_settings(item.config), flag_values(item.config)
    given = {
        keyword: value
        for keyword, value in marker_values(item).items()
        if keyword not in flagged or _BY_KEYWORD[keyword].marker_wins
    }
    resolved = replace(settings, **given)
    if resolved.dim_names is not None and len(resolved.dim_names) != len(resolved.mesh):
        if item.config.getoption("dtdispatch_mesh") is None:
            raise pytest.UsageError(
                f"{_where(item)}: marker dtdispatch: dim_names has {len(resolved.dim_names)} names "
                f"for a mesh of {len(resolved.mesh)} dimensions"
            )
        return replace(resolved, dim_names=None)
    return resolved


def marker_values(item: pytest.Item) -> dict[str, Any]:
    """Read the markers of a test, the closest one first."""
    values: dict[str, Any] = {}
    for mark in item.iter_markers(MARKER):
        if mark.args:
            raise pytest.UsageError(
                f"{_where(item)}: marker dtdispatch takes keywords only, not {shown(mark.args[0])}"
            )
        where = f"{_where(item)}: marker dtdispatch"
        given = {keyword: _keyword_value(keyword, value, where) for keyword, value in mark.kwargs.items()}
        values = {**spelled_out(given, where), **values}
    return values


def gate_keywords(item: pytest.Item, gates: Collection[str]) -> list[str]:
    """Write the limits that the markers of a test have: ``misses=0``."""
    values = marker_values(item)
    fields = {gate: flags.LIMITS.get(gate, gate) for gate in gates}
    return [f"{gate}={values[field]}" for gate, field in fields.items() if field in values]


def is_held_to_saved_run(item: pytest.Item) -> bool:
    """Whether a marker of the test has a threshold, and the run names a saved one."""
    named = item.config.getoption("benchmark_compare", None)
    return bool(named) and SAVED_RUN_GATE.field in marker_values(item)


def checked(keyword: str, value: Any) -> Any:
    """Read one value that a test gave in Python."""
    try:
        return read_value(_BY_KEYWORD[keyword], value)
    except ValueError as error:
        raise MeshError(f"{keyword}={shown(value)} is not {error}") from None


def _keyword_value(keyword: str, value: Any, where: str) -> Any:
    if keyword not in _BY_KEYWORD:
        raise pytest.UsageError(f"{where} has no keyword {keyword!r}; valid: {', '.join(KEYWORDS)}")
    return read_given(_BY_KEYWORD[keyword], value, where, f"{keyword}=")


def _where(item: pytest.Item) -> str:
    path, line, _ = item.location
    return f"{path}:{(line or 0) + 1}"


def row_nodeid(item: pytest.Item) -> str:
    """Name a test in its rows: its node id, or with --pyargs its module, wherever that is installed.

    Rows of an installed suite must have one name in every environment, or no two runs compare.
    """
    module = getattr(getattr(item, "module", None), "__name__", "")
    if not item.config.getoption("pyargs", False) or "." not in module:
        return item.nodeid
    _, separator, inside = item.nodeid.partition("::")
    return f"{module.replace('.', '/')}.py{separator}{inside}"


def why_not_measured(config: pytest.Config) -> str:
    """Say why nothing is measured in this run; empty where it is."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") != "no":
        return "pytest-xdist runs tests in parallel, where latencies mean nothing; run with -n0"
    codspeed = config.pluginmanager.get_plugin("codspeed_plugin")
    if getattr(codspeed, "is_codspeed_enabled", False):
        return "pytest-codspeed measures this run; leave out --codspeed"
    given = functools.partial(config.getoption, default=False)
    if given("benchmark_disable") and not given("benchmark_enable"):
        return "--benchmark-disable is given"
    if given("benchmark_skip") and not given("benchmark_only"):
        return "--benchmark-skip is given"
    return ""
