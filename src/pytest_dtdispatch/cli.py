"""The ``dtdispatch`` command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NoReturn

from pytest_dtdispatch.ab.cli import add_ab_parser, argument_type
from pytest_dtdispatch.ab.cli import compare as compare_sides
from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.forms import REPORT
from pytest_dtdispatch.core.parsing import read_exports, read_file
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.plugin.settings import EXPORTS
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.screen import say

USAGE_ERROR, PROCESS_ERROR, INTERRUPTED = 2, 5, 130


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Leave, in one line."""
        raise DtDispatchError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    try:
        return _obey(list(sys.argv[1:] if arguments is None else arguments))
    except DtDispatchError as error:
        say(f"dtdispatch: {error}", Tone.BAD, sys.stderr)
        return PROCESS_ERROR if isinstance(error, ProcessError) else USAGE_ERROR
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "interrupted"
        say(f"dtdispatch: {said}", Tone.NOTICE, sys.stderr)
        return INTERRUPTED


def _obey(words: list[str]) -> int:
    if words[:1] == ["watch"]:
        return _watch(words[1:])
    cut = words.index("--") if "--" in words else len(words)
    own, arguments = words[:cut], words[cut + 1 :]
    for word in own:
        if word.startswith("--") and word.endswith("=--"):  # argparse takes it for no value at all
            raise DtDispatchError(f"argument {word[:-3]}: expected one argument, and -- is none")
    given = _parser().parse_args(own)
    if given.version:
        print("dtdispatch", version("pytest-dtdispatch"))
        return 0
    if given.command is None:
        names = "ab, watch, expected, export, report"
        raise DtDispatchError(f"a subcommand is needed: {names}; measure tests with: pytest --dtdispatch")
    if given.command == "ab":
        return compare_sides(given, arguments)
    if arguments:
        raise DtDispatchError(f"{given.command} takes no arguments of pytest: {shlex.join(arguments)}")
    others = {"expected": _update_expected, "export": _export, "report": _report}
    return others[given.command](given)


def _watch(words: list[str]) -> int:
    """Run a script; whatever comes after its name is its own."""
    own, rest = (words[:1], words[1:]) if words[:1] == ["--"] else ([], words)
    if not rest or (not own and rest[0].startswith("-")):
        _parser().parse_args(["watch", *rest])  # asks for help, or says what is wrong
    from pytest_dtdispatch.watch.script import watch_script

    return watch_script(rest[0], rest[1:])


def _update_expected(given: argparse.Namespace) -> int:
    from pytest_dtdispatch.gates.expected import update_expected
    from pytest_dtdispatch.plugin.kinds import metric_names

    update = update_expected(given.file, given.results, given.reason, given.new_margin, metric_names())
    say(f"{given.file}: {update}", Tone.GOOD)
    return 0


def _export(given: argparse.Namespace) -> int:
    from pytest_dtdispatch.report.exports import export_saved
    from pytest_dtdispatch.report.saved_run import read_run

    try:
        run = read_run(given.saved)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    for said in export_saved(run, [export for each in given.exports for export in each]):
        say(said, Tone.GOOD)
    return 0


def _report(given: argparse.Namespace) -> int:
    from pytest_dtdispatch.report.page import html_page, in_order
    from pytest_dtdispatch.report.saved_run import read_run

    checked_target(given.output, REPORT)
    try:
        runs = in_order([read_run(path) for path in given.saved])
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    write_whole(given.output, html_page(runs))
    of = f"{len(runs)} saved runs, the newest of them {runs[-1].where}," if len(runs) > 1 else runs[-1].where
    say(f"{given.output}: a report of {of} was written", Tone.GOOD)
    return 0


def _parser() -> Parser:
    about = "Measure DTensor dispatch; tests are measured by: pytest --dtdispatch"
    parser = Parser("dtdispatch", description=about)
    parser.add_argument("--version", action="store_true", help="print the version of this package")
    commands = parser.add_subparsers(dest="command", title="subcommands")
    watch = commands.add_parser("watch", help="run a script, and say where its steps miss the caches")
    what = "a Python file, run as Python runs it; the steps of its optimizer end the steps"
    watch.add_argument("script", metavar="SCRIPT.py", help=what)
    watch.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of the script")
    add_ab_parser(commands)
    _add_expected(commands)
    _add_export(commands)
    _add_report(commands)
    return parser


def _add_export(commands: Any) -> None:
    export = commands.add_parser("export", help="write a saved run in formats that other tools read")
    what = "a run that pytest-benchmark saved: --benchmark-json, --benchmark-save, --benchmark-autosave"
    export.add_argument("saved", type=argument_type(read_file), metavar="SAVED.json", help=what)
    what = f"one or more, with a format of {', '.join(EXPORTS)}"
    read = argument_type(partial(read_exports, formats=EXPORTS))
    export.add_argument("exports", type=read, nargs="+", metavar="FORMAT:FILE", help=what)


def _add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="write saved runs as one HTML page")
    what = "a run that pytest-benchmark saved; of several the newest, with the course over all of them"
    report.add_argument("saved", type=argument_type(read_file), nargs="+", metavar="SAVED.json", help=what)
    what = "the page, which loads nothing"
    report.add_argument(
        "--output", type=argument_type(read_file), required=True, metavar="FILE.html", help=what
    )


def _add_expected(commands: Any) -> None:
    expected = commands.add_parser("expected", help="maintain a file of expected results")
    actions = expected.add_subparsers(dest="action", title="actions", required=True)
    update = actions.add_parser("update", help="take over values that a run found")
    what = "of expected results, rewritten in place"
    update.add_argument("file", type=argument_type(read_file), metavar="FILE", help=what)
    what = "what pytest wrote with --dtdispatch-export csv:FILE"
    update.add_argument(
        "--results", type=argument_type(read_file), required=True, metavar="RESULTS.csv", help=what
    )
    what = "why they changed; kept in their rows"
    update.add_argument("--reason", required=True, metavar="TEXT", help=what)
    what = "add results that FILE has no row for, with this margin: 0.1 is 10 %%; counters get 0"
    update.add_argument("--new-margin", metavar="FRACTION", help=what)
