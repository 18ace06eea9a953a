"""State that a call may change, other than the contents of tensors."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi.tensors import (
    ask_tensor,
    cuda_generator,
    random_tracker_states,
    tensor_query,
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


def containers_of(owner: Any) -> list[Any]:
    """Return the containers in the attributes of an object."""
    return containers_in(vars(owner))


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


def random_state(generator: Any) -> Any:
    """Return the state of a generator of torch, Python or NumPy; None stands for DTensor's own tracker.

    The result is None for a generator of a class of the user that has no state.
    """
    if generator is None:
        return {name: state.clone() for name, state in random_tracker_states().items()}
    if issubclass(type(generator), torch.Generator):
        return generator.get_state()
    return ask(_pickled_state, generator, None)


def _pickled_state(generator: Any) -> bytes:
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if hasattr(generator, "get_state"):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(generator.state)


def set_random_state(generator: Any, state: Any) -> None:
    """Set the state of a generator, or the states of DTensor's own tracker if it is None."""
    if generator is None:
        tracked = random_tracker_states()
        tracked.update({name: each.clone() for name, each in state.items() if name in tracked})
    elif issubclass(type(generator), torch.Generator):
        generator.set_state(state)
    elif state is not None:
        unpickled = pickle.loads(state)
        if isinstance(generator, random.Random):
            generator.setstate(unpickled)
        elif hasattr(generator, "set_state"):
            generator.set_state(unpickled)
        else:
            generator.state = unpickled


def are_states_equal(before: Any, after: Any) -> bool:
    """Return whether two states of a generator are equal."""
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(map(torch.equal, before.values(), after.values()))
    return torch.equal(before, after) if isinstance(before, torch.Tensor) else bool(before == after)


class RandomState(SavedState):
    """Random states: of devices, of generators in arguments, of DTensor's tracker, of Python and NumPy.

    Args:
        leaves: leaves of the arguments.
        generators: random generators of Python and NumPy.

    Attributes:
        has_advanced: whether the program's call drew random numbers.
    """

    has_advanced = False

    def __init__(self, leaves: Sequence[Any], generators: Sequence[Any] = ()) -> None:
        super().__init__(random_state, set_random_state)
        self._unchanged: set[int] = set()  # ids of generators that the program's call did not advance
        self.save_all((torch.default_generator, *leaves))
        for generator in (None, *generators):  # None: DTensor's tracker
            self.save(generator)

    def save_all(self, leaves: Sequence[Any]) -> None:
        """Save the states of generators, and of the devices of tensors."""
        for leaf in leaves:
            device = leaf if type(leaf) is torch.device else ask_tensor(attrgetter("device"), leaf, None)
            if issubclass(type(leaf), torch.Generator):
                self.save(leaf)
            elif type(device) is torch.device and device.type == "cuda":
                self.save(cuda_generator(device))

    def settle(self) -> None:
        """Save the states after the program's call, and compare them with those before it."""
        super().settle()
        pairs = zip(self._before.values(), self._after, strict=True)
        equal = ((owner, are_states_equal(before, after)) for (owner, before), (_, after) in pairs)
        self._unchanged = {id(owner) for owner, is_equal in equal if is_equal}
        self.has_advanced = len(self._unchanged) < len(self._before)

    def rewind(self) -> None:
        """Restore the states before the call of generators that it advanced."""
        for owner, value in self._before.values():
            if id(owner) not in self._unchanged:
                self._write(owner, value)


def set_gradient(leaf: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Set the gradient of a leaf."""
    leaf.grad = gradient


class Gradients(SavedState):
    """Gradients of leaves, including leaves that no op reads before their gradient is set.

    FSDP2 sets the gradients of its parameters, which no op reads before the optimizer does.

    Args:
        before: live leaves before the call and their gradients, by the id of the leaf.
    """

    def __init__(self, before: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(attrgetter("grad"), set_gradient)
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


@tensor_query(False)
def gets_gradient(tensor: torch.Tensor) -> bool:
    """Return whether a backward may set the gradient of a tensor."""
    return tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)


def leaves_behind(tensor: torch.Tensor, visited: dict[int, Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves of the autograd graph of a tensor, without nodes in ``visited``.

    A tensor that retains its gradient is also a leaf. A stale view has no leaves: no op can use it while
    gradients are recorded.
    """
    if gets_gradient(tensor):
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
