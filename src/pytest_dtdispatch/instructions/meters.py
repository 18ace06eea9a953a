"""Meters of instructions: callgrind, if the process runs under it, or the processor's counter.

Under callgrind, a call can also be profiled by Python function.

Run as a module, it prints why the processor's counter cannot be used. A separate process hides the message
that torch prints to standard error if there is no counter.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_dtdispatch.core.measurement import FunctionShare, Profile
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.instruction_sampler import check
from pytest_dtdispatch.rounds.sampler import Meter


def why_no_requests() -> str:
    """Return why this machine cannot send client requests; empty if it can."""
    system, machine = sys.platform, platform.machine()
    if (system, machine) == ("linux", "x86_64"):
        return ""
    return f"callgrind is supported only on Linux on x86-64, not {system} on {machine}"


class ClientRequests:
    """Client requests of a process to valgrind: instructions that are a no-op without it.

    valgrind provides them as C macros. Here they are written to memory and called, without a compiler and
    without root. Source: ``valgrind.h`` and ``callgrind.h``, "client requests".

    Example:
        >>> ClientRequests().prepared((0x1001,))()  # RUNNING_ON_VALGRIND
        0
    """

    def __init__(self) -> None:
        reason = why_no_requests()
        if reason:
            raise MeterError(reason)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._alive: list[object] = []

    def prepared(self, *requests: tuple[int, ...]) -> Callable[[], Any]:
        """Write requests, each a number and its arguments; return a function that sends all of them."""
        blocks = [(ctypes.c_uint64 * 6)(*request) for request in requests]
        self._alive.append(blocks)
        address = self._start + self._memory.tell()
        self._memory.write(_code(map(ctypes.addressof, blocks)))
        request = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
        request.keeps = self  # type: ignore[attr-defined]  # keep its memory alive
        return request

    def text(self, text: str) -> int:
        """Store a string, and return its address."""
        buffer = ctypes.create_string_buffer(text.encode())
        self._alive.append(buffer)
        return ctypes.addressof(buffer)


def _code(blocks: Iterable[int]) -> bytes:
    """Return x86-64 code that sends the requests in blocks of six numbers, and returns the last result."""
    requests = b"".join(
        b"\x48\xb8"
        + block.to_bytes(8, "little")  # mov rax, block
        + b"\x31\xd2"  # xor edx, edx: the result without valgrind
        + b"\x48\xc1\xc7\x03\x48\xc1\xc7\x0d"  # rol rdi, 3; rol rdi, 13
        + b"\x48\xc1\xc7\x3d\x48\xc1\xc7\x33"  # rol rdi, 61; rol rdi, 51: 128 in all
        + b"\x48\x87\xdb"  # xchg rbx, rbx: valgrind reads rax here, and writes its result to rdx
        for block in blocks
    )
    return requests + b"\x48\x89\xd0\xc3"  # mov rax, rdx; ret


LOG = "valgrind.log"
EVENTS = re.compile(rb"events-\d+: *(\d+)")  # one per thread; the literal prefix makes the search fast


class Callgrind:
    """Callgrind, which runs this process. The constructor switches instrumentation on.

    Each method lookup toggles the collection, so that between two counts only lookups are collected. A count
    begins with zeroing, and ends with one request.

    Attributes:
        meter: meter of instructions of this process.
        zero: request to zero the count.
        toggle: request to toggle the collection.
        stop: request to switch instrumentation off: later code is not counted, and runs faster.
    """

    def __init__(self, folder: Path) -> None:
        requests = ClientRequests()
        if not requests.prepared((0x1001,))():  # RUNNING_ON_VALGRIND
            raise MeterError("this process does not run under valgrind")
        # Requests of callgrind have 'C' and 'T' in the upper bytes.
        zero, toggle, start, stop = (0x43540001,), (0x43540002,), (0x43540004,), (0x43540005,)
        requests.prepared(start)()
        self._log = (folder / LOG).open("rb")
        status = (0x1202, requests.text("status internal"))  # MONITOR_COMMAND
        self._request_total = requests.prepared(status)
        self._end_and_request_total = requests.prepared(toggle, status)
        self.zero, self.toggle, self.stop = map(requests.prepared, (zero, toggle, stop))
        begin = requests.prepared(zero, toggle)
        self.meter = Meter(begin, self._end)  # a Python function as begin would be counted
        check(self.meter, "callgrind")

    def total(self) -> int:
        """Return the number of instructions since the last zeroing."""
        self._request_total()
        return self._read_total()

    def _end(self) -> int:
        self._end_and_request_total()
        return self._read_total()

    def _read_total(self) -> int:
        output = self._log.read()
        found = EVENTS.findall(output)
        if not found:
            raise MeterError(f"callgrind reported no count: {output[:80]!r}")
        return sum(map(int, found))


def command(valgrind: str, folder: Path) -> list[str]:
    """Return the prefix of a command line that runs it under callgrind, with counting switched off."""
    # CPython's method lookup in the classes of a type is excluded from all counts: its cost depends on
    # addresses. Do not add a function that it calls: that would switch the collection on again.
    lookup = "_PyType_LookupRef" if hasattr(ctypes.pythonapi, "_PyType_LookupRef") else "_PyType_Lookup"
    return [
        valgrind,
        "--tool=callgrind",
        "--instr-atstart=no",  # 11 s for `import torch`, instead of 40 s
        "--collect-atstart=no",
        f"--toggle-collect={lookup}",
        f"--callgrind-out-file={folder / 'callgrind.out'}",
        f"--log-file={folder / LOG}",
    ]


def hardware_meter(counter: Any = None) -> Meter:
    """Return a meter of instructions of this thread that uses the processor's counter.

    Raises:
        MeterError: there is no counter, or its readings are implausible.
    """
    from pytest_dtdispatch.torchapi.missing_api import instruction_counter

    counter = counter or instruction_counter()
    if counter is None:
        raise MeterError("this torch has no access to the hardware counter")
    running = [0]

    def begin() -> int:
        running[0] = counter.start()
        return 0

    def end() -> int:
        return int(counter.end(running[0]))

    meter = Meter(begin, end)
    check(meter, "the hardware counter")
    return meter


class CallProfiler:
    """Profiler of calls under callgrind."""

    def __init__(self, callgrind: Callgrind) -> None:
        self._callgrind = callgrind
        self._cost_of_event = 0

        def call_nothing() -> None:
            for _ in range(100):
                _nothing()

        costs = self._by_function(call_nothing)
        self._cost_of_event = costs[_code_name(_nothing.__code__)] // 100

    def __call__(
        self, fn: Callable[..., Any], prepare: Callable[[], tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> Profile:
        """Repeat a call, and return the functions with most instructions."""
        costs = self._by_function(partial(fn, *prepare(), **kwargs))  # adds no Python function
        return Profile(largest(costs), sum(costs.values()))

    def _by_function(self, call: Callable[[], Any]) -> Counter[str]:
        """Return instructions by function, read at each entry and exit without the cost of reading."""
        toggle, total, zero = self._callgrind.toggle, self._callgrind.total, self._callgrind.zero
        costs: Counter[str] = Counter()
        stack = ["the called function"]

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            toggle()
            costs[stack[-1]] -= self._cost_of_event
            if event in ("call", "return"):
                costs[stack[-1]] += total()
                if event == "call":
                    stack.append(_code_name(frame.f_code))
                elif len(stack) > 1:
                    stack.pop()
                zero()
            toggle()

        outer = sys.getprofile()
        sys.setprofile(on_event)
        try:
            zero()
            toggle()
            result = call()
            toggle()
        finally:
            sys.setprofile(outer)
        del result
        return costs


def _nothing() -> object:
    return None


def _code_name(code: CodeType) -> str:
    path = Path(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)  # includes the class in Python 3.11 and later
    return f"{name} ({'/'.join(path.parts[-2:])}:{code.co_firstlineno})"


def largest(costs: Mapping[str, int]) -> tuple[FunctionShare, ...]:
    """Return the 20 functions with most instructions, in descending order."""
    shares = [FunctionShare(function, count) for function, count in costs.items() if count > 0]
    shares.sort(key=lambda share: (-share.instructions, share.function))
    return tuple(shares[:20])


if __name__ == "__main__":
    try:
        hardware_meter()
    except MeterError as error:
        print(error)
