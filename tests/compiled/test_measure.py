"""torch.compile measured: what is counted, what cold and warm mean, that the program does not notice."""

from __future__ import annotations

import math
import re
import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledFunction, CompilePlan
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.errors import CompileError
from pytest_dtdispatch.measuring.sampler import WallClock
from pytest_dtdispatch.stats.rank_sums import shift_interval
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import why_no_dynamic_compile

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tests.conftest import Shard as Make

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def measure(fn: Callable[..., Any], *args: Any, plan: dict[str, Any] | None = None, **how: Any) -> Compiled:
    compilation = Compilation(fn, args, **{"backend": "aot_eager", **how})
    given = {"rounds": 1, "calls": 2, **(plan or {})}
    return run_and_measure_compile(compilation, "f", ShardingCaches(), CompilePlan(**given))


def double(x: Any) -> Any:
    return x + x


def function_of(compiled: Compiled) -> CompiledFunction:
    assert compiled.function
    return compiled.function


def states(compiled: Compiled) -> dict[State, int]:
    function = function_of(compiled)
    return {samples.state: len(samples.ns) for samples in function.measurement.recorded()}


# What is counted


def test_every_state_has_its_samples_and_counts_are_those_of_one_compile(shard: Make) -> None:
    a = shard(8, 8)
    doubled: Any = a + a
    compiled = measure(double, a, plan={"rounds": 2, "calls": 3})
    assert states(compiled) == {
        State.COMPILE_COLD: 2,
        State.COMPILE_WARM: 2,
        State.CALL: 6,
        State.EAGER: 6,
    }
    function = function_of(compiled)
    assert function.measurement.proof == "proved"
    assert function.measurement.mesh == "4"
    counts = function.counts
    assert (counts.graphs, counts.graph_breaks, counts.recompiles) == (1, (), ())
    assert counts.guards
    assert counts.propagations
    assert counts.sharding_misses in (0, counts.propagations)  # up to torch 2.9 tracing asks no cache
    assert counts.fake_tensor_misses
    assert torch.equal(compiled.result.to_local(), doubled.to_local())
    assert torch.equal(compiled.result.to_local(), compiled.eager_result.to_local())


def test_a_propagation_that_asks_no_cache_is_counted(shard: Make) -> None:
    if missing := why_no_dynamic_compile(shard(8, 8)):
        pytest.skip(missing)
    compiled = measure(double, shard(8, 8), dynamic=True)
    function = function_of(compiled)
    assert function.counts.sharding_misses == 0
    assert function.counts.propagations


def test_graph_breaks_are_counted_with_reason_and_place() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        x = x * 2
        torch._dynamo.graph_break()
        return x - 1

    compiled = measure(broken, torch.ones(3), backend="eager", fullgraph=False)
    first = broken.__code__.co_firstlineno
    function = function_of(compiled)
    breaks = function.counts.graph_breaks
    assert breaks is not None
    assert [each.place for each in breaks] == [f"{__file__}:{first + 2}", f"{__file__}:{first + 4}"]
    assert all("graph_break" in each.reason for each in breaks)
    assert (compiled.graphs, compiled.graph_breaks) == (3, 2)
    assert torch.equal(compiled.result, broken(torch.ones(3)))


def test_a_recompile_on_another_placement_is_counted_once_with_torch_s_reason(shard: Make) -> None:
    rows, columns = shard(8, 8), shard(8, 8, placement=Shard(1))
    compiled = measure(double, rows, others=[(columns,), (rows,), (columns,)])
    function = function_of(compiled)
    assert function.counts.recompiles is not None
    [again] = function.counts.recompiles
    assert again.function == "double"
    assert again.place == f"{__file__}:{double.__code__.co_firstlineno}"
    assert re.search("dtensor_spec|check_metadata", again.reason) or again.reason == compilerapi.NO_REASON
    assert compiled.graphs == 1  # of the first call
    assert [result.placements[0].dim for result in compiled.results] == [0, 1, 0, 1]
    for one, other in zip(compiled.results, compiled.eager_results, strict=True):
        assert torch.equal(one.to_local(), other.to_local())


def test_calls_that_recompile_are_counted_and_are_no_steady_calls() -> None:
    sizes = iter(range(2, 10_000))
    compiled = measure(
        double,
        backend="eager",
        dynamic=False,
        setup=lambda: (torch.ones(next(sizes)),),
        plan={"calls": 2},
        fullgraph=False,
    )
    function = function_of(compiled)
    assert function.counts.recompiles
    reasons = {again.reason for again in function.counts.recompiles} - {compilerapi.NO_REASON}
    assert all("size mismatch" in reason for reason in reasons)


def test_a_function_that_torch_does_not_compile_has_no_compiled_rows() -> None:
    hidden = torch.compiler.disable(double)
    compiled = measure(lambda x: hidden(x), torch.ones(3), backend="eager", fullgraph=False)
    assert states(compiled) == {State.EAGER: 2}
    function = function_of(compiled)
    assert "no graph was compiled (1x)" in function.measurement.proof


# What cold and warm mean


@pytest.mark.parametrize("is_on", [False, True])
def test_the_fake_tensor_cache_is_as_the_program_set_it(is_on: bool) -> None:
    with compilerapi.fake_tensor_cache(is_on):
        compiled = measure(double, torch.ones(3))
    assert bool(function_of(compiled).counts.fake_tensor_misses) is is_on


