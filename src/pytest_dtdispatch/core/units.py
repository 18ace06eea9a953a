"""What samples are in: nanoseconds, instructions, or whatever a sampler of the user's own reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOST = 2**63  # a counter that is not there reads 2**64 - 1


@dataclass(frozen=True)
class Unit:
    """What samples are in, and the names that their figures have in files.

    Args:
        name: what is counted, as a plural: ``instructions``; of times ``ns``.
        is_time: whether samples are nanoseconds; their median stands for them, and the least for a count.
        steady: metric of hits, and of calls where the op never asks the propagator; empty for none.
        hit: metric of hits alone.
        miss: metric of misses.
        compile: metric of a first call that compiles, less a later call.
        least: the least reading that can be one.
    """

    name: str = "ns"
    is_time: bool = True
    steady: str = ""
    hit: str = ""
    miss: str = ""
    compile: str = ""
    least: int = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names that the figures have in files."""
        return tuple(name for name in (self.steady, self.hit, self.miss, self.compile) if name)

    def holds(self, reading: int) -> bool:
        """Tell a reading from what a counter reads that does not count.

        Example:
            >>> [INSTRUCTIONS.holds(reading) for reading in (46_104, 0, 2**64 - 1)]
            [True, False, False]
        """
        return self.least <= reading < MOST

    def figure(self, values: Sequence[int]) -> float:
        """Give what stands for samples, of which there must be one."""
        return statistics.median(values) if self.is_time else min(values)


TIME = Unit(hit="dispatch_hit_ns", miss="dispatch_miss_ns")
INSTRUCTIONS = Unit(
    "instructions",
    is_time=False,
    steady="instruction_count",
    miss="instruction_count_miss",
    compile="compile_time_instruction_count",
    least=1,
)
UNITS = [INSTRUCTIONS, TIME]  # those of registered samplers follow
