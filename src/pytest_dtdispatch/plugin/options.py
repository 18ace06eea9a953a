"""Every flag with its ini twin and its marker keyword, in one table; and the settings they resolve to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_dtdispatch.core.parsing import (
    AUTO,
    read_cache_settings,
    read_choice,
    read_count,
    read_file,
    read_globs,
    read_mesh,
    read_most,
    read_names,
    read_rounds,
    read_seconds,
    read_switch,
    read_thresholds,
    read_word,
)
from pytest_dtdispatch.core.thresholds import Threshold
from pytest_dtdispatch.core.world import World, read_world
from pytest_dtdispatch.errors import MeshError

BACKENDS = ("auto", "fake", "gloo", "nccl", "local")
DEVICES = ("auto", "cpu", "cuda")
METRICS = ("time", "counts", "instructions")
RANK_STATS = ("median", "max")
COUNT_INSTRUCTIONS = "--dtdispatch-metric instructions"
# Counts hardly differ from call to call, and callgrind is slow.
FEW = {"rounds": 5, "repeat": 2, "compile_rounds": 1}
MOST_ROUNDS = 20  # where as many are taken as are enough
MARKER = "dtdispatch"


class Settings(NamedTuple):  # which is made faster than a dataclass: every start of pytest pays for it
    """What is measured in a test, and where its ops run.

    Args:
        measure: whether tests that use the fixture are measured.
        measure_all: whether every test is measured.
        rounds: proved misses for each signature; ``auto`` for as many as are enough.
        repeat: hits recorded after each miss.
        max_time: seconds after which no round is added to a signature.
        cold: whether cold rows are taken too.
        ops: globs of the ops that are measured; all where empty.
        mesh: extent of each mesh dimension, in ranks.
        dim_names: name of each mesh dimension.
        backend: backend of the process group, ``auto`` to choose by device.
        device: device type of the mesh, ``auto`` for CUDA where there is a device.
        rpc: whether the process group has RPC beside it.
        nproc: ranks to start on this machine.
        timeout: seconds that ranks wait for each other.
        rank_stat: what stands for all ranks: ``median`` of their medians, or ``max``.
        metric: what captures and calls measure: ``time``, ``counts`` of misses and the like, or
            ``instructions``.
        profile: whether the functions that instructions went to are listed.
        max_misses_per_step: limit of a gate, as the four below: the most that any counted step may have.
        max_cache_growth: entries that any one cache gains.
        max_spec_growth: ``DTensorSpec`` objects gained.
        max_redistributes: redistributions, asked for and implied.
        max_collectives: collectives of every kind.
        compile_backend: of torch.compile.
        compile_rounds: cold compiles of a function, and as many warm ones.
        fake_tensor_cache: settings of the FakeTensor cache that compiles have in turn; None for torch's own.
        max_recompiles: limit of a gate: the most that a compiled function may have.
        max_graph_breaks: the same.
        threshold: how much slower than in a saved run a row may be.
        any_machine: whether a saved run of another machine is compared with too.
        expected: file of expected results that the run is held against.
        csv: file that results are written to, as PyTorch's checker reads them.
        oss_json: file that results are written to, as PyTorch's benchmark database takes them.
    """

    measure: bool = False
    measure_all: bool = False
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
    metric: str = "time"
    profile: bool = False
    max_misses_per_step: int | None = None
    max_cache_growth: int | None = None
    max_spec_growth: int | None = None
    max_redistributes: int | None = None
    max_collectives: int | None = None
    compile_backend: str = "inductor"
    compile_rounds: int = 5
    fake_tensor_cache: tuple[bool, ...] | None = None
    max_recompiles: int | None = None
    max_graph_breaks: int | None = None
    threshold: tuple[Threshold, ...] | None = None
    any_machine: bool = False
    expected: Path | None = None
    csv: Path | None = None
    oss_json: Path | None = None

    @property
    def most_rounds(self) -> int:
        """The most rounds that are taken of a signature."""
        if isinstance(self.rounds, int):
            return self.rounds
        # A count of instructions hardly differs from call to call: few are always enough.
        return FEW["rounds"] if self.metric == "instructions" else MOST_ROUNDS

    @property
    def stops_when_enough(self) -> bool:
        """Whether no round is added once the median is known closely."""
        return self.rounds == AUTO and self.metric not in ("counts", "instructions")


def read_metric(value: Any) -> str:
    """Read the name of a metric: a built-in one, or that of a sampler that was registered."""
    if value in METRICS:
        return str(value)
    from pytest_dtdispatch.measuring.sampler import SAMPLERS

    return read_choice((*METRICS, *(name for name in SAMPLERS if name not in METRICS)))(value)


class Option(NamedTuple):
    """One setting, and every way to give it.

    Args:
        field: its name in the settings and as a marker keyword.
        parse: turns a flag's or a marker's value into the setting's; a ValueError says what is valid.
        help: what it does.
        flag: its flag, which is its ini name too; none where only the marker takes it.
        metavar: how the help names its value; none for a switch.
        repeatable: whether the flag may be given several times.
        in_marker: whether the marker takes it.
        marker_wins: whether the marker beats the flag.
    """

    field: str
    parse: Callable[[Any], Any]
    help: str
    flag: str | None
    metavar: str | None = None
    repeatable: bool = False
    in_marker: bool = True
    marker_wins: bool = False

    @property
    def dest(self) -> str:
        """Name of the flag's value, and of its ini twin; empty where only the marker takes it."""
        return (self.flag or "").removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(
        "measure",
        read_switch,
        "measure the tests that use the dtdispatch fixture",
        "--dtdispatch",
        in_marker=False,
    ),
    Option(
        "measure_all",
        read_switch,
        "measure every test: each is wrapped in a capture",
        "--dtdispatch-all",
        in_marker=False,
    ),
    Option(
        "rounds",
        read_rounds,
        "proved misses for each signature; auto: 8 to 20, no more once each median is known to a tenth",
        "--dtdispatch-rounds",
        "N|auto",
    ),
    Option("repeat", read_count, "hits recorded after each miss", "--dtdispatch-repeat", "N"),
    Option(
        "max_time",
        read_seconds,
        "seconds after which no round is added to a signature, once five are done",
        "--dtdispatch-max-time",
        "S",
    ),
    Option("cold", read_switch, "add the cold rows", "--dtdispatch-cold"),
    Option("ops", read_globs, "measure only these ops", "--dtdispatch-ops", "GLOB", repeatable=True),
    Option("mesh", read_mesh, "mesh of the device_mesh fixture", "--dtdispatch-mesh", "SHAPE"),
    Option("dim_names", read_names, "names of the mesh dimensions", None),
    Option(
        "backend",
        read_choice(BACKENDS),
        "backend of the process group: " + ", ".join(BACKENDS),
        "--dtdispatch-backend",
        "NAME",
    ),
    Option(
        "device",
        read_choice(DEVICES),
        "device of the mesh: " + ", ".join(DEVICES),
        "--dtdispatch-device",
        "NAME",
    ),
    Option("rpc", read_switch, "RPC beside the process group", None),
    Option("nproc", read_count, "ranks to start on this machine", "--dtdispatch-nproc", "N", in_marker=False),
    Option(
        "timeout",
        read_seconds,
        "seconds that ranks wait for each other",
        "--dtdispatch-timeout",
        "S",
        in_marker=False,
    ),
    Option(
        "rank_stat",
        read_choice(RANK_STATS),
        "what stands for all ranks in files and gates, of the medians of each: " + ", ".join(RANK_STATS),
        "--dtdispatch-rank-stat",
        "NAME",
        in_marker=False,
    ),
    Option(
        "metric",
        read_metric,
        "what captures and calls measure: " + ", ".join(METRICS),
        "--dtdispatch-metric",
        "NAME",
        in_marker=False,
    ),
    Option(
        "profile",
        read_switch,
        "list the functions that instructions went to",
        "--dtdispatch-profile",
        in_marker=False,
    ),
    *(
        Option(f"max_{what}", read_most, f"fail a test where a counted step has more {of}", flag, "N")
        for what, of, flag in (
            ("misses_per_step", "misses", "--dtdispatch-max-misses-per-step"),
            ("cache_growth", "new entries in one cache", "--dtdispatch-max-cache-growth"),
            ("spec_growth", "new DTensorSpec objects", "--dtdispatch-max-spec-growth"),
            ("redistributes", "redistributions", "--dtdispatch-max-redistributes"),
            ("collectives", "collectives", "--dtdispatch-max-collectives"),
        )
    ),
    Option("compile_backend", read_word, "backend of torch.compile", "--dtdispatch-compile-backend", "NAME"),
    Option(
        "compile_rounds",
        read_count,
        "cold compiles of a function, and as many warm ones",
        "--dtdispatch-compile-rounds",
        "N",
    ),
    Option(
        "fake_tensor_cache",
        read_cache_settings,
        "FakeTensor cache of compiles: on, off, or both, to compare them",
        "--dtdispatch-fake-tensor-cache",
        "on|off|both",
    ),
    *(
        Option(f"max_{what}", read_most, f"fail a test where a compiled function has more {of}", flag, "N")
        for what, of, flag in (
            ("recompiles", "recompiles", "--dtdispatch-max-recompiles"),
            ("graph_breaks", "graph breaks", "--dtdispatch-max-graph-breaks"),
        )
    ),
    Option(
        "threshold",
        read_thresholds,
        "fail where a row is slower by more than this than in the run that --benchmark-compare names",
        "--dtdispatch-fail",
        "[STATE=]FIELD:PERCENT",
        repeatable=True,
        marker_wins=True,
    ),
    Option(
        "any_machine",
        read_switch,
        "compare with a saved run of another machine too",
        "--dtdispatch-any-machine",
        in_marker=False,
    ),
    *(
        Option(field, read_file, text, flag, "FILE", in_marker=False)
        for field, text, flag in (
            ("expected", "fail where a result is not what this CSV file expects", "--dtdispatch-expected"),
            ("csv", "write results as CSV: name, metric, value", "--dtdispatch-csv"),
            ("oss_json", "write results as PyTorch's benchmark database takes them", "--dtdispatch-oss-json"),
        )
    ),
)
COMPILE_GATES = tuple(option for option in OPTIONS if option.field in ("max_recompiles", "max_graph_breaks"))
STEP_GATES = tuple(option for option in OPTIONS if option.parse is read_most and option not in COMPILE_GATES)
RESULT_FILES = tuple(option for option in OPTIONS if option.parse is read_file)
SAVED_RUN_GATE = next(option for option in OPTIONS if option.field == "threshold")
_DEFAULTS = Settings()
_SETTINGS = pytest.StashKey[Settings]()
_BY_KEYWORD = {option.field: option for option in OPTIONS if option.in_marker}