def test_folders_and_settings_of_caches_are_those_of_the_program_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    seen: list[tuple[str, bool]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        import os

        seen.append((os.environ["TORCHINDUCTOR_CACHE_DIR"], torch._inductor.config.force_disable_caches))
        return graph

    measure(double, torch.ones(3), backend=backend, plan={"rounds": 2})
    (filled, _), (cold, is_off), (warm, is_off_when_warm), (colder, _), (warmer, _) = seen
    assert str(tmp_path) not in {filled, cold, warm, colder, warmer}
    assert filled == warm == warmer
    assert len({cold, colder, warm}) == 3
    assert (is_off, is_off_when_warm) == (True, False)
    assert not any(Path(folder).exists() for folder, _ in seen)
    import os

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not list(tmp_path.iterdir())


def test_a_cold_compile_that_a_cache_answered_is_refused() -> None:
    """Torch counts the hit that this backend says it had."""
    counters = torch._dynamo.utils.counters

    def backend(graph: Any, inputs: Any) -> Any:
        counters["inductor"]["fxgraph_cache_hit"] += 1
        return graph

    function = function_of(measure(double, torch.ones(3), backend=backend, plan={"rounds": 2}))
    assert function.measurement.of(State.COMPILE_COLD) is None
    assert function.measurement.proof == "a cache of compiled code answered (2x)"
    assert function.measurement.notes == ()  # as a warm one it is what it should be


def test_a_warning_of_torch_that_caches_are_off_is_none_of_the_program_s() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="`torch.jit.script_method` is deprecated")
        measure(double, torch.ones(3))


# The program does not notice


def test_effects_are_those_of_one_call(shard: Make) -> None:
    total = torch.zeros(3)
    before = torch.get_rng_state()

    def add_noise(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return torch.rand(3)

    compiled = measure(add_noise, torch.ones(3), backend="eager")
    assert torch.equal(total, torch.ones(3))
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    assert torch.equal(compiled.eager_result, torch.rand(3))
    assert torch.equal(after, torch.get_rng_state())
    assert torch.equal(compiled.result, compiled.eager_result)


def test_what_was_compiled_for_a_measurement_answers_no_call_of_the_program() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    measure(double, torch.ones(3), backend=backend)
    ours = len(graphs)
    compiled = torch.compile(double, backend=backend)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert len(graphs) == ours + 1


def test_what_cannot_be_repeated_is_not_compiled() -> None:
    x = torch.ones(3)
    compiled = measure(lambda: x.resize_(5), backend="eager")
    function = function_of(compiled)
    assert states(compiled) == {}
    assert function.measurement.notes[0].startswith("runs once")
    assert compiled.result is compiled.eager_result


# Mistakes


def test_an_unknown_backend_is_told_with_those_there_are() -> None:
    with pytest.raises(CompileError) as raised:
        measure(double, torch.ones(3), backend="inductr")
    assert str(raised.value).startswith("backend='inductr' is none of torch.compile's: ")
    assert ", inductor, " in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_graph_break_where_there_may_be_none_is_told_with_its_place() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(CompileError) as raised:
        measure(broken, torch.ones(3), backend="eager")
    place = f"{__file__}:{broken.__code__.co_firstlineno + 1}"
    assert str(raised.value).startswith(f"fullgraph=True, and there is a graph break at {place}: ")
    assert "graph_break" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_cpp_compiler_is_told_before_anything_runs() -> None:
    ran: list[int] = []
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with nowhere, pytest.raises(CompileError) as raised:
        measure(lambda: ran.append(1), backend="inductor")
    assert "needs a C++ compiler on a CPU: " in str(raised.value)
    assert "apt install g++" in str(raised.value)
    assert not ran


def test_what_the_function_raises_is_raised() -> None:
    error = ZeroDivisionError("the program's own")

    def fail() -> None:
        raise error

    with pytest.raises(ZeroDivisionError) as raised:
        measure(fail)
    assert raised.value is error


def test_what_a_backend_raises_is_raised() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such op")

    with pytest.raises(Exception, match="no such op"):
        measure(double, torch.ones(3), backend=backend)


# Inductor


def processor_ns() -> int:
    """Time that this process and its children had a processor: waiting for a busy machine is none."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(1e9 * sum(each.ru_utime + each.ru_stime for each in used))


@pytest.mark.slow
@pytest.mark.long
def test_caches_left_on_disk_make_no_cold_compile_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mesh: DeviceMesh
) -> None:
    """One of two folders of the program holds the kernels of this function."""

    def program(x: Any) -> Any:
        return (x * 3).sin().cos() + x

    a = DTensor.from_local(torch.rand(8, 8), mesh, [Shard(0)])
    times: dict[str, dict[State, list[int]]] = {"empty": {}, "filled": {}}
    plan = {"rounds": 2, "calls": 20, "sampler": WallClock(processor_ns)}
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "filled"))
    torch.compile(program)(a)
    assert list((tmp_path / "filled" / "fxgraph").rglob("*"))
    for turn in range(4):
        for folder in ("empty", "filled") if turn % 2 else ("filled", "empty"):
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
            function = function_of(measure(program, a, backend="inductor", plan=plan))
            assert (function.measurement.proof, function.measurement.notes) == ("proved", ())
            for samples in function.measurement.recorded():
                times[folder].setdefault(samples.state, []).extend(samples.ns)
    assert not (tmp_path / "empty").exists()
    empty, filled = ([math.log(ns) for ns in of[State.COMPILE_COLD]] for of in times.values())
    low, high = map(math.exp, shift_interval(empty, filled, confidence=0.99))
    assert high > 0.85, f"a filled folder makes cold compiles take {low:.2f} to {high:.2f} of their time"
    assert low < 1.15, f"a filled folder makes cold compiles take {low:.2f} to {high:.2f} of their time"
    for of_folder in times.values():
        warm, cold = (min(of_folder[state]) for state in (State.COMPILE_WARM, State.COMPILE_COLD))
        assert warm < cold / 5
    # A compile that a cache answers takes a fifteenth.
    assert min(times["filled"][State.COMPILE_COLD]) > min(times["empty"][State.COMPILE_COLD]) / 2
