"""What an input of a step looks like, as a text that inputs of the same shapes share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import place_text, shorten
from pytest_dtdispatch.measuring.op_call import shape_text, tensor_text
from pytest_dtdispatch.torchapi.tensors import mesh_among, tensor_traits

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def shape_of(given: Any) -> str:
    """Write the dtypes, shapes and placements of the tensors in an input; of what holds none, its repr."""
    return shorten(_text(given))


def _text(given: Any) -> str:
    if (tensor := tensor_traits(given)) is not None:
        mesh = mesh_among([given])
        place = "" if mesh is None else f"@{place_text(mesh.shape, mesh.device_type)}"
        return f"{tensor_text(tensor)}{place}"
    if isinstance(given, Mapping):
        return f"{{{', '.join(f'{key}: {_text(value)}' for key, value in given.items())}}}"
    if is_dataclass(given) and not isinstance(given, type):
        values = [f"{each.name}={_text(getattr(given, each.name, None))}" for each in fields(given)]
        return f"{type(given).__name__}({', '.join(values)})"
    if isinstance(given, (list, tuple)):
        return f"({', '.join(map(_text, given))})"
    if hasattr(given, "dtype") and hasattr(given, "shape"):  # an array of another library
        return f"{given.dtype}{shape_text(given.shape)}"
    return _own_text(given)


def _own_text(given: Any) -> str:
    try:
        text = repr(given)
    except Exception:  # it is the user's, and can raise anything
        text = f"<{type(given).__name__}>"
    return printable(" ".join(ADDRESS.sub("", text).split()))
