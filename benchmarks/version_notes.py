"""What is known of why a version of torch differs from the one before it, with PyTorch's pull request.

Written by hand, each after a look at both versions: cache counters, or a profile of the call. A note of a
figure is shown on the page only where the measured rows changed in the direction that it explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Change = Literal["faster", "slower"]
PULL = "https://github.com/pytorch/pytorch/pull/"


@dataclass(frozen=True)
class Note:
    """Why a version differs from the one before it.

    Attributes:
        head: the newer version.
        text: what was done, and how that was seen.
        pulls: numbers of pull requests of PyTorch that were read, with what they are titled.
        state: of the rows that it explains: ``hit`` or ``miss``; empty where it explains no figure.
        change: the direction in which they changed.
        rows: globs of the rows that it explains, and of PyTorch's paths, whose instructions are counted.
    """

    head: str
    text: str
    pulls: tuple[tuple[int, str], ...] = ()
    state: str = ""
    change: Change = "faster"
    rows: tuple[str, ...] = ("*",)

    def explains(self, row: str, state: str, change: str) -> bool:
        """Whether it is about a row that changed so."""
        return (state, change) == (self.state, self.change) and any(
            fnmatchcase(row, glob) for glob in self.rows
        )

    @property
    def line(self) -> str:
        """The note, with its pull requests."""
        pulls = "; ".join(f"[#{number}]({PULL}{number}) *{title}*" for number, title in self.pulls)
        return f"{self.text} {f'({pulls})' if pulls else '(pull request: not found)'}"


NOTES = (
    Note(
        "2.7.1",
        "FSDP2 asks the device for its streams, so that it runs without CUDA.",
        ((136843, "[fsdp2] based on device, use stream and Event"),),
    ),
    Note(
        "2.7.1",
        "`matmul` in inference mode is decomposed, and works.",
        ((142197, "[DTensor] Support matmul in inference_mode"),),
    ),
    Note(
        "2.9.1",
        "From 2.8 on every composite op works in inference mode.",
        (
            (
                149514,
                "DTensor: more generically support CompositeImplicitAutograd ops under inference mode",
            ),
        ),
    ),
    Note(
        "2.9.1",
        "A `Shard(0)` that becomes `Shard(1)` on a CPU logged a warning at each call up to 2.7, and searched "
        "all groups for its own; profiles of 2.9 have neither, and it takes half as long.",
    ),
    Note(
        "2.10.0",
        "C++ takes a DTensor op, looks its plan up in a native cache, and calls the local op.",
        (
            (167051, "Add C++ fast path for `DTensor.__torch_dispatch__`"),
            (166372, "Avoid creating Python OpSchema in the DTensor dispatch fast path"),
            (166808, "extend C++ DTensor fast path to local operator dispatch"),
            (168330, 'Reapply "C++ fastpath dispatch path for DTensor (#168264)"'),
        ),
        state="hit",
    ),
    Note(
        "2.10.0",
        "`argmax` and `argmin` get a rule: a handler of their own.",
        ((168983, "[DTensor] Efficient argmax and argmin (masked and unmasked)"),),
    ),
    Note(
        "2.10.0",
        "Ranks can be simulated in one process.",
        ((164537, "LocalTensor"),),
    ),
    Note(
        "2.11.0",
        "`mm` is propagated by a rule of one mesh dimension: a miss reckons 16 costs "
        "of redistribution, 8 in 2.10 (by profile).",
        (
            (167677, "[DTensor] Single Dim Strategy infra"),
            (172385, "[DTensor] enable single dim strategy for mm and bmm"),
        ),
        state="miss",
        change="slower",
        rows=("mm",),
    ),
    Note(
        "2.12.1",
        "Ops on lists of tensors join the native cache.",
        ((174879, "Improving DTensor performance for pytree ops"),),
        state="hit",
        rows=("stack", "cat"),
    ),
    Note(
        "2.12.1",
        "Pointwise ops are propagated by a rule of one mesh dimension, which is expanded to the mesh at each "
        "miss: one of `a + a` reckons 18 costs of redistribution, 2 in 2.11 (by profile).",
        (
            (174874, "[DTensor] Migrate pointwise ops to register_single_dim_strategy"),
            (175795, "[DTensor] Register single-dim strategies for categorized pointwise ops"),
        ),
        state="miss",
        change="slower",
        rows=("add*", "mul", "relu", "neg", "sub", "div", "exp", "gt", "where", "clone"),
    ),
    Note(
        "2.12.1",
        "Ops with a decomposition and no rule are propagated op by op, so that they work. Composite ops in "
        "inference mode, which no cache answered on 2.9 to 2.11, hit.",
        ((171652, "[DTensor] initial support for decomps + sharding prop"),),
    ),
    Note(
        "2.12.1",
        "The number of these costs grows as a power of the dimensions of the mesh: on 2x2 a miss of `a + a` "
        "reckons 126, on 2.11 two as on a mesh of one dimension (by profile).",
        ((174874, "[DTensor] Migrate pointwise ops to register_single_dim_strategy"),),
        state="miss",
        change="slower",
        rows=("add @2x2",),
    ),
    Note(
        "2.12.1",
        "One look-up more for each op whose rule is of one mesh dimension, and another layout of what is "
        "cached.",
        ((177074, "[DTensor] Update dtensor_dispatch_inplace instruction count benchmark"),),
        state="hit",
        change="slower",
        rows=("dtensor_dispatch_inplace",),
    ),
    Note(
        "2.14.1",
        "Views, copies, `cat`, reductions and `softmax` are propagated by rules of one mesh dimension too: a "
        "miss of `t` reckons 7 costs of redistribution, none in 2.13 (by profile).",
        (
            (186754, "[dtensor] migrating tensor ops to single dim strategies"),
            (179204, "[dtensor] Enable single_dim_strategy registrations for math ops"),
        ),
        state="miss",
        change="slower",
        rows=("t", "clone", "detach", "cat", "sum", "_softmax", "zero_"),
    ),
    Note(
        "2.14.1",
        "A redistribution looks for symbolic shapes on its way, and a fake group copies in `alltoall`: "
        "PyTorch says so of its own benchmark.",
        (
            (187380, "Update dtensor_dispatch_collectives expected pr_time_benchmark result"),
            (182366, "Fix alltoall on FakeProcessGroup, validate splits, clean up dtensor xfails"),
        ),
        state="hit",
        change="slower",
        rows=("dtensor_dispatch_collectives",),
    ),
)
