"""Source line, module and phase of every op of a training step."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import Linear, Sequential, functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.lines.finder import LineFinder, ModuleNames
from pytest_dtdispatch.lines.wrappers import pass_over
from tests.threads import in_thread

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_stays")]

LINES = Path(__file__).read_text().splitlines()
# Compiled from a string: its frames have no file, so they are not attributed to the program.
ASKING = """
class AskingMode(TorchDispatchMode):
    def __init__(self, ask):
        super().__init__()
        self.ask = ask
        self.seen = []

    @classmethod
    def is_infra_mode(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func.__name__, self.ask()))
        return func(*args, **(kwargs or {}))
"""
exec(compile(ASKING, "<made>", "exec"))
Asking: Any = globals()["AskingMode"]
Recorded = list[tuple[str, CodePlace]]
Step = Callable[[], None]


def where(place: CodePlace) -> tuple[str, str, str]:
    """Return the comment that marks the line of a place in this file, with its module and phase."""
    assert place.file == __file__
    return LINES[place.line - 1].partition("  # ")[2], place.module, str(place.phase)


def found(seen: Recorded, op: str) -> list[tuple[str, str, str]]:
    """Return the unique places where an op was called."""
    return list(dict.fromkeys(where(place) for name, place in seen if name.startswith(op)))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helped(self.inner(x).sin())  # block


def helped(x: torch.Tensor) -> torch.Tensor:
    return x.cos()  # helper


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.tanh()  # own backward


class Net(torch.nn.Module):
    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.is_reentrant = is_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        x = checkpoint(self.layers[1], x, use_reentrant=self.is_reentrant)
        doubled: torch.Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]
        return doubled.exp()  # net


@pytest.fixture(params=[False, True], ids=["", "reentrant"])
def step(request: pytest.FixtureRequest) -> Step:
    net = Net(request.param)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    x = torch.rand(4, 4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)  # zero_grad
        loss = functional.mse_loss(net(x), x)  # loss
        loss.backward()  # backward call
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # clip
        optimizer.step()  # optimizer
        loss.detach().log()  # logging

    return step


@pytest.fixture
def finder() -> Iterator[LineFinder]:
    with LineFinder() as finder:
        yield finder


def record_step(step: Callable[[], Any], ask: Callable[[], CodePlace]) -> Recorded:
    with Asking(ask) as asking:
        step()
    return list(asking.seen)


@pytest.fixture
def recorded(finder: LineFinder, step: Step) -> Recorded:
    """Return the places of the second of two recorded steps."""
    step()
    finder.begin_step()
    recorded = record_step(step, finder.record)
    finder.begin_step()
    seen = record_step(step, finder.here)
    assert seen == recorded
    return seen


def test_each_op_has_line_module_and_phase(recorded: Recorded) -> None:
    only = {
        "exp": ("net", "Net", "forward"),
        "mse_loss.": ("loss", "", "forward"),
        "mse_loss_backward": ("loss", "", "backward"),
        # Preparations of backward are in backward; user code called by the engine has its own line.
        "ones_like": ("backward call", "", "backward"),
        "tanh": ("own backward", "Net", "backward"),
        "zero_": ("zero_grad", "", "optimizer"),
        "log": ("logging", "", "other"),
    }
    assert {op: found(recorded, op) for op in only} == {op: [place] for op, place in only.items()}
    for op, module, phase in (
        ("mm", "layers.0.inner", "forward"),
        ("mm", "layers.1.inner", "forward"),
        ("mm", "layers.0.inner", "backward"),
        ("cos", "layers.0", "backward"),  # in the gradient of sin, at the line of sin
        ("mm", "layers.1.inner", "backward"),  # recomputed in backward by the checkpoint
        ("sin", "layers.1", "backward"),
    ):
        assert ("block", module, phase) in found(recorded, op)
    assert {phase for *_, phase in found(recorded, "linalg_vector_norm")} == {"clipping"}
    assert found(recorded, "add_")[-1] == ("optimizer", "", "optimizer")


def test_unrecorded_backward_op_is_at_the_backward_call(finder: LineFinder, step: Step) -> None:
    seen = record_step(step, finder.here)
    assert found(seen, "mse_loss_backward") == [("backward call", "", "backward")]


def test_hook_of_a_parameter_belongs_to_its_module(finder: LineFinder) -> None:
    net: Any = Sequential(Linear(4, 4), Linear(4, 4))
    x = torch.rand(4, 4, requires_grad=True)
    for parameter in (net[0].weight, net[1].bias, x):
        parameter.register_hook(lambda gradient: gradient.sin())  # hook

    seen = record_step(lambda: net(x).sum().backward(), finder.record)
    assert {module for _, module, _ in found(seen, "sin")} == {"0", "1", ""}


def test_step_with_different_nodes_ignores_recorded_lines(finder: LineFinder) -> None:
    x = torch.rand(4, requires_grad=True)

    def step(times: int) -> None:
        y = x
        for _ in range(times):
            y = y.sin()
        y.exp().sum().backward()  # times

    record_step(lambda: step(1), finder.record)
    finder.begin_step()
    assert found(record_step(lambda: step(3), finder.here), "cos") == [("times", "", "backward")]


def test_optimizer_closure_has_its_own_phases(finder: LineFinder) -> None:
    x = torch.rand(4, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1, foreach=False)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = x.sin().sum()  # closure
        loss.backward()
        return loss

    seen = record_step(lambda: optimizer.step(closure), finder.here)
    assert found(seen, "sin") == [("closure", "", "forward")]
    assert [phase for *_, phase in found(seen, "add_")] == ["optimizer"]


HOOKS: list[Callable[[Any, Any], Any]] = [
    lambda optimizer, hook: optimizer.register_step_pre_hook(hook),
    lambda optimizer, hook: optimizer.register_step_post_hook(hook),
    lambda _, hook: register_optimizer_step_pre_hook(hook),
]


@pytest.mark.parametrize("register", HOOKS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_optimizer_hook_has_optimizer_phase(finder: LineFinder, register: Any, kind: Any) -> None:
    x = torch.rand(4, requires_grad=True)
    optimizer = kind([x], lr=0.1)

    def closure() -> torch.Tensor:
        (loss := x.sin().sum()).backward()  # closure with hooks
        return loss

    def hook(*_: Any) -> None:
        x.detach().cos()  # hook

    with register(optimizer, hook):
        seen = record_step(lambda: optimizer.step(closure), finder.here)
    assert ("hook", "", "optimizer") in found(seen, "cos")
    assert "optimizer" not in {phase for *_, phase in found(seen, "sin")}


class OwnSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad)  # own step


def test_custom_optimizer_has_optimizer_phase(finder: LineFinder) -> None:
    x = torch.rand(4, requires_grad=True)
    optimizer = OwnSGD([x])
    x.sum().backward()
    assert found(record_step(optimizer.step, finder.here), "sub_") == [("own step", "", "optimizer")]


def test_backward_in_user_thread_has_backward_phase(finder: LineFinder) -> None:
    seen: Recorded = []
    x = torch.rand(4, requires_grad=True)
    in_thread(lambda: seen.extend(record_step(lambda: x.sin().sum().backward(), finder.here)))
    assert {phase for *_, phase in found(seen, "cos")} == {"backward"}
    assert {phase for *_, phase in found(seen, "sin")} == {"forward"}


def test_innermost_line_before_the_base_is_used(finder: LineFinder) -> None:
    def run(step: Callable[[], CodePlace]) -> CodePlace:
        return step()

    with LineFinder(run) as based:
        assert where(run(based.here)) == ("base", "", "forward")  # base


def test_compiled_code_stays_compiled(finder: LineFinder) -> None:
    graphs = CompileCounter()
    block = torch.compile(Block(), backend=graphs)
    x = torch.rand(4, 4)
    for _ in range(3):
        finder.begin_step()
        block(x).sum().backward()
        finder.record()
    finder.__exit__(None, None, None)
    block(x).sum().backward()
    assert graphs.frame_count == 1
    torch._dynamo.reset()


def test_compiled_module_has_its_original_names(finder: LineFinder) -> None:
    net = torch.compile(torch.nn.Sequential(Block()), backend="aot_eager")
    seen = record_step(lambda: net(torch.rand(4, 4)), finder.here)
    assert {module for _, module, _ in found(seen, "mm")} <= {"0.inner", "Sequential"}
    torch._dynamo.reset()


# Names of modules


def test_module_names_omit_wrappers() -> None:
    inner = Linear(2, 2)
    net = Sequential(Linear(2, 2), checkpoint_wrapper(Sequential(inner, inner)))
    compiled, names = torch.compile(net, backend="eager"), ModuleNames()
    assert [names.name([module, compiled]) for module in (net, net[0], inner)] == ["Sequential", "0", "1.0"]
    assert names.name([compiled]) == "Sequential"
    net.append(added := Linear(2, 2))
    assert names.name([added, compiled]) == "2"
    gone = weakref.ref(net)
    del net, compiled, added, inner
    gc.collect()
    assert gone() is None, "nothing is kept alive"


def test_submodule_is_named_relative_to_its_registered_parent() -> None:
    net, other, names = Sequential(Sequential(Linear(2, 2))), Linear(2, 2), ModuleNames()
    part: Any = net[0]
    assert names.name_in_backward([part[0], part]) == "0"
    assert names.name([other, part, net]) == "0"
    assert names.name([other, net]) == "Sequential"
    assert names.name_in_backward([other, part]) == "0"
    assert names.name_in_backward([part[0], part]) == "0.0"


def test_lines_of_wrappers_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "comms"
    package.mkdir()
    (package / "__init__.py").write_text("def reduce(finder): return finder.here()\n")
    monkeypatch.syspath_prepend(tmp_path)
    reduce = importlib.import_module("comms").reduce
    with LineFinder() as finder:
        assert reduce(finder).file == str(package / "__init__.py")
    pass_over(["comms", "missing.inner"])
    try:
        with LineFinder() as finder:
            assert reduce(finder).file == __file__
    finally:
        pass_over(())
