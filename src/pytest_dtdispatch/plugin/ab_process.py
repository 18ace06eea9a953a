"""Plugin of a process of an A/B run: ``pytest -p pytest_dtdispatch.plugin.ab_process`` saves its run."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.ab.checkout import Checkout, InstalledFinder, module_files
from pytest_dtdispatch.ab.process import Variable
from pytest_dtdispatch.core.files import write_atomic
from pytest_dtdispatch.core.plain_data import decode
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.plugin.guard import guarded
from pytest_dtdispatch.plugin.kinds import BUILT_IN
from pytest_dtdispatch.plugin.ranks import WRITES
from pytest_dtdispatch.plugin.resolve import RUN, row_nodeid, run_settings
from pytest_dtdispatch.plugin.settings import SETTINGS
from pytest_dtdispatch.report.run import ReportedRun, saved_text
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Sampler
from pytest_dtdispatch.steps.model import Steps

# Checkout of a process that measures a commit. Other plugins may import packages before any hook runs.
COMMIT: Checkout | None = decode(Checkout | None, json.loads(os.environ.get(Variable.CHECKOUT, "null")))
if COMMIT and COMMIT.installed:
    sys.meta_path.insert(0, InstalledFinder(COMMIT.installed))


def control(sampler: Sampler) -> dict[str, int]:
    """Measure six ops on plain tensors; return the least sample of each."""
    import torch

    aten, a, b = torch.ops.aten, torch.ones(16, 8, device="cpu"), torch.ones(8, 8, device="cpu")
    binary = [(op, (a, a)) for op in (aten.add.Tensor, aten.mul.Tensor)]
    unary = [(op, (a,)) for op in (aten.relu.default, aten.sum.default, aten.clone.default)]
    meter = sampler.meter
    least: dict[str, int] = {}
    for _ in range(4):  # layouts of the method cache
        sampler.refresh()
        for op, args in (*binary, *unary, (aten.mm.default, (a, b))):
            readings = []
            for _ in range(300):
                begun = meter.begin()
                op(*args)
                readings.append(meter.end() - begun)
            least[str(op)] = min(least.get(str(op), readings[0]), *readings)
    return least


def readable(run: ReportedRun) -> ReportedRun:
    """Return a run with rows and numbers in place of results whose kinds only its process registers."""
    measured, numbers = dict(run.measured), []
    for kind, test, result in run.each_result():
        if kind not in BUILT_IN:
            measured[test] = (*measured.get(test, ()), *result.rows())
        if kind != Steps.kind:
            numbers += [MetricValue(RowId(test, result.name), *metric) for metric in result.metrics()]
    results = {kind: of_kind for kind, of_kind in run.results.items() if kind in BUILT_IN}
    return replace(run, measured=measured, results=results, numbers=run.numbers or tuple(numbers))


def refuse_other_code(folder: Path) -> bool:
    """Save a refusal if a module of the repository is not from this checkout; return whether it was."""
    refusal = COMMIT.refusal(module_files(sys.modules)) if COMMIT else ""
    if refusal:
        save(ReportedRun(refusal=refusal), folder)
    return bool(refusal)


def save(run: ReportedRun, folder: Path) -> None:
    """Save a run of tests in a folder, with source lines relative to it: each side has its own folder."""
    begins = f'"file": {json.dumps(f"{folder}{os.sep}")[:-1]}'
    write_atomic(Path(os.environ[Variable.OUTPUT]), saved_text(run).replace(begins, '"file": "'))


@pytest.hookimpl(tryfirst=True)
@guarded
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests, then measure the control, and save the run."""
    if not os.environ.get(Variable.OUTPUT):
        return None
    config, folder = session.config, session.config.invocation_params.dir
    run = config.stash.get(RUN, None)
    if refuse_other_code(folder):
        session.testsfailed = 0  # tests of another commit may not even import
        return True
    tests = json.loads(os.environ.get(Variable.ONLY, "[]"))
    if tests:
        session.items[:] = [item for item in session.items if row_nodeid(item) in tests]
        if run is not None:
            run.nodeids = tuple(item.nodeid for item in session.items)
    if session.testsfailed or config.option.collectonly or run is None:
        return None
    main: Any = config.pluginmanager.get_plugin("main")
    main.pytest_runtestloop(session)
    names = {item.nodeid: row_nodeid(item) for item in session.items}
    saved = readable(run.judged())
    saved = replace(
        saved,
        environment=saved.environment or {"metric": run.settings.metric},
        absent={names.get(nodeid, nodeid): reason for nodeid, reason in run.skip_reasons.items()},
        imports=tuple(COMMIT.import_folders(module_files(sys.modules))) if COMMIT else (),
    )
    sampler = SAMPLERS.get(run.settings.metric)
    if sampler and saved:  # not if counts are compared
        saved = replace(saved, control=control(sampler))
    if not refuse_other_code(folder):
        save(saved, folder)
    return True


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark is configured
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Ignore flags in addopts that compare with a baseline, or that write files of other plugins."""
    flags = (SETTINGS[name].dest for name in ("max", "threshold", "any_machine", "expected", "export"))
    for dest in (*flags, *WRITES) if os.environ.get(Variable.OUTPUT) else ():
        if getattr(config.option, dest, None):
            setattr(config.option, dest, None)


def pytest_configure(config: pytest.Config) -> None:
    """Reject a metric that an A/B run does not compare."""
    if not os.environ.get(Variable.OUTPUT):
        return
    expected = os.environ.get(Variable.METRIC, "time")
    metric = run_settings(config).metric
    is_time = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
    if not (is_time if expected == "time" else metric == expected):
        remedy = "set before -- what it compares: --metric time, counts or instructions"
        raise pytest.UsageError(f"--dtdispatch-metric {metric}: this A/B run compares {expected}; {remedy}")
