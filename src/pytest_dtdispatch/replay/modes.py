"""Base of the dispatch modes of this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.torchapi.ops import TorchDispatchMode, close_modes_opened_since, open_modes

if TYPE_CHECKING:
    from typing_extensions import Self

__tracebackhide__ = True  # a failing test shows its own line


class UnnoticedMode(TorchDispatchMode):
    """Base of this plugin's dispatch modes: compiled code stays compiled, and higher-order operators run.

    If a signal arrives while a mode is opened or closed, the mode is closed.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outer: list[Any] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: compiled code stays compiled under an infra mode."""
        return True

    def __enter__(self) -> Self:
        self._outer = open_modes()
        try:
            with Signals():
                self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            with Signals():
                left_open = self._close()
        except BaseException:  # a signal may arrive before they are deferred
            self._close()
            raise
        self._closed(left_open, exception[0] is not None)

    def _open(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]

    def _closed(self, left_open: list[str], has_raised: bool) -> None:
        """Handle the names of modes that were opened inside and left open."""

    def _close(self) -> list[str]:
        """Close modes that were opened inside and left open, then this one; return names of the former."""
        if not any(mode is self for mode in open_modes()):
            return []
        left_open = close_modes_opened_since([*self._outer, self])
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return left_open
