"""Decisions do not depend on sentences: runs with reworded ones have equal outcomes, numbers and colors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.report.run import read_run
from tests.plugin_runs import ALONE, IMPORTS

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long, pytest.mark.sweep]

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "tests" / "sentence_hook.py"
COLOR = re.compile(r"\x1b\[[\d;]*m")
# Latencies of a run and its retries are scripted, and a test adds to those of its call.
CONFTEST = """
import os, sys, types
from pytest_dtdispatch.plugin import session
from pytest_dtdispatch.rounds.timing import Series
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from tests.scripted_clock import ScriptedClock

clock = ScriptedClock()
sys.modules["scripted"] = types.SimpleNamespace(clock=clock, is_head="IS_HEAD" in os.environ)
SAMPLERS["time"] = WallClock(clock)
Series.off_core = 0.0
session.pause = lambda seconds: None
"""
ROWS = f"""{IMPORTS}
import itertools
import scripted

SLOW_MISS_NS = 3 * 10**9
CALLS_NS = {{
    "same": lambda: 0,
    "slower": lambda: 5_000 * scripted.is_head,
    "faster": lambda: 5_000 * (not scripted.is_head),
    "noisy": lambda extra=itertools.cycle([0] * 16 + [10**6] * 16): next(extra),
    "few": lambda: SLOW_MISS_NS,
}}

def test_signature(dtdispatch, a):
    with dtdispatch.capture():
        a + a
        torch.rand_like(a)

@pytest.mark.parametrize("name", CALLS_NS)
def test_call(dtdispatch, a, name):
    def call():
        scripted.clock.wait(CALLS_NS[name]())
        return a * a

    dtdispatch.call(call, name=name)

def test_refused(dtdispatch, a):
    numbers = itertools.count(1)
    dtdispatch.call(lambda: a.clamp(max=next(numbers)), name="refused")

def test_unmeasured(dtdispatch):
    pass
"""
STEPS = f"""{IMPORTS}
import itertools
import threading
from torch.distributed.tensor import Replicate

def test_steady(dtdispatch, a):
    dtdispatch.steps(lambda: a + a, name="steady")
    dtdispatch.steps(lambda: a - a, warmup=0, steps=1, name="counted")

def test_growing(dtdispatch, a):
    kept = []
    dtdispatch.steps(lambda: kept.append(a + a), name="growing")

def test_growing_with_inputs(dtdispatch, a):
    kept = []

    def step(x):
        kept.append(x * x)

    dtdispatch.steps(step, inputs=[a, a, a, a], warmup=1, name="growing")
    dtdispatch.steps(lambda x: x / x, inputs=[a, a, a], warmup=0, name="steady")

def test_missing(dtdispatch, a, device_mesh):
    numbers, sizes = itertools.count(1), itertools.count(8)
    dtdispatch.steps(lambda: a.clamp(max=next(numbers)), name="number")

    def step():
        small = sharded(device_mesh, 4 * next(sizes), 4)
        return small + small

    dtdispatch.steps(step, name="shape")

def test_missing_at_another_position(dtdispatch, a):
    numbers = itertools.count(1)

    def step():
        number = next(numbers)
        for _ in range(number):
            a.clamp(max=0)
        a.clamp(max=number)

    dtdispatch.steps(step, name="positions")

def test_unsteady(dtdispatch, a):
    numbers = itertools.count(1)
    dtdispatch.steps(lambda: [a + a for _ in range(next(numbers))], name="unsteady")

def test_redistributed(dtdispatch, a):
    dtdispatch.steps(lambda: [a.redistribute(placements=[Replicate()]) for _ in range(3)], name="repeated")

@pytest.mark.dtdispatch(max="misses=0,redistributes=0")
def test_limit_met(dtdispatch, a):
    dtdispatch.steps(lambda: a + a, name="met")

