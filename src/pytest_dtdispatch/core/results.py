"""What was measured in one test."""

from __future__ import annotations

from collections.abc import Collection

from pytest_dtdispatch.compiled.model import CompiledVariant
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.core.signature import Signature
from pytest_dtdispatch.scaling.model import Scaling
from pytest_dtdispatch.steps.model import Steps


class Book:
    """Measurements by signature and by name of call, with how often the program made each; counts by step.

    Example:
        >>> book = Book()
        >>> book.enter_call("warm start", "4", Figures())
        >>> [measurement.label for measurement in book.measurements()]
        ['warm start']
    """

    def __init__(self) -> None:
        self._calls: dict[Signature, int] = {}
        self._figures: dict[Signature, Figures] = {}
        self._named: dict[str, Measurement] = {}
        self._steps: dict[str, Steps] = {}
        self._scalings: dict[str, Scaling] = {}
        self._compiled: dict[str, CompiledVariant] = {}

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

    def enter_call(self, name: str, mesh: str, figures: Figures) -> None:
        """Enter a named call that was made on a mesh, ``2x4``, or on none known."""
        self._named[name] = Measurement(name, name, name, mesh, Contains.END_TO_END, 1, figures)

    def enter_steps(self, steps: Steps) -> None:
        """Enter what was counted of a step."""
        self._steps[steps.name] = steps

    def enter_scaling(self, scaling: Scaling) -> None:
        """Enter how a call grows with a size; the calls at each size are entered by name."""
        self._scalings[scaling.name] = scaling

    def enter_compiled(self, variant: CompiledVariant) -> None:
        """Enter what was counted and measured of a compiled function."""
        self._compiled[variant.name] = variant

    def names(self) -> Collection[str]:
        """Names that are taken, of calls, steps, scalings and compiled functions."""
        return {*self._named, *self._steps, *self._scalings, *self._compiled}

    def compiled(self) -> tuple[CompiledVariant, ...]:
        """Every compiled function in every setting, in the order they were compiled."""
        return tuple(self._compiled.values())

    def scalings(self) -> tuple[Scaling, ...]:
        """Every scaling, in the order they were taken."""
        return tuple(self._scalings.values())

    def counts(self) -> tuple[Steps, ...]:
        """Everything that was counted, in the order it was."""
        return tuple(self._steps.values())

    def measurements(self) -> tuple[Measurement, ...]:
        """Every signature in the order of its first call, then named calls, then compiled functions."""
        ops = tuple(
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
        compiled = (variant.measurement for variant in self._compiled.values())
        return (*ops, *self._named.values(), *compiled)
