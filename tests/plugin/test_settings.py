"""Settings: flags, ini values and marker keywords, their precedence, and error messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.verdicts import Threshold
from pytest_dtdispatch.plugin import kinds, resolve, settings
from pytest_dtdispatch.plugin.resolve import run_settings
from pytest_dtdispatch.plugin.settings import KEYWORDS, SETTINGS, WITH_FLAG, WITH_INI, Settings, marker_line

# pytest collects garbage at the end of each configuration, over everything that other tests imported.
pytestmark = pytest.mark.usefixtures("no_other_plugin", "young_heap")

OF_ALL, OF_HITS = Threshold("", "median", 0.1), Threshold("hit", "min", 0.075)
CSV = Export("csv", Path("e.csv"))
# By setting: the texts of a flag or of lines in the ini file, and the resulting value.
TYPED: dict[str, tuple[tuple[str, ...], Any]] = {
    "measure": (("true",), True),
    "measure_all": (("yes",), True),
    "budget": (("true",), True),
    "rounds": (("7",), 7),
    "repeat": (("3",), 3),
    "max_time": (("0.25",), 0.25),
    "cold": (("on",), True),
    "ops": (("add*", "mm"), ("add*", "mm")),
    "mesh": (("2x4",), (2, 4)),
    "backend": (("gloo",), "gloo"),
    "device": (("cuda",), "cuda"),
    "nproc": (("2",), 2),
    "timeout": (("7.5",), 7.5),
    "rank_stat": (("max",), "max"),
    "threads": (("program",), "program"),
    "metric": (("counts",), "counts"),
    "profile": (("true",), True),
    "max": (("misses=0", "graph_breaks=1"), {"misses": 0, "graph_breaks": 1}),
    "compile_rounds": (("3",), 3),
    "threshold": (("median:10%", "hit=min:7.5%"), (OF_ALL, OF_HITS)),
    "any_machine": (("yes",), True),
    "expected": (("a b.csv",), (Path("a b.csv"),)),
    "improved": (("warn",), "warn"),
    "export": (("csv:e.csv", "markdown:auto"), (CSV, Export("markdown", Path("auto")))),
    "wrappers": (("spmd.local",), ("spmd.local",)),
    "annotations": (("false",), False),
}
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_dtdispatch.plugin.hooks")
COUNT = "is not a whole number of at least 1"
ROUNDS = COUNT + ", or auto"
MESH = "is not a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4"
LIMITS = "is not a list of limits such as misses=0,collectives=4: whole numbers from 0 to 2**63-1 by name"
# Invalid values: setting, text, error message.
MISTAKES = [
    ("rounds", "x", ROUNDS),
    ("mesh", "2x", MESH),
    ("compile_rounds", "0", COUNT),
    ("metric", "counters", "is not one of time, counts, instructions, verify; did you mean counts?"),
    ("rank_stat", "mean", "is not one of median, max; did you mean median?"),
]


def settings_of(pytester: pytest.Pytester, *args: str, ini: str = "") -> Settings:
    pytester.makeini(f"[pytest]\n{ini}\n")
    return run_settings(pytester.parseconfig(*PLUGINS, *args))


def error_of(pytester: pytest.Pytester, *args: str, ini: str = "") -> str:
    with pytest.raises(pytest.UsageError) as raised:
        settings_of(pytester, *args, ini=ini)
    return str(raised.value)


def items_of(
    pytester: pytest.Pytester, markers: list[str], *args: str, ini: str = "", above: str = ""
) -> list[pytest.Item]:
    """Collect one module with a test for each marker, because collection takes most of the time."""
    pytester.makeini(f"[pytest]\n{ini}\n")
    tests = (
        f"@pytest.mark.dtdispatch({arguments})\ndef test_{n}(): pass\n" for n, arguments in enumerate(markers)
    )
    measured = ("--dtdispatch",) if args else ()  # required by flags that configure measurement
    pytester.makepyfile(test_it=f"import pytest\n{above}\n\n" + "\n".join(tests))
    items, _ = pytester.inline_genitems(*PLUGINS, "test_it.py", *measured, *args)
    return items


def item_settings(pytester: pytest.Pytester, marker: str, *args: str, **more: str) -> Settings:
    [item] = items_of(pytester, [marker], *args, **more)
    return resolve.context_of(item).settings


def flags_of(name: str, texts: tuple[str, ...]) -> list[str]:
    setting = SETTINGS[name]
    if "flag" not in setting.ways:
        return [f"-o{setting.dest}={text}" for text in texts]
    return [f"{setting.flag}={text}" for text in texts] if setting.metavar else [setting.flag]


# Flags and ini values


def test_defaults_match_the_documentation(pytester: pytest.Pytester) -> None:
    settings = settings_of(pytester, ini="dtdispatch_rounds =\ndtdispatch_ops =")  # equivalent to no value
    assert settings == Settings()
    assert (settings.rounds, settings.repeat, settings.max_time) == ("auto", 10, 1.0)
    assert (settings.mesh, settings.backend, settings.device) == ((4,), "auto", "auto")
    assert list(TYPED) == [each.name for each in WITH_INI]
    assert all("--" + each.dest.replace("_", "-") == each.flag for each in WITH_FLAG)


@pytest.mark.parametrize("name", TYPED)
def test_flag_and_ini_value_set_only_their_setting(pytester: pytest.Pytester, name: str) -> None:
    texts, value = TYPED[name]
    expected = {"measure": name in ("measure", "measure_all"), name: value}
    assert settings_of(pytester, *flags_of(name, texts)) == Settings(**expected)
    if name == "expected":
        expected[name] = (pytester.path / "a b.csv",)
    if name == "export":
        expected[name] = (Export("csv", pytester.path / "e.csv"), value[1])
    ini = "\n  ".join((f"{SETTINGS[name].dest} =", *texts))
    assert settings_of(pytester, ini=ini) == Settings(**expected)


def test_settings_list_the_limits_of_all_kinds() -> None:
    assert sorted(settings.LIMITS) == sorted(limit for kind in kinds.KINDS.values() for limit in kind.limits)


def test_help_lists_flags_defaults_and_ini_names(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*PLUGINS, "--help")
    text = " ".join(" ".join(result.outlines).split())
    for each in WITH_INI:
        assert f" {each.dest} (string)" in text or f" {each.dest} (linelist)" in text
        assert bool(re.findall(rf"{each.flag}(?![\w-])", text)) is ("flag" in each.ways)
    for each in WITH_FLAG:
        assert text.replace(" ", "").count(each.help.replace(" ", "")) == 1  # a line may break after a hyphen
        assert f"same as {each.flag}; the flag wins" in text
    assert len(WITH_FLAG) <= 18
    for default in ("(default: auto)", "(default: 10)", "(default: 1.0)", "(default: 4)"):
        assert default in text


@pytest.mark.parametrize(("name", "text", "message"), MISTAKES)
def test_invalid_value_is_refused(pytester: pytest.Pytester, name: str, text: str, message: str) -> None:
    """The error names the setting's source and the valid values."""
    setting, file = SETTINGS[name], pytester.path / "tox.ini"
    named = setting.flag if "flag" in setting.ways else f"-o {setting.dest}"
    assert error_of(pytester, *flags_of(name, (text,))) == f"{named}: {text!r} {message}"
    ini = f"{setting.dest} = {text}"
    assert error_of(pytester, ini=ini) == f"{file}: {setting.dest}: {text!r} {message}"


