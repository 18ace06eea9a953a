"""Transfer of test records from pytest-xdist workers to the process that started them.

A record is an attribute of the report of its test's teardown, because workers send reports.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import GenericAlias

from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.plugin.kinds import KINDS

RECORD = "dtdispatch_record"  # on a report
SELECTED, PROBLEMS = "dtdispatch_selected", "dtdispatch_problems"  # in the output of a worker


def encode_record(record: TestRecord) -> str:
    """Encode a record.

    Raises:
        MeasurementError: its results cannot be decoded, or their kind has no type.
    """
    untyped = [kind for kind in record.results if KINDS[kind].type is None]
    if untyped:
        why = f"results of the kind {untyped[0]!r} cannot leave a worker of pytest-xdist"
        raise MeasurementError(f"{why}: register the kind with the type= of its results")
    try:
        text = json.dumps(encode(record))
        decode_record(text)
    except (ValueError, TypeError) as error:
        raise MeasurementError(f"results cannot leave a worker of pytest-xdist: {shown(error)}") from None
    return text


def decode_record(text: str) -> TestRecord:
    """Decode a record, with results by the types of their kinds."""
    plain = json.loads(text)
    of_kinds = plain.pop("results", {})
    record: TestRecord = decode(TestRecord, plain)
    unknown = [kind for kind in of_kinds if kind not in KINDS]
    if unknown:
        why = f"the kind {unknown[0]!r} is registered in workers only: register it in conftest.py"
        record = replace(record, unmeasured=why)
    results = {
        kind: decode(GenericAlias(tuple, (KINDS[kind].type, ...)), of_kind)
        for kind, of_kind in of_kinds.items()
        if kind in KINDS
    }
    return replace(record, results=results)
