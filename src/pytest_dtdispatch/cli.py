"""The ``dtdispatch`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; this version has no subcommand yet, and says so.

    Args:
        arguments: the words of the command line, without the program's name.

    Returns:
        The exit status: 2, for a command line that cannot be obeyed.
    """
    del arguments
    print(
        "dtdispatch: this version has no subcommands yet; measure with: pytest --dtdispatch", file=sys.stderr
    )
    return 2
