"""Atlases of several versions as one JSON: a file of its own, and what the page of them is drawn from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_dtdispatch.atlas.atlas_file import AtlasEntry
from pytest_dtdispatch.atlas.changes import AtlasComparison, Change, ChangeKind, VersionPair
from pytest_dtdispatch.atlas.joining import JoinedRow, Version
from pytest_dtdispatch.atlas.model import Outcome
from pytest_dtdispatch.atlas.op_kinds import kind_of
from pytest_dtdispatch.core.forms import ATLASES_FORMAT

VERSION = 1  # of the format
NOT_TRIED = "not tried"  # the op has a rule there, and its atlas no such signature


def versions_text(compared: AtlasComparison) -> str:
    """Write versions side by side, a row a line; what a row leaves out is empty, zero, or measured.

    Each row has ``on``, one entry for each version: null where the op has no rule, else outcome, message and
    counts where they are not those of most rows, and the lowest medians ``miss_ns`` and ``hit_ns`` with their
    ``spread`` over the visits; and ``changes``, each with the place of the newer version.
    """
    changes: dict[JoinedRow, list[list[Any]]] = defaultdict(list)
    for both in compared.neighbours:
        for change in both.changes:
            changes[change.row].append(_change(both.place, change))
    head = {
        "format": ATLASES_FORMAT,
        "version": VERSION,
        "outcomes": [*Outcome, NOT_TRIED],
        "change_kinds": list(ChangeKind),
        "versions": [_version(version) for version in compared.versions],
        "neighbours": [_neighbours(both) for both in compared.neighbours],
    }
    rows = [_packed(_row(row, compared.versions, changes[row])) for row in compared.rows]
    start = json.dumps(head, indent=1).removesuffix("\n}")
    return start + ',\n "rows": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def _packed(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _neighbours(both: VersionPair) -> dict[str, Any]:
    control = _rounded(both.control or 0)
    return {"newer": both.place, "plain_tensors": control, "why_no_times": both.why_no_times}


def _version(version: Version) -> dict[str, Any]:
    record = version.record
    return {
        "heading": version.heading,
        "torch": record.environment.torch_version,
        "build": record.environment.torch_build,
        "caches": record.environment.cache_interface,
        "threads": record.environment.threads,
        "python": record.python,
        "cpu": record.cpu,
        "cores": record.cores,
        "date": record.date,
        "load": record.load,
    }


def _change(place: int, change: Change) -> list[Any]:
    return [place, change.kind, *([_rounded(change.factor)] if change.factor else [])]


def _row(row: JoinedRow, versions: Sequence[Version], changes: Sequence[Any]) -> dict[str, Any]:
    signature = row.signature
    on = [
        dict(_cell(entry, signature)) if entry else {"outcome": NOT_TRIED} if row.op in version.ops else None
        for entry, version in zip(row.entries, versions, strict=True)
    ]
    known = {"op": row.op, "kind": kind_of(row.op), "mesh": row.mesh, "signature": signature, "on": on}
    return {**known, "changes": changes} if changes else known


def _cell(entry: AtlasEntry, signature: str) -> Iterator[tuple[str, Any]]:
    """Give what a row has on one version, as far as it is not empty, zero or measured."""
    if entry.outcome is not Outcome.MEASURED:
        yield "outcome", entry.outcome
    for name, ns in (("miss", entry.miss_ns), ("hit", entry.steady_ns)):
        if ns:
            yield f"{name}_ns", round(_rounded(min(ns), 4))
            if len(ns) > 1:
                yield f"{name}_spread", _rounded(max(ns) / min(ns))
    if entry.propagations is not None and entry.propagations != 1:
        yield "propagations", entry.propagations
    texts = {"moves": entry.moves, "collectives": entry.collectives, "message": entry.message}
    yield from ((name, value) for name, value in texts.items() if value)
    if entry.why_no_hit:
        yield "why_no_hit", entry.why_no_hit
    if entry.signature != signature:
        yield "signature", entry.signature


def _rounded(number: float, digits: int = 3) -> float:
    """Round to as many digits as these numbers hold."""
    return float(f"{number:.{digits}g}")
