"""All entries, by rule."""

from __future__ import annotations

from tests.advice.twins import fsdp, modules, others, plans, redistributions, uses
from tests.advice.twins.model import Entry, Lookalike, Twin

TABLE: tuple[Entry, ...] = (
    *fsdp.TABLE,
    *redistributions.TABLE,
    *others.TABLE,
    *plans.TABLE,
    *modules.TABLE,
    *uses.TABLE,
)
TWINS = [entry for entry in TABLE if isinstance(entry, Twin)]
LOOKALIKES = [entry for entry in TABLE if isinstance(entry, Lookalike)]
