"""Run entries of the table of twins on gloo ranks: ``python -m tests.advice.two_ranks``.

Arguments: the file of results, and beginnings of the ids of entries; all entries without ids. All entries on
two ranks share one start, and those on four another one.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from pytest_dtdispatch.advice import advise, with_advice
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.rounds.plan import Agreement
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, Steps
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.advice.twins.model import Entry, Lookalike, Program, Twin
from tests.advice.twins.table import TABLE
from tests.rank_runs import environment

WARMUP = STEPS = 2
TIMEOUT = timedelta(seconds=10)  # of one collective, if the other rank raised
LONGEST_S = 280


@dataclass
class Ran:
    """Outcome of one program on both ranks.

    Args:
        error: exception of the first rank that raised; empty if none did.
        counts: counts of the last step of rank 0 by name.
        advice: advice of rank 0, one dictionary for each piece.
    """

    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    advice: list[dict[str, Any]] = field(default_factory=list)

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def promised(self, rule: str) -> int:
        """Return the sum that a rule promises."""
        return sum(one["count"] for one in self.advice if one["rule"] == rule)

    def fires(self, rule: str) -> bool:
        return any(one["rule"] == rule for one in self.advice)


@dataclass
class Outcome:
    """Outcome of an entry.

    Args:
        programs: outcome of each program, by role.
        difference: first difference between the results of the programs; empty if they are equal.
    """

    programs: dict[str, Ran] = field(default_factory=dict)
    difference: str = ""


def counts_of(steps: Steps) -> dict[str, int]:
    """Return the counts of the last step by name; those of collectives also by kind."""
    last = steps.steps[-1]
    return {
        "collectives": len(last.collective_runs),
        "bytes": last.collective_bytes,
        "redistributions": len(last.redistributions),
        "moves": sum(bool(one.bytes) for one in last.redistributions),
        "implicit": len(last.implied),
        "wraps": len(last.wraps),
        "unwraps": len(last.unwraps),
        "reads": len(last.reads),
        "partial reads": len(last.partial_reads),
        "misses": last.misses,
        "calls": last.calls,
        "growth": last.max_cache_growth,
        "specs": last.spec_growth,
        "DTensors": last.dtensor_growth,
        **Counter(one.kind for one in last.collective_runs),
    }


def results_of(result: object) -> list[torch.Tensor]:
    """Return results as whole tensors."""
    leaves = [torch.as_tensor(leaf) for leaf in tree_leaves(result) if leaf is not None]
    return [(leaf.full_tensor() if isinstance(leaf, DTensor) else leaf).detach().clone() for leaf in leaves]


def run(program: Program, entry: Entry, ranks: Ranks) -> tuple[Ran, list[torch.Tensor]]:
    """Count a program's steps, and return the results of another step."""
    torch.manual_seed(0)
    ShardingCaches().clear_all()  # plans of an earlier program on an equal mesh
    gc.freeze()  # collections between steps visit only objects of this program
    step = program(init_device_mesh("cpu", entry.shape, mesh_dim_names=entry.names or None))
    steps = run_and_count(StepCalls("step", step, WARMUP, STEPS))
    advice = advise(steps.steps, steps.warmup[-1])
    if entry.needs_times:
        advice = with_advice(run_and_measure_budget(step, WARMUP, STEPS, "step", ranks)).advice
    return Ran("", counts_of(steps), [asdict(one) for one in advice if one.change]), results_of(step())


