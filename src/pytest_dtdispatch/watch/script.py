"""``dtdispatch watch``: a script runs as Python runs it, and the steps of its optimizer end the steps."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.errors import WatchError
from pytest_dtdispatch.watch.step_watch import StepWatch
from pytest_dtdispatch.watch.text import calls_text, is_first_rank, say_on_first_rank

INTERRUPTED, FAILED = 130, 1


def watch_script(name: str, arguments: Sequence[str]) -> int:
    """Run a script, watch its steps, and print a summary however it ends.

    Returns:
        The status that Python would exit with.

    Raises:
        WatchError: it cannot be read, or it ended well and called no op on DTensors.
    """
    path = os.path.abspath(name)  # noqa: PTH100 (links are not followed, as Python follows none)
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise WatchError(f"watch {name}: cannot be read: {error.strerror}") from None
    with StepWatch() as watch:
        hook = register_optimizer_step_post_hook(_StepEnds(watch).after_step)
        try:
            status = _run(path, arguments)
        finally:
            hook.remove()
    steps = watch.steps
    if not steps.calls and not steps.after.calls:
        nothing = "called no op on DTensors; processes that it starts are not watched"
        if not status and is_first_rank():
            raise WatchError(f"{name} {nothing}")
        say_on_first_rank(f"dtdispatch: {escape_controls(name)} {nothing}")
    elif not len(steps):
        say_on_first_rank(
            f"dtdispatch: {escape_controls(name)}: no optimizer stepped outside of compiled code, "
            f"which would have told its steps apart; in all {calls_text(steps.after)}"
        )
    else:
        say_on_first_rank(str(watch))
    return status


class _StepEnds:
    """Ends a step of a watch with each step of the optimizer that leads: the first that steps.

    Another one that steps twice while the leader does not takes its place, as the leader may be done. So
    each iteration of a loop with several optimizers ends once.
    """

    def __init__(self, watch: StepWatch) -> None:
        self._watch = watch
        self._thread = threading.current_thread()
        self._leader: weakref.ref[Any] | None = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note a step of an optimizer; what is compiled stays as it is."""
        if torch.compiler.is_compiling() or threading.current_thread() is not self._thread:
            return
        leader = self._leader() if self._leader else None
        if leader is not None and optimizer is not leader and optimizer not in self._others:
            self._others.add(optimizer)
            return
        self._leader = weakref.ref(optimizer)
        self._others.clear()
        self._watch.step()


def _run(path: str, arguments: Sequence[str]) -> int:
    """Run a script to its end; return the status that Python would exit with."""
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(path).resolve().parent)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return FAILED
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != path:  # ours, and those of runpy
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    return 0
