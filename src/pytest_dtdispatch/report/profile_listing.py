"""Functions that the instructions of a call went to, those with most of them first."""

from __future__ import annotations

from pytest_dtdispatch.core.profiles import Profile
from pytest_dtdispatch.report.document import Listing

WHOLE = "Python, with the machine code that it calls"


def profile_listing(profile: Profile) -> Listing:
    """List the functions of a profile, below the whole."""
    entries = [(f"{profile.total:,}", "100.0 %", WHOLE)]
    for share in profile.functions:
        percent = f"{100 * share.instructions / profile.total:.1f} %"
        entries.append((f"{share.instructions:,}", percent, share.function))
    return Listing(("instructions", "part", "function"), tuple(entries))