def limits_of(fields: Iterable[str]) -> tuple[Option, ...]:
    """Give the options by which a kind of result is limited."""
    return tuple(option for option in OPTIONS if option.field in fields)


def add_options(parser: pytest.Parser) -> None:
    """Declare every flag and its ini twin."""
    group = parser.getgroup("dtdispatch", "DTensor dispatch overhead")
    for option in OPTIONS:
        if option.flag is None:
            continue
        default = _default_text(getattr(_DEFAULTS, option.field))
        if option.metavar is None:
            group.addoption(option.flag, action="store_const", const=True, dest=option.dest, help=option.help)
        else:
            action = "append" if option.repeatable else "store"
            text = f"{option.help} (default: {default})"
            group.addoption(option.flag, action=action, metavar=option.metavar, dest=option.dest, help=text)
        ini_help = f"{option.help} (default: {default}); the flag {option.flag} beats it"
        if option.repeatable:
            parser.addini(option.dest, ini_help, type="linelist", default=None)
        else:
            parser.addini(option.dest, ini_help, type="string", default=None)


def run_settings(config: pytest.Config) -> Settings:
    """Resolve what holds for the whole run: flag beats ini beats default."""
    if _SETTINGS not in config.stash:
        config.stash[_SETTINGS] = _resolve(config)
    return config.stash[_SETTINGS]


