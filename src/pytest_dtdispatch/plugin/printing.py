"""Lines of ours on the terminal that pytest writes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_dtdispatch.report.paragraph_lines import Text
from pytest_dtdispatch.report.screen import encodable


def print_lines(terminalreporter: Any, lines: Iterable[tuple[Text, ...]]) -> None:
    """Print lines in their colours."""
    encoding = getattr(terminalreporter._tw._file, "encoding", None)
    for line in lines:
        for piece in line:
            terminalreporter.write(
                encodable(piece.text, encoding), **({piece.color: True} if piece.color else {})
            )
        terminalreporter.write("\n")
