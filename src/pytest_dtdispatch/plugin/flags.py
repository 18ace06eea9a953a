"""The table of options: each with its flag, which is its ini name too, and its marker keyword.

Every start of pytest declares it. So it is plain data: what reads values is imported where one was given.
"""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Literal

    import pytest

MARKER = "dtdispatch"
ANNOTATIONS = "dtdispatch_annotations"  # in the ini file alone
BACKENDS = ("auto", "fake", "gloo", "nccl", "local")
DEVICES = ("auto", "cpu", "cuda")
METRICS = ("time", "counts", "instructions")
RANK_STATS = ("median", "max")
# Limits by their names in the flag of them all, each with its field: an older spelling, as flag and keyword.
LIMITS = {
    "misses": "max_misses_per_step",
    "cache_growth": "max_cache_growth",
    "spec_growth": "max_spec_growth",
    "redistributes": "max_redistributes",
    "collectives": "max_collectives",
    "wraps": "max_wraps",
    "recompiles": "max_recompiles",
    "graph_breaks": "max_graph_breaks",
}
THREADS = ("one", "program")
EXPORTS = ("csv", "oss-json", "github-action-benchmark", "bencher", "html", "markdown", "trace")
IMPROVED = ("fail", "warn")
# What an option is, where that matters.
LIMIT, SAVED_RUN_GATE, FILE = "limit", "saved-run gate", "file"


class Option:
    """One setting, and every way to give it. A plain class is made faster than a dataclass."""

    def __init__(
        self,
        field: str,  # its name in the settings, and as a marker keyword
        kind: str,  # what is read: a key of ``READERS`` in ``core/parsing.py``
        what: str,  # what it does
        default: str = "none",  # as the help shows it
        metavar: str = "",  # how the help names its value; empty for a switch
        *,
        flag: str | None = None,  # where not made of the field; empty where only the marker takes it
        choices: tuple[str, ...] = (),  # the valid words, where they are few
        role: str = "",  # what it is, where that matters
        repeatable: bool = False,  # whether the flag may be given several times
        in_marker: bool = True,  # whether the marker takes it
        marker_wins: bool = False,  # whether the marker beats the flag
        is_older: bool = False,  # whether flag and ini twin are older spellings, which no help names
    ) -> None:
        self.field = field
        self.kind = kind
        self.help = f"{what}: {', '.join(choices)}" if choices else what
        self.default = default
        self.metavar = metavar
        self.flag = "--dtdispatch-" + field.replace("_", "-") if flag is None else flag
        # Of the flag's value, and of its ini twin.
        self.dest = self.flag[2:].replace("-", "_")
        self.choices = choices
        self.role = role
        self.repeatable = repeatable
        self.in_marker = in_marker
        self.marker_wins = marker_wins
        self.is_older = is_older


def _switch(field: str, what: str, flag: str | None = None, in_marker: bool = False) -> Option:
    """Make the option of a switch that is off by default."""
    return Option(field, "switch", what, "off", flag=flag, in_marker=in_marker)


def _choice(field: str, what: str, choices: tuple[str, ...], in_marker: bool = False) -> Option:
    """Make the option of a word: one of a few, by default the first."""
    return Option(field, "choice", what, choices[0], "NAME", choices=choices, in_marker=in_marker)


def _limit(field: str) -> Option:
    """Make the option of one limit: an older spelling of what the option of them all takes."""
    return Option(field, "most", "", metavar="N", role=LIMIT, is_older=True)