def _resolve(config: pytest.Config) -> Settings:
    given: dict[str, Any] = {}
    for option in OPTIONS:
        if option.flag is None:
            continue
        value, _ = _given(config, option)
        if value is None:
            continue
        given[option.field] = value
    if given.get("measure_all"):
        given["measure"] = True
    if not given.get("measure") and (flags := gate_flags(config)):
        raise pytest.UsageError(f"{flags[0]}: nothing is counted without --dtdispatch or --dtdispatch-all")
    asked = [option.flag for option in RESULT_FILES if config.getoption(option.dest) is not None]
    if not given.get("measure") and asked:
        raise pytest.UsageError(f"{asked[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    if given.get("profile") and given.get("measure") and given.get("metric") != "instructions":
        raise pytest.UsageError(
            "--dtdispatch-profile: only instructions are profiled; add " + COUNT_INSTRUCTIONS
        )
    if given.get("metric") == "instructions":
        given = {**FEW, **given}
    return Settings(**{**_of_ranks(config, given), **given})


def _of_ranks(config: pytest.Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is asked of many ranks; return what is another default on them."""
    world = read_world(os.environ)
    asked = config.getoption("dtdispatch_nproc") is not None and given["nproc"] > 1
    if asked and not given.get("measure"):
        raise pytest.UsageError(
            "--dtdispatch-nproc: nothing is measured without --dtdispatch or --dtdispatch-all"
        )
    if asked and world.is_many and given["nproc"] != world.local_size:
        raise pytest.UsageError(
            f"--dtdispatch-nproc: a launcher started {world.local_size} ranks here, not {given['nproc']}"
        )
    is_many = world.is_many or given.get("nproc", 1) > 1
    if given.get("measure") and (why_not := _why_no_metric(given.get("metric", "time"), is_many)):
        raise pytest.UsageError(f"--dtdispatch-metric {given['metric']}: {why_not}")
    return {"mesh": (world.size,)} if _has_real_mesh(world, given) else {}


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


def _has_real_mesh(world: World, given: Mapping[str, Any]) -> bool:
    return world.is_many and given.get("backend") not in ("fake", "local")


def test_settings(item: pytest.Item) -> Settings:
    """Resolve what holds for one test: flag beats marker beats ini beats default."""
    settings = run_settings(item.config)
    given = {
        keyword: value
        for keyword, value in marker_values(item).items()
        if _BY_KEYWORD[keyword].flag is None
        or _BY_KEYWORD[keyword].marker_wins
        or item.config.getoption(_BY_KEYWORD[keyword].dest) is None
    }
    resolved = settings._replace(**given)
    if resolved.dim_names is not None and len(resolved.dim_names) != len(resolved.mesh):
        if item.config.getoption("dtdispatch_mesh") is None:
            raise pytest.UsageError(
                f"{_where(item)}: marker dtdispatch: dim_names has {len(resolved.dim_names)} names "
                f"for a mesh of {len(resolved.mesh)} dimensions"
            )
        return resolved._replace(dim_names=None)
    return resolved


def check_markers(item: pytest.Item) -> None:
    """Check the markers of a test, if it has one of ours."""
    if item.get_closest_marker(MARKER):
        test_settings(item)


def marker_values(item: pytest.Item) -> dict[str, Any]:
    """Read the markers of a test, the closest one first."""
    values: dict[str, Any] = {}
    for mark in item.iter_markers(MARKER):
        if mark.args:
            raise pytest.UsageError(
                f"{_where(item)}: marker dtdispatch takes keywords only, not {mark.args[0]!r}"
            )
        for keyword, value in _parsed_keywords(mark.kwargs, _where(item)):
            values.setdefault(keyword, value)
    return values


def gate_flags(config: pytest.Config, gates: Iterable[Option] = (*STEP_GATES, *COMPILE_GATES)) -> list[str]:
    """Name the flags of gates that were given on the command line."""
    return [str(gate.flag) for gate in gates if config.getoption(gate.dest) is not None]


def gate_keywords(item: pytest.Item, gates: Iterable[Option]) -> list[str]:
    """Write the gates of one kind that the markers of a test have: ``max_misses_per_step=0``."""
    values = marker_values(item)
    return [f"{gate.field}={values[gate.field]}" for gate in gates if gate.field in values]


def is_held_to_saved_run(item: pytest.Item) -> bool:
    """Whether a marker of the test has a threshold, and the run names a saved one."""
    named = item.config.getoption("benchmark_compare", None)
    return bool(named) and SAVED_RUN_GATE.field in marker_values(item)


def checked(keyword: str, value: Any) -> Any:
    """Read one value that a test gave in Python."""
    try:
        return _BY_KEYWORD[keyword].parse(value)
    except ValueError as error:
        raise MeshError(f"{keyword}={value!r} is not {error}") from None


def marker_line() -> str:
    """Describe the marker to pytest."""
    keywords = ", ".join(f"{keyword}=..." for keyword in _BY_KEYWORD)
    return f"{MARKER}({keywords}): what is measured in a test, and on which mesh"


def _parsed_keywords(keywords: Mapping[str, Any], where: str) -> Iterable[tuple[str, Any]]:
    for keyword, value in keywords.items():
        option = _BY_KEYWORD.get(keyword)
        if option is None:
            valid = ", ".join(_BY_KEYWORD)
            raise pytest.UsageError(f"{where}: marker dtdispatch has no keyword {keyword!r}; valid: {valid}")
        try:
            yield keyword, option.parse(value)
        except ValueError as error:
            raise pytest.UsageError(
                f"{where}: marker dtdispatch: {keyword}={value!r} is not {error}"
            ) from None


def _given(config: pytest.Config, option: Option) -> tuple[Any, str]:
    """Read an option from its flag, else from its ini twin, and say where; nothing where neither is given."""
    value, where = config.getoption(option.dest), str(option.flag)
    if value is None:
        value, where = config.getini(option.dest), _ini_place(config, option.dest)
        if not value:
            return None, where
    try:
        parsed = option.parse(value)
    except ValueError as error:
        raise pytest.UsageError(f"{where}: {value!r} is not {error}") from None
    if isinstance(parsed, Path) and where != option.flag:  # an ini file means files beside it
        parsed = (config.inipath.parent if config.inipath else config.rootpath) / parsed
    return parsed, where


def _ini_place(config: pytest.Config, name: str) -> str:
    """Name the ini file, or the ``-o`` that beats it."""
    overridden = any(text.partition("=")[0] == name for text in config.getoption("override_ini") or ())
    return f"-o {name}" if overridden else f"{config.inipath}: {name}"


def _where(item: pytest.Item) -> str:
    path, line, _ = item.location
    return f"{path}:{(line or 0) + 1}"


def _default_text(value: Any) -> str:
    if value is False:
        return "off"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "x".join(map(str, value)) or "all"
    return str(value)
