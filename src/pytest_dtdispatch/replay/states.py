"""State that a call may change, other than the contents of tensors."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi.tensors import (
    ask_tensor,
    cuda_generator,
    random_tracker_states,
    set_spec,
    set_version,
    spec_of,
    version_of,
)

CONTAINERS = (dict, list, set, deque)


def containers_in(value: Any, found: dict[int, Any] | None = None) -> list[Any]:
    """Return a dict, list, set or deque and all those nested in it; an empty list for other values.

    Example:
        >>> containers_in({"a": [1, {2}], "b": 3})
        [{'a': [1, {2}], 'b': 3}, [1, {2}], {2}]
    """
    found = {} if found is None else found
    if issubclass(type(value), CONTAINERS) and id(value) not in found:
        found[id(value)] = value
        for each in value.values() if issubclass(type(value), dict) else value:
            containers_in(each, found)
    return [*found.values()]


def refill(container: Any, contents: Any) -> None:
    """Set the contents of a dict, list, set or deque."""
    if isinstance(container, list):
        container[:] = contents
        return
    container.clear()
    extend = container.extend if isinstance(container, deque) else container.update
    extend(contents)


class SavedState:
    """Values of one property of several objects, before and after the program's call.

    Args:
        read: function that returns the property of an object.
        write: function that sets the property of an object.
        kind: classes of the objects; objects of other classes are ignored.
    """

    def __init__(
        self, read: Callable[[Any], Any], write: Callable[[Any, Any], None], kind: Any = object
    ) -> None:
        self._read = read
        self._write = write
        self._kind = kind
        self._before: dict[int, tuple[Any, Any]] = {}
        self._after: list[tuple[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def save(self, owner: Any) -> None:
        """Save the property of an object, unless it is already saved."""
        if id(owner) not in self._before and issubclass(type(owner), self._kind):
            self._before[id(owner)] = (owner, self._read(owner))

    def settle(self) -> None:
        """Save the values after the program's call, for all objects that were saved before it."""
        self._after = [(owner, self._read(owner)) for owner, _ in self._before.values()]

    def rewind(self) -> None:
        """Restore the values before the call."""
        for owner, value in reversed(self._before.values()):  # a later view has the version of its base
            self._write(owner, value)

    def restore(self) -> None:
        """Restore the values after the program's call, or saved values of objects that were saved later."""
        self.rewind()
        for owner, value in reversed(self._after):
            self._write(owner, value)