@pytest.mark.dtdispatch(max="redistributes=1,misses=0")
def test_limit_exceeded(dtdispatch, a):
    dtdispatch.steps(lambda: [a.redistribute(placements=[Replicate()]) for _ in range(2)], name="exceeded")
"""
# Renders canned runs of every kind in each state, and writes the tones of their documents.
CANNED = """
import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples, State
from pytest_dtdispatch.core.store import TestRecord, Uncaptured
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, TimeChange, Verdict
from pytest_dtdispatch.report.document import Tone, View
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document
from pytest_dtdispatch.report.notes import caveats, noise
from pytest_dtdispatch.steps.events import Miss, QueriedCache
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.plugin.test_run_matrix import results
from tests.reported_runs import BUDGET, COUNTED, HITS, hostile_run, measured, results_of, row, run_of
from tests.row_ids import row_id

NOISY = Samples(State.HIT, tuple(10**n for n in range(3, 9)) * 3)
ROWS = (
    row(),
    row("noisy", NOISY),
    row("refused", Samples(State.MISS, (), (Refused("no", 2),))),
    row("unpropagated", Samples(State.CALL, HITS)),
    measured("skipped", notes=("it runs once",)),
    measured("traced", Samples(State.HIT, HITS), tracers=("coverage", "memray")),
)
MISSING = StepCounts(events=(Miss("mm", "first call", QueriedCache.NATIVE),))
STEADY, GROWING = StepCounts(unpropagated=1), StepCounts(unpropagated=1, spec_growth=1)
STEPS = (
    Steps("steady", (), (STEADY, STEADY)),
    Steps("growing", (), (STEADY, GROWING)),
    Steps("missing", (), (MISSING, MISSING)),
    Steps("unsteady", (), (STEADY, StepCounts())),
    Steps("steady after", (), (MISSING, STEADY), ("a", "b")),
    Steps("growing after", (), (MISSING, GROWING), ("a", "b")),
)
UNCHANGED = [
    RowVerdict(RowId("t.py", f"row{n}", "hit"), Verdict.PASSED, TimeChange(7e3, 7e3, 0, 1, 9))
    for n in range(9)
]
UNCAPTURED = Uncaptured(2, 3, 1, ("Mode",), ("a note",))

def tones(part):
    if isinstance(part, Tone):
        yield part.value
    elif isinstance(part, (tuple, list)):
        for each in part:
            yield from tones(each)
    elif is_dataclass(part):
        for field in fields(part):
            yield from tones(getattr(part, field.name))

def test_canned(request):
    others = results("one")
    rows = (*ROWS, others.pop("measured"))
    found = results_of(COUNTED, BUDGET, *STEPS, *others.values())
    verdicts = [RowVerdict(row_id(each.value), each) for each in Verdict]
    gates = [Judgement(tuple(verdicts), "base", (each,)) for each in verdicts] + [Judgement((), "base")]
    documents = [judgement_document(gate) for gate in gates]
    for run in (run_of(*rows, results=found), hostile_run()):
        documents += [*run.documents().values(), *run.documents(View()).values()]
    documents += [noise(ROWS), caveats([TestRecord(uncaptured=UNCAPTURED, is_simulated=True)])]
    path = request.config.rootpath / "tones.json"
    found = [[*tones(document)] for document in documents]
    found.append([*tones(tuple(comparison_blocks(UNCHANGED, View())))])
    path.write_text(json.dumps(found))
"""
FILES = {"conftest.py": CONFTEST, "test_rows.py": ROWS, "test_steps.py": STEPS, "test_canned.py": CANNED}
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=10", "--dtdispatch-repeat=2", "--benchmark-quiet")
# With `--assert=plain`, because pytest's import hook would take precedence.
PYTEST = ("pytest", "--assert=plain", "--color=yes", *ALONE, *MEASURED)
COMMANDS = {
    "base": (*PYTEST, "--benchmark-save=base", "--junitxml=base.xml", "--dtdispatch-export=csv:base.csv"),
    "head": (
        *(*PYTEST, "--benchmark-save=head", "--junitxml=head.xml", "--benchmark-compare=0001"),
        *("--dtdispatch-fail=median:10%", "--dtdispatch-fail=miss=min:10%,strict"),
        "--dtdispatch-expected=expected.csv",
    ),
    "report": ("pytest_dtdispatch", "report", "saved/0002_head.json", "--export", "html:page.html"),
}


class Elements(HTMLParser):
    """Elements of a page with their classes, without texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs).get("class")))


