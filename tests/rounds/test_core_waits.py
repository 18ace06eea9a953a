"""Time that a thread waits for a core, as counted by the scheduler."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pytest_dtdispatch.rounds.core_waits import core_waits


def test_second_field_is_read_on_every_call(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("900 40 7\n")
    with core_waits(str(file)) as waits:
        assert (waits.is_counted, waits.read(), waits.counted()) == (True, 40, 40)
        file.write_text("901 5040 8\n")
        assert waits.counted() == 5040


@pytest.mark.parametrize("content", ["0 0 0\n", "", None])
def test_uncounted_waits_are_absent(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "schedstat"
    if content is not None:
        file.write_text(content)
    with core_waits(str(file)) as waits:
        off_core_ns = waits.read()
        time.sleep(0.02)
        assert waits.read() - off_core_ns > 10_000_000
        assert (waits.is_counted, waits.counted()) == (False, 0)
        assert abs(waits.clock() - time.perf_counter_ns()) < 10**9


def test_each_thread_reads_its_own_waits() -> None:
    found = []

    def run() -> None:
        with core_waits() as waits:
            found.append((waits.is_counted, waits.counted()))

    with core_waits() as waits:
        if not waits.is_counted:
            pytest.skip("this system does not count waits for a core")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    [(is_counted, waited_ns)] = found
    assert is_counted
    assert waited_ns >= 0


def test_clock_stops_while_its_thread_waits() -> None:
    """Wall time minus waits is CPU time if the thread does not sleep."""
    with core_waits() as waits:
        if not waits.is_counted:
            pytest.skip("this system does not count waits for a core")
        began_ns, cpu_ns = waits.clock(), time.thread_time_ns()
        end = cpu_ns + 30_000_000
        while (now := time.thread_time_ns()) < end:
            continue
        assert waits.clock() - began_ns == pytest.approx(now - cpu_ns, rel=0.2)
