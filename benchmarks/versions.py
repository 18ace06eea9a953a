"""What changes from one version of torch to the next: finds it, and draws ``docs/versions.md`` from it.

Each flag renews its part of ``benchmarks/versions.json``; then the page and its picture are drawn from that
file, and from nothing else::

    dtdispatch matrix --json matrix.json --python OLD --python NEW ...
    python benchmarks/versions.py --time matrix.json --probe --count --python OLD --python NEW ...

``--probe`` runs ``version_probes.py`` under each interpreter, ``--count`` counts the instructions of
PyTorch's paths under each of them; both run ``--jobs`` interpreters at a time. ``--check`` writes nothing,
and fails where the page is not what the file says.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # as a script it finds its own folder alone

from benchmarks.version_chart import chart  # noqa: E402
from benchmarks.version_page import PATHS, with_tables  # noqa: E402

FOUND, PAGE = ROOT / "benchmarks" / "versions.json", ROOT / "docs" / "versions.md"
PICTURE = ROOT / "docs" / "pictures" / "versions.svg"
EMPTY: dict[str, Any] = {
    "probes": {},
    "counts": {},
    "time": {"versions": [], "rows": {}, "verdicts": {}, "cpu": "", "python": "", "date": "", "processes": 0},
}
COUNT_METRICS = {"instruction_count": "hit", "instruction_count_miss": "miss"}
USUAL_MESH = "4"
LONGEST_REASON = 110
MOST_S = 3600


def version_of(python: str) -> str:
    """Ask an interpreter for the version of its torch, less its build."""
    ask = "import torch; print(torch.__version__)"
    return _run([python, "-c", ask], ROOT).stdout.strip().partition("+")[0]


def probed(python: str, folder: Path, *chosen: str) -> dict[str, dict[str, str]]:
    """Run the probes under an interpreter, and give its answers by table and question."""
    answers = folder / "answers.xml"
    quiet = ("-q", "--benchmark-quiet", "-p", "no:cacheprovider", "-p", "no:randomly")
    options = ("--dtdispatch", "--dtdispatch-rounds=5", f"--junitxml={answers}", "-o", "junit_family=legacy")
    command = [python, "-W", "ignore", "-m", "pytest", *quiet, *options, *chosen]
    command += ["-o", "filterwarnings=ignore", "benchmarks/version_probes.py"]
    ran = _run(command, ROOT)
    if not answers.exists():
        raise SystemExit(f"{python}: the probes did not end:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return read_answers(answers.read_text())


def read_answers(xml: str) -> dict[str, dict[str, str]]:
    """Read what a run of the probes said, from the file that pytest writes of it."""
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ElementTree.fromstring(xml).iter("testcase"):
        told = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        wrong = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        if "table" not in told:
            raise SystemExit(f"the probes did not begin: {reason(wrong.get('message', '') if wrong else '')}")
        answer = told.get("answer", "yes") if wrong is None else f"no: {reason(wrong.get('message', ''))}"
        answers[told["table"]][told["asked"]] = answer
    return dict(answers)


def reason(message: str) -> str:
    """Shorten the message of an error to one line that says why; torch's compiler says it in its second."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["it says nothing"]
    wraps = "TorchRuntimeError" in lines[0] or lines[0].endswith("raised:")
    line = lines[1] if wraps and len(lines) > 1 else lines[0]
    line = re.sub(r"^(failed on setup with )?\"?([\w.]+\.)?(?=\w+(Error|Exception)?: )", "", line)
    line = re.sub(r" \(\d{9,}\)", " ", line)  # an address
    line = re.sub(r"torch 2\.[\w.+]+", "this torch", line.replace("|", "/").strip('"'))
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON].rpartition(' ')[0]} ..."


