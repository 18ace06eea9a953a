"""Data exchanged with a process of an A/B run: environment variables in, an answer file out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import TextEnum

CALLS_PER_STEP = "calls_per_step"  # a count that is reported but not judged
CONTROL = "control"  # state of the control rows: aten ops on plain tensors, not part of the code under test


class Variable(TextEnum):
    """Environment variables of a process."""

    OUTPUT = "DTDISPATCH_AB_OUTPUT"  # path of the answer file
    KIND = "DTDISPATCH_AB_KIND"  # an AnswerKind
    ONLY = "DTDISPATCH_AB_ONLY"  # JSON list of tests: other tests do not run
    GO_ON = "DTDISPATCH_AB_GO_ON"  # if set, failed tests do not end the run
    CHECKOUT = "DTDISPATCH_AB_CHECKOUT"  # a Checkout, as JSON
    PADDING = "DTDISPATCH_AB_PADDING"  # its length shifts the memory layout of the process


class AnswerKind(TextEnum):
    """Kind of the values in an answer."""

    TIMES = "times"
    COUNTS = "counts"
    PROOFS = "proofs"
    INSTRUCTIONS = "instructions"


@dataclass(frozen=True)
class Answer:
    """Data that a process of an A/B run returns.

    Args:
        values: numbers by row or count.
        details: events of a count, as lines.
        lines: source lines of these events.
        absent: reasons why rows, or all rows of a test or a file, are absent.
        folders: folders of the side's checkout from which modules were imported.
        refusal: error if a module of the repository was imported from elsewhere; then nothing was measured.

    Raises:
        ValueError: a value is not finite.
    """

    values: Mapping[RowId, float] = field(default_factory=dict)
    details: Mapping[RowId, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[RowId, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[RowId, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    refusal: str = ""

    def __post_init__(self) -> None:
        for row, number in self.values.items():
            if not math.isfinite(number):
                raise ValueError(f"{row}: {number}")
