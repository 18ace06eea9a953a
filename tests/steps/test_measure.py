"""Step counts: events built into steps are counted exactly, without side effects on the program."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.futures import Future

from pytest_dtdispatch.errors import DtDispatchWarning
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.events import QueriedCache, by_cause
from pytest_dtdispatch.steps.growth import MIN_FROZEN
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, Steps
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_step
from pytest_dtdispatch.torchapi.collectives import collective_kind
from pytest_dtdispatch.torchapi.observe import POINTS
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import DTensorSpec
from tests.probes import (
    DECOMPOSING,
    FSDP_WITHOUT_CUDA,
    LOCAL_TENSOR,
    NATIVE_CACHE,
    is_replanned_for_scalar_type,
    needs,
    needs_rule,
)
from tests.threads import in_thread

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_stays")]

HAS_NATIVE = ShardingCaches().has_native
FIRST_QUERIED, FIRST_CACHE = (
    (QueriedCache.NATIVE, "native") if HAS_NATIVE else (QueriedCache.PYTHON, "python")
)
Make = Callable[..., DTensor]
Step = Callable[[], Any]


def count(step: Step, warmup: int = 3, steps: int = 5) -> Steps:
    return run_and_count(StepCalls("step", step, warmup, steps))


def on_mesh(mesh: DeviceMesh, rows: int = 4) -> DTensor:
    return DTensor.from_local(torch.rand(rows, 8), mesh, [Shard(0)] + [Replicate()] * (mesh.ndim - 1))


def clear_as_a_program_does() -> None:
    dispatcher = DTensor._op_dispatcher.sharding_propagator
    dispatcher.propagate_op_sharding.cache.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear:
        clear()


# Steps with exactly one miss by construction


def doubled(mesh: DeviceMesh, rows: int = 4) -> Any:
    a: Any = on_mesh(mesh, rows)
    return a + a


def fails(mesh: DeviceMesh) -> None:
    with pytest.raises(RuntimeError):
        on_mesh(mesh) @ DTensor.from_local(torch.rand(3, 3), mesh, [Replicate()])


ORDERS = list(itertools.permutations(range(4)))
MISSING: dict[str, tuple[Callable[[DeviceMesh, int], Any], str]] = {
    "another shape": (lambda mesh, n: doubled(mesh, 4 + n), "shape of self and other [44,8], was [40,8]"),
    "another mesh": (
        lambda _, n: doubled(init_device_mesh("cpu", (4,), mesh_dim_names=(f"dp{n}",))),
        "another mesh: dim_names ('dp7',), were ('dp6',)",
    ),
    "another order of ranks": (
        lambda _, n: doubled(DeviceMesh("cpu", torch.tensor(ORDERS[n]))),
        "another mesh: ranks 1,0,3,2, were 1,0,2,3",
    ),
    "cleared caches": (
        lambda mesh, _: (clear_as_a_program_does(), doubled(mesh)),  # type: ignore[func-returns-value]
        "the caches were cleared since its last call",
    ),
    "an op that fails": (lambda mesh, _: fails(mesh), "propagation raised RuntimeError, which is not cached"),
}


@pytest.mark.parametrize(("run", "reason"), MISSING.values(), ids=MISSING)
def test_single_miss_is_counted_with_its_reason(
    mesh: DeviceMesh, run: Callable[[DeviceMesh, int], Any], reason: str
) -> None:
    numbers = itertools.count()
    steps = count(lambda: run(mesh, next(numbers)))
    assert [one.misses for one in steps.steps] == [1] * 5
    assert steps.steps[-1].missed[0].reason == reason
    assert steps.steps[-1].missed[0].queried is FIRST_QUERIED


def test_scalar_type_change_misses_in_one_step(mesh: DeviceMesh) -> None:
    a, scalars = on_mesh(mesh), iter((1, 1, 1.5, 1.5))
    steps = count(lambda: a + next(scalars), warmup=1, steps=3)
    misses = is_replanned_for_scalar_type(mesh)
    assert [one.misses for one in steps.steps] == [0, misses, 0]
    assert [miss.reason for miss in steps.missed] == ["type of other float, was int"] * misses


def test_reasons_name_placement_dtype_and_keyword_changes(mesh: DeviceMesh) -> None:
    a = on_mesh(mesh)
    replicated = DTensor.from_local(torch.rand(16, 8), mesh, [Replicate()])
    variants: Any = iter(
        [
            lambda: a.sum(0),
            lambda: replicated.sum(0),
            lambda: a.double().sum(0),
            lambda: a.sum(0, keepdim=True),
        ]
    )
    steps = count(lambda: next(variants)(), warmup=1, steps=3)
    of_sum = [miss.reason for miss in steps.missed if miss.signature.startswith("sum")]
    assert of_sum == [
        "placements of self R, were S0",
        "dtype of self f64, was f32 at another position",
        "keepdim is passed, but was not before",
    ]


def test_new_but_equal_mesh_hits(mesh: DeviceMesh) -> None:
    assert count(lambda: doubled(init_device_mesh("cpu", (4,)))).misses_per_step == 0


@needs_rule("argmax.default")
def test_hits_and_misses_of_python_cache_are_counted(shard: Make) -> None:
    rows, a = itertools.count(8), shard(8, 8)
    steps = count(lambda: (shard(next(rows), 8).argmax(1), a.argmax(1)))
    assert [(one.calls, one.hits, one.misses) for one in steps.steps] == [(2, 1, 1)] * 5
    assert {miss.queried for miss in steps.missed} == {QueriedCache.PYTHON}
    assert steps.cache_growth["python"] == 5


@needs(DECOMPOSING)
def test_nested_propagations_are_not_counted_as_misses(shard: Make) -> None:
    rows = itertools.count(8)
    steps = count(lambda: torch.aminmax(shard(next(rows), 8)))
    assert [one.misses for one in steps.steps] == [1] * 5


def test_propagations_that_query_no_cache_are_counted(shard: Make) -> None:
    a = shard(8, 8)
    propagator = DTensor._op_dispatcher.sharding_propagator
    name = next(name for name in POINTS["tensor_meta"].names if hasattr(propagator, name))
    inner, schemas = getattr(propagator, name), list[Any]()

    def step() -> None:
        with patch.object(propagator, name, lambda schema: schemas.append(schema) or inner(schema)):  # type: ignore[func-returns-value]
            clear_as_a_program_does()
            a.mul(a)
        propagator.propagate_op_sharding_non_cached(schemas[0])

    missed = count(step, warmup=1, steps=2).steps[-1].missed
    assert [miss.queried for miss in missed] == [FIRST_QUERIED, QueriedCache.NONE]
    assert missed[1].reason.startswith("no cache was queried")


def test_decode_loop_compares_calls_across_steps(shard: Make) -> None:
    """Both products of attention are ``bmm``, and the first is as similar to the second as to itself."""
    query = shard(8, 1, 4)
    keys: list[Any] = [shard(8, 4, 4)]
    values: list[Any] = [shard(8, 4, 4)]

    def step() -> None:
        for cache in (keys, values):
            cache.append(torch.cat([cache[-1], query], 1))
        scores = torch.bmm(query, keys[-1].transpose(1, 2))
        torch.bmm(scores, values[-1])

    steps = count(step, warmup=2, steps=3)
    products = [miss.reason for miss in steps.steps[-1].missed if miss.signature.startswith("bmm")]
    assert products == [
        "shape of mat2 [8,4,9], was [8,4,8]",
        "shape of self [8,1,9], was [8,1,8], shape of mat2 [8,9,4], was [8,8,4]",
    ]
    lines = by_cause([one.missed for one in steps.steps])
    assert [line.partition(".")[0] for line in lines] == ["cat", "transpose", "bmm", "bmm"]
    assert all(line.endswith("(once in each of steps 1-3)") for line in lines)


def test_call_is_matched_across_clears_and_caches(shard: Make) -> None:
    rows = itertools.count(8)

    def step() -> None:
        a = shard(8, 8)
        a + a
        clear_as_a_program_does()
        a + a
        if HAS_NATIVE:  # older versions of torch have no rule for it
            a.argmax(1)
        torch.is_same_size(a, a)
        b = shard(next(rows), 8)
        a.exp()
        b.exp()

    steps = count(step, warmup=1, steps=3)
    last = [one.missed[-1] for one in steps.steps]
    assert len({miss.call for miss in last}) == 1
    assert [miss.reason for miss in last] == [f"shape of self [{n},8], was [{n - 1},8]" for n in (9, 10, 11)]


def test_misses_are_not_compared_across_threads(shard: Make) -> None:
    a = shard(8, 8)

    steps = count(lambda: (a + a, in_thread(lambda: (a + a, a + 1))), warmup=1, steps=2)
    assert [miss.reason for miss in steps.steps[-1].missed] == [
        "first call of this op in this thread; caches are per thread",
        "an equal call ran in another thread; caches are per thread",
    ]
    assert all(miss.elsewhere for miss in steps.missed)


def test_unpropagated_op_is_neither_hit_nor_miss(shard: Make) -> None:
    a = shard(8, 8)
    [one] = count(lambda: torch.is_same_size(a, a), steps=1).steps
    assert (one.calls, one.hits, one.misses, one.unpropagated) == (1, 0, 0, 1)


# Steady steps


@pytest.fixture
def grid(group_owner: ProcessGroupOwner) -> DeviceMesh:
    return group_owner.mesh(MeshSpec((2, 4), "cpu", "fake"), ("dp", "tp"))


@pytest.mark.parametrize(
    ("dim", "make", "collectives"),
    [
        pytest.param(
            "dp",
            fsdp_training_step,
            {"all_gather": 8 * 5, "all_reduce": 5, "reduce_scatter": 4 * 5},
            marks=needs(FSDP_WITHOUT_CUDA),
        ),
        (("dp", "tp"), tensor_parallel_step, {"all_reduce": 5}),
    ],
)
def test_steady_step_has_no_misses_or_growth(
    grid: DeviceMesh, dim: Any, make: Callable[[DeviceMesh], Step], collectives: dict[str, int]
) -> None:
    steps = count(make(grid[dim]))
    assert steps.hits > 0
    assert steps.misses_per_step == 0
    assert not any((*steps.cache_growth.values(), steps.spec_growth, steps.dtensor_growth, steps.unsteady))
    assert steps.collectives == collectives


# Growth


@pytest.mark.parametrize("k", [1, 3])
def test_cache_growth_is_counted_and_hits_later(mesh: DeviceMesh, k: int) -> None:
    tensors = [on_mesh(mesh, rows) for rows in range(4, 4 + 6 * k)]
    variants = iter(tensors)
    steps = count(lambda: [(a := next(variants)) + a for _ in range(k)], warmup=1)
    assert [dict(one.cache_growth)[FIRST_CACHE] for one in steps.steps] == [k] * 5
    again = count(lambda: [a + a for a in tensors[k:]], warmup=0, steps=1)
    assert (again.hits, again.misses) == (5 * k, 0)


def leave_as_garbage(of: Any) -> None:
    cycle = [of]
    cycle.append(cycle)


@pytest.mark.parametrize(
    ("use", "grown"), [(list[Any]().extend, 3), (list, 0), (leave_as_garbage, 0)], ids=["keep", "return", ""]
)
def test_live_dtensors_and_specs_are_counted_without_garbage(
    mesh: DeviceMesh, use: Callable[[Any], Any], grown: int
) -> None:
    steps = count(lambda: use([on_mesh(mesh) for _ in range(3)]))
    assert [(one.spec_growth, one.dtensor_growth) for one in steps.steps] == [(grown, grown)] * 5


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("freezes", ["before", "at the first step", "at each step", "at the second", "twice"])
def test_frozen_objects_are_counted_without_garbage(mesh: DeviceMesh, freezes: str, warmup: int) -> None:
    alive, calls = list[Any](), itertools.count()
    freezing = {"at the first step": (0,), "at each step": range(9), "at the second": (1,), "twice": (1, 2)}

    def step() -> Any:
        alive.extend(on_mesh(mesh) for _ in range(3))
        leave_as_garbage([on_mesh(mesh), on_mesh(mesh)])
        gc.collect()  # frozen garbage would stay alive
        tensors = [on_mesh(mesh)]
        if next(calls) in freezing.get(freezes, ()):
            gc.freeze()
        return tensors

    if freezes == "before":
        gc.freeze()
    try:
        steps = count(step, warmup, 4)
        assert gc.get_freeze_count() >= MIN_FROZEN, "the program froze them"
    finally:
        gc.unfreeze()
    assert [(one.spec_growth, one.dtensor_growth) for one in steps.steps] == [(3, 3)] * 4


def test_counting_ends_unfrozen(mesh: DeviceMesh) -> None:
    count(lambda: on_mesh(mesh))
    assert gc.get_freeze_count() < MIN_FROZEN


@pytest.mark.parametrize("has_many", [False, True])
def test_growth_is_described_by_retained_tensors(mesh: DeviceMesh, has_many: bool) -> None:
    """The first step creates eight tensors that stay; each step replaces six by longer ones."""
    stay, cache, history = list[Any](), list[Any](), list[Any]()

    def step() -> None:
        stay.extend(on_mesh(mesh) for _ in range(8 - len(stay)))
        cache[:] = [on_mesh(mesh, 5 + len(history)) for _ in range(6)]
        history.append([DTensor.from_local(torch.ones(()), mesh, [Replicate()]) for _ in range(1 + has_many)])
        if has_many:  # with a new shape in each step
            history[-1].append(DTensor.from_local(torch.ones(len(history)), mesh, [Replicate()]))

    steps = count(step)
    growth = 3 if has_many else 1
    assert [(one.dtensor_growth, one.spec_growth) for one in steps.steps] == [(growth, growth)] * 5
    assert steps.steps[-1].kept == ("f32[] R, f32[8] R" if has_many else "f32[] R")


def test_references_to_the_class_are_not_growth(mesh: DeviceMesh) -> None:
    classes: list[type] = []
    steps = count(lambda: classes.extend([DTensor, DTensorSpec]))
    assert [(one.dtensor_growth, one.spec_growth) for one in steps.steps] == [(0, 0)] * 5


def test_live_objects_match_the_garbage_collector(mesh: DeviceMesh) -> None:
    tensors: list[DTensor] = []
    with StepCounter() as counter:
        tensors.extend(on_mesh(mesh) for _ in range(7))
        counts = counter.lap()
        alive = [o for o in gc.get_objects() if type(o) is DTensorSpec]  # created since entry
    assert counts.spec_growth == len(alive) == 7


# Redistributions and collectives


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (
            lambda a: a.redistribute(placements=[Replicate(), Replicate()]),
            # The size of an all-gather is that of its output.
            "redistribute: f32[16,8] R S0 -> R R, 512 bytes",
        ),
        (
            lambda a: a.transpose(0, 1) @ a.redistribute(placements=[Replicate(), Replicate()]),
            "mm.default: f32[16,8] R R -> R S0, 0 bytes",
        ),
        (lambda a: a.redistribute(placements=[Replicate(), Shard(0)]), ""),
    ],
    ids=["explicit", "implied by an op without transfer", "to the same placements"],
)
def test_redistribution_text_has_placements_and_bytes(
    grid: DeviceMesh, step: Callable[[Any], Any], line: str
) -> None:
    a = DTensor.from_local(torch.rand(4, 8), grid, [Replicate(), Shard(0)])
    steps = count(lambda: step(a))
    assert [str(one).partition(", at ")[0] for one in steps.redistributions[-1:]] == [line] * bool(line)
    assert steps.redistributes_per_step == len(steps.steps[0].redistributions)


HELPER = """
import functools
from torch.distributed.tensor import Shard, distribute_tensor