def verdict_facts(one: RowVerdict) -> tuple[Any, ...]:
    """Return a verdict with its figures; the name is omitted on a whole run, where it is a sentence."""
    row = one.row if one.row.test else None
    return row, one.verdict.value, one.change, bool(one.remedy), len(one.details)


def run_facts(path: Path) -> dict[str, Any]:
    run = read_run(path)
    return {
        "metrics": [(one.row, one.metric, one.value) for one in run.metrics()],
        "rows": [(one.label, one.mesh, one.proof_kind, one.noisy, one.calls) for one in run.rows()],
        "gates": [
            (gate.has_failed, [*map(verdict_facts, gate.verdicts)], [*map(verdict_facts, gate.failed)])
            for gate in run.gates
        ],
        "advice": [
            (kind, test, one.count, one.ns, one.share, str(one.kind), bool(one.change))
            for kind, test, result in run.each_result()
            for one in KINDS[kind].advice(result)
        ],
    }


def outcomes(path: Path) -> list[tuple[str, list[str]]]:
    cases = ElementTree.parse(path).iter("testcase")
    return [(case.attrib["name"], [each.tag for each in case if each.tag != "system-out"]) for case in cases]


def facts_of(folder: Path, *python: str) -> dict[str, Any]:
    """Run the commands in a folder, and return all facts that must not depend on sentences."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "250", "PYTHONHASHSEED": "0"}
    facts: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        head = {"IS_HEAD": "1"} if name == "head" else {}
        ran = subprocess.run(
            [sys.executable, *python, *command],
            cwd=folder,
            env=environment | head,
            capture_output=True,
            text=True,
        )
        (folder / f"{name}.txt").write_text(ran.stdout + ran.stderr)
        facts[f"status of {name}"] = ran.returncode
        # The load in the header, and the lines that a random tensor takes in a traceback, have no color.
        lines = map(COLOR.findall, ran.stdout.splitlines())
        facts[f"colours of {name}"] = [colors for colors in lines if colors]
        if name != "report":
            facts[f"outcomes of {name}"] = outcomes(folder / f"{name}.xml")
            [saved] = (folder / ".benchmarks").rglob(f"*_{name}.json")
            (folder / "saved").mkdir(exist_ok=True)
            (folder / "saved" / saved.name).write_bytes(saved.read_bytes())
            facts |= {f"{kind} of {name}": found for kind, found in run_facts(saved).items()}
        if name == "base":  # the next run is compared with these results
            rows = (folder / "base.csv").read_text().splitlines()
            (folder / "expected.csv").write_text("".join(f"{row},0.1\n" for row in rows))
    facts["tones of canned runs"] = json.loads((folder / "tones.json").read_text())
    facts["elements of the page"] = Elements((folder / "page.html").read_text()).found
    return facts


def test_reworded_sentences_change_no_decision(tmp_path: Path) -> None:
    plain, reworded = tmp_path / "plain", tmp_path / "reworded"
    plain.mkdir()
    reworded.mkdir()
    expected, found = facts_of(plain, "-m"), facts_of(reworded, str(HOOK))
    assert "few passes" in (plain / "base.txt").read_text()
    assert "few passes" not in (reworded / "base.txt").read_text(), "sentences were not reworded"
    for name in expected:
        (tmp_path / name).write_text(f"{expected[name]}\n{found[name]}\n")
    differing = [name for name in expected if found[name] != expected[name]]
    assert differing == [], f"with reworded sentences; see the files in {tmp_path}"
