"""Functions that the instructions of a call went to, those with most of them first."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dtdispatch.core.profiles import Profile, Share
from pytest_dtdispatch.report.document import Listing

MACHINE = "machine code, without what it calls"
PYTHON = "Python, with the machine code that it calls"


def profile_listings(profile: Profile) -> tuple[Listing, Listing]:
    """List functions of machine code, and those of Python."""
    return (
        _listing(MACHINE, profile.machine, profile.machine_total),
        _listing(PYTHON, profile.python, profile.python_total),
    )


def _listing(kind: str, shares: Sequence[Share], total: int) -> Listing:
    entries = [(f"{total:,}", "100.0 %", kind)]
    for share in shares:
        percent = f"{100 * share.instructions / total:.1f} %"
        entries.append((f"{share.instructions:,}", percent, share.function))
    return Listing(("instructions", "part", "function"), tuple(entries))
