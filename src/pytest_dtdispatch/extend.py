"""Public interface of extensions: kinds of results, samplers, units, documents and judgements of counts.

Example:
    >>> from pytest_dtdispatch.extend import Unit
    >>> Unit(hit="thread_cpu_hit_ns", miss="thread_cpu_miss_ns").is_time
    True
"""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Unit
from pytest_dtdispatch.core.verdicts import judge_count
from pytest_dtdispatch.plugin.kinds import register_kind
from pytest_dtdispatch.report.document import Document, Kind, one_line, paragraph
from pytest_dtdispatch.rounds.sampler import Sampler, register_sampler

__all__ = [
    "Document",
    "Kind",
    "Sampler",
    "Unit",
    "judge_count",
    "one_line",
    "paragraph",
    "register_kind",
    "register_sampler",
]
