"""What ran while a profiler did, as plain data. Without torch."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """Something that ran.

    Args:
        name: of an op, ``aten::mm``, of a node of autograd, or of a range.
        begin_ns: when it began.
        end_ns: when it ended.
        sequence: number of the node of autograd that an op made, or that ran; negative where there is none.
        is_range: whether a program named it, as ``record_function`` does, and it is no op.
    """

    name: str
    begin_ns: int
    end_ns: int
    sequence: int = -1
    is_range: bool = False

    def renamed(self, name: str) -> Event:
        """Give it another name."""
        return self._replace(name=name)

    def ending(self, end_ns: int) -> Event:
        """Give it another end."""
        return self._replace(end_ns=end_ns)
