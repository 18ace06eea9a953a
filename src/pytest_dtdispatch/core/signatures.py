"""Signatures: names of ops on tensors of given types, and the shortening of long names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

# Row names appear in tables, files and command lines; an op on lists of tensors would fill a page.
MAX_LENGTH = 120


@dataclass(frozen=True)
class Signature:
    """An op overload on tensors of given types on a mesh.

    Args:
        op: torch's name of the overload, ``add.Tensor``.
        arguments: text of each displayed argument; a list of tensors is a tuple of texts.
        mesh: size of each mesh dimension.
        device: device type of the mesh, ``cpu`` or ``cuda``.

    Example:
        >>> str(Signature("add.Tensor", ("f32[512,512]S0", "f32[512,512]S0"), (4,), "cpu"))
        'add.Tensor(f32[512,512]S0, f32[512,512]S0)@4'
        >>> str(Signature("stack.default", (("f32[8]R", "f32[8]R"),), (2, 4), "cuda"))
        'stack.default([f32[8]R*2])@2x4:cuda'
    """

    op: str
    arguments: tuple[str | tuple[str, ...], ...]
    mesh: tuple[int, ...]
    device: str

    @property
    def full(self) -> str:
        """Text of the signature without a limit of its length."""
        arguments = ", ".join(a if isinstance(a, str) else f"[{_runs(a)}]" for a in self.arguments)
        return f"{self.op}({arguments})@{self.mesh_device}"

    @property
    def mesh_device(self) -> str:
        """Mesh and device: ``4``, ``2x4:cuda``."""
        return mesh_device_text(self.mesh, self.device)

    def __str__(self) -> str:
        return cut_name(self.full)


def mesh_text(shape: Sequence[int]) -> str:
    """Format a mesh shape like the flags: ``(2, 4)`` is ``2x4``."""
    return "x".join(str(extent) for extent in shape)


def device_of(mesh_device: str) -> str:
    """Return the device of a text of a mesh and its device.

    Example:
        >>> device_of("4"), device_of("2x4:cuda")
        ('cpu', 'cuda')
    """
    return mesh_device.partition(":")[2] or "cpu"


def mesh_size(mesh_device: str) -> int:
    """Return the number of ranks in a text of a mesh and its device; 0 if the text is empty.

    Example:
        >>> mesh_size("4"), mesh_size("2x4:cuda"), mesh_size("")
        (4, 8, 0)
    """
    shape = mesh_device.partition(":")[0]
    return prod(map(int, shape.split("x"))) if shape else 0


def mesh_device_text(shape: Sequence[int], device: str) -> str:
    """Format a mesh with its device unless that is the CPU: ``4``, ``2x4:cuda``."""
    return mesh_text(shape) if device == "cpu" else f"{mesh_text(shape)}:{device}"


DIGEST_LENGTH = len("...#01234567")


def shorten(text: str, keep_end: int = 0, limit: int = MAX_LENGTH) -> str:
    """Shorten a name to a limit of at least 12 characters; a digest of the full name keeps it unique.

    The last ``keep_end`` characters are preserved as far as the limit allows. Shortening a shortened name
    again preserves its digest, so that a row has the same digest everywhere.
    """
    if len(text) <= limit:
        return text
    room = limit - DIGEST_LENGTH
    at = len(text) - min(keep_end, room)
    digest = text[at - DIGEST_LENGTH : at]
    if len(text) != MAX_LENGTH or not re.fullmatch(r"\.\.\.#[0-9a-f]{8}", digest):
        digest = f"...#{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    end = text[at:]
    return f"{text[: room - len(end)]}{digest}{end}"


def cut_name(name: str, limit: int = MAX_LENGTH) -> str:
    """Shorten the name of a call or a signature, but preserve the mesh and device, or the line, at its end.

    The name of an autograd node is cut between its words.

    Example:
        >>> cut_name("RegisterPostBackwardFunctionBackward", 30), cut_name("src/training_steps.py:165", 24)
        ('RegisterPost...#a8908c8e', 'src/trai...#b2e74171:165')
    """
    if len(name) > limit and re.fullmatch(r"\w+Backward\d*", name):
        words = [word.start() for word in re.finditer(r"^|(?<=[a-z\d])(?=[A-Z])", name)]
        limit = max(start for start in words if start <= limit - DIGEST_LENGTH) + DIGEST_LENGTH
    suffix = re.search(r"@[\dx]*(:\w+)?$|:\d+$", name)
    return shorten(name, len(suffix[0]) if suffix else 0, limit)


def cut_words(text: str, limit: int = MAX_LENGTH) -> str:
    """Shorten each name in a text that exceeds the limit, but no path of a file.

    Example:
        >>> cut_words(f"t.py::test_a[{'x' * 99}] in {'/x' * 20}.py", 30)
        't.py::test_a[xxxxx...#2f12fe36 in /x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x.py'
    """
    words = text.split(" ")
    return " ".join(word if "/" in word and "::" not in word else cut_name(word, limit) for word in words)


def _runs(texts: Sequence[str]) -> str:
    """Join texts and abbreviate repeated ones: ``f32[8]R, f32[8]R`` becomes ``f32[8]R*2``."""
    counted = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if count == 1 else f"{text}*{count}" for text, count in counted)
