"""``dtdispatch watch``: run a program like Python; each step of its optimizer ends a step."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.errors import DtDispatchError, MeasurementError
from pytest_dtdispatch.watch.model import Limits
from pytest_dtdispatch.watch.step_watch import StepWatch
from pytest_dtdispatch.watch.text import calls_text, ops_text, say

FAILED = 1
NO_MAX = Limits()


def watch_script(name: str, arguments: Sequence[str], budget_steps: int = 0, limits: Limits = NO_MAX) -> int:
    """Run a script like ``python SCRIPT.py``, watch its steps, and print a summary.

    Args:
        name: path of the script.
        arguments: arguments of the script.
        budget_steps: number of undisturbed steps of a budget after the warm-up; 0 for no budget.
        limits: limits on each step.

    Returns:
        The exit status of the program; 1 if it succeeded and a step exceeded a limit, or none was judged.

    Raises:
        MeasurementError: the script cannot be read, or it succeeded without calling an op on DTensors.
    """
    path = os.path.abspath(name)  # noqa: PTH100 (like Python, do not follow links)
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise MeasurementError(f"watch {name}: cannot be read: {error.strerror}") from None
    _set_up(path, arguments, Path(path).resolve().parent)
    return _watched(name, partial(runpy.run_path, path, run_name="__main__"), budget_steps, limits)


def watch_module(name: str, arguments: Sequence[str], budget_steps: int = 0, limits: Limits = NO_MAX) -> int:
    """Run a module like ``python -m MODULE``, watch its steps, and print a summary.

    Args:
        name: name of the module, as in ``import``.
        arguments: arguments of the module.
        budget_steps: number of undisturbed steps of a budget after the warm-up; 0 for no budget.
        limits: limits on each step.

    Returns:
        The exit status of the program; 1 if it succeeded and a step exceeded a limit, or none was judged.

    Raises:
        MeasurementError: the module cannot be run, or it succeeded without calling an op on DTensors.
    """
    _set_up("-m", arguments, Path.cwd())  # runpy replaces "-m" with the path of the file, like Python
    run = partial(runpy.run_module, name, run_name="__main__", alter_sys=True)
    return _watched(name, run, budget_steps, limits)


def _set_up(program: str, arguments: Sequence[str], folder: Path) -> None:
    """Set ``sys.argv`` and the first folder of ``sys.path`` like Python."""
    sys.argv[:] = [program, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(folder)


def _watched(name: str, run: Callable[[], object], budget_steps: int, limits: Limits) -> int:
    """Run a program, and print a summary of its steps; return the exit status."""
    with StepWatch(None, limits.most, limits.warmup, limits.stops) as watch:
        ends = _StepEnds(watch, budget_steps)
        hook = register_optimizer_step_post_hook(ends.after_step)
        try:
            status = _run(name, run)
        finally:
            hook.remove()
        if len(watch.steps):
            ends.begin_budget()  # the program did not warm up: closing prints how many steps a budget needs
    steps, is_unjudged = watch.steps, bool(limits.most) and not watch.is_warm
    judged = status or (FAILED if is_unjudged or watch.violation else 0)
    if not watch.is_first_rank:
        return judged
    if not steps.calls and not steps.after.calls:
        nothing = "called no op on DTensors; processes that it starts are not watched"
        if not status:
            raise MeasurementError(f"{name} {nothing}")
        say(f"dtdispatch: {escape_controls(name)} {nothing}")
    elif not len(steps):
        say(f"dtdispatch: {escape_controls(name)}: {_without_steps(watch, ends.has_other_threads)}")
    else:
        say(str(watch))
    return judged


def _without_steps(watch: StepWatch, has_other_threads: bool) -> str:
    """Return why no step ended, and how to mark steps."""
    after = watch.steps.after
    if has_other_threads:  # whose hits are not counted
        why, where = "its optimizers stepped in other threads, so its steps are unknown", " in their thread"
    else:
        why, where = "no optimizer stepped outside of compiled code, so its steps are unknown", ""
        why += f"; in all {calls_text(after)}: {ops_text(watch.ops_after, after.calls)}"
    marked = f"run it by python with a StepWatch{where}, and call watch.step() at the end of each"
    return f"{why}. To mark steps, {marked}"


class _StepEnds:
    """Optimizer hook that ends a step of a watch with each step of the leading optimizer.

    The first optimizer that steps is the leader, so that each iteration of a loop with several optimizers is
    one step. An optimizer that steps twice while the leader does not becomes the leader, because the leader
    may no longer be in use.

    Attributes:
        has_other_threads: whether an optimizer stepped in another thread.
    """

    def __init__(self, watch: StepWatch, budget_steps: int) -> None:
        self._watch = watch
        self._budget_steps = budget_steps
        self._thread = threading.current_thread()
        self.has_other_threads = False
        self._leader: weakref.ref[Any] | None = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle a step of an optimizer; a no-op in compiled code and in other threads."""
        if torch.compiler.is_compiling():
            return
        if threading.current_thread() is not self._thread:
            self.has_other_threads = True
            return
        leader = self._leader() if self._leader else None
        if leader is not None and optimizer is not leader and optimizer not in self._others:
            self._others.add(optimizer)
            return
        self._leader = weakref.ref(optimizer)
        self._others.clear()
        self._watch.step()
        if self._watch.is_warm:
            self.begin_budget()

    def begin_budget(self) -> None:
        """Begin the requested budget once, on the first rank: other ranks would disturb it."""
        steps, self._budget_steps = self._budget_steps, 0
        if steps and self._watch.is_first_rank:
            try:
                self._watch.budget(steps)
            except DtDispatchError as error:
                say(f"dtdispatch: no budget: {error}")


def _owner(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _run(name: str, run: Callable[[], object]) -> int:
    """Run a program to its end; return its exit status."""
    try:
        run()
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return (left.code or 0) % 256  # as the system reports it
        print(left.code, file=sys.stderr)
        return FAILED
    except BaseException as error:
        if isinstance(error, ImportError) and _owner(list(walk_tb(error.__traceback__))[-1][0]) == "runpy":
            raise MeasurementError(f"watch -m {name}: {error}") from None
        frames = error.__traceback__
        while frames is not None and _owner(frames.tb_frame) in (__name__, "runpy"):
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 130 if isinstance(error, KeyboardInterrupt) else FAILED  # 128 + SIGINT
    return 0