class Holder:
    own = staticmethod(distribute_tensor)

def by_default(*args, function=distribute_tensor):
    return function(*args)

CALLS = [distribute_tensor, Holder.own, by_default, functools.partial(distribute_tensor)]
"""


@pytest.mark.parametrize("is_in_step", [False, True])
def test_wraps_of_a_module_imported_again_are_counted(
    is_in_step: bool, mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_step.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    local = torch.rand(8, 8)

    def step(helper: Any = None) -> None:
        for call in (helper or importlib.import_module("helper_of_step")).CALLS:
            call(local, mesh, [Shard(0)])

    for _ in range(4):
        gc.collect()  # no reference to the module of the previous round remains
        helper = None if is_in_step else importlib.import_module("helper_of_step")
        assert count(partial(step, helper), 1, 2).wraps_per_step == 4
        del sys.modules["helper_of_step"]


def test_collectives_of_the_program_are_counted_by_kind(mesh: DeviceMesh) -> None:
    plain = torch.rand(8)
    steps = count(lambda: (dist.all_reduce(plain), dist.broadcast(plain, 0), dist.barrier()), 1, 1)
    assert steps.collectives == {"all_reduce": 1, "barrier": 1, "broadcast": 1}


c10d: Any = dist


class GroupInPython(c10d.ProcessGroup):  # type: ignore[misc]
    """Process group of four ranks with no-op collectives, under the names of old and new torch versions."""

    def _done(self, tensors: Any, *_: Any) -> Any:
        future: Future[Any] = Future()
        future.set_result(tensors)
        return vars(torch._C)["_distributed_c10d"]._create_work_from_future(future)

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        return self._done(tensors)

    def all_gather_single_coalesced(self, results: Any, *_: Any) -> Any:
        return self.allgather(results)

    def allgather(self, results: Any, *_: Any) -> Any:
        return self._done(results)

    def reduce_scatter_single_coalesced(self, results: Any, *_: Any) -> Any:
        return self._done(results)

    _allgather_base = all_gather_single = allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _reduce_scatter_base = reduce_scatter_single = reduce_scatter_single_coalesced

    def size(self) -> int:
        return 4

    def getBackendName(self) -> str:  # noqa: N802 (old torches ask for it as they destroy a group)
        return "in_python"

    @property
    def group_name(self) -> str:
        return c10d.distributed_c10d._world.pg_names[self]  # type: ignore[no-any-return]


@pytest.fixture
def mesh_in_python() -> Iterator[DeviceMesh]:
    make = lambda store, rank, size, timeout: GroupInPython(rank, size)  # noqa: E731
    c10d.Backend.register_backend("in_python", make, devices=["cpu"])
    c10d.init_process_group("in_python", store=c10d.HashStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


@pytest.fixture
def simulated(group_owner: ProcessGroupOwner) -> DeviceMesh:
    return group_owner.mesh(MeshSpec((4,), "cpu", "local"))


@pytest.mark.parametrize(
    "ranks", ["mesh", pytest.param("simulated", marks=needs(LOCAL_TENSOR)), "mesh_in_python"]
)
def test_collectives_are_counted_on_every_backend(ranks: str, request: pytest.FixtureRequest) -> None:
    on: DeviceMesh = request.getfixturevalue(ranks)
    shard, partial = on_mesh(on, 2), DTensor.from_local(torch.rand(8, 8), on, [Partial()])
    plain = torch.rand(8)

    def step() -> None:
        shard.redistribute(placements=[Replicate()])
        partial.redistribute(placements=[Replicate()])
        partial.redistribute(placements=[Shard(0)])
        dist.all_reduce(plain)

    steps = count(step, warmup=1, steps=1)
    assert steps.collectives == {"all_gather": 1, "all_reduce": 2, "reduce_scatter": 1}
    assert [one.bytes for one in steps.redistributions] == [256, 256, 256]


@pytest.mark.parametrize("rows", [8, 6])  # even shards, and uneven ones, which are padded
@pytest.mark.parametrize("ranks", ["mesh", pytest.param("simulated", marks=needs(LOCAL_TENSOR))])
def test_shard_to_shard_counts_as_on_gpu(ranks: str, rows: int, request: pytest.FixtureRequest) -> None:
    on: DeviceMesh = request.getfixturevalue(ranks)
    whole: Any = distribute_tensor(torch.rand(rows, 8), on, [Shard(0)]).requires_grad_()

    def step() -> None:  # three exchanges, one of them in backward: the gradient of the sum is replicated
        whole.redistribute(placements=[Shard(1)]).redistribute(placements=[Shard(0)]).sum().backward()

    [counted] = count(step, warmup=1, steps=1).steps
    exchanges = [one for one in counted.collective_runs if one.elsewhere]
    assert [(one.kind, one.bytes, one.elsewhere) for one in exchanges] == [
        ("all_to_all", 2 * 8 * 4, "all_gather on a CPU mesh")
    ] * 3
    assert [one.bytes for one in counted.redistributions if not one.is_implied][:2] == [64, 64]


def test_shard_to_shard_of_ranks_counts_actual_collective(mesh_in_python: DeviceMesh) -> None:
    whole = on_mesh(mesh_in_python, 2)
    [ran] = count(lambda: whole.redistribute(placements=[Shard(1)]), 1, 1).steps[0].collective_runs
    assert (ran.kind, ran.bytes, ran.elsewhere) == ("all_gather", 256, "all_to_all on a GPU")
    assert "(all_to_all on a GPU)" in str(ran)


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::reduce_scatter_tensor_coalesced_", "reduce_scatter"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::recv_any_source_", "recv"),
        ("c10d::send", "send"),
        ("all_gather_single_coalesced", "all_gather"),
        ("recv_anysource", "recv"),
        ("_dtensor::shard_dim_alltoall", "all_to_all"),
    ],
)
def test_collective_variants_have_one_kind(op: str, kind: str) -> None:
    assert collective_kind(op) == kind


# Side effects on the program


def test_objects_frozen_by_program_stay_frozen(mesh: DeviceMesh) -> None:
    a = on_mesh(mesh)
    gc.freeze()
    try:
        count(lambda: a + a)
        assert gc.get_freeze_count() >= MIN_FROZEN
    finally:
        gc.unfreeze()


def test_exception_in_a_step_leaves_nothing_behind(mesh: DeviceMesh) -> None:
    calls = itertools.count()

    def step() -> None:
        a = on_mesh(mesh)
        a + a
        if next(calls) == 4:
            raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        count(step)
    assert next(calls) == 5


def test_counts_include_ops_hidden_by_a_mode(shard: Make) -> None:
    rows = itertools.count(8)

    def step() -> None:
        a = shard(next(rows), 8)
        with CommDebugMode():
            a + a
            a + a

    steps = count(step)
    assert [(one.hits, one.misses) for one in steps.steps] == [(1, 1)] * 5


def test_hits_before_a_clear_are_not_lost(shard: Make) -> None:
    a = shard(8, 8)

    def step() -> None:
        for _ in range(4):
            a + a
        clear_as_a_program_does()
        for _ in range(3):
            a + a

    steps = count(step)
    assert [(one.hits, one.misses) for one in steps.steps] == [(6, 1)] * 5


@needs(NATIVE_CACHE)
def test_unobserved_clear_causes_a_warning(shard: Make) -> None:
    a, clear = shard(8, 8), vars(torch._C)["_clear_DTensor_sharding_propagator_cache"]

    def step() -> None:
        a + a
        clear()
        a + a

    with pytest.warns(
        DtDispatchWarning, match="misses of the native cache: . were recorded, but torch counts"
    ):
        count(step, warmup=1, steps=1)


# Injected misses


def test_one_extra_miss_in_300_ops_is_caught(grid: DeviceMesh) -> None:
    def counted(is_injected: bool) -> Steps:
        blocks, rows = [tensor_parallel_step(grid) for _ in range(13)], itertools.count(4)
        ShardingCaches().clear_all()

        def step() -> None:
            for block in blocks:
                block()
            if is_injected:
                on_mesh(grid, next(rows)).exp()

        return count(step, warmup=2, steps=2)

    clean, injected = ([counted(is_injected) for _ in range(2)] for is_injected in (False, True))
    assert clean[0].steps[0].calls >= 295
    assert (clean[0].misses_per_step, injected[0].misses_per_step) == (0, 1)
    assert (clean, injected) == ([clean[0]] * 2, [injected[0]] * 2)


def test_finished_miss_holds_no_specs(mesh: DeviceMesh) -> None:
    rows = itertools.count(4)

    def step() -> None:
        x = DTensor.from_local(torch.rand(next(rows), 8), mesh, [Shard(0)], run_check=False)
        x.detach()

    ShardingCaches().clear_all()
    counted = count(step, warmup=0, steps=3).steps
    # Each cached plan holds its own specs: the first miss retains as many as the others.
    assert len({(one.misses, one.spec_growth) for one in counted}) == 1