OPTIONS = (
    _switch("measure", "measure the tests that use the dtdispatch fixture", "--dtdispatch"),
    _switch("measure_all", "measure every test: each is wrapped in a capture", "--dtdispatch-all"),
    _switch("budget", "say where the time of each test goes that does not use the fixture"),
    Option(
        "rounds",
        "rounds",
        "proved misses for each signature; auto: 8 to 20, no more once each median is known to a tenth",
        "20",
        "N|auto",
    ),
    Option("repeat", "count", "hits recorded after each miss", "10", "N"),
    Option(
        "max_time",
        "seconds",
        "seconds after which no round is added to a signature, once five are done",
        "1.0",
        "S",
    ),
    _switch("cold", "add the cold rows", in_marker=True),
    Option("ops", "globs", "measure only these ops", "all", "GLOB", repeatable=True),
    Option("mesh", "mesh", "mesh of the device_mesh fixture", "4", "SHAPE"),
    Option("dim_names", "names", "names of the mesh dimensions", flag=""),
    _choice("backend", "backend of the process group", BACKENDS, in_marker=True),
    _choice("device", "device of the mesh", DEVICES, in_marker=True),
    Option("rpc", "switch", "RPC beside the process group", "off", flag=""),
    Option("nproc", "ranks", "ranks to start on this machine", "1", "N", in_marker=False),
    Option("timeout", "seconds", "seconds that ranks wait for each other", "60.0", "S", in_marker=False),
    _choice("rank_stat", "what stands for all ranks in files and gates, of the medians of each", RANK_STATS),
    _choice("threads", "intra-op threads that what is timed runs in, or as many as the program set", THREADS),
    Option(
        "metric",
        "metric",
        "what captures and calls measure",
        METRICS[0],
        "NAME",
        choices=METRICS,
        in_marker=False,
    ),
    _switch("profile", "list the functions that instructions went to"),
    Option(
        "max",
        "limits",
        "fail a test where a counted step, or a compiled function, has more of these",
        metavar="NAME=N,...",
        choices=tuple(LIMITS),
        repeatable=True,
    ),
    *map(_limit, LIMITS.values()),
    # How one function is compiled belongs to its test: the marker says it.
    Option("compile_backend", "word", "", "inductor", "NAME", is_older=True),
    Option("compile_rounds", "count", "cold compiles of a function, and as many warm ones", "5", "N"),
    Option(
        "threshold",
        "thresholds",
        "fail where a row is slower by more than this than in the run that --benchmark-compare names",
        "none",
        "[STATE=]FIELD:PERCENT[,strict]",
        flag="--dtdispatch-fail",
        role=SAVED_RUN_GATE,
        repeatable=True,
        marker_wins=True,
    ),
    _switch("any_machine", "compare with a saved run of another machine too"),
    Option(
        "expected",
        "files",
        "fail where a result is not what this CSV file expects",
        metavar="FILE",
        role=FILE,
        repeatable=True,
        in_marker=False,
    ),
    _choice("improved", "what becomes of a run where a result is better than expected", IMPROVED),
    Option(
        "export",
        "exports",
        "write results in a format; markdown:auto is the summary of a job of GitHub Actions",
        metavar="FORMAT:FILE",
        choices=EXPORTS,
        role=FILE,
        repeatable=True,
        in_marker=False,
    ),
)
WITH_FLAG = tuple(option for option in OPTIONS if option.flag)
NAMES = tuple(option.dest for option in WITH_FLAG)
KEYWORDS = tuple(option.field for option in OPTIONS if option.in_marker and option.role != LIMIT)


class Older(Action):
    """All older spellings as one argument, which makes a faster start than one of each."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Keep one value, as an argument of its own would; refuse another one, as no last limit wins."""
        name = str(option_string)[2:].replace("-", "_")
        if getattr(namespace, name, values) != values:
            raise ArgumentError(None, f"{option_string} is given twice, with values that differ")
        setattr(namespace, name, values)


def add_options(parser: pytest.Parser) -> None:
    """Declare every flag and its ini twin."""
    group = parser.getgroup("dtdispatch", "DTensor dispatch overhead")
    for option in WITH_FLAG:
        kind: Literal["linelist"] | None = "linelist" if option.repeatable else None
        parser.addini(option.dest, f"as {option.flag}, which beats it", kind, default=None)
        if option.is_older:
            continue
        if option.metavar:
            text, action = f"{option.help} (default: {option.default})", "append" if kind else "store"
            group.addoption(option.flag, action=action, metavar=option.metavar, dest=option.dest, help=text)
        else:
            group.addoption(option.flag, action="store_const", const=True, dest=option.dest, help=option.help)
    parser.addini(ANNOTATIONS, "annotate rows that failed, where GitHub Actions runs", "bool", default=True)
    older = [option.flag for option in WITH_FLAG if option.is_older]
    group.addoption(*older, action=Older, dest="dtdispatch_older", help=SUPPRESS)


def hide_older(config: pytest.Config) -> None:
    """Take ini twins of older spellings out of what the help lists: all that is declared."""
    parser: Any = config._parser
    for option in WITH_FLAG:
        if option.is_older:
            del parser._inidict[option.dest]
            if hasattr(parser, "_ininames"):  # pytest 8 lists these
                parser._ininames.remove(option.dest)


def is_asked(config: pytest.Config) -> bool:
    """Whether any option is given, as a flag or in the ini file."""
    given = vars(config.option)
    return any(name in given and given[name] is not None for name in NAMES) or any(map(config.getini, NAMES))


def marker_line() -> str:
    """Describe the marker to pytest."""
    keywords = ", ".join(f"{keyword}=..." for keyword in KEYWORDS)
    return f"{MARKER}({keywords}): what is measured in a test, and on which mesh"
