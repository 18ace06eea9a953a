"""Record raw passes of processes for the rule on times: ``python benchmarks/gate_corpus.py OUT.jsonl.gz``.

Each process is a run of pytest with this plugin, so that its samples are those that a saved run has. One
process is one line of JSON. ``--processes 14 --load quiet --load loops=4 --load pinned`` records 14 processes
of each load, in turn. Lines are appended: each start is the next recording. ``--ranks 2`` measures the 27
rows of ``false_alarms.py`` on two gloo ranks, without the rows on larger meshes. ``gate_rules.py`` judges.

Loads: ``quiet``; ``loops=N`` busy loops beside; ``pinned`` or ``pinned=N``: the process on one core, with N
busy loops on the same core. They start when torch is imported. No process is left out, whatever else ran.

A line: ``recording``, ``load``, ``ranks``, ``started`` (seconds since 1970), ``process`` (see ``CONFTEST``),
and ``rows``: ``row`` (test and label), ``state``, ``clock`` of the figure, ``lengths`` of the passes,
``wall`` and ``cpu`` nanoseconds, ``waited``, ``at`` (seconds after the start when each pass ended), and over
ranks ``by_rank`` and ``stat``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.false_alarms import MEASURE, PROGRAM
from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.report.run import ReportedRun, read_run

GATED = "test_program.py"  # the file of the 27 rows
# `process`: share of a core that the thread of the tests got, number of cores that all other processes used
# (loops and other ranks too), share of time that other machines took, load average before and after, seconds.
CONFTEST = """
    import json
    import os
    import subprocess
    import sys
    import time

    import pytest

    from pytest_dtdispatch.rounds.timing import Series

    LOOP = "import os; own = os.getppid()\\nwhile os.getppid() == own:\\n    for _ in range(10**6): pass"
    IS_FIRST_RANK = os.environ.get("RANK", "0") == "0"
    TAKEN = []


    def end_pass(series, original=Series.end_pass):
        original(series)
        series.__dict__.setdefault("ended_at", []).append(time.time())


    def samples(series, *args, original=Series.samples):
        found = original(series, *args)
        if found.values:
            TAKEN.append([str(found.state), found.values, series.__dict__.get("ended_at", [])])
        return found


    Series.end_pass, Series.samples = end_pass, samples


    def machine():
        with open("/proc/loadavg") as load, open("/proc/stat") as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
            busy_s, steal_s = (sum(ticks[i] for i in of) / 100 for of in ((0, 1, 2, 5, 6), (7,)))
            load = float(load.read().split()[0])
        return load, busy_s, steal_s, time.process_time(), time.thread_time(), time.perf_counter()


    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop():
        if os.environ["LOAD_CORE"]:
            os.sched_setaffinity(0, {int(os.environ["LOAD_CORE"])})  # loops inherit it
        count = int(os.environ["LOAD_LOOPS"]) * IS_FIRST_RANK
        loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
        before, started = machine(), time.time()
        try:
            return (yield)
        finally:
            after = machine()
            for loop in loops:
                loop.kill()
                loop.wait()
            if IS_FIRST_RANK:
                write_times(before, after, started)


    def write_times(before, after, started):
        _, busy_s, steal_s, own_s, thread_s, seconds = (b - a for a, b in zip(before, after))
        process = {
            "cpu_share": round(thread_s / seconds, 3),
            "others_cores": round((busy_s - own_s) / seconds, 3),
            "steal_share": round(steal_s / seconds, 3),
            "load_average": [before[0], after[0]],
            "seconds": round(seconds, 2),
        }
        with open("times.json", "w") as file:
            json.dump({"started": round(started, 2), "process": process, "taken": TAKEN}, file)
"""
MESHES = """
    import torch
    import torch.nn.functional as F
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    S, R = Shard, Replicate()


    def on(mesh, *placements, size=(16, 16)):
        return distribute_tensor(torch.ones(*size), mesh, list(placements))


    def test_one_dimension(dtdispatch, mesh_factory):
        a = on(mesh_factory((4,)), S(0))
        with dtdispatch.capture():
            a + a, F.softmax(a, 1), F.layer_norm(a, (16,)), torch.cat([a, a], 1)


    def test_two_dimensions(dtdispatch, mesh_factory):
        mesh = mesh_factory((2, 4))
        b, c, e, r = on(mesh, S(0), S(1)), on(mesh, R, S(0)), on(mesh, S(0), S(0)), on(mesh, R, R)
        with dtdispatch.capture():
            b + b, e @ r, c @ e, torch.cat([b, b], 1)
        dtdispatch.call(lambda: (b + b).sigmoid().exp(), name="add sigmoid exp")


    def test_three_dimensions(dtdispatch, mesh_factory):
        mesh = mesh_factory((2, 2, 2))
        p, q, s = on(mesh, S(0), S(1), R), on(mesh, S(0), R, R), on(mesh, R, R, R)
        x, bias, mask = on(mesh, S(0), S(1), S(2), size=(8, 8, 8)), on(mesh, R, R, R, size=(16,)), p > 0
        with dtdispatch.capture():
            p.sum(), p.masked_fill(mask, 0.0), p / p, torch.addcmul(q, q, q), q @ s, q + s
            torch.addmm(bias, q, s), torch.bmm(x, x)
        dtdispatch.call(lambda: p.sigmoid().tanh().exp(), name="sigmoid tanh exp")


    def test_long_hits(dtdispatch, mesh_factory):
        mesh = mesh_factory((4,))
        a = on(mesh, S(0))
        large, whole = on(mesh, S(0), size=(2048, 512)), on(mesh, R, size=(512, 512))
        layers = [on(mesh, R, size=(256, 256)).requires_grad_() for _ in range(4)]
        batch = on(mesh, S(0), size=(1536, 256))

        def adds(count):
            for _ in range(count):
                a + a

        def step():
            result = batch
            for layer in layers:
                result = (result @ layer).relu()
            result.sum().backward()

        with dtdispatch.capture():
            large + large, large @ whole
        dtdispatch.call(lambda: adds(120), name="120 adds")
        dtdispatch.call(lambda: adds(1200), name="1,200 adds")
        dtdispatch.call(lambda: adds(6000), name="6,000 adds")
        dtdispatch.call(step, name="step")