class Ranks(Agreement):
    """The process group of all ranks, created again after a program raised, and their agreement."""

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self._folder, self._rank, self._count = folder, rank, count
        self._starts = self._exchanged = 0
        self._store: Any = dist.FileStore(str(folder / "texts"), count)  # type: ignore[attr-defined]
        self._store.set_timeout(2 * TIMEOUT)

    def start(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self._starts += 1
        init = f"file://{self._folder / f'group{self._starts}'}"
        dist.init_process_group(
            "gloo", init_method=init, rank=self._rank, world_size=self._count, timeout=TIMEOUT
        )

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks, without a collective."""
        self._exchanged += 1
        self._store.set(f"{self._exchanged}/{self._rank}", text or " ")
        return [self._store.get(f"{self._exchanged}/{rank}").decode().strip() for rank in range(self._count)]

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...]:
        every = [json.loads(text) for text in self.exchange(json.dumps([step, *numbers]))]
        assert {name for name, *_ in every} == {step}
        return tuple(map(min, zip(*(each for _, *each in every), strict=True)))

    def sync(self, subject: str) -> None:
        self.exchange(subject)

    def note(self, trail: Trail) -> None:
        """Compare no collectives."""


def difference(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], tolerance: float | None) -> str:
    """Return the first difference between two lists of tensors; empty if they are equal."""
    try:
        torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return str(error)
    return ""


def outcome(entry: Entry, ranks: Ranks) -> Outcome:
    """Run the programs of an entry; an exception of a program is part of the outcome."""
    found, results = Outcome(), []
    for role, program in entry.programs.items():
        try:
            ran, values = run(program, entry, ranks)
        except Exception as error:
            ran, values = Ran(f"{type(error).__name__}: {error}".partition("\n")[0]), []
            if os.environ.get("TWINS_VERBOSE"):
                traceback.print_exc()
        ran.error = next(filter(None, ranks.exchange(ran.error)), "")
        if ran.error:
            ranks.start()
        found.programs[role] = ran
        results.append(values)
    own = difference(results[0], results[-1], entry.tolerance)
    found.difference = next(filter(None, ranks.exchange(own)), "")
    return found


def on_rank(rank: int, folder: Path, count: int, entries: Sequence[Entry]) -> None:
    """Run entries on one rank; rank 0 writes the outcomes."""
    torch.set_num_threads(1)
    ranks = Ranks(folder, rank, count)
    ranks.start()
    outcomes = {entry.id: asdict(outcome(entry, ranks)) for entry in entries}
    if not rank:
        (folder / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")
    ranks.exchange("")
    dist.destroy_process_group()


def main(path: str, *ids: str) -> None:
    """Fork the ranks from this process, which has imported torch, and write their outcomes to a file."""
    entries = [entry for entry in TABLE if entry.id.startswith(ids or "")]
    start: Any = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
    outcomes: dict[str, Any] = {}
    for count in sorted({entry.ranks for entry in entries}):
        with tempfile.TemporaryDirectory(prefix="dtdispatch-twins-") as folder:
            of_ranks = [entry for entry in entries if entry.ranks == count]
            start(on_rank, (Path(folder), count, of_ranks), nprocs=count, start_method="fork")
            outcomes |= json.loads((Path(folder) / "outcomes.json").read_text(encoding="utf-8"))
    Path(path).write_text(json.dumps(outcomes), encoding="utf-8")


def outcomes_of(ids: Sequence[str], path: Path) -> dict[str, Outcome]:
    """Run the entries with these ids."""
    command = [sys.executable, "-m", "tests.advice.two_ranks", str(path), *ids]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        command, cwd=root, env=environment({}), capture_output=True, text=True, timeout=LONGEST_S
    )
    if result.returncode:
        raise AssertionError(f"exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return read(path)


def read(path: Path) -> dict[str, Outcome]:
    """Read a file of outcomes."""
    loaded = json.loads(path.read_text(encoding="utf-8"))
    return {
        each: Outcome({role: Ran(**ran) for role, ran in one["programs"].items()}, one["difference"])
        for each, one in loaded.items()
    }


def lines(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Format the table: rule, program, count before and after, promised, expected, and the results."""
    for entry in TABLE:
        if found := outcomes.get(entry.id):
            before, after = found.programs["before"], found.programs.get("after")
            counted = (
                entry.counted if isinstance(entry, (Twin, Lookalike)) and entry.counted else "collectives"
            )
            expected = entry.promised if isinstance(entry, Twin) else 0
            texts = [
                entry.id,
                f"{counted} {before.count(counted)} -> {after.count(counted) if after else '?'}",
            ]
            texts += [f"promised {before.promised(entry.rule)}, expected {expected}"]
            texts += [f"{role}: {ran.error}" for role, ran in found.programs.items() if ran.error]
            yield "; ".join([*texts, "results differ"] if found.difference else texts)


if __name__ == "__main__":
    main(*sys.argv[1:])
    for line in lines(read(Path(sys.argv[1]))):
        print(line)