def test_fixture_list_names_each_method(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest(*PLUGINS, "--fixtures").stdout.str().partition("Measure DTensor dispatch")[2]
    methods = {name for name in vars(DtDispatch) if not name.startswith("_")}
    assert methods == set(re.findall(r"^ +(\w+)(?:\(.*\))?: ", text.partition("\n\n")[0], re.MULTILINE))


def test_unknown_flag_gets_a_suggestion(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--dtdispatch-own')")
    result = pytester.runpytest(*PLUGINS, "--dtdispatch-own=1", "--dtdispatch-meshs=4")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == ["ERROR: no flag --dtdispatch-meshs; did you mean --dtdispatch-mesh?", ""]
    assert pytester.runpytest(*PLUGINS, "--dtdispatch-own=1").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_unknown_ini_value_gets_a_suggestion(pytester: pytest.Pytester) -> None:
    """An unknown name would leave the run without its limits."""
    message = "dtdispatch_maxx: no such ini value; did you mean dtdispatch_max?"
    ini = "dtdispatch_maxx = misses=0"
    assert error_of(pytester, ini=ini) == f"{pytester.path / 'tox.ini'}: {message}"
    assert error_of(pytester, "-odtdispatch_maxx=misses=0") == f"-o {message}"
    pytester.makeconftest("def pytest_addoption(parser): parser.addini('dtdispatch_own', 'text')")
    assert settings_of(pytester, ini="dtdispatch_own = 1\nother = 2") == Settings()


def test_default_mesh_has_all_ranks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "--dtdispatch-metric instructions: instructions are counted in one process, not on ranks"
    on_two = ("--dtdispatch", "--dtdispatch-nproc=2")
    assert error_of(pytester, *on_two, "--dtdispatch-metric=instructions") == message
    for name, value in (("RANK", 1), ("WORLD_SIZE", 3), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    assert settings_of(pytester).mesh == (3,)
    assert settings_of(pytester, "--dtdispatch-mesh=2").mesh == (2,)
    assert settings_of(pytester, "--dtdispatch-backend=fake").mesh == (4,)
    assert error_of(pytester, *on_two) == "--dtdispatch-nproc: a launcher started 3 ranks here, not 2"


@pytest.mark.parametrize(
    ("args", "misses"),
    [
        (["--dtdispatch-rounds=7"], 7),
        (["--dtdispatch-rounds=auto"], 40),
        (["--dtdispatch-rounds=auto", "--dtdispatch-metric=instructions"], 12),
    ],
)
def test_rounds_are_misses_of_a_row(pytester: pytest.Pytester, args: list[str], misses: int) -> None:
    assert settings_of(pytester, *args).rounds_of_row == misses


# Markers


def test_marker_sets_only_its_setting(pytester: pytest.Pytester) -> None:
    pairs: list[tuple[str, Any]] = [
        *(("rounds", 7), ("repeat", 3), ("max_time", 0.25), ("cold", True)),
        *(("ops", ("add*", "mm")), ("mesh", (2, 4)), ("dim_names", ("dp",)), ("rpc", True)),
        *(("backend", "gloo"), ("device", "cuda")),
    ]
    items = items_of(pytester, [f"{keyword}={value!r}" for keyword, value in pairs])
    for item, (keyword, value) in zip(items, pairs, strict=True):
        settings: dict[str, Any] = {keyword: value}
        assert resolve.context_of(item).settings == Settings(**settings)
    assert marker_line().startswith(f"dtdispatch({', '.join(f'{keyword}=...' for keyword in KEYWORDS)}): ")


NAMED = "mesh=(2, 4), dim_names=('dp', 'tp')"


@pytest.mark.parametrize(
    ("marker", "flags", "ini", "expected"),
    [
        (
            "rounds=5, repeat=5, ops='mm'",
            ["--dtdispatch-rounds=7"],
            "dtdispatch_rounds = 9\ndtdispatch_repeat = 9\ndtdispatch_mesh = 9\ndtdispatch_ops = add*",
            {"rounds": 7, "repeat": 5, "mesh": (9,), "ops": ("mm",)},
        ),
        ("rounds=9", ["--dtdispatch-rounds=auto"], "", {}),
        ("rounds=9", [], "dtdispatch_rounds = auto", {"rounds": 9}),
        ("", ["-odtdispatch_cold=true"], "dtdispatch_cold = off\ndtdispatch_all = no", {"cold": True}),
        ("cold=False, ops=()", [], "dtdispatch_cold = on\ndtdispatch_ops = mm", {}),
        # Dimension names are dropped with the mesh that a flag replaced, unless they fit the new mesh.
        (NAMED, ["--dtdispatch-mesh=8"], "", {"mesh": (8,)}),
        (NAMED, ["--dtdispatch-mesh=4x2"], "", {"mesh": (4, 2), "dim_names": ("dp", "tp")}),
    ],
)
def test_flag_beats_marker_beats_ini_beats_default(
    pytester: pytest.Pytester, marker: str, flags: list[str], ini: str, expected: dict[str, Any]
) -> None:
    settings = item_settings(pytester, marker, *flags, ini=ini)
    assert settings == Settings(**{"measure": bool(flags), **expected})


@pytest.mark.parametrize("marker", ["max='misses=5'", "max={'misses': 5}"])
def test_limits_merge_and_flag_beats_marker_beats_ini(pytester: pytest.Pytester, marker: str) -> None:
    """All limits apply; of two limits with one name, the closest takes precedence."""
    ini = "dtdispatch_max = misses=9,collectives=4"
    above = "pytestmark = pytest.mark.dtdispatch(max='wraps=1')"
    limits = {"misses": 5, "collectives": 4, "wraps": 1}
    assert item_settings(pytester, marker, ini=ini, above=above).limits == limits
    flag = "--dtdispatch-max=misses=7"
    assert item_settings(pytester, marker, flag, ini=ini, above=above).limits == {**limits, "misses": 7}


def test_closest_marker_wins_by_keyword(pytester: pytest.Pytester) -> None:
    above = "pytestmark = pytest.mark.dtdispatch(rounds=5, repeat=5, mesh=8, cold=True)"
    [item] = items_of(pytester, ["repeat=6, cold=False"], above=above)
    assert resolve.context_of(item).settings == Settings(rounds=5, repeat=6, mesh=(8,))
    assert resolve.context_of(item).marked == {"rounds": 5, "repeat": 6, "mesh": (8,), "cold": False}


INVALID_MARKERS = [
    (
        "round=5",
        "marker dtdispatch has no keyword 'round'; valid: rounds, repeat, max_time, cold, ops, mesh, "
        "dim_names, backend, device",
    ),
    ("nproc=2", "marker dtdispatch has no keyword 'nproc'; valid: rounds, "),
    ("rounds=True", f"marker dtdispatch: rounds=True {ROUNDS}"),
    ('max={"misses": -1}', f"marker dtdispatch: max={{'misses': -1}} {LIMITS}"),
    ('max="mises=0"', f"marker dtdispatch: max='mises=0' {LIMITS}"),
    ("max=5", f"marker dtdispatch: max=5 {LIMITS}"),
    ("5", "marker dtdispatch takes keywords only, not 5"),
    ("Silent()", "marker dtdispatch takes keywords only, not <Silent that cannot be shown>"),
    ("rounds=Silent()", f"marker dtdispatch: rounds=<Silent that cannot be shown> {ROUNDS}"),
    ("rounds=numpy.float32(2.7)", "marker dtdispatch: rounds="),
    ("backend=numpy.array([[1, 2], [3, 4]])", "marker dtdispatch: backend="),
]


def test_invalid_marker_error_names_line_and_valid_values(pytester: pytest.Pytester) -> None:
    above = "import numpy\nclass Silent:\n    def __repr__(self): raise RuntimeError('no')"
    items = items_of(pytester, [arguments for arguments, _ in INVALID_MARKERS], above=above)
    for item, (_, message) in zip(items, INVALID_MARKERS, strict=True):
        with pytest.raises(pytest.UsageError) as raised:
            resolve.context_of(item)
        line = str(raised.value)
        file, number, _ = item.location
        assert line.startswith(f"{file}:{(number or 0) + 1}: {message}")
        source = item.path.read_text().splitlines()
        assert source[number or 0].startswith(("@pytest.mark.dtdispatch", "def test_"))
        assert "\n" not in line
