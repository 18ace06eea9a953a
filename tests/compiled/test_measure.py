"""Measured torch.compile: counts, cold and warm compiles, and side effects on the program."""

from __future__ import annotations

import importlib
import itertools
import logging
import math
import os
import re
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.tensor import Shard

from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledFunction
from pytest_dtdispatch.compiled.table import judge
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.sampler import Meter, WallClock
from pytest_dtdispatch.stats.rank_sums import shift_interval
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import dynamic_compile_error

if TYPE_CHECKING:
    from tests.conftest import Shard as Make

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("reset_compilers", "young_heap")]

COMPILE, CALL, EAGER = 1_000_000, 50, 7


class Compiler:
    """A backend of torch.compile with a clock that compiles and calls advance."""

    def __init__(self, counter: str = "") -> None:
        self.now = 0
        self.graphs = 0
        self.folders: list[tuple[str, bool]] = []
        self._counter = counter

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.now += COMPILE
        self.graphs += 1
        self.folders.append(
            (os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), torch._inductor.config.force_disable_caches)
        )
        if self._counter:
            torch._dynamo.utils.counters["inductor"][self._counter] += 1
        return lambda *args: self.call(graph, *args)

    def call(self, graph: Any, *args: Any) -> Any:
        self.now += CALL
        return graph(*args)

    def double(self, x: Any) -> Any:
        if not torch.compiler.is_compiling():
            self.now += EAGER
        return x + x


def measure(fn: Callable[..., Any], *args: Any, plan: dict[str, Any] | None = None, **how: Any) -> Compiled:
    compilation = Compilation(fn, args, **{"backend": "aot_eager", **how})
    planned = Plan(**{"rounds": 1, "repeat": 2, **(plan or {})})
    return run_and_measure_compile(compilation, "f", ShardingCaches(), planned)


def double(x: Any) -> Any:
    return x + x


def measured(fn: Callable[..., Any], *args: Any, **how: Any) -> CompiledFunction:
    function = measure(fn, *args, **how).function
    assert function
    return function


# Figures and counts


@pytest.mark.parametrize("is_counted", [False, True])
def test_each_state_has_its_figure(is_counted: bool) -> None:
    compiler = Compiler()

    def read() -> int:
        return compiler.now

    counter = InstructionSampler(lambda: (Meter(read, read), None))
    counter.start()
    plan: Any = {"rounds": 2, "repeat": 3, "sampler": counter if is_counted else WallClock(read)}
    measurement = measured(compiler.double, torch.ones(3), backend=compiler, plan=plan).measurement
    expected = {
        State.COMPILE_COLD: (COMPILE + CALL,) * 2,
        State.COMPILE_WARM: (COMPILE + CALL,) * 2,
        State.CALL: (CALL,) * 6,
        State.EAGER: (EAGER,) * 6,
    }
    if is_counted:  # a warm compile has the same count
        del expected[State.COMPILE_WARM]
    assert {samples.state: samples.values for samples in measurement.figures.samples} == expected
    assert (measurement.proof, measurement.figures.rounds) == ("proved", 2)


def test_counts_are_those_of_one_compile(shard: Make) -> None:
    a = shard(8, 8)
    doubled: Any = a + a
    compiled = measure(double, a, plan={"rounds": 2})
    assert compiled.function
    counts, measurement = compiled.function.counts, compiled.function.measurement
    assert (measurement.proof, measurement.mesh) == ("proved", "4")
    assert (counts.graphs, counts.graph_breaks, counts.recompiles) == (1, (), ())
    assert all((counts.guards, counts.propagations, counts.fake_tensor_misses))
    assert torch.equal(compiled.result.to_local(), doubled.to_local())
    assert torch.equal(compiled.result.to_local(), compiled.eager_result.to_local())


def test_propagation_that_queries_no_cache_is_counted(shard: Make) -> None:
    if missing := dynamic_compile_error(shard(8, 8)):
        pytest.skip(missing)
    assert measured(double, shard(8, 8), dynamic=True).counts.propagations


