"""The ``dtdispatch`` command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NoReturn

from pytest_dtdispatch.ab.cli import add_ab_parser, argument_type, compare_sides
from pytest_dtdispatch.core.parsing import read_exports, read_file
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.plugin.settings import EXPORTS
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.screen import say, show

USAGE_ERROR, PROCESS_ERROR, INTERRUPTED = 2, 5, 130


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Leave, in one line."""
        raise DtDispatchError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except DtDispatchError as error:
        say(f"dtdispatch: {error}", Tone.BAD, sys.stderr)
        return PROCESS_ERROR if isinstance(error, ProcessError) else USAGE_ERROR
    except KeyboardInterrupt:
        say("dtdispatch: interrupted", Tone.NOTICE, sys.stderr)
        return INTERRUPTED


def _run(words: list[str]) -> int:
    if words[:1] == ["watch"]:
        return _watch(words[1:])
    cut = words.index("--") if "--" in words else len(words)
    own, arguments = words[:cut], words[cut + 1 :]
    for word in own:
        if word.startswith("--") and word.endswith("=--"):  # argparse takes it for no value at all
            raise DtDispatchError(f"argument {word[:-3]}: expected one argument, and -- is none")
    options = _parser().parse_args(own)
    if options.command is None:
        names = "ab, expected, report, watch"
        raise DtDispatchError(f"a subcommand is needed: {names}; measure tests with: pytest --dtdispatch")
    if options.command == "ab":
        return compare_sides(options, arguments)
    if arguments:
        raise DtDispatchError(f"{options.command} takes no arguments of pytest: {shlex.join(arguments)}")
    return _report(options) if options.command == "report" else _update_expected(options)


def _watch(words: list[str]) -> int:
    """Run a script or a module; whatever comes after its name is its own."""
    cut = next((i for i, word in enumerate(words, 1) if not word.startswith("-")), len(words))
    if "--" in words[:cut]:  # before a name that begins with a dash
        cut = words.index("--") + 2
    options = _parser().parse_args(["watch", *words[:cut]])
    from pytest_dtdispatch.watch.script import watch_module, watch_script

    watch, name = (watch_module, options.module) if options.module else (watch_script, options.script)
    return watch(name, words[cut:], options.budget)


def _update_expected(options: argparse.Namespace) -> int:
    from pytest_dtdispatch.gates.expected import update_expected
    from pytest_dtdispatch.plugin.gates import metric_names

    names = metric_names()
    update = update_expected(options.file, options.results, options.reason, options.new_margin, names)
    say(f"{options.file}: {update}", Tone.GOOD)
    return 0


def _report(options: argparse.Namespace) -> int:
    from pytest_dtdispatch.budget.table import pairs_document
    from pytest_dtdispatch.report.exports import export_saved
    from pytest_dtdispatch.report.run import ReportedRun, read_run
    from pytest_dtdispatch.report.summary import history_document

    exports = [export for each in options.exports or () for export in each]
    if exports and len(options.saved) > 1:
        raise DtDispatchError("--export writes one run: name one SAVED.json")
    if any(export.is_auto for export in exports):
        raise DtDispatchError("--export markdown:auto is for a run in a job of GitHub Actions: name a file")
    try:
        runs = [read_run(path) for path in options.saved]
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    if not exports:
        show(history_document(runs))
    if not exports and len(runs) > 1:
        show(pairs_document(min(runs, key=ReportedRun.order), max(runs, key=ReportedRun.order)))
    for text in export_saved(runs[0], exports):
        say(text, Tone.GOOD)
    return 0


def _parser() -> Parser:
    about = "Measure DTensor dispatch; tests are measured by: pytest --dtdispatch"
    parser = Parser("dtdispatch", description=about)
    number = f"dtdispatch {version('pytest-dtdispatch')}"
    parser.add_argument(
        "--version", action="version", version=number, help="print the version of this package"
    )
    commands = parser.add_subparsers(dest="command", title="subcommands")
    _add_watch(commands)
    add_ab_parser(commands)
    _add_expected(commands)
    _add_report(commands)
    return parser


def _add_watch(commands: Any) -> None:
    watch = commands.add_parser("watch", help="run a script, and say where its steps miss the caches")
    what = "say too where the wall time of a step goes, once the warm-up is over"
    watch.add_argument("--budget", action="store_true", help=what)
    program = watch.add_mutually_exclusive_group(required=True)
    what = "a Python file, run as Python runs it; the steps of its optimizer end the steps"
    program.add_argument("script", nargs="?", metavar="SCRIPT.py", help=what)
    program.add_argument("-m", dest="module", metavar="MODULE", help="a module in place of it, as python -m")
    watch.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of the script or the module")


def _add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="show the numbers of saved runs, or write one in any format")
    what = "a run that pytest-benchmark saved: --benchmark-json, --benchmark-save, --benchmark-autosave"
    report.add_argument("saved", type=argument_type(read_file), nargs="+", metavar="SAVED.json", help=what)
    what = f"write the run; may be repeated, with a format of {', '.join(EXPORTS)}"
    read = argument_type(partial(read_exports, formats=EXPORTS))
    report.add_argument(
        "--export", dest="exports", type=read, action="append", metavar="FORMAT:FILE", help=what
    )


def _add_expected(commands: Any) -> None:
    expected = commands.add_parser("expected", help="maintain a file of expected results")
    actions = expected.add_subparsers(dest="action", title="actions", required=True)
    update = actions.add_parser("update", help="take over values that a run found")
    file = argument_type(read_file)
    update.add_argument("file", type=file, metavar="FILE", help="of expected results, rewritten in place")
    what = "what pytest wrote with --dtdispatch-export csv:FILE"
    update.add_argument("--results", type=file, required=True, metavar="RESULTS.csv", help=what)
    what = "why they changed; kept in their rows"
    update.add_argument("--reason", required=True, metavar="TEXT", help=what)
    what = "add results that FILE has no row for, with this margin: 0.1 is 10 %%; counters get 0"
    update.add_argument("--new-margin", metavar="FRACTION", help=what)
