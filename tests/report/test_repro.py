"""Scripts of captured ops: their text, their names, and rows without one."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Contains, Measurement, Samples, State
from pytest_dtdispatch.report.exports import FORMATS
from pytest_dtdispatch.report.repro import MAX_TENSORS, file_name
from pytest_dtdispatch.report.run import decode_run, encode_run
from tests.reported_runs import ADD, CALL, HITS, HOSTILE, MISSES, SHARD, op_row, row, run_of, with_call

ENVIRONMENT = {"torch version": "2.13.0", "threads": "2"}
# Python that a saved run must not smuggle into a script.
INJECTED = (
    "__import__('os')",
    "torch.load('file')",
    "torch.hub.load('file')",
    "(1).__class__",
    "1.0.__class__",
    "1); import os; (2",
    "1)\nimport os\n(2",
    "tensor.__globals__['os']",
    "[torch.float32][0].x",
    "'a' 'b\\x27'",
    "lambda: 1",
    "a := 1",
    "# comment",
)


def exported(*rows: Measurement, **more: Any) -> tuple[dict[str, str], list[str]]:
    """Return the scripts of a run, and the lines about it."""
    run = run_of(*rows, environment=ENVIRONMENT, **more)
    text, message = FORMATS["repro"].render(run, "out")
    return json.loads(text), message.split("\n")


def assigned(script: str, name: str) -> ast.Call:
    """Return the call that a script assigns to a name."""
    [value] = (
        node.value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    assert isinstance(value, ast.Call)
    return value


def test_script_builds_the_recorded_call() -> None:
    [script] = exported(op_row())[0].values()
    call = assigned(script, "call")
    assert ast.unparse(call.func) == "partial"
    arguments = [ast.unparse(each) for each in (*call.args, *call.keywords)]
    assert arguments == ["torch.ops.aten.add.Tensor", SHARD, SHARD, "alpha=2.5"]
    assert ast.unparse(assigned(script, "mesh")) == f"dist.init_device_mesh({CALL['mesh']})"


def test_ops_of_torch_have_scripts() -> None:
    for op in ("aten.neg.default", "prims.abs.default"):
        [script] = exported(op_row(call=f"torch.ops.{op}, {SHARD}"))[0].values()
        assert ast.unparse(assigned(script, "call").args[0]) == f"torch.ops.{op}"


@pytest.mark.parametrize(
    "argument",
    [
        "memory_format=torch.channels_last",
        "memory_format=torch.channels_last_3d",
        "(1+2j)",
        "(-0-1e-05j)",
        "nan",
    ],
)
def test_argument_of_torch_has_a_script(argument: str) -> None:
    [script] = exported(op_row(call=f"torch.ops.aten.clone.default, {SHARD}, {argument}"))[0].values()
    assert argument in script


def test_names_of_mesh_dims_may_have_spaces() -> None:
    assert len(exported(op_row(mesh="'cpu', (4,), mesh_dim_names=('data parallel',)"))[0]) == 1


def test_script_names_row_torch_and_figures() -> None:
    [script] = exported(op_row())[0].values()
    header = [line for line in script.splitlines() if line.startswith("#")]
    assert header[2] == f"# Row: t.py::test_a::{ADD}"
    assert "torch '2.13.0'" in header[3]
    assert all(f"{min(times) / 1e3:,.2f} us (wall time)" in header[3] for times in (MISSES, HITS))


def test_script_imports_only_torch_and_the_standard_library() -> None:
    [script] = exported(op_row())[0].values()
    imports = [node for node in ast.walk(ast.parse(script)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {name.partition(".")[0] for name in names} == {"torch", "gc", "time", "functools", "math"}


def test_script_uses_the_clock_of_each_figure() -> None:
    misses = Samples(State.MISS, MISSES, cpu=MISSES)
    timed = with_call(replace(row(ADD, misses, Samples(State.HIT, HITS)), backend="fake"), CALL)
    [script] = exported(timed)[0].values()
    assert ast.unparse(ast.parse(script)).count("time.thread_time_ns") == 1
    assert "(cpu time)" in script.splitlines()[3]


def test_script_has_at_most_sixty_lines() -> None:
    tensors = ", ".join([SHARD] * MAX_TENSORS)
    [script] = exported(op_row(call=f"torch.ops.aten.cat.default, {tensors}"))[0].values()
    assert len(script.splitlines()) == 60
    [reason] = exported(op_row(), op_row("cat", call=f"torch.ops.aten.cat.default, [{tensors}, {SHARD}]"))[1][
        1:
    ]
    assert reason.endswith(f"::cat: it has more than {MAX_TENSORS} tensors")


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (row(), "it is not an op whose call was recorded"),
        (with_call(op_row(), {"call": CALL["call"]}), "it is not an op whose call was recorded"),
        (replace(op_row(), backend="gloo"), "its backend is gloo, and scripts have a fake one"),
        (replace(row(), backend="gloo"), "its backend is gloo, and scripts have a fake one"),  # of many ranks
        (
            op_row(call="torch.ops.mine.add.default, 1"),
            "torch alone cannot build 'torch.ops.mine.add.default, 1'",
        ),
        (op_row(call=f"{CALL['call']}, <a Two>, <b>"), "torch alone cannot build <a Two>, <b>"),
        (
            with_call(replace(row(ADD, Samples(State.CALL, HITS)), backend="fake"), CALL),
            "it has no proved times of a miss and a hit: unpropagated",
        ),
        (
            with_call(replace(row(ADD, Samples(State.MISS, HITS, unit=INSTRUCTIONS)), backend="fake"), CALL),
            "it has no proved times of a miss and a hit",
        ),
    ],
)
def test_other_row_is_refused_with_its_reason(refused: Measurement, reason: str) -> None:
    other = replace(refused, label="other")
    scripts, lines = exported(op_row(), other)
    assert list(scripts) == [file_name(f"t.py::test_a::{ADD}")]
    assert lines == ["1 script written to out", f"no script of t.py::test_a::other: {reason}"]


def test_text_is_detected_from_its_beginning() -> None:
    text, _ = FORMATS["repro"].render(run_of(op_row()), "out")
    assert [name for name, form in FORMATS.items() if re.match(form.begins, text)] == ["repro"]


def test_run_without_any_script_lists_its_rows() -> None:
    scripts, lines = exported(row(), op_row("two", call="<a Two>"))
    assert scripts == {}
    assert [line.rpartition(": ")[0].rpartition("::")[2] for line in lines[1:]] == [ADD, "two"]


def test_script_of_saved_run_is_equal() -> None:
    run = run_of(op_row(), environment=ENVIRONMENT)
    saved = decode_run({"benchmarks": [], "dtdispatch": json.loads(json.dumps(encode_run(run)))})
    assert FORMATS["repro"].render(saved, "out") == FORMATS["repro"].render(run, "out")


@pytest.mark.parametrize("text", INJECTED)
@pytest.mark.parametrize("part", CALL)
def test_injected_python_is_refused(part: str, text: str) -> None:
    both = op_row("other", **{part: f"{CALL[part]}, {text}"})
    scripts, lines = exported(op_row(), both)
    assert len(scripts) == 1
    assert len(lines) == 2


@pytest.mark.parametrize("name", [*HOSTILE, "x # coding: utf-7", "$call"])
def test_hostile_names_stay_in_comments(name: str) -> None:
    environment = {"torch version": name, "threads": name}
    [script] = json.loads(
        FORMATS["repro"].render(run_of(op_row(name), environment=environment), "out")[0]
    ).values()
    [usual] = exported(op_row())[0].values()
    threads = f"torch.set_num_threads(int({name!r}))"
    assert ast.unparse(ast.parse(script)).replace(threads, "") == ast.unparse(ast.parse(usual)).replace(
        "torch.set_num_threads(int('2'))", ""
    )
    assert all(line.startswith("#") and "coding" not in line for line in script.splitlines()[:2])


def test_file_names_are_safe_unique_and_stable() -> None:
    names = [f"t.py::test_a::{name}" for name in HOSTILE] + ["u.py::test_a::a|b", "t.py::test_a::a b"]
    files = {file_name(name) for name in names}
    assert len(files) == len(names)
    assert all(re.fullmatch(r"repro_[A-Za-z0-9_]{1,99}\.py", file) for file in files)
    assert file_name(f"t.py::test_a::{ADD}") == "repro_test_a_add_Tensor_f32_8_8_S0_f32_8_8_S0_4_4b36a810.py"


def test_calls_and_compared_variants_have_no_script() -> None:
    for contains in (Contains.END_TO_END, Contains.COMPARED, Contains.COMPILED):
        _, lines = exported(op_row(), replace(row("block"), contains=contains))
        assert len(lines) == 2
