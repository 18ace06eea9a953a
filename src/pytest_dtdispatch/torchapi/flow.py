"""Flow of data through a step whose ops are all recorded: writes, uses and dependencies of memory."""

from __future__ import annotations

import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.torchapi.autograd import is_in_backward
from pytest_dtdispatch.torchapi.calls import OpCall, leaves_of
from pytest_dtdispatch.torchapi.observe import outside_of_torch
from pytest_dtdispatch.torchapi.ops import modes_disabled, op_name
from pytest_dtdispatch.torchapi.tensors import (
    ask_tensor,
    dead_reference,
    is_dtensor,
    is_replicated,
    is_tensor,
    layout_of,
    local_of,
    memory_key,
    shards_of_simulated_ranks,
    storage_key,
    tensors_in,
)


@dataclass
class Memory:
    """What a step has done so far with one storage.

    Args:
        depth: length of the longest chain of transfers, and of used reads, that its values depend on.
        writes: number of writes by ops, collectives and exports.
        own_writes: number of these outside of optimizers.
        uses: number of ops outside of backward that took it as an argument, with those of hooks.
        forward_uses: number of these without hooks.
        all_uses: number of ops that did; views are no uses.
        plain_uses: number of ops, reads and collectives outside of optimizers that took a plain tensor with
            this memory.
        own_conversions: number of conversions to or from a DTensor that no plan makes.
        last_read: number of ops before the last one that took it and did not write to it.
        outer_uses: number of ops, reads and transfers outside of FSDP that took it.
        is_listed: whether an op took it in a list with other tensors.
        is_observed: whether the program has a hook on its gradient, or asks autograd for it.
        is_new: whether an op of the step created it.
        loops: ops and lines whose writes its values depend on.
        chain: numbers of the redistributions from whose results only elementwise ops lead to it.
    """

    depth: int = 0
    writes: int = 0
    own_writes: int = 0
    uses: int = 0
    forward_uses: int = 0
    all_uses: int = 0
    plain_uses: int = 0
    own_conversions: int = 0
    last_read: int = -1
    outer_uses: int = 0
    is_listed: bool = False
    is_observed: bool = False
    is_new: bool = False
    loops: frozenset[tuple[str, CodePlace]] = frozenset()
    chain: frozenset[int] = frozenset()


@dataclass
class Use:
    """A read, a conversion or a redistribution of a tensor.

    Args:
        source: memory of the tensor.

    Attributes:
        writes: number of writes to the tensor before.
    """

    source: Memory
    writes: int = field(init=False)

    def __post_init__(self) -> None:
        self.writes = self.source.writes

    @property
    def is_written_later(self) -> bool:
        """Whether something wrote to the tensor afterwards."""
        return self.source.writes > self.writes


@dataclass
class Converted(Use):
    """Tensors of a conversion.

    Args:
        result: memory of the result.
        reference: function that returns the result; None after it was freed.
        parameter: function that returns the converted parameter, or None.
    """

    result: Memory
    reference: Callable[[], Any] = field(default=dead_reference, kw_only=True)
    parameter: Callable[[], Any] = field(default=dead_reference, kw_only=True)

    def note_hooks(self) -> None:
        """Record whether the program observes the gradient of the result."""
        result = self.reference()
        if result is not None and result.requires_grad:
            self.result.is_observed |= bool(result._backward_hooks) or result.retains_grad or result.is_leaf

    @property
    def is_result_unique(self) -> bool:
        """Whether no equal result can take the place of the result."""
        is_written = self.result is not self.source and self.result.writes > 0
        return is_written or self.result.is_observed or self.reference() is not None


@dataclass
class Move(Converted):
    """Tensors of a redistribution.

    Args:
        depth: depth of the tensor.
        earlier: positions of earlier redistributions from whose results only elementwise ops lead to the
            tensor, if the tensors of all of them are unchanged.
        outputs: memory of the results of the op that implied it.
        others: number of ops in forward, other than elementwise ones, that took what the result became.
        is_unwrapped: whether the program took the local tensor of what the result became.
    """

    depth: int
    earlier: frozenset[int]
    outputs: list[Memory] = field(default_factory=list)
    others: int = 0
    is_unwrapped: bool = False


