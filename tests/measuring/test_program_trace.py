"""Modules and phases as spans, in a program that notices nothing."""

from __future__ import annotations

import importlib
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.core.spans import TraceSpan, label
from pytest_dtdispatch.measuring.program_trace import ProgramTrace

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RECORD = torch.autograd.profiler.record_function


class Block(torch.nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.breaks:
            importlib.import_module("torch._dynamo").graph_break()
        return torch.relu(y)


class Net(torch.nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.second = Block(breaks), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.second, self.first(x), use_reentrant=False)
        assert isinstance(y, torch.Tensor)
        return y.sum()


def training(net: torch.nn.Module, **options: Any) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, **options)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 8))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return torch.as_tensor(loss.detach())

    return step


def traced(step: Callable[[], object]) -> list[str]:
    with ProgramTrace() as trace:
        step()
    return shown(trace.spans)


def shown(spans: list[TraceSpan]) -> list[str]:
    return [label(span.kind, span.name) for span in sorted(spans, key=lambda span: span.when.begin_ns)]


FORWARD = [
    *("module Net", "module first", "module first.linear", "module second", "module second.linear"),
]
TRAINED = [
    "phase optimizer",  # zero_grad
    *FORWARD,
    *("phase backward", "module second", "module second.linear"),  # the checkpoint runs anew
    "phase clipping",
    "phase optimizer",
]


def hooked() -> tuple[object, ...]:
    """What is replaced while a trace is open."""
    engine = vars(torch.autograd.graph)["_engine_run_backward"]
    blocks = [vars(block)[name] for block in (torch.no_grad, RECORD) for name in ("__enter__", "__exit__")]
    return (torch.nn.Module.__call__, engine, *blocks)


def test_modules_and_phases_of_a_training_step_are_spans() -> None:
    step, before = training(Net()), hooked()
    assert traced(step) == TRAINED
    assert hooked() == before
    assert traced(step) == TRAINED


def test_spans_tell_the_class_of_a_module_and_the_call_of_an_optimizer() -> None:
    with ProgramTrace() as trace:
        training(Net())()
    arguments = {span.name: dict(span.arguments) for span in trace.spans}
    assert arguments["first.linear"] == {"class": "Linear"}
    assert arguments["optimizer"] == {"call": "AdamW.step"}
    assert arguments["backward"] == {}


def test_a_program_computes_the_same_bit_for_bit() -> None:
    def run(is_traced: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        step = training(Net())
        if not is_traced:
            return [step() for _ in range(3)]
        with ProgramTrace():
            return [step() for _ in range(3)]

    assert all(map(torch.equal, run(True), run(False)))


def test_an_exception_goes_through_and_ends_every_span() -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no such op")

    before = hooked()
    trace = ProgramTrace()
    with pytest.raises(ValueError, match="no such op") as raised, trace:
        torch.nn.Sequential(Failing())(torch.ones(2))
    assert shown(trace.spans) == ["module Sequential", "module 0"]
    assert hooked() == before
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    ours = [frame for frame in frames if "pytest_dtdispatch" in frame.f_code.co_filename]
    assert all("__tracebackhide__" in frame.f_locals for frame in ours)


def test_each_thread_has_spans_of_its_own() -> None:
    net = Net()
    with ProgramTrace() as trace:
        thread = threading.Thread(target=net, args=(torch.ones(2, 8),))
        thread.start()
        thread.join()
        net.first(torch.ones(2, 8))
    elsewhere = [span for span in trace.spans if span.when.thread != threading.get_ident()]
    assert shown(elsewhere) == FORWARD
    assert len(trace.spans) == len(FORWARD) + 2


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # some versions of torch, always
def test_ranges_of_the_same_names_are_in_a_profiler_that_runs() -> None:
    step = training(Net())
    with torch.profiler.profile() as profiler, ProgramTrace() as trace:
        step()
    names = shown(trace.spans)
    ranges = [event.name for event in profiler.events() if event.name in names]
    assert sorted(ranges) == sorted(names)


@pytest.mark.filterwarnings("ignore")  # torch's own, as it compiles
class TestCompiledCode:
    """Whether it was compiled before, or is compiled while a trace is open, or both in turns."""

    @pytest.fixture(params=[False, True], ids=["whole", "with a graph break"])
    def programs(self, request: pytest.FixtureRequest) -> Any:
        dynamo = importlib.import_module("torch._dynamo")
        dynamo.reset()
        self.compiled()

        def run() -> None:
            for program in (module, function, clipping, training_step):
                program()

        net = Net(request.param)
        compiled, x = torch.compile(net, backend="aot_eager"), torch.ones(2, 8)
        inner = torch.compile(lambda: net(x) * 2, backend="aot_eager")
        clip = torch.compile(
            lambda: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0), backend="aot_eager"
        )

        def module() -> None:
            compiled(x).backward()

        def function() -> None:
            inner().backward()

        def clipping() -> None:
            clip()

        training_step = torch.compile(training(net, foreach=False), backend="aot_eager")
        yield run
        dynamo.reset()

    def compiled(self) -> list[str]:
        """Name the functions that torch compiled since the last look."""
        utils = importlib.import_module("torch._dynamo.utils")
        metrics = utils.get_compilation_metrics()
        utils.clear_compilation_metrics()
        return [one.co_name for one in metrics]

    def test_it_stays_compiled(self, programs: Callable[[], None]) -> None:
        programs()
        programs()
        assert self.compiled()
        with ProgramTrace() as trace:
            programs()
        programs()
        assert self.compiled() == []
        assert "module Net" in shown(trace.spans)

    def test_it_is_compiled_in_a_trace_as_outside_and_used_after_it(
        self, programs: Callable[[], None]
    ) -> None:
        programs()
        programs()
        outside = self.compiled()
        importlib.import_module("torch._dynamo").reset()
        with ProgramTrace():
            programs()
            programs()
        assert self.compiled() == outside
        programs()
        assert self.compiled() == []
