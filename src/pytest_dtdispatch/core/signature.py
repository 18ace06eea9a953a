"""What identifies one measured op: overload, tensor arguments, mesh."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# Row names stand in tables, files and command lines: an op on lists of tensors must not fill a page.
MAX_LENGTH = 120


@dataclass(frozen=True)
class Signature:
    """One op overload on tensors of given types on a mesh.

    Args:
        op: overload as torch names it, ``add.Tensor``.
        arguments: one text for each argument that is shown; a list of tensors is a tuple of texts.
        mesh: extent of each mesh dimension, in ranks.
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
        """The whole text, however long."""
        arguments = ", ".join(a if isinstance(a, str) else f"[{_runs(a)}]" for a in self.arguments)
        return f"{self.op}({arguments}){self.place}"

    @property
    def place(self) -> str:
        """Mesh and device: ``@4``, ``@2x4:cuda``."""
        return f"@{place_text(self.mesh, self.device)}"

    def __str__(self) -> str:
        return shorten(self.full, keep_end=len(self.place))


def mesh_text(shape: Sequence[int]) -> str:
    """Write a mesh shape as the flags take it: ``(2, 4)`` is ``2x4``."""
    return "x".join(str(extent) for extent in shape)


def place_text(shape: Sequence[int], device: str) -> str:
    """Write a mesh with its device, which is left out where it is the CPU: ``4``, ``2x4:cuda``."""
    return mesh_text(shape) if device == "cpu" else f"{mesh_text(shape)}:{device}"


def shorten(text: str, keep_end: int = 0, limit: int = MAX_LENGTH) -> str:
    """Cut a long name in the middle; a digest of the whole keeps it unique and stable.

    Args:
        text: the name.
        keep_end: how many characters of its end must stay, as far as the limit has room for them.
        limit: length in characters above which it is cut; at least 12, for the digest.
    """
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    room = limit - 12
    end = text[len(text) - min(keep_end, room) :]
    return f"{text[: room - len(end)]}...#{digest}{end}"


def _runs(texts: Sequence[str]) -> str:
    """Write equal neighbours once: ``f32[8]R, f32[8]R`` is ``f32[8]R*2``."""
    counted = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if count == 1 else f"{text}*{count}" for text, count in counted)
