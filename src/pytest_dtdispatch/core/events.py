"""Events of a step, with their source line, module and phase."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytest_dtdispatch.core.text import TextEnum


class Phase(TextEnum):
    """Phase of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    CLIPPING = "clipping"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True)
class CodePlace:
    """A source line of the user's program, the running module, and the phase of the step.

    Args:
        file: file of the nearest source line outside torch and this plugin; empty if there is none.
        line: line number.
        module: fully qualified name of the module, or class of the outermost one; empty outside of modules.
        phase: phase of the step.

    Example:
        >>> str(CodePlace("train.py", 41, "layers.0.attention.wq", Phase.BACKWARD))
        'train.py:41 in layers.0.attention.wq (backward)'
        >>> str(CodePlace("train.py", 7, "", Phase.OPTIMIZER))
        'train.py:7 (optimizer)'
    """

    file: str = ""
    line: int = 0
    module: str = ""
    phase: Phase = Phase.OTHER

    @property
    def line_text(self) -> str:
        """Source line, as ``train.py:41`` below the current directory; empty if there is none."""
        if not self.file:
            return ""
        try:
            relative = os.path.relpath(self.file)
        except (OSError, ValueError):  # there is no current directory, or the file is on another drive
            relative = os.pardir
        return f"{self.file if relative.startswith(os.pardir) else relative}:{self.line}"

    def __str__(self) -> str:
        at = self.line_text or "nowhere in the program"
        return f"{at}{f' in {self.module}' if self.module else ''} ({self.phase})"


FUSED, FOREACH = "fused=True", "foreach=True"  # arguments of optimizers


class OptimizerStep(NamedTuple):
    """Optimizer whose ``step`` ran.

    Args:
        name: name of its class, which torch defines.
        option: argument that makes it call fewer ops: ``fused=True`` if other options allow it and DTensor
            has a rule for that op, else ``foreach=True`` likewise; empty if there is none.
        has_plain: whether a parameter group has plain tensors beside DTensors.
        is_partial: whether gradients are partial sums.
        takes_meshes: whether all DTensors of a group have one mesh, or the option works over several.
        tensors: number of its DTensors with gradients.
        lists: number of lists that the option makes of them: one for each group, dtype and device, and for
            each mesh if the option does not work over several.
    """

    name: str
    option: str
    has_plain: bool
    is_partial: bool
    takes_meshes: bool = True
    tensors: int = 0
    lists: int = 1


@dataclass(frozen=True)
class FsdpGroup:
    """A group of parameters that FSDP2 gathers and reduces together.

    Args:
        number: its number in events.
        module: name of its module; empty for the root.
        parent: number of the group of the nearest module around it; 0 if there is none.
        is_root: whether FSDP2 wraps no module around it.
        is_frozen: whether none of its parameters is trained.
        stays_gathered: whether its parameters stay gathered after the forward of its module.
        sums_in: dtype in which gradients of several passes are summed without a reduction, if it has fewer
            bytes than the parameters; else empty.
        casts: whether it casts the inputs of its modules to another dtype.
        layout: number that is equal for groups whose parameters can be in one group.
    """

    number: int
    module: str = ""
    parent: int = 0
    is_root: bool = True
    is_frozen: bool = False
    stays_gathered: bool = False
    sums_in: str = ""
    layout: int = 0
    casts: bool = False


class Event(NamedTuple):
    """Interval of a profile: an op, an autograd node or a range.

    Args:
        name: name of the op (``aten::mm``), autograd node or range.
        begin_ns: start time.
        end_ns: end time.
        sequence: sequence number of the autograd node that an op created or that ran; negative without one.
        is_range: whether it is a range of the program, such as a ``record_function``, rather than an op.
    """

    name: str
    begin_ns: int
    end_ns: int
    sequence: int = -1
    is_range: bool = False


class Part(TextEnum):
    """Category of the time of a step."""

    LOCAL = "local"
    DISPATCH = "dispatch"
    PROPAGATION = "propagation"
    PLANNING = "redistribution planning"
    COPIES = "redistribution copies"
    SENDING = "redistribution collectives"
    MOVING = "redistribution python"
    WRAPPING = "wrapping"
    AUTOGRAD = "autograd"
    FSDP_COLLECTIVES = "fsdp collectives"
    FSDP_COPIES = "fsdp copies"
    FSDP_PYTHON = "fsdp python"
    COMMUNICATION = "other collectives"
    DDP = "ddp"
    PIPELINE = "pipeline"
    MODULES = "modules"
    OPTIMIZER = "optimizer"
    OTHER = "other"


REDISTRIBUTION = (Part.PLANNING, Part.COPIES, Part.SENDING, Part.MOVING)
FSDP = (Part.FSDP_COLLECTIVES, Part.FSDP_COPIES, Part.FSDP_PYTHON)


@dataclass(frozen=True)
class Cell:
    """Time of one op, in one part, at one source line, per step.

    Args:
        part: category of the time.
        op: name of the op, conversion or autograd node; empty outside of all.
        place: source line in the program; None if unknown.
        ns: nanoseconds per step, without the cost of timing.
        calls: calls per step.
        timing_ns: cost of timing that was subtracted, in nanoseconds per step.
    """

    part: str
    op: str
    place: CodePlace | None
    ns: float
    calls: float
    timing_ns: float = 0.0


def ns_by_part(cells: Iterable[Cell]) -> Mapping[str, float]:
    """Sum the nanoseconds by part. Parts without cells are absent; reading one returns 0.

    Example:
        >>> ns_by_part([Cell("local", "mm", None, 2.0, 1.0), Cell("local", "add", None, 3.0, 1.0)])["local"]
        5.0
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for cell in cells:
        sums[str(cell.part)] += cell.ns
    return sums