def random_states(generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    """Return the state of a generator, or the states of DTensor's own tracker if it is None."""
    if generator is not None:
        return {"": generator.get_state()}
    return {name: state.clone() for name, state in random_tracker_states().items()}


def set_random_states(generator: torch.Generator | None, states: dict[str, torch.Tensor]) -> None:
    """Set the state of a generator, or the states of DTensor's own tracker if it is None."""
    if generator is not None:
        generator.set_state(states[""])
        return
    tracked = random_tracker_states()
    tracked.update({name: state.clone() for name, state in states.items() if name in tracked})


class AdvancedState(SavedState):
    """States of generators, which are restored only if a call advances one.

    Attributes:
        has_advanced: whether the program's call drew random numbers.
    """

    has_advanced = False

    def settle(self) -> None:
        """Save the states after the program's call, and compare them with those before it."""
        super().settle()
        pairs = zip(self._before.values(), self._after, strict=True)
        self.has_advanced = any(not self._are_equal(before, after) for (_, before), (_, after) in pairs)

    def _are_equal(self, before: Any, after: Any) -> bool:
        return bool(before == after)

    def rewind(self) -> None:
        """Restore the states before the call, if it advanced any."""
        if self.has_advanced:
            super().rewind()


def host_state(generator: Any) -> bytes | None:
    """Return the state of a random generator of Python or NumPy; None if it has none."""
    return ask(lambda each: pickle.dumps(_host_state(each)), generator, None)


def _host_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.state


def set_host_state(generator: Any, state: bytes | None) -> None:
    """Set the state of a random generator of Python or NumPy."""
    if state is None:
        return
    if isinstance(generator, random.Random):
        generator.setstate(pickle.loads(state))
    elif hasattr(generator, "set_state"):
        generator.set_state(pickle.loads(state))
    else:
        generator.state = pickle.loads(state)


class HostRandomState(AdvancedState):
    """States of random generators of Python and NumPy."""

    def __init__(self, generators: Sequence[Any]) -> None:
        super().__init__(host_state, set_host_state)
        for generator in generators:
            self.save(generator)


class RandomState(AdvancedState):
    """Random states: of devices, of generators in arguments, and of DTensor's tracker."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__(random_states, set_random_states)
        self.save(None)  # DTensor's tracker
        self.save_all((torch.default_generator, *leaves))

    def save_all(self, leaves: Sequence[Any]) -> None:
        """Save the states of generators, and of the devices of tensors."""
        for leaf in leaves:
            device = leaf if type(leaf) is torch.device else ask_tensor(attrgetter("device"), leaf, None)
            if issubclass(type(leaf), torch.Generator):
                self.save(leaf)
            elif type(device) is torch.device and device.type == "cuda":
                self.save(cuda_generator(device))

    def _are_equal(self, before: Any, after: Any) -> bool:
        return before.keys() == after.keys() and all(map(torch.equal, before.values(), after.values()))


class Gradients(SavedState):
    """Gradients of leaves, including leaves that no op reads before their gradient is set.

    FSDP2 sets the gradients of its parameters, which no op reads before the optimizer does.

    Args:
        before: live leaves before the call and their gradients, by the id of the leaf.
    """

    def __init__(self, before: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(attrgetter("grad"), lambda leaf, grad: setattr(leaf, "grad", grad))
        self._alive = before

    def save(self, owner: Any) -> None:
        """Save the gradient of a leaf, unless it is already saved."""
        if id(owner) in self._alive:
            self._before.setdefault(id(owner), self._alive[id(owner)])
        super().save(owner)

    def settle(self) -> None:
        """Save the gradients after the program's call, including those of leaves that no op read."""
        for leaf, gradient in self._alive.values():
            if leaf.grad is not gradient:
                self.save(leaf)
        self._alive = {}
        super().settle()


def set_mask(buffer: Any, mask: tuple[Any, int]) -> None:
    """Set the mask of the buffer of a masked partial sum, and its reference count."""
    buffer.data, buffer.refcount = mask


class States:
    """All state that a call may change, other than the contents of tensors.

    Args:
        leaves: leaves of the call's arguments.
        gradients: live leaves and their gradients, by the id of the leaf.
        generators: random generators of Python and NumPy.
    """

    def __init__(
        self, leaves: Sequence[Any], gradients: dict[int, tuple[Any, Any]], generators: Sequence[Any] = ()
    ) -> None:
        self.masks = SavedState(attrgetter("data", "refcount"), set_mask)
        self.optimizers = SavedState(lambda each: each.copy(), refill, CONTAINERS)
        self.versions = SavedState(version_of, set_version)
        self.specs = SavedState(spec_of, set_spec, DTensor)
        self.gradients = Gradients(gradients)
        self.random = RandomState(leaves)
        self.host_random = HostRandomState(generators)

    def settle(self) -> None:
        """Save all state after the program's call."""
        for state in vars(self).values():
            state.settle()


def leaves_behind(tensor: torch.Tensor, visited: dict[int, Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves of the autograd graph of a tensor, without nodes in ``visited``.

    A tensor that retains its gradient is also a leaf. A stale view has no leaves: no op can use it while
    gradients are recorded.
    """
    if ask_tensor(lambda each: each.requires_grad and (each.is_leaf or each.retains_grad), tensor, False):
        yield tensor
    nodes = [ask_tensor(attrgetter("grad_fn"), tensor, None)]
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in visited:
            continue
        visited[id(node)] = node  # the reference prevents that another node gets its id
        if hasattr(node, "variable"):
            yield node.variable
        nodes.extend(parent for parent, _ in node.next_functions)
