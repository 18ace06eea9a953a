"""Captured ops as scripts, which build the call of a row and time it by torch alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from pytest_dtdispatch.core.files import write_atomic
from pytest_dtdispatch.core.measurement import Clock, Measurement, Proof, State
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import plural, shown
from pytest_dtdispatch.report.run import ReportedRun

MAX_TENSORS = 7  # in a script of 60 lines
CLOCKS = {Clock.WALL: "perf_counter_ns", Clock.CPU: "thread_time_ns"}
# Python that scripts may contain, as a saved run is untrusted. The names of torch are of dtypes and formats.
PYTHON = re.compile(
    r"(torch\.ops\.(aten|prims)\.\w+\.\w+)?(tensor\(|Shard\(|Replicate\(|Partial\(|_StridedShard\(|device\(|\w+=|"
    r"torch\.(b?float|complex|u?int|bool|strided|channels_last|\w+_format)\w*|'[\w:./ -]*'|None\b|True\b|"
    r"False\b|[ ,()\[\]]|[-+]?(inf\b|nan\b|\d+(\.\d+)?(e[-+]?\d+)?j?(?![\w.])))*"
)


class ScriptFolder:
    """Format of a folder with a script of each captured op; as text, a JSON object of names and scripts."""

    begins = r'\{"repro_'

    def render(self, run: ReportedRun, target: str) -> tuple[str, str]:
        """Render a run; return the scripts, and a message with a line for each row without a script."""
        scripts, refused = dict[str, str](), list[str]()
        for test, row in run.each_row():
            name = name_in_files(RowId(test, row.label))
            reason = _reason(row)
            if reason:
                refused.append(f"no script of {name}: {reason}")
            else:
                scripts[file_name(name)] = _script(name, row, run.environment)
        lines = [f"{plural(len(scripts), 'script')} written to {target}", *refused]
        return json.dumps(scripts), "\n".join(lines)

    def write(self, folder: Path, text: str) -> None:
        """Write each script to a file of a folder."""
        folder.mkdir(exist_ok=True)
        for name, script in json.loads(text).items():
            write_atomic(folder / name, script)


def file_name(row: str) -> str:
    """Return the file name of the script of a row, the same in each run.

    Example:
        >>> file_name("t.py::test_a::add.Tensor(f32[8]R, f32[8]R)@4")
        'repro_test_a_add_Tensor_f32_8_R_f32_8_R_4_344196dc.py'
    """
    words = re.sub("[^A-Za-z0-9]+", "_", row.partition("::")[2])[:80].strip("_")
    return f"repro_{words}_{hashlib.sha256(row.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.py"


def _reason(row: Measurement) -> str:
    """Return why a row has no script; empty if it has one."""
    call, is_proved = row.figures.call, row.proof_kind is Proof.PROVED
    states = {each.state for each in row.recorded() if is_proved and each.clock in CLOCKS}
    invalid = " ".join(text for text in call.values() if not PYTHON.fullmatch(text))
    others = ", ".join(re.findall("<[^>]*>", invalid)) or shown(invalid)
    proof = "" if is_proved else f": {row.proof}"
    reasons = {
        f"its backend is {row.backend}, and scripts have a fake one": row.backend not in ("", "fake"),
        "it is not an op whose call was recorded": not {"call", "group", "mesh", "frames"} <= call.keys(),
        f"it has no proved times of a miss and a hit{proof}": not {State.MISS, State.HIT} <= states,
        f"torch alone cannot build {others}": bool(invalid),
        f"it has more than {MAX_TENSORS} tensors": call.get("call", "").count("tensor(") > MAX_TENSORS,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _script(name: str, row: Measurement, env: Mapping[str, str]) -> str:
    miss, hit = (samples for samples in row.recorded() if samples.state in (State.MISS, State.HIT))
    figures = [f"{each.state} {each.figure / 1e3:,.2f} us ({each.clock} time)" for each in (miss, hit)]
    template = Template(resources.files(__package__).joinpath("repro_script.txt").read_text("utf-8"))
    call = row.figures.call["call"].replace(", tensor(", ",\n    tensor(")
    parts = {**row.figures.call, "call": call, "row": name, "figures": ", ".join(figures)}
    parts |= {"torch": shown(env.get("torch version")), "threads": repr(env.get("threads", 1))}
    return template.substitute(parts, miss_clock=CLOCKS[miss.clock], hit_clock=CLOCKS[hit.clock])