"""


class Load(NamedTuple):
    """What runs beside a recorded process.

    Args:
        name: ``quiet``, ``loops=4`` or ``pinned=1``.
        loops: number of busy loops.
        is_pinned: whether the process and the loops share one core.
    """

    name: str
    loops: int = 0
    is_pinned: bool = False


def main() -> None:
    """Append processes to a corpus."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path, help="file to append to, .jsonl.gz")
    parser.add_argument("--processes", type=int, default=14, help="of each load")
    parser.add_argument("--load", action="append", type=load_of, help="such as quiet or loops=4")
    parser.add_argument("--ranks", type=int, default=1, help="gloo ranks of each process")
    parser.add_argument("--recording", type=int, help="number of this recording; default: the next one")
    options = parser.parse_args()
    earlier = [line["recording"] for line in read_corpus(options.corpus)] if options.corpus.exists() else []
    recording = options.recording or max(earlier, default=0) + 1
    for number in range(1, options.processes + 1):
        for load in options.load or [Load("quiet")]:
            began = time.perf_counter()
            about = {"recording": recording, "load": load.name, "ranks": options.ranks}
            line = {**about, **recorded_process(load, options.ranks)}
            with gzip.open(options.corpus, "at") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            took_s, process = time.perf_counter() - began, line["process"]
            print(
                f"recording {recording}, process {number}, {load.name}: {len(line['rows'])} rows, "
                f"{took_s:.0f} s, {process['cpu_share']:.0%} of a core, others used "
                f"{process['others_cores']:.2f} cores",
                flush=True,
            )


def load_of(word: str) -> Load:
    """Parse the name of a load.

    Example:
        >>> load_of("pinned")
        Load(name='pinned=1', loops=1, is_pinned=True)
    """
    kind, _, count = word.partition("=")
    if word == "quiet":
        return Load(word)
    if kind not in ("loops", "pinned"):
        raise argparse.ArgumentTypeError(f"{word}: quiet, loops=N or pinned=N")
    loops = int(count or 1)
    return Load(f"{kind}={loops}", loops, kind == "pinned")


def read_corpus(path: Path) -> list[dict[str, Any]]:
    """Return the processes of a corpus."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def recorded_process(load: Load, ranks: int) -> dict[str, Any]:
    """Measure both programs in a process of their own; return its samples, and what else ran."""
    programs = {GATED: PROGRAM, "conftest.py": CONFTEST, **({"test_meshes.py": MESHES} if ranks == 1 else {})}
    command = (*MEASURE, "--benchmark-json=run.json", *([f"--dtdispatch-nproc={ranks}"] if ranks > 1 else []))
    of_load = {
        "LOAD_LOOPS": str(load.loops),
        "LOAD_CORE": str(max(os.sched_getaffinity(0))) if load.is_pinned else "",
        "OMP_NUM_THREADS": "1",  # more threads would compete with each other
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, program in programs.items():
            Path(folder, name).write_text(textwrap.dedent(program))
        ran = subprocess.run(
            command, cwd=folder, env={**os.environ, **of_load}, check=False, capture_output=True, text=True
        )
        if ran.returncode:
            sys.exit(f"pytest ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
        times = json.loads(Path(folder, "times.json").read_text())
        rows = [*rows_of(read_run(Path(folder, "run.json")), times["taken"], times["started"])]
    return {"started": times["started"], "process": times["process"], "rows": rows}


def rows_of(run: ReportedRun, taken: Sequence[Sequence[Any]], started: float) -> Iterator[dict[str, Any]]:
    """Yield each row and state of a run, with the times when its passes ended."""
    ended_at = {(state, tuple(values)): ended for state, values, ended in taken}
    for test, measurements in run.measured.items():
        for measurement in measurements:
            for samples in measurement.times():
                of_rank = samples.by_rank[0][1] if samples.by_rank else samples.values
                ended = ended_at.get((str(samples.state), of_rank), [])
                at = [round(each - started, 3) for each in ended]
                yield {"row": f"{test}::{measurement.label}", **plain_samples(samples), "at": at}


def plain_samples(samples: Samples) -> dict[str, Any]:
    """Return samples as plain data."""
    plain = {
        "state": str(samples.state),
        "clock": str(samples.clock),
        "lengths": samples.lengths,
        "wall": samples.values,
        "cpu": samples.cpu,
        "waited": round(samples.waited, 4),
    }
    return {**plain, "by_rank": samples.by_rank, "stat": samples.stat} if samples.by_rank else plain


if __name__ == "__main__":
    main()
