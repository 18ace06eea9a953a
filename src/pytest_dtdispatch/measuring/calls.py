"""Whole callables, end to end: on a miss, on a hit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.measuring import torchapi
from pytest_dtdispatch.measuring.caches import ShardingCaches
from pytest_dtdispatch.measuring.ops import figures_of, first_line, synchronizer
from pytest_dtdispatch.measuring.replay import OpCall, Replay
from pytest_dtdispatch.measuring.rounds import Caches, Plan, Reader, Rounds, Subject
from pytest_dtdispatch.records.measurement import Figures
from pytest_dtdispatch.records.signature import mesh_text

Setup = Callable[[], tuple[Any, ...] | None]


class WriteWatch(torchapi.TorchDispatchMode):
    """Save every tensor that a callable writes to, as the write comes by; see which mesh it runs on.

    What the callable itself creates is left out: nobody else can see it.

    Args:
        replay: where contents and gradients are saved.
    """

    supports_higher_order_operators = True

    def __init__(self, replay: Replay) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.once: str | None = None
        self.mesh: Any = None
        self._replay = replay
        self._created: dict[int, weakref.ref[torch.Tensor]] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Leave compiled code compiled."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        tensors = [leaf for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
        if self.mesh is None:
            self.mesh = next((t.device_mesh for t in tensors if isinstance(t, DTensor)), None)
        if not torchapi.is_op(func):
            return call.run()
        with torchapi.without_outer_modes():
            self._replay.random.watch(call.leaves())
            self._save(call, tensors)
        result = call.run()
        if not torchapi.returns_alias(func) or all(map(self._is_created, tensors)):
            self._note_created(result)
        return result

    def _save(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            for leaf in self._replay.gradients.leaves_behind(tensor):
                if leaf.grad is not None:
                    self._replay.tensors.save(leaf.grad)
        for tensor in call.written():
            if self._is_created(tensor):
                continue
            self.once = self.once or call.once_because()
            self._replay.tensors.save(tensor)

    def _is_created(self, tensor: torch.Tensor) -> bool:
        known = self._created.get(id(tensor))
        return known is not None and known() is tensor

    def _note_created(self, result: Any) -> None:
        for leaf in torchapi.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._created[id(leaf)] = weakref.ref(leaf)


class CachesBehindSetup:
    """The caches as a callable meets them behind its setup: emptied after it, what it moved not counted.

    Else a miss could be proved by what the setup propagated, and answered from what it left.

    Args:
        caches: the caches that both use.
        setup: called before each call of the callable.
    """

    def __init__(self, caches: ShardingCaches, setup: Setup) -> None:
        self._caches = caches
        self._setup = setup
        self._moved = [(0, 0) for _ in caches.readers()]
        self._to_empty: list[Callable[[], None]] = []
        self._uncached = [0]

    def setup(self) -> tuple[Any, ...] | None:
        """Run the setup, then do what it may have undone."""
        before, uncached = self._read(), self._uncached[0]
        given = self._setup()
        self._uncached[0] = uncached
        if self._to_empty:
            for empty in self._to_empty:
                empty()
            self._to_empty.clear()
        else:
            self._moved = [
                (moved[0] + new[0] - old[0], moved[1] + new[1] - old[1])
                for moved, old, new in zip(self._moved, before, self._read(), strict=True)
            ]
        return given

    def clear(self) -> None:
        """Empty what a miss must find empty, now and after the setup that comes next."""
        self._caches.clear()
        self._moved = [(0, 0) for _ in self._moved]
        self._to_empty = [self._caches.clear]

    def clear_cold(self) -> None:
        """Empty what a cold call must find empty as well, now and after the setup that comes next."""
        self._caches.clear_cold()
        self._to_empty.append(self._caches.clear_cold)

    def cold_entries(self) -> int:
        """How many entries are left that a cold call must not find."""
        return self._caches.cold_entries()

    def readers(self) -> tuple[Reader, ...]:
        """Readers of this thread's counters, less what the setup moved."""
        return tuple(partial(self._less_moved, n, reader) for n, reader in enumerate(self._caches.readers()))

    @contextmanager
    def counting_uncached(self) -> Iterator[list[int]]:
        """Count propagations of the callable that ask no cache."""
        with self._caches.counting_uncached() as self._uncached:
            yield self._uncached

    def _less_moved(self, n: int, reader: Reader) -> tuple[int, int]:
        hits, misses = reader()[:2]
        return hits - self._moved[n][0], misses - self._moved[n][1]

    def _read(self) -> list[tuple[int, int]]:
        return [(read[0], read[1]) for read in (reader() for reader in self._caches.readers())]


def run_and_measure_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    setup: Setup | None,
    caches: ShardingCaches,
    plan: Plan,
) -> tuple[Any, str, Figures]:
    """Call a function for the program, then repeat it, putting back what can be put back.

    Put back are the contents of every tensor that torch was asked to write to, the gradients of every leaf
    that took part, and random states. Anything else that the function changes, it changes in each repetition.

    Args:
        fn: the function.
        args: its arguments.
        setup: called before each call, untimed; what it returns, if anything, are the arguments.
        caches: the caches that are cleared and counted.
        plan: how much is measured.

    Returns:
        The result of the first call, the mesh it ran on as text, and the figures.
    """
    __tracebackhide__ = True
    with torchapi.without_outer_modes():
        replay = Replay(torchapi.tree_leaves(args))
    first_args = _prepared(args, setup)
    with WriteWatch(replay) as watch:
        result = fn(*first_args)
    with torchapi.without_outer_modes():
        once = replay.settle() or watch.once
        if once:
            return result, _place(watch.mesh), Figures(notes=(once,))
        if setup:
            behind = CachesBehindSetup(caches, setup)
            subject = Subject(fn, _rewound(replay, args, behind.setup))
            figures = _measure_repeated(subject, replay, behind, plan)
        else:
            figures = _measure_repeated(Subject(fn, _rewound(replay, args, None)), replay, caches, plan)
        return result, _place(watch.mesh), figures


def _measure_repeated(subject: Subject, replay: Replay, caches: Caches, plan: Plan) -> Figures:
    try:
        with replay.repeating():
            return figures_of(Rounds(subject, caches, plan, synchronize=synchronizer()).take())
    except Exception as error:  # the program's own call succeeded: it must not see this
        return Figures(notes=(f"repeating it raised {first_line(error)}",))


def _rewound(replay: Replay, args: tuple[Any, ...], setup: Setup | None) -> Callable[[], tuple[Any, ...]]:
    def prepare() -> tuple[Any, ...]:
        replay.rewind()
        return _prepared(args, setup)

    return prepare


def _prepared(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    given = setup() if setup else None
    return args if given is None else given


def _place(mesh: Any) -> str:
    if mesh is None:
        return ""
    shape = mesh_text(tuple(mesh.shape))
    return shape if mesh.device_type == "cpu" else f"{shape}:{mesh.device_type}"
