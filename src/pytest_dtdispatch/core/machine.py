"""What this machine is."""

from __future__ import annotations

import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """Name the CPU, as far as this system does."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
