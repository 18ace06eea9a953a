"""Arguments of an op, derived from its schema and tried on plain tensors before DTensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.suite.atlas.inputs import Layout, needs_of
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import op_name, schema_of
from pytest_dtdispatch.torchapi.signatures import DTYPES

# Tensors of the generic arguments, tried in this order until the op runs on plain tensors.
TENSOR_TEMPLATES = (
    *("f32[8,8]", "i64[8,8]", "b8[8,8]", "f32[8]", "c64[8,8]"),
    *("f32[8,8,8]", "f64[8,8]", "f32[8,8,8,8]", "f32[8,8,8,8,8]"),
)


@dataclass(frozen=True)
class TensorText:
    """Tensor that an argument needs.

    Args:
        dtype: dtype of its elements.
        shape: global shape.
        is_transposed: whether its last two dimensions are transposed in memory.
        is_replicated: whether it is replicated in every layout.
        is_plain: whether it is a plain tensor in every layout.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_transposed: bool = False
    is_replicated: bool = False
    is_plain: bool = False

    @classmethod
    def read(cls, text: str) -> TensorText:
        """Parse a tensor as it is written in the table of inputs, such as ``f32[8,4]`` or ``f32[8]R``."""
        [(dtype, shape, transposed, place)] = re.findall(r"(\w+)\[([\d,]*)\](t?)([RL]?)", text)
        extents = tuple(int(extent) for extent in shape.split(",") if extent)
        return cls(_dtype(dtype), extents, bool(transposed), place == "R", place == "L")

    def plain(self, shape: Sequence[int] | None = None) -> torch.Tensor:
        """Create a plain tensor: 0.5 with ones on diagonals, or ones if its dtype has no fractions.

        Square matrices are symmetric and positive definite, ones are valid indices into two elements, and all
        values are in the domain of a logarithm.
        """
        shape = tuple(self.shape if shape is None else shape)
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            return torch.ones(shape, dtype=self.dtype)
        tensor = torch.full(shape, 0.5)
        if tensor.ndim >= 2:
            tensor.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        tensor = tensor.to(self.dtype)
        return tensor.mT.contiguous().mT if self.is_transposed else tensor

    def placed(self, mesh: DeviceMesh, placements: str) -> DTensor:
        """Create a DTensor whose local shard has the values of :meth:`plain`."""
        wanted = re.findall(r"S\d+|R|P", "R" * mesh.ndim if self.is_replicated else placements)
        local, placed = list(self.shape), list[Placement]()
        for extent, text in zip(mesh.shape, wanted, strict=True):
            dim = int(text[1:] or -1)  # -1 of what no layout splits
            if dim >= len(local) or (dim >= 0 and local[dim] % extent):
                text = "R"
            elif dim >= 0:
                local[dim] //= extent
            placed.append(Replicate() if text == "R" else Partial() if text == "P" else Shard(dim))
        tensor = self.plain(local).to(mesh.device_type)
        return DTensor.from_local(tensor, mesh, placed, run_check=False)


def _dtype(text: str) -> torch.dtype:
    dtypes = {short: dtype for dtype, short in DTYPES.items()}
    found: torch.dtype = dtypes.get(text) or getattr(torch, text)
    return found


@dataclass(frozen=True)
class Arguments:
    """Arguments with which an op runs.

    Args:
        op: overload of the op.
        values: values by name in its schema; tensors as :class:`TensorText`.
    """

    op: Any
    values: Mapping[str, Any]

    def plain(self) -> OpCall:
        """Call the op on plain tensors."""
        return self._call(TensorText.plain)

    def placed(self, mesh: DeviceMesh, layout: Layout) -> OpCall:
        """Call the op on DTensors."""
        positions = count()

        def place(text: TensorText) -> torch.Tensor:
            if text.is_plain:
                return text.plain().to(mesh.device_type)
            return text.placed(mesh, layout.of(next(positions)))

        return self._call(place)

    def supported(self, mesh: DeviceMesh, layout: Layout) -> OpCall | str:
        """Return the call on DTensors, or the first line of torch's error."""
        try:
            self.placed(mesh, layout).run()
        except Exception as error:  # any error of torch: the arguments are valid, as plain tensors prove
            return first_line(error)
        return self.placed(mesh, layout)

    def _call(self, make: Callable[[TensorText], torch.Tensor]) -> OpCall:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for position, needed in enumerate(schema_of(self.op)):
            if needed.name not in self.values:
                continue
            value = self.values[needed.name]
            if isinstance(value, TensorText):
                value = make(value)
            elif isinstance(value, tuple):
                value = [make(text) for text in value]
            if position == len(args) and not needed.kwarg_only:
                args.append(value)
            else:
                kwargs[needed.name] = value
        return OpCall(self.op, tuple(args), kwargs)


def find_arguments(op: Any) -> Arguments | str:
    """Return arguments with which an op runs on plain tensors, or why there are none."""
    why, needed = "", needs_of(op_name(op))
    for template in TENSOR_TEMPLATES:
        values = {
            argument.name: _value(argument, template, needed)
            for argument in schema_of(op)
            if not argument.has_default_value() or argument.name in needed
        }
        if not any(isinstance(value, (TensorText, tuple)) for value in values.values()):
            return "it takes no tensors"  # as ldexp.default, which has a rule in torch 2.5 to 2.12
        arguments = Arguments(op, values)
        try:
            arguments.plain().run()
        except Exception as error:  # any error of torch: try the next arguments
            why = why or first_line(error)
        else:
            return arguments
    return why or "no arguments are known for its schema"


def _value(argument: Any, template: str, needed: Mapping[str, Any]) -> Any:
    name, kind = argument.name, str(argument.type)
    if name in needed:
        value = needed[name]
        if "Tensor" not in kind:
            return _dtype(value) if name.endswith("dtype") else value
        return tuple(map(TensorText.read, value)) if isinstance(value, list) else TensorText.read(value)
    if name == "dtype":
        return torch.float64
    if kind.startswith("Optional"):
        return None
    dtype, _, shape = template.partition("[")
    dtypes = {"mask": "b8", "condition": "b8", "indices": "i64", "index": "i64", "target": "i64"}
    text = TensorText.read(f"{dtypes.get(name, dtype)}[{shape}")
    if "Tensor" in kind:
        return (text, text) if "List" in kind else text
    if "List" in kind:
        length = argument.N or 2
        values = {"List[int]": [1] if name in ("dim", "dims") else list(text.shape), "List[number]": [2, 2]}
        return values.get(kind, [True] * length)
    return {"number": 2, "int": 1, "float": 0.5, "bool": False, "str": "none"}.get(kind)