def counted(python: str, folder: Path) -> dict[str, dict[str, float]]:
    """Count the instructions of PyTorch's paths under an interpreter."""
    results = folder / "counts.csv"
    paths = " or ".join(f"dtensor_dispatch_{path}]" for path in PATHS)
    options = ("--dtdispatch", "--dtdispatch-metric=instructions", f"--dtdispatch-csv={results}", "-k", paths)
    suite = ("--pyargs", "pytest_dtdispatch.suite.test_dispatch")
    ran = _run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *suite], folder)
    if not results.exists():
        raise SystemExit(f"{python}: nothing was counted:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return read_counts(results.read_text())


def read_counts(text: str) -> dict[str, dict[str, float]]:
    """Read counts by path and state, from the file of results that a run writes."""
    counts: dict[str, dict[str, float]] = defaultdict(dict)
    for name, metric, count in csv.reader(text.splitlines()):
        path = name.rpartition("dtensor_dispatch_")[2]
        if metric in COUNT_METRICS and path in PATHS:
            counts[path][COUNT_METRICS[metric]] = float(count)
    return dict(counts)


def lower_quartile(values: Sequence[float]) -> float:
    """Give the figure of a quiet machine: a busy one, whose processes only take longer, moves the median."""
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def timed(matrix: Mapping[str, Any], day: str) -> dict[str, Any]:
    """Take from the file of a matrix what the page shows: a figure a row, and the verdict of each pair."""
    names = {side: about["torch"].partition("+")[0] for side, about in matrix["sides"].items()}
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for process in matrix["processes"]:
        for name, row in process["rows"].items():
            label, state = label_of(name)
            values[label, state, names[process["side"]]].append(row["quietest_ns"] / 1000)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for (label, state, version), all_us in values.items():
        rows.setdefault(label, {}).setdefault(state, {})[version] = round(lower_quartile(all_us), 3)
    verdicts: dict[str, list[Any]] = defaultdict(list)
    for one in matrix.get("verdicts", ()):
        shift = one["figures"].get("shift_percent")
        judged = [*label_of(one["row"]), one["verdict"], None if shift is None else round(shift, 1)]
        verdicts[f"{names[one['base']]} {names[one['head']]}"].append(judged)
    about = next(iter(matrix["sides"].values()))
    return {
        "versions": [names[side] for side in matrix["sides"]],
        "rows": rows,
        "verdicts": dict(verdicts),
        "cpu": about["cpu"],
        "python": about["python"],
        "date": day,
        "processes": len(matrix["processes"]),
    }


def label_of(row: str) -> tuple[str, str]:
    """Give what a row is called, the op and a mesh that is not the usual one, and its state.

    Example:
        >>> label_of("suite/ab_ops.py::test_core[add]::add.Tensor(f32[16,8]S0, f32[16,8]S0)@4::hit")
        ('add', 'hit')
        >>> label_of("suite/ab_ops.py::test_more_two_dimensions::add.Tensor(f32[16,8]S0R)@2x2::miss")
        ('add @2x2', 'miss')
    """
    _, signature, state = row.rsplit("::", 2)
    op, mesh = signature.partition(".")[0], signature.rpartition("@")[2]
    return (op if mesh == USUAL_MESH else f"{op} @{mesh}"), state


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_S,
    )


def of_each(pythons: Sequence[str], jobs: int, find: Callable[[str, Path], Any]) -> Iterator[tuple[str, Any]]:
    """Ask every interpreter, some at a time, and give the answer of each by its version."""

    def ask(python: str) -> tuple[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            found = version_of(python), find(python, Path(folder))
        print(f"{find.__name__}: torch {found[0]}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(ask, pythons)


def found_now(asked: argparse.Namespace) -> dict[str, Any]:
    """Find what was asked for, by its part of the file."""
    now: dict[str, Any] = {}
    if asked.time:
        day = datetime.fromtimestamp(asked.time.stat().st_mtime, tz=timezone.utc).date().isoformat()
        now["time"] = timed(json.loads(asked.time.read_text()), day)
    for is_asked, part, find in ((asked.probe, "probes", probed), (asked.count, "counts", counted)):
        if is_asked:
            now[part] = dict(of_each(asked.python, asked.jobs, find))
    return now


def renewed(known: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Put what was found into what is known: of times all of it, else that of each version."""
    merged = {part: {**known[part], **now[part]} for part in ("probes", "counts") if part in now}
    return {**known, **now, **merged}


def main() -> int:
    """Find what is asked for, and draw the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", default=[], help="an interpreter; may be given often")
    parser.add_argument("--time", type=Path, help="the file that dtdispatch matrix --json wrote")
    parser.add_argument("--probe", action="store_true", help="run the probes under each interpreter")
    parser.add_argument("--count", action="store_true", help="count instructions under each interpreter")
    parser.add_argument("--jobs", type=int, default=2, help="interpreters at a time (default: 2)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is old")
    asked = parser.parse_args()
    now = found_now(asked)  # takes minutes: the file is read after it
    found = renewed(json.loads(FOUND.read_text()) if FOUND.exists() else EMPTY, now)
    drawn = {
        FOUND: json.dumps(found, indent=1, ensure_ascii=False) + "\n",
        PAGE: with_tables(PAGE.read_text(), found),
        PICTURE: chart(found),
    }
    old = [path for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    for path in old:
        if not asked.check:
            path.write_text(drawn[path])
        print(f"{'is old' if asked.check else 'written'}: {path.relative_to(ROOT)}")
    return int(asked.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
