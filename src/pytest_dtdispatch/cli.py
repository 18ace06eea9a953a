"""The ``dtdispatch`` command."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from pytest_dtdispatch.ab.cli import add_ab_parser, argument_type, run_ab
from pytest_dtdispatch.core.parsing import read_count, read_exports, read_file
from pytest_dtdispatch.core.text import nearest, shown
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.plugin.settings import EXPORTS, SERIES_EXPORTS
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.screen import say, show
from pytest_dtdispatch.watch.model import Limits, read_step_limits

STATUS = """exit status:
  0    {}
  2    invalid command line or file
  130  interrupted"""
USAGE_ERROR, PROCESS_ERROR, INTERRUPTED = 2, 5, 130
BUDGET_STEPS, DEFAULT_STEPS = "--budget-steps", 20


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors and preformatted help texts."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        """Raise an error with a one-line message."""
        raise DtDispatchError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except DtDispatchError as error:
        say(f"dtdispatch: {error}", Tone.BAD, sys.stderr)
        return PROCESS_ERROR if isinstance(error, ProcessError) else USAGE_ERROR
    except KeyboardInterrupt:
        say("dtdispatch: interrupted", Tone.NOTICE, sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has ended; the end of the process flushes once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a program that SIGPIPE ended


def _run(words: list[str]) -> int:
    if words[:1] == ["watch"]:
        return _watch(words[1:])
    cut = words.index("--") if "--" in words else len(words)
    own, arguments = words[:cut], words[cut + 1 :]
    for word in own:
        if word.startswith("--") and word.endswith("=--"):  # argparse reads it as an empty value
            raise DtDispatchError(f"argument {word[:-3]}: expected one argument, and -- is none")
    options = _read(own)
    if options.command is None:
        names = "ab, expected, report, skill, watch"
        raise DtDispatchError(f"a command is needed: {names}; to measure tests: pytest --dtdispatch")
    if options.command == "ab":
        import pytest_dtdispatch.plugin.kinds  # noqa: F401  saved runs are read by their types

        return run_ab(options, arguments)
    if arguments:
        raise DtDispatchError(f"{options.command} takes no arguments of pytest: {shlex.join(arguments)}")
    if options.command == "report":
        return _report(options)
    if options.command == "skill":
        folders = Path(__file__).parent, Path(__file__).parents[2]  # the latter in an editable install
        say(str(next(folder / "SKILL.md" for folder in folders if (folder / "SKILL.md").exists())))
        return 0
    from pytest_dtdispatch.gates.expected import update_expected
    from pytest_dtdispatch.plugin.kinds import metric_names

    file, margin = options.file, options.new_margin
    reason = "limit" if options.limits and options.reason is None else options.reason
    if reason is None:
        raise DtDispatchError("the following arguments are required: --reason, or --limits")
    update = update_expected(file, options.results, reason, margin, metric_names(), options.limits)
    say(f"{file}: {update}", Tone.GOOD)
    return 0


def _read(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. An unknown flag is rejected first, with a similar valid flag."""
    hints = {"--passes": "each process runs its tests once: --pairs and --confirm set how many processes run"}
    parser, of_commands = _parsers()
    commands = sorted({command for command, *_ in of_commands})
    if words and not words[0].startswith("-") and words[0] not in commands:
        names, hint = ", ".join(commands), nearest(words[0], commands)
        raise DtDispatchError(f"{shown(words[0])} is not a command: {names}{hint}")
    name = next((name for name in of_commands if [*words[: len(name)]] == [*name]), None)
    if name:
        flags = [*re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", of_commands[name].format_help(), re.MULTILINE)]
        for word in words[: words.index("--")] if "--" in words else words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and not any(each.startswith(flag) for each in flags):
                hint = f"; {hints[flag]}" if flag in hints else nearest(flag, flags)
                raise DtDispatchError(f"unrecognized arguments: {flag}{hint}")
    return parser.parse_args(words)


def _watch(words: list[str]) -> int:
    """Run a script or a module. All words after its name are its arguments."""
    cut, follows_flag = len(words), False
    for number, word in enumerate(words, 1):
        if not (word.startswith("-") or follows_flag):
            cut = number
            break
        # A flag, or its abbreviation, with a value
        flags = [flag for flag in (BUDGET_STEPS, "--max", "--warmup") if flag.startswith(word)]
        follows_flag = bool(flags) and len(word) > 2 and word != "--budget"
    if "--" in words[:cut]:  # before a name with a leading dash
        cut = words.index("--") + 2
    options = _read(["watch", *words[:cut]])
    most = {name: number for limits in options.max for name, number in limits.items()}
    if options.stop and not most:
        raise DtDispatchError("watch --stop has no limits: add --max, such as --max misses=0")
    from pytest_dtdispatch.watch.script import watch_module, watch_script

    watch, name = (watch_module, options.module) if options.module else (watch_script, options.script)
    limits = Limits(most, options.warmup, options.stop)
    return watch(name, words[cut:], options.budget_steps or options.budget * DEFAULT_STEPS, limits)


def _report(options: argparse.Namespace) -> int:
    import pytest_dtdispatch.plugin.kinds  # noqa: F401  results are read as their types
    from pytest_dtdispatch.budget.model import Budget
    from pytest_dtdispatch.budget.table import pairs_document
    from pytest_dtdispatch.report.exports import export_saved
    from pytest_dtdispatch.report.history import changes_document, runs_document
    from pytest_dtdispatch.report.run import ReportedRun, files_by_run, read_run

    exports = options.exports
    single = [export.format for export in exports if export.format not in SERIES_EXPORTS]
    if single and len(options.saved) > 1:
        raise DtDispatchError(f"--export {single[0]} writes one run: name one SAVED.json")
    if any(export.is_auto for export in exports):
        raise DtDispatchError("--export markdown:auto is for a run in a job of GitHub Actions: name a file")
    try:
        files = files_by_run(sorted(map(read_run, options.saved), key=ReportedRun.order))
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    for copies in files:
        if len(copies) > 1:
            names = ", ".join(run.where for run in copies)
            say(f"the same run, counted once: {names}", Tone.NOTICE, sys.stderr)
    runs = [copies[0] for copies in files]
    if not exports:
        show(runs_document(runs))
    if not exports and len(runs) > 1:
        show(changes_document(runs))
        show(pairs_document(runs[0], runs[-1]))
    elif not exports and Budget.kind in runs[0].results:
        show(runs[0].documents()[Budget.kind])
    for text in export_saved(replace(runs[-1], history=tuple(runs) if len(runs) > 1 else ()), exports):
        say(text, Tone.GOOD, sys.stderr if any(export.is_stdout for export in exports) else sys.stdout)
    return 0


def _parsers() -> tuple[Parser, dict[tuple[str, ...], Parser]]:
    """Return the parser of the command line, and the parser of each command by its words."""
    about = (
        "Compare, print and export measurements of DTensor dispatch. To measure tests: pytest --dtdispatch"
    )
    example = "example:\n  dtdispatch ab --help\n\n" + STATUS.format(
        "success; ab and watch define more: see their --help"
    )
    parser = Parser("dtdispatch", description=about, epilog=example)
    number = f"dtdispatch {version('pytest-dtdispatch')}"
    parser.add_argument("--version", action="version", version=number, help="print the version")
    commands: Any = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    add_ab_parser(commands)
    about = "Update a file of expected results with the results of a run."
    example = """example:
  pytest --dtdispatch --dtdispatch-expected expected.csv --dtdispatch-export csv:results.csv
  dtdispatch expected update expected.csv --results results.csv --reason "one more norm"
  dtdispatch expected update limits.csv --results results.csv --limits

"""
    texts = {"description": about, "epilog": example + STATUS.format("success")}
    expected = commands.add_parser("expected", help="maintain a file of expected results", **texts)
    actions = expected.add_subparsers(dest="action", title="actions", metavar="ACTION", required=True)
    update: Parser = actions.add_parser("update", help="update a file with the results of a run", **texts)
    file = argument_type(read_file)
    update.add_argument("file", type=file, metavar="FILE", help="file of expected results to update")
    text = "results exported by pytest with --dtdispatch-export csv:FILE"
    update.add_argument("--results", type=file, required=True, metavar="RESULTS.csv", help=text)
    text = "reason of the change, stored in the changed rows; not needed with --limits"
    update.add_argument("--reason", metavar="TEXT", help=text)
    text = "also add results that FILE lacks, with this margin: 0.1 is 10 %%; counts get 0"
    update.add_argument("--new-margin", metavar="FRACTION", help=text)
    text = "write the counts of each test as limits: a count above fails, one below passes"
    update.add_argument("--limits", action="store_true", help=text)
    about = "Print or export saved runs side by side, with the run and commit in which each row changed."
    example = "example:\n  dtdispatch report run*.json --export html:runs.html\n\n" + STATUS.format("success")
    text = "print or export saved runs, and the runs in which rows changed"
    report = commands.add_parser("report", help=text, description=about, epilog=example)
    text = "run saved by --benchmark-json, --benchmark-save or --benchmark-autosave"
    report.add_argument("saved", type=argument_type(read_file), nargs="+", metavar="SAVED.json", help=text)
    text = f"write FILE/FOLDER (repeatable) as {', '.join(EXPORTS)}; of several {', '.join(SERIES_EXPORTS)}"
    read = argument_type(partial(read_exports, formats=EXPORTS))
    report.add_argument(
        "--export", dest="exports", type=read, action="extend", default=[], metavar="FORMAT:FILE", help=text
    )
    about = "Print the path of SKILL.md: how agents use this tool, with a link to the schema of its JSON."
    example = 'example:\n  cat "$(dtdispatch skill)"\n\n' + STATUS.format("success")
    commands.add_parser("skill", help="print the path of SKILL.md", description=about, epilog=example)
    _add_watch(commands)
    leaves: dict[tuple[str, ...], Parser] = {("expected", "update"): update}
    leaves |= {(name,): commands.choices[name] for name in ("ab", "report", "skill", "watch")}
    return parser, leaves


def _add_watch(commands: Any) -> None:
    about = "Run a script as Python does, and report where its steps miss the caches of DTensor."
    example = """example:
  dtdispatch watch --budget train.py --steps 100
  dtdispatch watch --max misses=0,cache_growth=0 train.py

exit status:
  that of the script
  1    the script succeeded, but a step exceeded a limit of --max, or no step was judged
  2    invalid command line, or the script succeeded without a call of an op on DTensors
  130  interrupted"""
    text = "run a script, and report where its steps miss the caches"
    usage = "dtdispatch watch [OPTION ...] (SCRIPT.py | -m MODULE) [ARGUMENT ...]"
    watch = commands.add_parser("watch", help=text, description=about, epilog=example, usage=usage)
    text = "also divide the wall time of a step into parts; needs at least 124 steps after the warm-up"
    watch.add_argument("--budget", action="store_true", help=text)
    text = f"budget of N undisturbed steps instead of {DEFAULT_STEPS}; 5 need at least 49 steps in total"
    watch.add_argument(BUDGET_STEPS, type=argument_type(read_count), metavar="N", help=text)
    text = "report the first step after the warm-up with more than N of these, and fail: misses, cache_growth"
    read = argument_type(read_step_limits)
    watch.add_argument("--max", type=read, action="append", default=[], metavar="NAME=N,...", help=text)
    text = "steps of the warm-up; by default those up to the first without a miss, at most 10"
    read = argument_type(partial(read_count, least=0))
    watch.add_argument("--warmup", type=read, metavar="N", help=text)
    text = "end the program at the first step over a limit; its cleanup runs"
    watch.add_argument("--stop", action="store_true", help=text)
    program = watch.add_mutually_exclusive_group(required=True)
    text = "Python file to run; each step of its optimizer ends a step"
    program.add_argument("script", nargs="?", metavar="SCRIPT.py", help=text)
    text = "run a module instead of a script, as python -m does"
    program.add_argument("-m", dest="module", metavar="MODULE", help=text)
    text = "argument of the script or the module"
    watch.add_argument("arguments", nargs="*", metavar="ARGUMENT", help=text)
