"""Ask the valgrind that runs this process for something, without a compiler and without root.

A program asks by a sequence of instructions that does nothing elsewhere. C macros hold it; here it is
written into memory and called. Source: ``valgrind.h`` and ``callgrind.h``, "client requests".
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable

from pytest_dtdispatch.errors import MeterError

RUNNING_ON_VALGRIND = 0x1001
MONITOR_COMMAND = 0x1202
TOGGLE_COLLECT = 0x43540002  # 'C' and 'T' in the upper bytes: callgrind's own
DUMP_STATS_AT = 0x43540003
START_INSTRUMENTATION = 0x43540004

Request = Callable[[], int]


def why_no_requests() -> str:
    """Say why this machine cannot make requests; empty where it can."""
    here = f"{sys.platform} on {platform.machine()}"
    return "" if here == "linux on x86_64" else f"callgrind can be asked on Linux on x86-64 alone, not {here}"


class ClientRequests:
    """Requests of a process to its valgrind.

    Example:
        >>> ClientRequests().prepared(RUNNING_ON_VALGRIND)()
        0
    """

    def __init__(self) -> None:
        if why_not := why_no_requests():
            raise MeterError(why_not)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._kept: list[object] = []

    def prepared(self, number: int, *arguments: int) -> Request:
        """Write a request; to call what is returned makes it, in next to no instructions."""
        block = (ctypes.c_uint64 * 6)(number, *arguments)
        self._kept.append(block)
        address = self._start + self._memory.tell()
        self._memory.write(_code(ctypes.addressof(block)))
        request = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
        request.keeps = self  # type: ignore[attr-defined]  # the memory that it runs in
        return request

    def text(self, text: str) -> int:
        """Keep a text, and return its address."""
        kept = ctypes.create_string_buffer(text.encode())
        self._kept.append(kept)
        return ctypes.addressof(kept)


def _code(block: int) -> bytes:
    """Instructions of x86-64 that make the request in a block of six numbers, and return the answer."""
    return b"".join(
        (
            b"\x48\xb8" + block.to_bytes(8, "little"),  # mov rax, block
            b"\x31\xd2",  # xor edx, edx: the answer where no valgrind runs
            b"\x48\xc1\xc7\x03\x48\xc1\xc7\x0d",  # rol rdi, 3; rol rdi, 13
            b"\x48\xc1\xc7\x3d\x48\xc1\xc7\x33",  # rol rdi, 61; rol rdi, 51: 128 in all
            b"\x48\x87\xdb",  # xchg rbx, rbx: here valgrind looks at rax, and answers in rdx
            b"\x48\x89\xd0\xc3",  # mov rax, rdx; ret
        )
    )