def test_graph_breaks_have_reasons_and_source_lines() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        x = x * 2
        torch._dynamo.graph_break()
        return x - 1

    compiled = measure(broken, torch.ones(3), backend="eager", fullgraph=False)
    first = broken.__code__.co_firstlineno
    assert compiled.function
    breaks = compiled.function.counts.graph_breaks or ()
    for graph_break, line in zip(breaks, (first + 2, first + 4), strict=True):
        assert re.match(rf"{re.escape(__file__)}:{line}: .*graph_break", graph_break)
    assert (compiled.graphs, compiled.graph_breaks) == (3, 2)
    assert torch.equal(compiled.result, broken(torch.ones(3)))


def test_recompile_by_placement_is_counted_once(shard: Make) -> None:
    rows, columns = shard(8, 8), shard(8, 8, placement=Shard(1))
    compiled = measure(double, rows, others=[(columns,), (rows,), (columns,)])
    assert compiled.function
    [again] = compiled.function.counts.recompiles or ()
    assert again.startswith(f"double ({__file__}:{double.__code__.co_firstlineno}): ")
    assert re.search("dtensor_spec|check_metadata", again) or again.endswith("this torch does not report why")
    assert compiled.graphs == 1  # that of the first call
    assert [result.placements[0].dim for result in compiled.results] == [0, 1, 0, 1]
    for one, other in zip(compiled.results, compiled.eager_results, strict=True):
        assert torch.equal(one.to_local(), other.to_local())


