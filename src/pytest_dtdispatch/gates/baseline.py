"""A run that pytest-benchmark saved, read as data from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.files import read_text
from pytest_dtdispatch.core.measurement import State

MOST_BYTES = 64 * 2**20  # a thousand signatures with their samples are 25 MB
LONGEST_S = 1e9
GROUP = "dtdispatch "
FIGURES = ("min", "median", "mean")  # quartiles are defined in more than one way


@dataclass(frozen=True)
class StateRow:
    """One signature in one state in one test.

    Args:
        name: unique in its run, the same from run to run.
        state: of its samples.
        ns: samples in nanoseconds, in the order taken; none where the run was saved without them.
        figures: in nanoseconds, of a row without samples: its least, its median, its mean.
    """

    name: str
    state: State
    ns: tuple[float, ...]
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class SavedRun:
    """All of a saved run that concerns us.

    Args:
        where: its file.
        machine: what must be equal before figures may be compared: names and texts.
        rows: ours; those of other benchmarks are left out.
        metric: that its rows are of, as ``--dtdispatch-metric`` names it.
    """

    where: str
    machine: tuple[tuple[str, str], ...]
    rows: tuple[StateRow, ...]
    metric: str = "time"


def read_run(path: Path) -> SavedRun:
    """Read a saved run."""
    try:
        too_large = f"it has more than {MOST_BYTES // 2**20} MiB"
        return parse_run(read_text(path, MOST_BYTES, too_large), str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no saved run: it is no text") from None
    except ValueError as error:
        raise ValueError(f"{path} is no saved run: {error}") from None


def parse_run(text: str, where: str) -> SavedRun:
    """Read the text of a saved run.

    Example:
        >>> parse_run('{"machine_info": {}, "benchmarks": []}', "0001_base.json").rows
        ()
    """
    try:
        run = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    benchmarks = _member(run, "benchmarks", list, "the file")
    info = _member(run, "machine_info", dict, "the file")
    rows = tuple(_rows(benchmarks))
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    metric = _mapping(info.get("dtdispatch")).get("metric") or "time"
    return SavedRun(where, machine_of(info), rows, str(metric))


def machine_of(info: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Pick what must be equal before figures may be compared.

    Example:
        >>> dict(machine_of({"python_version": "3.11.8", "dtdispatch": {"threads": 2}}))["threads"]
        '2'
    """
    cpu, ours = _mapping(info.get("cpu")), _mapping(info.get("dtdispatch"))
    python = f"{info.get('python_implementation', '')} {info.get('python_version', '')}"
    parts = {
        "CPU": cpu.get("brand_raw") or info.get("processor") or info.get("machine"),
        "Python": python.strip(),
        "torch": f"{ours.get('torch_version', '')} {ours.get('torch_build', '')}".strip(),
        "CUDA": ours.get("cuda"),
        "device": f"{ours.get('device', '')} {ours.get('device_name', '')}".strip(),
        "backend": ours.get("backend"),
        "threads": ours.get("threads"),
        "ranks": f"{ours.get('ranks')}, {ours.get('rank_stat')}" if ours.get("rank_stat") else "",
    }
    return tuple((name, str(value or "")) for name, value in parts.items())


def differences(base: SavedRun, machine: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Name what differs between the machine of a saved run and this one.

    Example:
        >>> differences(SavedRun("f", (("threads", "2"),), ()), (("threads", "4"),))
        ('threads: 2 then, 4 now',)
    """
    then = dict(base.machine)
    return tuple(
        f"{name}: {then.get(name) or 'unknown'} then, {now or 'unknown'} now"
        for name, now in machine
        if then.get(name, "") != now
    )


def _rows(benchmarks: list[Any]) -> Iterator[StateRow]:
    for place, benchmark in enumerate(benchmarks, start=1):
        name = _member(benchmark, "fullname", str, f"benchmark {place}")
        stats = _member(benchmark, "stats", dict, repr(name))
        state = name.rpartition("::")[2]
        if benchmark.get("group") != GROUP + state:
            continue
        if state not in set(map(str, State)):
            raise ValueError(f"{name!r} has no state that is known")
        samples = stats.get("data", [])
        if not isinstance(samples, list):
            raise ValueError(f"{name!r}: its data is no list")
        yield StateRow(
            name,
            State(state),
            tuple(_ns(sample, name) for sample in samples),
            tuple((field, _ns(stats.get(field), name)) for field in FIGURES),
        )


def _ns(seconds: Any, name: str) -> float:
    is_time = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_time or not 0 < seconds < LONGEST_S:
        raise ValueError(f"{name!r}: {str(seconds)[:40]!r} is no time")
    return float(seconds) * 1e9


def _member(of: Any, name: str, kind: type, what: str) -> Any:
    member = of.get(name) if isinstance(of, dict) else None
    if not isinstance(member, kind):
        raise ValueError(f"{what} has no {name}")
    return member


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
