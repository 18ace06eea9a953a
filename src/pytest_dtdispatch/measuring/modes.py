"""What our dispatch modes have in common: a program does not notice that one is open."""

from __future__ import annotations

from pytest_dtdispatch.torchapi import names as torchapi


class UnnoticedMode(torchapi.TorchDispatchMode):
    """A dispatch mode under which compiled code stays compiled and higher-order operators run."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Leave compiled code compiled."""
        return True