@dataclass
class Calls:
    """Calls of one op on DTensors at one line.

    Args:
        count: number of calls.
        tensors: memory of their first tensors by address.
        layouts: layouts of all tensors.
        takes_shards: whether one of them is a DTensor that is not replicated.
        floors: depths of all that the host had read and used before each call.
        via: function of torch that the user's line called, if its code called the op.
        is_chain: whether a call depends on what an earlier one wrote, or writes what an op has read since the
            first call.
        first: number of ops before the first call.
        elements: number of slices that ``select`` can return; 0 for other ops.
        replacements: function that replaces all calls, as ``replacement_of`` returns it, of each call.
        options: keyword arguments of each call other than tensors, as text.
        is_pointwise: whether each element of the result depends on one element of each argument.
    """

    count: int = 0
    tensors: dict[int, Memory] = field(default_factory=dict)
    layouts: set[Hashable] = field(default_factory=set)
    takes_shards: bool = False
    floors: set[int] = field(default_factory=set)
    via: str = ""
    is_chain: bool = False
    first: int = -1
    elements: int = 0
    replacements: set[str] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    is_pointwise: bool = False


class DataFlow:
    """Recorder of the flow of data in one step. While it is off, ops only run, and tensors have no versions.

    Args:
        frames: the ``Frames`` of the step, which return the owners of stack frames.

    Attributes:
        is_on: whether all ops of the step are recorded.
        is_whole: whether no other thread, whose ops are not recorded, has taken part in the step.
        moves: redistributions of the step.
        calls: calls of ops on DTensors in the step, by op and line.
    """

    def __init__(self, frames: Any) -> None:
        self._frames = frames
        self.is_on = False
        self._home = threading.get_ident()
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the last step."""
        self.is_whole = True
        self._memory: defaultdict[int, Memory] = defaultdict(Memory)
        self._floor = 0  # depth of everything that the host may compute from values that it has read
        self._inner = 0  # depth of transfers inside of the running op
        self._ran = 0  # number of ops
        self._views = WeakIdKeyDictionary()  # whether each has all elements of an argument, in their order
        self.moves: list[Move] = []
        self._constants: set[float] = set()  # numbers that ops took before the host read any
        self._values: dict[Hashable, int] = {}  # depth of the tensor, by a value that the host has read
        self.calls: defaultdict[tuple[str, CodePlace], Calls] = defaultdict(Calls)

    def of(self, tensor: Any) -> Memory:
        """Return what the step has done with the memory of a tensor, or of its local tensor."""
        return self._memory[storage_key(tensor)]

    def versions(self, local: torch.Tensor) -> tuple[int, ...]:
        """Return numbers that differ if a tensor may have been written to; empty if it is not recorded."""
        return (self.of(local).writes, fingerprint(local)) if self.is_on else ()

    def depth_of(self, tensors: Iterable[Any]) -> int:
        """Return the depth of values that are computed from tensors."""
        return max((self.of(tensor).depth for tensor in tensors), default=0)

    def run(self, call: OpCall, place: CodePlace) -> Any:
        """Run an op at a line, and record what it reads and writes."""
        if not self.is_on:
            return call.run()
        tensors = call.tensors
        self._use_values({leaf for leaf in call.leaves if type(leaf) in (int, float)}, place)
        outer, self._inner, moved = self._inner, 0, len(self.moves)
        try:
            result = call.run()
        finally:
            inner, self._inner = self._inner, outer
        for each in (*call.args, *call.kwargs.values()):
            if isinstance(each, (list, tuple)) and len(each) > 1 and all(map(is_tensor, each)):
                for tensor in each:
                    self.of(tensor).is_listed = True
        results = tensors_in(result)
        depth = max(self._floor, inner, self.depth_of(tensors))
        loops = frozenset[tuple[str, CodePlace]]().union(*(self.of(tensor).loops for tensor in tensors))
        if call.has_dtensor:
            self._note_call(call, place)
        new = set(map(storage_key, results)) - set(map(storage_key, tensors))
        if new:
            fresh = Memory(depth, is_new=True, loops=loops, chain=self._chain(call, result))
            self._memory |= {address: replace(fresh) for address in new}
        self._ran += 1
        if new or call.written or not results:
            self._use(call, place)
        else:
            elements = {memory_key(local_of(each)) for each in tensors} - {None}
            locals_of = [local_of(each) for each in results]
            self._views.update({each: memory_key(each) in elements for each in locals_of})
        for memory in map(self.of, call.written):
            memory.depth, memory.chain = max(memory.depth, depth), frozenset()
            memory.writes += 1
            memory.own_writes += place.phase is not Phase.OPTIMIZER
            memory.loops = loops | {(op_name(call.func), place)}
        for move in self.moves[moved:]:  # those that the op implied
            move.outputs = [self.of(each) for each in results]
        return result

    def _use(self, call: OpCall, place: CodePlace) -> None:
        # A hook of the user runs in backward as well.
        is_outside = not is_in_backward() or not self._frames.called_by()
        is_step, is_outer = place.phase is Phase.OPTIMIZER, not self._frames.is_in_fsdp()
        written = set(map(storage_key, call.written))
        for tensor in call.tensors:
            memory = self.of(tensor)
            if storage_key(tensor) not in written:
                memory.last_read = self._ran
            memory.all_uses += 1
            memory.uses += is_outside
            memory.forward_uses += not is_in_backward()
            memory.outer_uses += is_outer
            memory.plain_uses += is_outside and not is_step and not is_dtensor(tensor)

    def takes_shards(self, name: str) -> bool:
        """Return whether an op whose name begins so has taken a DTensor that is not replicated."""
        return any(calls.takes_shards for (op, _), calls in self.calls.items() if op.startswith(name))

    def note_thread(self) -> None:
        """Record whether this thread takes part in the step. The modes of the step are open in autograd's."""
        self.is_whole = self.is_whole and (threading.get_ident() == self._home or is_in_backward())

    def is_view(self, tensor: Any) -> bool:
        """Return whether an op of the step returned the tensor, as a view of an argument."""
        return local_of(tensor) in self._views

    def unwrap(self, tensor: Any) -> None:
        """Record that the program may use what elementwise ops made of redistributions as a local tensor."""
        memory = self.of(tensor)
        memory.outer_uses += not self._frames.is_in_fsdp()
        for position in memory.chain:
            self.moves[position].is_unwrapped = True

    def use(self, tensors: Iterable[Any]) -> None:
        """Record that the host or a collective of the program takes tensors."""
        for tensor in tensors:
            memory = self.of(tensor)
            memory.uses += 1
            memory.forward_uses += 1
            memory.all_uses += 1
            memory.outer_uses += 1
            memory.plain_uses += not is_dtensor(tensor)

    def _note_call(self, call: OpCall, place: CodePlace) -> None:
        """Record a call of an op on DTensors at a line."""
        key, first = (op_name(call.func), place), call.tensors[0]
        calls = self.calls[key]
        calls.count += 1
        calls.first = self._ran if calls.first < 0 else calls.first
        calls.is_chain |= self.of(first).last_read > calls.first
        calls.is_chain |= any(key in self.of(tensor).loops for tensor in call.tensors)
        calls.via = calls.via or self._frames.called_by()
        calls.is_pointwise = call.is_pointwise
        calls.replacements.add(call.replacement())
        options = (f"{name}={each}" for name, each in call.kwargs.items() if not is_tensor(each))
        calls.options.add(", ".join(options))
        calls.tensors[storage_key(first)] = self.of(first)
        calls.elements = first.shape[call.args[1]] if call.func is torch.ops.aten.select.int else 0
        calls.layouts.update(layout_of(each) for each in call.tensors if each.dim())
        calls.takes_shards |= any(is_dtensor(each) and not is_replicated(each) for each in call.tensors)
        calls.floors.add(self._floor)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing, as within a redistribution, which is recorded as a whole."""
        was_on, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = was_on

    def write(self, tensors: Iterable[Any]) -> None:
        """Record that something else than an op may write to tensors, such as numpy."""
        for memory in map(self.of, tensors):
            memory.writes += 1
            memory.own_writes += 1

    def transfer(self, sources: Sequence[Any], results: Sequence[Any]) -> int:
        """Record a transfer; return the depth of its sources."""
        depth = max(self._floor, self.depth_of(sources))
        self._inner = max(self._inner, depth + 1)
        loops = frozenset[tuple[str, CodePlace]]().union(*(self.of(source).loops for source in sources))
        for memory in map(self.of, results):
            memory.depth, memory.loops = depth + 1, loops
        return depth

    def move(self, source: Any, result: Any) -> Move:
        """Record a redistribution; return the tensors behind it."""
        depth = self.transfer([source], [result])
        memory = self.of(source)
        memory.outer_uses += 1
        # Only elementwise ops took their results, and nothing wrote to their sources since.
        chain = self._chain_of(source)
        behind = [self.moves[position] for position in chain]
        is_used = any(each.others or each.is_unwrapped or each.is_written_later for each in behind)
        earlier = frozenset[int]() if is_used else chain
        if storage_key(result) != storage_key(source):
            self._memory[storage_key(result)] = Memory(depth + 1, is_new=True, loops=memory.loops)
        self.of(result).chain = frozenset([len(self.moves)])
        self.moves.append(Move(memory, self.of(result), depth, earlier))
        return self.moves[-1]

    def read(self, tensor: Any, result: Any) -> int:
        """Record that the host has read a tensor; return its depth."""
        self.use([tensor])
        memory = self.of(tensor)
        for value in leaves_of([result]):
            if type(value) in (int, float) and value not in (0, 1):
                self._values[value] = memory.depth
        return memory.depth

    def need(self, depth: int) -> None:
        """Record that the host needs the value of a tensor of this depth to go on."""
        self._floor = max(self._floor, depth + 1)

    def need_values(self) -> None:
        """Record that the host needs every value that it has read to go on."""
        self.need(max(self._values.values(), default=-1))
        self._values.clear()

    def _use_values(self, numbers: set[Any], place: CodePlace) -> None:
        """Record which values that the host has read an op takes, unchanged or after arithmetic.

        A float that the program's code does not name, and no op took before the reads, may be computed.
        """
        depths = [self._values.pop(number) for number in numbers & self._values.keys()]
        floats = {number for number in numbers - self._constants if type(number) is float}
        is_program = not (place.module or is_in_backward() or place.phase is Phase.OPTIMIZER)
        if self._values and is_program and floats - constants_near(sys._getframe(1)):
            self.need_values()
        elif not self._values:
            self._constants |= floats
        for depth in depths:
            self.need(depth)

    def _chain(self, call: OpCall, result: Any) -> frozenset[int]:
        """Return the redistributions from whose results only elementwise ops lead to a result."""
        tensors, chain = call.tensors, frozenset[int]()
        is_elementwise = call.is_pointwise and is_tensor(result)
        if is_elementwise and all(each.shape in ((), result.shape) for each in tensors):
            chain = chain.union(*map(self._chain_of, tensors))
        if not is_in_backward():
            for position in frozenset[int]().union(*(self.of(tensor).chain for tensor in tensors)) - chain:
                self.moves[position].others += 1
        return chain

    def _chain_of(self, tensor: Any) -> frozenset[int]:
        """Return the redistributions from whose results only elementwise ops lead to a tensor.

        A view of other elements, or in another order, has other placements than its base.
        """
        return self.of(tensor).chain if self._views.get(local_of(tensor), True) else frozenset()


def constants_near(frame: FrameType | None) -> set[float]:
    """Return the floats that the innermost code of the program names: constants, globals, outer variables."""
    frame = outside_of_torch(frame)
    if frame is None:
        return set()
    code, variables = frame.f_code, frame.f_locals
    named = (*map(frame.f_globals.get, code.co_names), *map(variables.get, code.co_freevars))
    return {each for each in (*code.co_consts, *named) if type(each) is float}


def fingerprint(local: torch.Tensor) -> int:
    """Return a checksum of a tensor's values, which also shows writes that no op made; 0 if it has none."""

    def checksum(tensor: torch.Tensor) -> int:
        # Of a copy: a storage with an array of numpy cannot be resized, by which FSDP2 frees it.
        values = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return zlib.crc32(values.flatten().view(torch.uint8).numpy().data)

    plain = shards_of_simulated_ranks(local)[0]
    has_values = type(plain) in (torch.Tensor, torch.nn.Parameter) and not plain.is_meta
    with modes_disabled():
        return ask_tensor(checksum, plain, 0) if has_values else 0
