"""What was measured in one test, kept by signature."""

from __future__ import annotations

from pytest_dtdispatch.records.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.records.signature import Signature


class SignatureBook:
    """Measurements by signature, with how often the program made each call."""

    def __init__(self) -> None:
        self._calls: dict[Signature, int] = {}
        self._figures: dict[Signature, Figures] = {}

    def count(self, signature: Signature) -> bool:
        """Count a call of a signature; say whether it is known, and only its number grows."""
        if signature not in self._figures:
            return False
        self._calls[signature] += 1
        return True

    def enter(self, signature: Signature, figures: Figures) -> None:
        """Enter a new signature with what its first call gave."""
        self._calls[signature] = 1
        self._figures[signature] = figures

    def measurements(self) -> tuple[Measurement, ...]:
        """Every signature in the order of its first call."""
        return tuple(
            Measurement(
                label=str(signature),
                full_label=signature.full,
                op=signature.op,
                mesh=signature.place.removeprefix("@"),
                contains=Contains.DISPATCH,
                calls=self._calls[signature],
                figures=figures,
            )
            for signature, figures in self._figures.items()
        )
