"""A reported run from a file that pytest-benchmark saved: its rows, and what we keep beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.environment import machine_of, mapping
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State, Unit
from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.core.saved_file import member, read_saved, time_ns
from pytest_dtdispatch.core.saved_samples import SavedSamples
from pytest_dtdispatch.report.document import Document, Tone, paragraph
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.run_data import KEY, RunData, read_data

GROUP = "dtdispatch "
QUARTILES = ("min", "q1", "median", "q3", "max")
REFUSED = re.compile(r"(.*) \(([0-9]{1,18})x\)", re.DOTALL)
MOST_CALLS = 2**63
LONGEST_TEXT = 1000
NOTHING = "nothing in it was measured with --dtdispatch"
OLDER = "saved by another version: tables of steps, budgets and gates are not in it, or not known here"
COMPILES = {State.COMPILE_COLD, State.COMPILE_WARM, State.EAGER}


@dataclass(frozen=True)
class SavedRow:
    """One row of a file: one signature in one state in one test."""

    test: str
    row: Measurement  # with the samples of this state alone


def read_reported(path: Path) -> ReportedRun:
    """Read a saved run as a reported one.

    Args:
        path: of what ``--benchmark-json``, ``--benchmark-save`` or ``--benchmark-autosave`` wrote.

    Raises:
        ValueError: in one line, which file it is and what is wrong with it.
    """
    return read_saved(path, lambda run: reported_from(run, str(path)))


def reported_from(run: Any, where: str) -> ReportedRun:
    """Read the members of such a file."""
    benchmarks = member(run, "benchmarks", list, "the file")
    info = member(run, "machine_info", dict, "the file")
    kept = read_data(run.get(KEY))
    data = kept or RunData(environment=_environment(info, mapping(run.get("commit_info"))))
    rows = list(_rows(benchmarks, data.unit))
    numbers = tuple(_numbers(run.get("dtdispatch", [])))
    told = ReportedRun(
        where=where,
        taken=data.taken or str(run.get("datetime", ""))[:40],
        environment=data.environment,
        build={name: text for name, text in mapping(info.get("dtdispatch")).items() if _is_short(text)},
        measured=_in_order(_measured(rows, data.unrecorded), data.order),
        documents=data.documents,
        numbers=numbers,
        gates=data.gates,
        explained=data.explained,
        notices=data.notices if kept else Document((paragraph(OLDER, Tone.NOTICE),)),
    )
    if not told:
        raise ValueError(NOTHING)
    return told


def _environment(info: Mapping[str, Any], commit: Mapping[str, Any]) -> dict[str, str]:
    """Pick what an older file tells of its machine."""
    parts = (*machine_of(info), ("commit", str(commit.get("id") or "")))
    return {name: text for name, text in parts if text}


def _rows(benchmarks: Sequence[Any], unit: Unit) -> Iterator[SavedRow]:
    known: set[str] = set()
    for place, benchmark in enumerate(benchmarks, start=1):
        name = member(benchmark, "fullname", str, f"benchmark {place}")
        state = name.rpartition("::")[2]
        if not f"{benchmark.get('group')} ".startswith(f"{GROUP}{state} "):  # a comparison is named behind it
            continue
        if state not in set(map(str, State)):
            raise ValueError(f"{name!r} has no state that is known")
        if name in known:
            raise ValueError(f"{name!r} is there twice")
        known.add(name)
        yield _row(benchmark, name, State(state), unit)


def _row(benchmark: Mapping[str, Any], name: str, state: State, unit: Unit) -> SavedRow:
    label = str(benchmark.get("param") or "").removesuffix(f"::{state}")
    end = f"::{label}::{state}"
    if not label or not name.endswith(end):
        raise ValueError(f"{name!r} does not end in its signature and its state")
    info, params = mapping(benchmark.get("extra_info")), mapping(benchmark.get("params"))
    notes, remarks = _texts(info.get("notes")), _texts(info.get("remarks"))
    figures = Figures(
        rounds=_whole(info.get("rounds")),
        samples=(_samples(benchmark, name, state, unit),),
        notes=notes[: len(notes) - len(remarks)],
        remarks=remarks,
    )
    return SavedRow(
        name.removesuffix(end),
        Measurement(
            label,
            full_label=str(info.get("signature") or label),
            op=str(params.get("op") or label.partition("(")[0]),
            mesh=str(params.get("mesh") or ""),
            contains=_contains(info, state),
            calls=_whole(info.get("calls")),
            figures=figures,
        ),
    )


def _contains(info: Mapping[str, Any], state: State) -> Contains:
    """Tell where the clock started; a row on local shards says it of itself, and stands by another."""
    said = info.get("contains")
    if said in [str(each) for each in Contains]:
        return Contains(said)
    return Contains.COMPILED if state in COMPILES else Contains.DISPATCH


def _samples(benchmark: Mapping[str, Any], name: str, state: State, unit: Unit) -> Samples:
    info, stats = mapping(benchmark.get("extra_info")), member(benchmark, "stats", dict, repr(name))
    refused = tuple(
        Refused(found[1], int(found[2]))
        for text in _texts(info.get("refused"))
        if (found := REFUSED.fullmatch(text))
    )
    taken = _times(stats.get("data", []), name)
    if by_rank := mapping(info.get("rank_samples_ns")):
        ranks = tuple((_whole(rank), _counted(ns, name)) for rank, ns in by_rank.items())
        stat = "max" if info.get("rank_stat") == "max" else "median"
        return Samples(state, taken or ranks[0][1], refused, unit, by_rank=ranks, stat=stat)
    if taken:
        return Samples(state, taken, refused, unit)
    values = tuple(round(time_ns(stats.get(field), name)) for field in QUARTILES)
    figure, share = info.get("figure_ns"), info.get("scatter")
    return SavedSamples(
        state,
        values,
        refused,
        unit,
        figure_ns=values[2] if figure is None else time_ns(_number(figure) / 1e9, name),
        scatter_share=None if share is None else _number(share),
        taken=_whole(stats.get("rounds")),
    )


def _times(data: Any, name: str) -> tuple[int, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{name!r}: its data is no list")
    return tuple(round(time_ns(sample, name)) for sample in data)


def _counted(ns: Any, name: str) -> tuple[int, ...]:
    if not isinstance(ns, list) or not ns:
        raise ValueError(f"{name!r}: a rank has no samples")
    return tuple(_whole(each) for each in ns)


def _measured(
    rows: Sequence[SavedRow], unrecorded: Mapping[str, Sequence[Measurement]]
) -> dict[str, list[Measurement]]:
    """Make one measurement of all states of a signature in a test."""
    apart = [(row.test, row.row) for row in rows]
    apart += [(test, row) for test, of_test in unrecorded.items() for row in of_test]
    found: dict[str, dict[str, Measurement]] = {}
    for test, row in apart:
        of_test = found.setdefault(test, {})
        before = of_test.get(row.label)
        of_test[row.label] = row if before is None else _joined(before, row)
    return {test: list(of_test.values()) for test, of_test in found.items()}


def _joined(before: Measurement, row: Measurement) -> Measurement:
    """Add the states of one row to another; what is not of the op on local shards says what it contains."""
    every = {samples.state: samples for samples in (*before.samples, *row.samples)}
    ordered = tuple(every[state] for state in State if state in every)
    said = row if before.samples and all(one.state is State.LOCAL for one in before.samples) else before
    figures = replace(before.figures, samples=ordered)
    return replace(said, figures=replace(figures, rounds=max(before.rounds, row.rounds)))


def _in_order(
    found: Mapping[str, Sequence[Measurement]], order: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Measurement, ...]]:
    """Put rows as they were measured; those of which nothing is known come last."""
    ordered = {}
    for test in (*(test for test in order if test in found), *(test for test in found if test not in order)):
        place = {label: n for n, label in enumerate(order.get(test, ()))}
        ordered[test] = tuple(sorted(found[test], key=lambda row: place.get(row.label, len(place))))
    return ordered


def _numbers(plain: Any) -> Iterator[MetricValue]:
    for number in plain if isinstance(plain, list) else []:
        of = f"a number of {KEY.partition('_')[0]}"
        name, metric = member(number, "name", str, of), member(number, "metric", str, of)
        yield MetricValue(name, metric, _whole(member(number, "value", int, of)))


def _is_short(plain: Any) -> bool:
    return isinstance(plain, (str, int)) and len(str(plain)) < LONGEST_TEXT


def _texts(plain: Any) -> tuple[str, ...]:
    return tuple(text for text in plain if isinstance(text, str)) if isinstance(plain, list) else ()


def _whole(plain: Any) -> int:
    """Read a whole number from 0; 0 of what is none."""
    try:
        number = int(plain)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < MOST_CALLS else 0


def _number(plain: Any) -> float:
    is_number = isinstance(plain, (int, float)) and not isinstance(plain, bool)
    if not is_number or not 0 <= plain < MOST_CALLS:  # what is no number is not in between
        raise ValueError(f"{str(plain)[:40]!r} is no number from 0")
    return float(plain)
