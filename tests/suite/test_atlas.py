"""The atlas of the suite: arguments of ops derived from schemas, and the reported result of an op."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.suite.atlas.arguments import TENSOR_TEMPLATES, Arguments, TensorText, find_arguments
from pytest_dtdispatch.suite.atlas.inputs import NEEDS, Layout, layouts, layouts_of, needs_of
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from tests.plugin_runs import run

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

pytestmark = pytest.mark.torch

ADD = torch.ops.aten.add.Tensor


FLAGS = ("--dtdispatch", "--dtdispatch-rounds=2", "--benchmark-quiet", "-m", "atlas")
OPS = ops_with_a_rule()


def found(op: object) -> Arguments:
    arguments = find_arguments(op)
    assert isinstance(arguments, Arguments), arguments
    return arguments


@pytest.mark.parametrize(
    ("text", "tensor"),
    [
        ("f32[8,4]", TensorText(torch.float32, (8, 4))),
        ("i64[]", TensorText(torch.int64, ())),
        ("b8[8]R", TensorText(torch.bool, (8,), is_replicated=True)),
        ("f32[]L", TensorText(torch.float32, (), is_plain=True)),
        ("float8_e4m3fn[16,16]t", TensorText(torch.float8_e4m3fn, (16, 16), is_transposed=True)),
    ],
)
def test_tensor_text_is_parsed(text: str, tensor: TensorText) -> None:
    assert TensorText.read(text) == tensor


def test_every_tensor_text_is_valid_and_others_refused() -> None:
    texts = [value for _, needed in NEEDS for value in needed.values() if isinstance(value, str)]
    for text in (*TENSOR_TEMPLATES, *(text for text in texts if "[" in text)):
        TensorText.read(text).plain()
    torch.linalg.cholesky(TensorText.read("f32[8,4,4]").plain())
    assert set(TensorText.read("i64[8]").plain().tolist()) == {1}
    assert TensorText.read("f32[4,8]t").plain().stride() == (1, 4)
    with pytest.raises(ValueError, match="not enough values"):
        TensorText.read("f32")


@pytest.mark.parametrize(
    ("text", "layout", "placements", "local"),
    [
        ("f32[8,4]", "S0", (Shard(0),), (2, 4)),
        ("f32[8,4]", "S1", (Shard(1),), (8, 1)),
        ("f32[8,4]", "P", (Partial(),), (8, 4)),
        ("f32[8]", "S1", (Replicate(),), (8,)),
        ("f32[6]", "S0", (Replicate(),), (6,)),
        ("f32[]", "S0", (Replicate(),), ()),
        ("f32[8,4]R", "S0", (Replicate(),), (8, 4)),
    ],
)
def test_tensor_is_sharded_as_far_as_divisible(
    mesh: DeviceMesh, text: str, layout: str, placements: tuple[object, ...], local: tuple[int, ...]
) -> None:
    tensor = TensorText.read(text)
    placed = tensor.placed(mesh, layout)
    assert placed.placements == placements
    assert placed.to_local().shape == local
    assert placed.shape == tensor.shape


SQUARE, VECTOR = TensorText.read("f32[8,8]"), TensorText.read("f32[8]")


@pytest.mark.parametrize(
    ("op", "values"),
    [
        # The first template that succeeds.
        (ADD, {"self": SQUARE, "other": SQUARE}),
        (torch.ops.aten.bitwise_and.Tensor, dict.fromkeys(("self", "other"), TensorText.read("i64[8,8]"))),
        (torch.ops.aten.dot.default, {"self": VECTOR, "tensor": VECTOR}),
        # Specific arguments of the op take precedence over generic ones.
        (torch.ops.aten.mm.default, {"mat2": TensorText.read("f32[16,32]")}),
        (torch.ops.aten.view.default, {"size": [64, 8]}),
        (torch.ops.aten.stack.default, {"tensors": (SQUARE, SQUARE)}),
    ],
    ids=str,
)
def test_op_has_expected_arguments(op: object, values: dict[str, object]) -> None:
    assert found(op).values.items() >= values.items()


class Demanding:
    """An op that rejects all arguments."""

    __name__ = "demanding.default"
    _schema = ADD._schema

    def __call__(self, *args: object) -> None:
        raise ValueError("not these\nnor any other")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (torch.ops.aten._scaled_dot_product_flash_attention.default, "NotImplementedError: Could not run .*"),
        (torch.ops.aten.ldexp.default, "it takes no tensors"),
        (Demanding(), "ValueError: not these"),
    ],
    ids=["what raises", "what takes numbers", "what suits nothing"],
)
def test_op_without_arguments_has_a_one_line_reason(op: object, message: str) -> None:
    text = find_arguments(op)
    assert isinstance(text, str)
    assert re.fullmatch(message, text)


def test_tensors_are_placed_one_by_one_with_lists(mesh: DeviceMesh) -> None:
    call = found(ADD).placed(mesh, Layout((4,), ("S0", "R")))
    assert [tensor.placements for tensor in call.args] == [(Shard(0),), (Replicate(),)]
    stacked = found(torch.ops.aten.stack.default).placed(mesh, Layout((4,), ("S1",)))
    assert [tensor.placements for tensor in stacked.args[0]] == [(Shard(1),)] * 2
    scaled = found(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default)
    local = scaled.placed(mesh, Layout((4,), ("S0",)))
    assert isinstance(local.args[0][0], DTensor)
    assert not isinstance(local.args[1], DTensor)


def test_op_table_is_sorted_and_favors_common_ops() -> None:
    assert list(OPS) == sorted(OPS)
    assert {"add.Tensor", "convolution.default", "is_same_size.default"} <= set(OPS)
    assert not {"add.out", "max.dim_max", "gelu_backward.grad_input"} & set(OPS)
    assert OPS["add.Tensor"] is ADD
    [layout] = layouts((2, 4), "S0R RS1")
    assert [layout.of(position) for position in range(3)] == ["S0R", "RS1", "RS1"]
    assert len(layouts_of("mm.default")) > len(layouts_of("histc.default")) >= 2
    assert (needs_of("index_fill.int_Tensor")["value"], needs_of("index_fill.int_Scalar")["value"]) == (
        "f32[]",
        2,
    )
    assert needs_of("add.Tensor") == {}


EXPECTED_LINES = {
    "mm.default": ["*mm.default(f32[[]8,16]S0, f32[[]16,32]S0)@4*", "*redistributes f32[[]16,32]S0 -> R"],
    "squeeze_.default": ["*not measured", "*runs once: it changes a tensor's shape in place"],
    "is_same_size.default": ["*unpropagated*"],
    "index_put_.default": ["*torch refuses index_put_.default on *@*: RuntimeError: *"],
    "_scaled_dot_product_flash_attention.default": ["SKIPPED*no arguments made: NotImplementedError: *"],
    "_foreach_addcdiv_.Tensor": ["SKIPPED*torch refuses *: RuntimeError: *"],
}


def test_op_has_noted_rows_or_a_skip_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    names = [name for name in EXPECTED_LINES if name in OPS]
    ids = [f"pytest_dtdispatch.suite.atlas.test_atlas::test_op[{name}]" for name in names]
    result = run(pytester, *FLAGS, "-rs", "-v", "--pyargs", *ids)
    assert result.ret == pytest.ExitCode.OK
    for name in names:
        result.stdout.fnmatch_lines_random(EXPECTED_LINES[name])


@pytest.mark.slow
@pytest.mark.sweep
def test_every_op_is_measured_or_skipped_with_reason(pytester: pytest.Pytester) -> None:
    report = pytester.path / "report.xml"
    flags = (*FLAGS, "--dtdispatch-max-time=0.01", "-q", f"--junitxml={report}")
    result = run(pytester, *flags, "--pyargs", "pytest_dtdispatch.suite")
    assert result.ret == pytest.ExitCode.OK
    outcomes, ops = result.parseoutcomes(), len(ops_with_a_rule())  # late imports register more ops
    assert outcomes["passed"] + outcomes["skipped"] == ops
    assert outcomes["passed"] >= 200
    assert report.read_text().count('message="no arguments made') <= ops // 50