def test_recompiling_calls_are_not_steady() -> None:
    calls = itertools.count()  # ten of each size
    how: Any = {"dynamic": False, "setup": lambda: (torch.ones(2 + next(calls) // 10),), "fullgraph": False}
    function = measured(double, backend="eager", plan={"repeat": 20}, **how)
    recompiles = function.counts.recompiles
    assert recompiles
    assert function.measurement.proof == "something was compiled (2x)"
    assert all(
        "size mismatch" in again or again.endswith("this torch does not report why") for again in recompiles
    )


def test_uncompiled_function_has_only_eager_rows() -> None:
    hidden = torch.compiler.disable(double)
    run = lambda x: hidden(x)  # noqa: E731
    measurement = measured(run, torch.ones(3), backend="eager", fullgraph=False).measurement
    assert [samples.state for samples in measurement.recorded()] == [State.EAGER]
    reason = "no graph was compiled"
    assert measurement.proof == f"{reason} (2x), {reason} (1x), {reason} (1x)"


def changing() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that torch recompiles in each call."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * scale.number  # type: ignore[attr-defined,no-any-return]

    def call(x: torch.Tensor) -> torch.Tensor:
        scale.number += 1  # type: ignore[attr-defined]
        return scale(x)

    scale.number = 0  # type: ignore[attr-defined]
    return call


def broken_backend(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no code for this graph")


SIZES = [(torch.ones(number),) for number in range(2, 8)]


@pytest.mark.parametrize(
    ("fn", "others", "backend", "reason"),
    [
        (changing(), [], "eager", "recompile limit"),
        (double, SIZES, "eager", "recompile limit"),
        (double, [], broken_backend, "no code for this graph"),
    ],
    ids=["calls", "others", "suppressed"],
)
def test_calls_of_an_abandoned_function_have_no_figure(
    fn: Any, others: Any, backend: Any, reason: str
) -> None:
    how: Any = {"others": others, "backend": backend, "dynamic": False, "fullgraph": False}
    config = importlib.import_module("torch._dynamo.config")
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: 3, "suppress_errors": backend is broken_backend}):
        function = measured(fn, torch.ones(8), **how)
    assert function.gave_up
    assert function.measurement.figure(State.CALL) is None
    assert [*function.metrics()] == []
    [verdict] = judge(function, {"recompiles": 99})
    assert verdict.verdict is Verdict.DISABLED


def test_call_is_undecided_if_profiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("another is prepared")

    monkeypatch.setattr(torch.autograd.profiler, "_prepare_profiler", refuse)
    calls: list[int] = []
    assert not compilerapi.runs_uncompiled(lambda: calls.append(1))
    assert calls == [1]


def test_foreign_log_handlers_receive_no_measured_compiles() -> None:
    log, records = logging.getLogger("torch.__trace"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    log.addHandler(handler)
    try:
        measure(double, torch.ones(3), backend="eager")
        assert handler in log.handlers
    finally:
        log.removeHandler(handler)
    assert not records


# Cold and warm compiles


@pytest.mark.parametrize("is_on", [False, True])
def test_fake_tensor_cache_setting_is_respected(is_on: bool) -> None:
    with compilerapi.fake_tensor_cache(is_on):
        assert bool(measured(double, torch.ones(3)).counts.fake_tensor_misses) is is_on


def test_cache_folders_and_settings_are_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    compiler = Compiler()
    measure(double, torch.ones(3), backend=compiler, plan={"rounds": 2})
    (filled, _), (cold, is_off), (warm, is_off_when_warm), (colder, _), (warmer, _) = compiler.folders
    assert str(tmp_path) not in {filled, cold, warm, colder, warmer}
    assert filled == warm == warmer
    assert len({cold, colder, warm}) == 3
    assert (is_off, is_off_when_warm) == (True, False)
    assert not any(Path(folder).exists() for folder, _ in compiler.folders)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("counter", "entries", "proof", "note"),
    [
        ("fxgraph_cache_hit", 0, "a hit in a cache of compiled code (2x)", ""),  # correct for a warm compile
        ("fxgraph_cache_miss", 0, "proved", "1 lookups were misses"),
        ("", 0, "proved", "there was no lookup"),
        ("", 1, "a cache was not empty (2x)", "there was no lookup"),
    ],
)
def test_only_warm_compiles_hit_caches(
    monkeypatch: pytest.MonkeyPatch, counter: str, entries: int, proof: str, note: str
) -> None:
    """The backend sets torch's counters of cache lookups."""
    monkeypatch.setattr(ShardingCaches, "cold_entries", lambda caches: entries)
    measurement = measured(double, torch.ones(3), backend=Compiler(counter), plan={"rounds": 2}).measurement
    assert (measurement.of(State.COMPILE_COLD) is None) is (proof != "proved")
    assert measurement.proof == proof
    notes = (f"compile-warm: no hit in a cache of compiled code: {note}",) if note else ()
    assert measurement.figures.notes == notes


# Side effects on the program


def test_effects_are_those_of_one_call() -> None:
    total = torch.zeros(3)
    before = torch.get_rng_state()

    def add_noise(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return torch.rand(3)

    with warnings.catch_warnings():  # torch warns that caches are disabled
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="`torch.jit.script_method` is deprecated")
        compiled = measure(add_noise, torch.ones(3), backend="eager")
    assert torch.equal(total, torch.ones(3))
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    assert torch.equal(compiled.eager_result, torch.rand(3))
    assert torch.equal(after, torch.get_rng_state())
    assert torch.equal(compiled.result, compiled.eager_result)


def test_measured_code_is_not_reused_by_the_program() -> None:
    compiler = Compiler()
    measure(double, torch.ones(3), backend=compiler)
    ours = compiler.graphs
    compiled = torch.compile(double, backend=compiler)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert compiler.graphs == ours + 1


def test_eager_calls_of_a_compiled_function_have_a_note() -> None:
    compiled = torch.compile(double, backend="eager")

    def outer(x: Any) -> Any:
        return compiled(x) * 2

    functions = (double, outer, compiled)
    plain, *found = (measured(fn, torch.ones(3)).measurement.figures.notes for fn in functions)
    assert found == [(*plain, "eager: the function itself runs compiled code")] * 2


def test_unrepeatable_call_is_not_compiled() -> None:
    x = torch.ones(3)
    compiled = measure(lambda: x.resize_(5), backend="eager")
    assert compiled.function
    assert compiled.function.measurement.figures.samples == ()
    assert compiled.function.measurement.figures.notes[0].startswith("runs once")
    assert compiled.result is compiled.eager_result


# User errors


@pytest.mark.parametrize("how", [{"others": 3}, {"backend": 3}, {"dynamic": 3}])
def test_invalid_argument_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(MeasurementError, match=rf"compile\(\): {next(iter(how))}=3 is not "):
        measure(double, **how)


def test_missing_cpp_compiler_is_reported_before_running() -> None:
    ran: list[int] = []
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with (
        nowhere,
        pytest.raises(MeasurementError, match=r"needs a C\+\+ compiler on a CPU: .*apt install g\+\+"),
    ):
        measure(lambda: ran.append(1), backend="inductor")
    assert not ran


def test_backend_errors_propagate() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such op")

    with pytest.raises(Exception, match="no such op"):
        measure(double, torch.ones(3), backend=backend)


# Inductor


def processor_ns() -> int:
    """Return the CPU time of this process and its children, which excludes waits on a busy machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(1e9 * sum(each.ru_utime + each.ru_stime for each in used))


@pytest.mark.slow
@pytest.mark.sweep
def test_filled_disk_caches_do_not_speed_cold_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shard: Make
) -> None:
    """One of two cache folders of the program contains the kernels of this function."""

    def program(x: Any) -> Any:
        return (x * 3).sin().cos() + x

    a = shard(8, 8)
    times: dict[str, dict[State, list[int]]] = {"empty": {}, "filled": {}}
    plan = {"rounds": 2, "repeat": 20, "sampler": WallClock(processor_ns)}
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "filled"))
    torch.compile(program)(a)
    assert list((tmp_path / "filled" / "fxgraph").rglob("*"))
    for turn in range(4):
        for folder in ("empty", "filled") if turn % 2 else ("filled", "empty"):
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
            measurement = measured(program, a, backend="inductor", plan=plan).measurement
            assert (measurement.proof, measurement.figures.notes) == ("proved", ())
            for samples in measurement.recorded():
                times[folder].setdefault(samples.state, []).extend(samples.ns)
    assert not (tmp_path / "empty").exists()
    empty, filled = ([math.log(ns) for ns in of[State.COMPILE_COLD]] for of in times.values())
    low, high = map(math.exp, shift_interval(empty, filled, confidence=0.99))
    found = f"a filled folder makes cold compiles take {low:.2f} to {high:.2f} of their time"
    assert high > 0.85, found
    assert low < 1.15, found
    for of_folder in times.values():
        warm, cold = (min(of_folder[state]) for state in (State.COMPILE_WARM, State.COMPILE_COLD))
        assert warm < cold / 5
    # A compile with a cache hit takes a fifteenth of the time.
    assert min(times["filled"][State.COMPILE_COLD]) > min(times["empty"][State.COMPILE_COLD]) / 2


# Differences of compiled and uncompiled results


def off_by(error: float) -> Any:
    """Return a backend whose programs add an error to each result."""

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(each + error for each in graph.forward(*args))

    return backend


def doubled_in_place(a: torch.Tensor) -> torch.Tensor:
    return a.mul_(2)


@pytest.mark.parametrize(("error", "is_reported"), [(0.0, False), (2e-5, False), (1e-2, True)])
@pytest.mark.parametrize("fn", [double, doubled_in_place])
def test_distant_results_are_a_difference(fn: Any, error: float, is_reported: bool) -> None:
    difference = measure(fn, torch.ones(3), backend=off_by(error)).difference
    assert difference.startswith("at result[0], Tensor-likes are not close!" if is_reported else "")
    assert bool(difference) is is_reported


def test_random_results_are_not_compared() -> None:
    assert measure(lambda a: a + torch.rand(3), torch.ones(3), backend=off_by(1.0)).difference == ""
