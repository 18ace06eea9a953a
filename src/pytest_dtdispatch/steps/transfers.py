"""Recorder of transfers: redistributions, collectives, wraps, unwraps and reads, with their source lines."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from pytest_dtdispatch.core.events import CodePlace, FsdpGroup, OptimizerStep, Phase
from pytest_dtdispatch.lines.frames import ModuleInput, running_instance
from pytest_dtdispatch.steps.events import (
    EXPLICIT,
    Collective,
    Read,
    Redistribution,
    Unwrapping,
    Wrapping,
    placement_change,
)
from pytest_dtdispatch.torchapi.autograd import is_in_backward, number_of, origins_of_logits
from pytest_dtdispatch.torchapi.calls import propagated_call
from pytest_dtdispatch.torchapi.collectives import reduction_of
from pytest_dtdispatch.torchapi.flow import Converted, DataFlow, Move, Use
from pytest_dtdispatch.torchapi.fsdp import describe_groups, how_reduced, runs_hooks, shards_of
from pytest_dtdispatch.torchapi.mesh_dims import MESH_DIMS, group_among
from pytest_dtdispatch.torchapi.observe import Conversion, Converter, fsdp_group_type, program_frame
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.optimizers import count_sharded_matrices, describe_optimizer, numbers_of
from pytest_dtdispatch.torchapi.origins import Origins, may_be_owned, observe_marked
from pytest_dtdispatch.torchapi.plans import free_dims, merges_dimensions
from pytest_dtdispatch.torchapi.profiling import Function, ProfilerRange
from pytest_dtdispatch.torchapi.reads import is_compared, is_host_read, waits_for_device
from pytest_dtdispatch.torchapi.signatures import dtype_text, placement_text, spec_text
from pytest_dtdispatch.torchapi.tensors import (
    DTensorSpec,
    TensorNumbers,
    ask_tensor,
    has_graph,
    is_dtensor,
    is_even,
    is_group_fake,
    is_local_mode_open,
    is_replicated,
    is_tensor,
    local_of,
    shards_of_simulated_ranks,
    storage_key,
    tensors_in,
    version_of,
)


class Running(threading.local):
    """The redistribution, conversion, collective and read that a thread runs."""

    schema: Any = None  # call of the op that implies the redistribution, with the placements that it needs
    redistributed: Any = None  # the DTensor whose redistribution is explicit
    has_gradient = False  # whether autograd records it
    node: int | None = None  # number of the node of autograd of the conversion
    options = ""  # its arguments other than tensors
    collectives: tuple[Collective, ...] = ()  # of the redistribution
    is_in_collective = False
    exchange: Callable[[Collective], Collective] | None = None  # how an exchange of shards is counted
    place: CodePlace | None = None  # line of the redistribution
    mesh: Any = None  # mesh of the last redistribution
    converting = ""  # name of the conversion
    is_observed = False  # whether torch has marked the next redistribution as implicit
    is_reading = False
    is_on_cpu = False  # whether an op is running that reads numbers only on a CPU


class TransferRecorder:
    """Recorder of transfers. Each method receives the torch function and must call it.

    Args:
        lines: a ``LineFinder``, which returns the current line of the current thread.
        log: list to which events are appended.

    Attributes:
        flow: recorder of the flow of data, for steps whose ops are all recorded.
        optimizers: optimizers of the step by id, if its ops are recorded.
    """

    def __init__(self, lines: Any, log: list[Any]) -> None:
        self._lines, self._log = lines, log
        self.flow = DataFlow(lines.frames)
        self._contents: dict[Hashable, int] = {}  # numbers of the values of all parameters of a group
        self._meshes: dict[Any, int] = {}
        self._running = Running()
        self.origins = Origins(self._note_optimizer)
        self._numbers = TensorNumbers()
        self._matrix_counts, self._fsdp_groups = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._options = WeakIdKeyDictionary()  # numbers of optimizers at the beginning of the step
        # Position in the log, and explicit redistribution, by its node in the graph of autograd.
        self._graph = WeakIdKeyDictionary()
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the last step."""
        self.origins.begin_step()
        self.flow.begin_step()
        self._inputs: defaultdict[Hashable, list[ModuleInput]] = defaultdict(list)  # by call and argument
        self._passes = 0  # backward passes that ended
        # By number of the FSDP group: contents and settings of its last reduction.
        self._reduced: dict[int, Hashable] = {}
        # Likewise: memory and number of uses of each gradient after that backward pass.
        self._gradients: dict[int, tuple[tuple[int, int], ...]] = {}
        self._moves: list[Redistribution] = []
        self._checksums: dict[Hashable, int] = {}  # of the first result of each tensor and placements
        self._uses: dict[int, Use] = {}  # of redistributions, conversions and reads, by the id of the event
        self._referred: list[Converted] = []  # those since the last backward pass
        self._stepped: dict[int, Callable[[], OptimizerStep] | None] = {}
        for optimizer in self._options:
            self._options[optimizer] = numbers_of(optimizer)

    def on_implied(self, redistribute: Function, info: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the op whose arguments are redistributed."""
        with patch.object(self._running, "schema", schema):
            return redistribute(info, schema, *args, **kwargs)

    def on_redistribution(self, redistribute: Function, *args: Any, **kwargs: Any) -> Any:
        """Record a redistribution that changes placements, with the bytes of its collectives."""
        local, source, target, *_ = args
        is_observed, self._running.is_observed = self._running.is_observed, False
        if tuple(source.placements) == tuple(target.placements):
            return redistribute(*args, **kwargs)
        self.flow.note_thread()
        running, place = self._running, self._lines.here()
        number = memory = matrices = operands = 0
        is_for_loss, implied_by = False, ""
        if running.schema is not None:
            implied_by, leaves = op_name(running.schema.op), propagated_call(running.schema).leaves
            operands = sum(isinstance(leaf, DTensorSpec) for leaf in leaves)
        versions = self.flow.versions(local)
        if running.redistributed is not None:
            version = version_of(running.redistributed)
            number = self._numbers.of_contents(local, version, running.has_gradient, *versions)
            memory = self._numbers.of_memory(local)
        elif implied_by:
            number = self._numbers.of_contents(local, *versions)
            matrices = self._matrices() if place.phase is Phase.OPTIMIZER else 0
            if implied_by.startswith("_log_softmax."):
                is_for_loss = is_in_parallel_loss(sys._getframe(1))
        before, after = _placements(source), _placements(target)
        running.mesh = source.mesh
        MESH_DIMS.add(source.mesh)
        with (
            patch.multiple(running, collectives=(), place=place),
            ProfilerRange("redistribution", placement_change, before, after),
        ):
            with self.flow.paused():
                result = redistribute(*args, **kwargs)
            ran = running.collectives
        moved = Redistribution(
            op=implied_by or (is_observed and running.converting) or EXPLICIT,
            tensor=spec_text(source),
            source=before,
            target=after,
            bytes=sum(one.bytes for one in ran),
            tensor_number=number,
            result_number=self._numbers.of_contents(result, 0, running.has_gradient),
            operands=operands,
            memory_number=memory,
            matrices=matrices,
            is_for_loss=is_for_loss,
            place=place,
        )
        self._log.append(self._proved(moved, local, source, result, ran) if self.flow.is_on else moved)
        return result

    def _proved(
        self, moved: Redistribution, local: Any, spec: Any, result: Any, ran: Sequence[Collective]
    ) -> Redistribution:
        """Complete a redistribution of a step whose ops are recorded, except for uses, which may follow."""
        is_lasting = not self.flow.of(local).is_new and not self.flow.is_view(local)
        move = self.flow.move(local, result)
        is_merged = {one.kind for one in ran} == {"all_reduce"} and len({*moved.source} - {"R"}) == 1
        earlier = [self._moves[position] for position in move.earlier]
        is_undone = all((one.source, one.target) == (moved.target, moved.source) for one in earlier)
        optimizer = running_instance(sys._getframe(), Optimizer) if self._running.schema is not None else None
        groups = [] if optimizer is None else optimizer.param_groups
        gradients = (each.grad for group in groups for each in group["params"] if each.grad is not None)
        versions = self.flow.versions(result)
        number, checksum = moved.tensor_number, versions[-1]
        if number and (is_local_mode_open() or not is_group_fake()):
            first = self._checksums.setdefault((number, moved.target, self._running.options), checksum)
            if checksum != first:  # another rank wrote to its shard
                number = self._numbers.of_memory(local, number, checksum)
        moved = replace(
            moved,
            **self._proof(self._running.redistributed),
            tensor_number=number,
            node=self._running.node,
            options=self._running.options,
            depth=move.depth,
            result_number=self._numbers.of_contents(result, 0, self._running.has_gradient, *versions),
            mesh=self._mesh_number(spec.mesh),
            is_even=is_even(spec),
            mergeable=len(ran) - 1 if is_merged and merges_dimensions() and spec.mesh.mesh_dim_names else 0,
            is_gradient=storage_key(local) in map(storage_key, gradients),
            is_parameter=isinstance(self._running.redistributed, torch.nn.Parameter),
            is_lasting=is_lasting,
            free_dims=free_dims(self._running.schema, spec) if moved.operands == 1 else (),
            undoes=tuple(sorted(move.earlier)) if is_undone else (),
        )
        self._moves.append(moved)
        self._uses[id(moved)] = move
        return moved

    def _mesh_number(self, mesh: Any) -> int:
        return self._meshes.setdefault(mesh, len(self._meshes) + 1)

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        numbers = numbers_of(optimizer)
        # By identity: a rate that the step computes from what it read may equal the last one.
        if [*map(id, numbers)] != [*map(id, self._options.setdefault(optimizer, []))]:
            self.flow.need_values()
        if self.flow.is_on:
            self._stepped[id(optimizer)] = describe_optimizer(optimizer)

    def optimizer_steps(self) -> tuple[OptimizerStep | None, ...]:
        """Return the optimizers of the step, if its ops are recorded; call it after they were counted."""
        with self.flow.paused():
            return tuple(describe() if describe else None for describe in self._stepped.values())

    def completed(self, events: Iterable[Any]) -> Iterator[Any]:
        """Complete the events of a step whose ops were recorded with uses of their tensors."""
        # `PrepareModuleInput` cannot convert an argument once if its module is called with several numbers of
        # positional arguments, or if its code uses it otherwise.
        positional: defaultdict[int, set[int]] = defaultdict(set)
        for first, *_ in self._inputs.values():
            positional[id(first.module)].add(first.positional)
        refused = set()
        for conversions in self._inputs.values():
            module, loads = id(conversions[0].module), conversions[0].uses.loads
            if len(positional[module]) > 1 or loads > len(conversions):
                refused.add(id(conversions))
        for event in events:
            use = self._uses.get(id(event))
            if isinstance(use, Move):
                yield replace(
                    event,
                    uses=use.source.all_uses,
                    forward_uses=use.source.forward_uses,
                    own_writes=use.source.own_writes,
                    is_written_later=use.is_written_later,
                    result_uses=use.result.all_uses,
                    is_result_unique=use.is_result_unique,
                    output_uses=sum(each.all_uses for each in use.outputs),
                    other_uses=use.others,
                )
            elif isinstance(use, Converted):
                gradient = getattr(use.parameter(), "grad", None)
                memories = [use.source] if gradient is None else [use.source, self.flow.of(gradient)]
                yield replace(
                    event,
                    input=0 if event.input in refused else event.input,
                    plain_uses=sum(memory.plain_uses + memory.is_listed for memory in memories),
                    own_conversions=use.source.own_conversions,
                    is_result_unique=use.is_result_unique,
                )
            elif use is not None:
                yield replace(event, is_written_later=use.is_written_later)
            else:
                yield event

    def groups(self) -> tuple[FsdpGroup, ...]:
        """Describe the groups of FSDP2 that were gathered or reduced."""
        return describe_groups(dict(self._fsdp_groups.items()))

    def _matrices(self) -> int:
        """Return the number of sharded matrices of the optimizer that runs, counted at its first event."""
        optimizer = running_instance(sys._getframe(1), Optimizer)
        if optimizer is not None and optimizer not in self._matrix_counts:
            self._matrix_counts[optimizer] = count_sharded_matrices(optimizer)
        return 0 if optimizer is None else int(self._matrix_counts[optimizer])

    def _proved_collective(self, ran: Collective, group: Any, values: Any) -> Collective:
        """Complete a collective of a step whose ops are recorded."""
        contents = uses = 0
        accumulates = False
        if group is not None:
            shards = shards_of(group)
            uses = sum(self.flow.of(each).outer_uses for each in shards)
            locals_of = [(shard, local_of(shard)) for shard in shards]
            numbers = tuple(
                self._numbers.of_contents(local, version_of(shard), *self.flow.versions(local))
                for shard, local in locals_of
            )
            contents = self._contents.setdefault(numbers, len(self._contents) + 1)
            if ran.kind != "all_gather":
                reduced, number = (contents, how_reduced(group)), ran.fsdp_group
                is_same, self._reduced[number] = self._reduced.get(number) == reduced, reduced
                gradients = self._gradients.pop(number, ())
                accumulates = is_same and gradients == self._gradients_of(group) != ()
        tensors = [] if ran.is_redistributing else tensors_in(values)
        self.flow.use(tensors if group is None else ())
        depth = self.flow.transfer(tensors, tensors)
        self.flow.write(tensors)
        return replace(
            ran,
            **self._proof(),
            depth=depth,
            reduction=reduction_of(sys._getframe(1), values),
            contents=contents,
            accumulates=accumulates,
            uses=uses,
            shape=str(tuple(tensors[0].shape)) if tensors else "",
        )

    def _gradients_of(self, group: Any) -> tuple[tuple[int, int], ...]:
        """Return memory and number of uses of each gradient of a group; empty if hooks take the gradients."""
        shards = shards_of(group)
        if any(map(runs_hooks, shards)):
            return ()
        gradients = (shard.grad for shard in shards if shard.grad is not None)
        return tuple((storage_key(each), self.flow.of(each).uses) for each in gradients)

    def on_collective(self, kind: str, collective: Function, *args: Any, **kwargs: Any) -> Any:
        """Record a collective; a nested one is part of the outer one."""
        if self._running.is_in_collective:
            return collective(*args, **kwargs)
        self.flow.note_thread()
        place = self._running.place or self._lines.here()
        self._running.is_in_collective = True
        try:
            with ProfilerRange("collective", str, kind):
                result = collective(*args, **kwargs)
        finally:
            self._running.is_in_collective = False
        values = (*args, *kwargs.values())
        # The tensor of a barrier only selects its device.
        arguments = () if kind == "barrier" else (*values, result)
        tensors = list(filter(None, map(tensors_in, arguments)))
        handled = max((sum(map(_bytes, of_argument)) for of_argument in tensors), default=0)
        dtypes = dict.fromkeys(tensor.dtype for of_argument in tensors for tensor in of_argument)
        # The first argument or the result of these is complete on each rank.
        is_complete = kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
        for reduced in (*tensors[:1], *tensors[-1:]) if is_complete else ():
            for each in reduced:
                self.origins.mark_share(each, is_partial=False)
        is_redistributing = self._running.place is not None
        # The group of parameters that FSDP2 gathers or reduces, and its number.
        kind_of_group = None if is_redistributing else fsdp_group_type()
        group = kind_of_group and running_instance(sys._getframe(), kind_of_group)
        fsdp_group = 0
        if group is not None:
            fsdp_group = self._fsdp_groups.setdefault(group, len(self._fsdp_groups) + 1)
        mesh = self._running.mesh if is_redistributing else None
        dims, ranks = MESH_DIMS.of(group_among(values), mesh)
        ran = Collective(
            kind,
            handled,
            is_redistributing=is_redistributing,
            fsdp_group=fsdp_group,
            dtype="+".join(map(dtype_text, dtypes)),
            mesh_dim="/".join(dims),
            group=ranks,
            place=place,
        )
        exchange = self._running.exchange
        counted = exchange(ran) if exchange else ran
        if self.flow.is_on:
            counted = self._proved_collective(counted, group, values)
        self._log.append(counted)
        self._running.collectives += (counted,)
        return result

    def on_observation(self, observe: Function, *args: Any, **kwargs: Any) -> None:
        """Record that the next redistribution is implicit, by an op or in the backward of a conversion."""
        observe(*args, **kwargs)
        self._running.is_observed = True

    def on_exchange(self, exchange: Function, shard: Any, *args: Any, **kwargs: Any) -> Any:
        """Record that the next collective exchanges shards: an all_to_all, or a gather on a CPU mesh."""
        is_simulated = is_local_mode_open()
        is_real, nbytes = not is_simulated and not is_group_fake(), _bytes(shard)
        has_fallback = is_simulated and shard.device.type == "cpu"  # on the tensors of all ranks, ungathered

        def counted(ran: Collective) -> Collective:
            """Return the collective that a GPU mesh would run; between real processes, the one that ran."""
            is_gathered = ran.kind == "all_gather"
            if is_real:
                return replace(ran, elsewhere="all_to_all on a GPU") if is_gathered else ran
            fallback = "all_gather on a CPU mesh" if is_gathered or has_fallback else ""
            return replace(ran, kind="all_to_all", bytes=nbytes, elsewhere=fallback)

        with patch.object(self._running, "exchange", counted):
            return exchange(shard, *args, **kwargs)

    def on_conversion(self, converter: Converter, convert: Function, *args: Any, **kwargs: Any) -> Any:
        """Record a wrap or an unwrap; a nested one is part of the outer one."""
        __tracebackhide__ = True
        # The autograd node has edges only if there will be a gradient.
        has_gradient = bool(getattr(args[0], "next_functions", ()))
        node = number_of(args[0]) if has_gradient else None
        if converter.kind is Conversion.REDISTRIBUTE:
            explicit = None if converter.is_backward else first_tensor(args)
            events = len(self._log)
            running: dict[str, Any] = {"redistributed": explicit, "has_gradient": has_gradient, "node": node}
            if self.flow.is_on:
                running["options"] = _options(args, kwargs)
            with patch.multiple(self._running, **running):
                result = convert(*args, **kwargs)
            last = self._log[-1] if len(self._log) > events else None
            if self.flow.is_on and explicit is not None and isinstance(last, Redistribution):
                self.flow.moves[-1].reference = weakref.ref(result)
                self._referred.append(self.flow.moves[-1])
            if has_gradient and explicit is not None:
                moved = last if isinstance(last, Redistribution) else None
                if moved is not None:
                    self._graph[args[0]] = len(self._log) - 1, moved
                # The backward of one that moves nothing may redistribute.
                self._lines.record_node(args[0], (moved and moved.place) or self._lines.here())
            return result
        if self._running.converting:
            return convert(*args, **kwargs)
        self.flow.note_thread()
        source = first_tensor(args)
        has_number = source is not None and not converter.is_backward
        number = self._number(converter, source, has_gradient) if has_number else 0
        converting = patch.multiple(self._running, converting=converter.name, node=node)
        with converting, ProfilerRange(converter.kind, str, converter.name):
            result = convert(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        tensors = args if converter.kind is Conversion.UNWRAP else results
        # Backward may have no DTensor.
        wrapped = next((tensor for tensor in tensors if isinstance(tensor, DTensor)), None)
        if wrapped is not None:
            event = Wrapping if converter.kind is Conversion.WRAP else Unwrapping
            MESH_DIMS.add(wrapped.device_mesh)
            text, placements = spec_text(wrapped), _placements(wrapped)
            is_parameter, place = isinstance(source, torch.nn.Parameter), self._lines.here()
            if converter.kind is Conversion.WRAP:
                self.origins.mark_device(wrapped)
            converted = event(converter.name, text, placements, number, is_parameter, place=place)
            if self.flow.is_on:
                proved = self._proved_wrap(converted, wrapped, source, results[0])
                converted = replace(proved, node=node, options=_options(args, kwargs))
                self._uses[id(converted)] = self._referred[-1]
            self._log.append(converted)
            if has_gradient and not converter.is_backward:
                self._lines.record_node(args[0], place)
        return result

    def _proved_wrap(self, event: Wrapping, wrapped: Any, source: Any, result: Any) -> Wrapping:
        """Complete a wrap or an unwrap of a step whose ops are recorded, and record its use of the tensor."""
        proof = self._proof(source, is_replicated(wrapped))
        memory = self.flow.of(wrapped if source is None else source)
        memory.own_conversions += source is not None and not proof["via"]
        self.flow.unwrap(wrapped if source is None else source)
        use = Converted(memory, self.flow.of(result), reference=weakref.ref(result))
        if isinstance(source, torch.nn.Parameter):
            use.parameter = weakref.ref(source)
        self._referred.append(use)
        return replace(event, mesh=self._mesh_number(wrapped.device_mesh), **proof)

    def on_backward(self, run: Function, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Count outermost passes; mark redistributions of logits before the backward of a cross entropy."""
        is_outermost = not is_in_backward()
        if self.flow.is_on:
            for tensor in tensors_in([args, kwargs]):  # inputs of autograd.grad
                self.flow.of(tensor).is_observed = True
            while self._referred:
                self._referred.pop().note_hooks()
        if self._graph and not self.flow.takes_shards("nll_loss_forward."):
            for node in origins_of_logits(outputs):
                if node not in self._graph:  # `get` raises TypeError for nodes in C++: no weak references
                    continue
                number, moved = self._graph[node]
                if self._log[number : number + 1] == [moved] and self._log[number] is moved:
                    self._log[number] = marked = replace(moved, is_for_loss=True)
                    if id(moved) in self._uses:
                        self._uses[id(marked)] = self._uses.pop(id(moved))
        try:
            return run(outputs, *args, **kwargs)
        finally:
            self._passes += is_outermost
            observe_marked()
            for group, number in self._fsdp_groups.items() if is_outermost and self.flow.is_on else ():
                if number in self._reduced:
                    self._gradients[number] = self._gradients_of(group)

    def on_read(self, run: Function, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a read of a tensor by the host; nested reads are part of it."""
        running, origins = self._running, self.origins
        is_part = running.is_reading or (running.is_on_cpu and name in ("item", "equal"))
        is_uncounted = is_part or not is_tensor(tensor) or is_host_read(sys._getframe(1))
        if is_uncounted or (name == "pickle" and is_dtensor(tensor)):
            return run(tensor, *args, **kwargs)
        self.flow.note_thread()
        # What is computed on the host is on the host too. A tensor with a gradient is its own copy.
        is_on_host = self._is_on_host(tensor) and not (name == "cpu" and tensor.requires_grad)
        running.is_reading = True  # `patch.object` takes 10 us, and optimizers read many counters
        try:
            result = run(tensor, *args, **kwargs)
        finally:
            running.is_reading = False
        proof: dict[str, Any] = {}
        # What is on the host may depend on a transfer as well.
        if self.flow.is_on and (not is_on_host or self.flow.of(tensor).depth):
            proof = self._proof_of_read(name, tensor, result)
        if is_on_host or not waits_for_device(local_of(tensor)):
            return result
        placements = tensor.placements if is_dtensor(tensor) else ()
        texts = tuple(map(placement_text, placements))
        # These read the local tensor of a DTensor; torch redistributes a partial one for all other reads.
        reads_local = name in ("item", "tolist", "numpy", "cpu", "print")
        is_share = reads_local and any(each.is_partial() for each in placements)
        is_share |= origins.is_share(tensor)
        with patch.object(running, "is_reading", True):  # formatting may read it again
            text = spec_text(tensor)
        read = Read(name, text, texts, is_share, place=self._lines.here(), **proof)
        if proof:
            self._uses[id(read)] = Use(self.flow.of(tensor))
        self._log.append(read)
        return origins.copied(tensor, result) if name == "cpu" else result

    def _proof(self, converted: Any = None, is_whole: bool = True) -> dict[str, Any]:
        """Return the attributes of all events, with the number of an argument that a plan converts.

        That number is 0 if a DTensor may not take the place of the argument.
        """
        frames = self._lines.frames
        number, found = 0, None if converted is None else frames.input_of(converted)
        # A DTensor in place of the tensor has these attributes too; only a replicated one has the same shape.
        equal = {"ndim", "dim", "dtype", "device", "requires_grad"}
        if is_whole:
            equal |= {"shape", "size", "numel"}
        if found is not None and found.uses.attributes <= equal:
            conversions = self._inputs[id(found.module), id(found.call), found.name]
            conversions.append(found)  # a reference, so that no other call has this dictionary
            number = id(conversions)
        return {"via": frames.called_by(), "after": self._passes, "input": number}

    def _proof_of_read(self, name: str, tensor: Any, result: Any) -> dict[str, Any]:
        depth = self.flow.read(tensor, result)
        if name == "numpy":  # its result shares the memory of a tensor on a CPU
            self.flow.write([tensor])
        # These move values to the host, which may use them later; others return a shape that depends on them.
        moves = name in ("item", "tolist", "numpy", "cpu", "print", "pickle")
        decides = not moves or is_compared(program_frame(sys._getframe(2)))
        if decides:
            self.flow.need(depth)
        mesh = self._mesh_number(tensor.device_mesh) if is_dtensor(tensor) else 0
        return {**self._proof(), "depth": depth, "is_compared": decides, "mesh": mesh}

    def _is_on_host(self, tensor: Any) -> bool:
        if self.origins.is_host(tensor):
            return True
        if may_be_owned(tensor):
            optimizer = running_instance(sys._getframe(2), Optimizer)
            if optimizer is not None:
                self.origins.mark_owned(optimizer)
            else:
                self.origins.search(sys._getframe(2))
        return self.origins.is_host(tensor)

    def on_cpu_reader(self, run: Function, *args: Any, **kwargs: Any) -> Any:
        """Run an op that reads numbers only on a CPU."""
        with patch.object(self._running, "is_on_cpu", True):
            return run(*args, **kwargs)

    def _number(self, converter: Converter, tensor: Any, has_gradient: bool) -> int:
        """Return the number of a converted tensor.

        The result shares its memory, so a write changes the number only if it changes the autograd graph of
        the tensor. A result without a gradient does not replace one with a gradient.
        """
        if converter.name == "distribute_tensor":
            return self._numbers.of_contents(tensor, *self.flow.versions(tensor))
        local = local_of(tensor)
        written = (version_of(local),) if has_graph(tensor) else ()
        return self._numbers.of_memory(local, has_gradient, *written)


def _options(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a conversion other than its tensors and its node of autograd, as text."""
    others = (each for each in (*args[1:], *kwargs.values()) if not is_tensor(each))
    return ", ".join(map(str, others))


def is_in_parallel_loss(frame: FrameType | None) -> bool:
    """Return whether a frame or a caller is a cross entropy that ``loss_parallel`` supports.

    It takes labels and weights of classes that are plain or replicated.
    """
    while frame is not None and frame.f_code is not torch.nn.functional.cross_entropy.__code__:
        frame = frame.f_back
    if frame is None:
        return False
    variables = frame.f_locals
    target, weight = variables["target"], variables["weight"]
    has_shards = any(is_dtensor(each) and not is_replicated(each) for each in (target, weight))
    return not (variables["label_smoothing"] or target.is_floating_point() or has_shards)


def first_tensor(values: Sequence[Any]) -> torch.Tensor | None:
    """Return the converted tensor, which follows the arguments that autograd adds."""
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _placements(tensor: Any) -> tuple[str, ...]:
    return tuple(map(placement_text, tensor.placements))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, on the first rank if ranks are simulated."""
    shard = tensor if type(tensor) is torch.Tensor else shards_of_simulated_ranks(tensor)[0]
    return ask_tensor(lambda each: int(each.numel() * each.element_size()), shard, 0)
