"""The programs in these folders are run by tests that use tests/case_runs.py, in copies."""

from __future__ import annotations

collect_ignore_glob = ["*/*.py"]
