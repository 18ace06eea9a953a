"""The atlas of the suite: arguments of ops, made from their schemas, and what a run of it says of an op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.suite.atlas.arguments import TENSOR_TEMPLATES, Arguments, TensorText, find_arguments
from pytest_dtdispatch.suite.atlas.inputs import NEEDS, Layout, layouts, layouts_of, needs_of
from pytest_dtdispatch.torchapi.ops import SchemaArgument, ops_with_a_rule, schema_of
from tests.plugin_runs import run
from tests.probes import needs_rule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

pytestmark = pytest.mark.torch

ADD = torch.ops.aten.add.Tensor


ATLAS = (
    "--dtdispatch",
    "--dtdispatch-rounds=2",
    "--benchmark-quiet",
    "--pyargs",
    "pytest_dtdispatch.suite",
    "-m",
    "atlas",
)
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
def test_a_tensor_is_read_as_it_is_written(text: str, tensor: TensorText) -> None:
    assert TensorText.read(text) == tensor


def test_a_text_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'f32' is no tensor: write it as f32\[8,4\]"):
        TensorText.read("f32")


def test_every_text_of_the_tables_can_be_read() -> None:
    texts = [value for _, needed in NEEDS for value in needed.values() if isinstance(value, str)]
    for text in (*TENSOR_TEMPLATES, *(text for text in texts if "[" in text)):
        TensorText.read(text).plain()


def test_matrices_are_positive_definite_and_integers_are_indices() -> None:
    torch.linalg.cholesky(TensorText.read("f32[8,4,4]").plain())
    assert set(TensorText.read("i64[8]").plain().tolist()) == {1}
    assert TensorText.read("f32[4,8]t").plain().stride() == (1, 4)


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
def test_a_tensor_is_placed_as_far_as_it_can_be_split(
    mesh: DeviceMesh, text: str, layout: str, placements: tuple[object, ...], local: tuple[int, ...]
) -> None:
    tensor = TensorText.read(text)
    placed = tensor.placed(mesh, layout)
    assert placed.placements == placements
    assert placed.to_local().shape == local
    assert placed.shape == tensor.shape


@pytest.mark.parametrize(
    ("op", "values"),
    [
        (ADD, {"self": "f32[8,8]", "other": "f32[8,8]"}),
        (torch.ops.aten.bitwise_and.Tensor, {"self": "i64[8,8]", "other": "i64[8,8]"}),
        (torch.ops.aten.dot.default, {"self": "f32[8]", "tensor": "f32[8]"}),
        (torch.ops.aten.mm.default, {"self": "f32[8,16]", "mat2": "f32[16,32]"}),
    ],
)
def test_the_first_template_that_runs_is_taken(op: object, values: dict[str, str]) -> None:
    expected = {name: TensorText.read(text) for name, text in values.items()}
    assert found(op).values == expected


def test_needs_of_an_op_come_before_the_generic_arguments() -> None:
    assert found(torch.ops.aten.view.default).values["size"] == [64, 8]
    assert found(torch.ops.aten.stack.default).values["tensors"] == (TensorText.read("f32[8,8]"),) * 2
    assert needs_of("index_fill.int_Tensor")["value"] == "f32[]"
    assert needs_of("index_fill.int_Scalar")["value"] == 2
    assert needs_of("add.Tensor") == {}


def test_an_output_has_the_shape_and_the_type_that_the_op_gives_it() -> None:
    arguments = found(torch.ops.aten.max.dim_max)
    assert arguments.outputs == ("max", "max_values")
    assert arguments.values["max"] == TensorText.read("f32[8]")
    assert arguments.values["max_values"] == TensorText.read("i64[8]")


def test_an_op_that_no_arguments_are_known_for_says_what_torch_says() -> None:
    op = torch.ops.aten._scaled_dot_product_flash_attention.default
    said = find_arguments(op)
    assert isinstance(said, str)
    assert said.startswith("NotImplementedError: Could not run ")
    assert "\n" not in said


def test_an_op_that_takes_numbers_alone_has_no_signature() -> None:
    assert find_arguments(torch.ops.aten.ldexp.default) == "it takes numbers alone"


def test_tensors_are_placed_one_by_one_and_lists_too(mesh: DeviceMesh) -> None:
    call = found(ADD).placed(mesh, Layout((4,), ("S0", "R")))
    assert [tensor.placements for tensor in call.args] == [(Shard(0),), (Replicate(),)]
    stacked = found(torch.ops.aten.stack.default).placed(mesh, Layout((4,), ("S1",)))
    assert [tensor.placements for tensor in stacked.args[0]] == [(Shard(1),)] * 2


def test_an_output_may_lie_elsewhere(mesh: DeviceMesh) -> None:
    call = found(torch.ops.aten.add.out).placed(mesh, Layout((4,), ("S0",)), output="R")
    assert call.kwargs["out"].placements == (Replicate(),)
    assert call.args[0].placements == (Shard(0),)


def test_what_is_marked_as_no_dtensor_is_none(mesh: DeviceMesh) -> None:
    op = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
    call = found(op).placed(mesh, Layout((4,), ("S0",)))
    assert isinstance(call.args[0][0], DTensor)
    assert not isinstance(call.args[1], DTensor)


def test_a_schema_is_read_with_what_is_given_by_name_alone() -> None:
    self, other, alpha, out = schema_of(torch.ops.aten.add.out)
    assert self == SchemaArgument("self", "Tensor", True, False, False, 0)
    assert other.name == "other"
    assert (alpha.is_required, alpha.is_keyword, alpha.is_output) == (False, True, False)
    assert (out.is_required, out.is_keyword, out.is_output) == (True, True, True)


def test_layouts_are_read_from_text_and_the_last_placement_goes_on() -> None:
    [layout] = layouts((2, 4), "S0R RS1")
    assert [layout.of(position) for position in range(3)] == ["S0R", "RS1", "RS1"]


def test_common_ops_have_more_layouts_than_others() -> None:
    assert len(list(layouts_of("mm.default"))) > len(list(layouts_of("histc.default"))) >= 2


def test_ops_are_read_from_the_registries_in_the_order_of_names() -> None:
    ops = ops_with_a_rule()
    assert list(ops) == sorted(ops)
    assert {"add.Tensor", "convolution.default", "is_same_size.default"} <= set(ops)
    assert ops["add.Tensor"] is ADD


def test_an_op_on_which_no_arguments_run_says_why_the_first_did_not() -> None:
    class Demanding:
        """An op that nothing suits."""

        __name__ = "demanding.default"
        _schema = ADD._schema

        def __call__(self, *args: object) -> None:
            raise ValueError("not these\nnor any other")

    assert find_arguments(Demanding()) == "ValueError: not these"


def test_a_call_that_runs_is_found_and_a_refusal_is_what_torch_says_first(mesh: DeviceMesh) -> None:
    call = found(torch.ops.aten.sum.IntList_out).supported(mesh, Layout((4,), ("S0",)))
    assert not isinstance(call, str)
    call.run()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(name, said, marks=needs_rule(name), id=name)
        for name, said in {
            "mm.default": [
                "*mm.default(f32[[]8,16]S0, f32[[]16,32]S0)@4*",
                "*redistributes f32[[]16,32]S0 -> R",
            ],
            "squeeze_.default": ["*not measured", "*runs once: it changes a tensor's shape in place"],
            "is_same_size.default": ["*unpropagated"],
            "index_put_.default": ["*torch refuses index_put_.default on *@*: RuntimeError: *"],
            "_scaled_dot_product_flash_attention.default": [
                "SKIPPED*no arguments made: NotImplementedError: *"
            ],
            "_upsample_nearest_exact1d_backward.grad_input": ["SKIPPED*torch refuses *: RuntimeError: *"],
        }.items()
    ],
)
def test_an_op_has_its_rows_with_their_notes_or_says_why_it_has_none(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, said: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = run(pytester, *ATLAS, "-k", f"test_op[{name}]", "-rs", "-v")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(said)


@pytest.mark.slow
@pytest.mark.sweep
def test_every_op_is_measured_or_says_why_not(pytester: pytest.Pytester) -> None:
    report = pytester.path / "report.xml"
    result = run(pytester, *ATLAS, "--dtdispatch-max-time=0.01", "-q", f"--junitxml={report}")
    assert result.ret == pytest.ExitCode.OK
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == len(OPS)
    assert outcomes["passed"] >= 200
    assert report.read_text().count('message="no arguments made') <= len(OPS) // 50
