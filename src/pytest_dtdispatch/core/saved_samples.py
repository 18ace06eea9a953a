"""Samples of a run that was saved without them: what stands for them, and how many there were."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Samples


@dataclass(frozen=True)
class SavedSamples(Samples):
    """What is known of samples that were not saved.

    ``values`` are their quartiles with the least and the greatest: no sample in the order it was taken.

    Args:
        figure_ns: what stood for them, in nanoseconds.
        scatter_share: how far they scattered, as a share; None where that is not known.
        taken: how many there were.

    Example:
        >>> from pytest_dtdispatch.core.measurement import State
        >>> saved = SavedSamples(State.HIT, (6, 7, 8, 9, 20), figure_ns=7.5, scatter_share=0.1, taken=200)
        >>> saved.figure, saved.scatter, saved.median_ns, samples_taken(saved)
        (7.5, 0.1, 8, 200)
    """

    figure_ns: float = 0.0
    scatter_share: float | None = None
    taken: int = 0

    @property
    def figure(self) -> float:
        """What stood for the samples, in nanoseconds."""
        return self.figure_ns

    @property
    def scatter(self) -> float | None:
        """How far they scattered, as a share; None where that is not known."""
        return self.scatter_share


def samples_taken(samples: Samples) -> int:
    """Say how many samples there are, or were; on many ranks, of all of them."""
    if isinstance(samples, SavedSamples):
        return samples.taken
    return samples.count


def has_every_sample(samples: Samples) -> bool:
    """Tell whether the samples are at hand one by one, in the order they were taken."""
    return not isinstance(samples, SavedSamples)
