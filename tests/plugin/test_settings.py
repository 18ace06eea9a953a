"""Settings: every flag, its ini twin and its marker keyword; which beats which; what a mistake says."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.verdicts import Threshold
from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.resolve import refuse_idle_flags, run_settings
from pytest_dtdispatch.plugin.settings import KEYWORDS, SETTINGS, WITH_FLAG, WITH_INI, Settings, marker_line

# What is typed for each setting, as a flag, and what it becomes.
GIVEN: dict[str, tuple[list[str], Any]] = {
    "measure": (["--dtdispatch"], True),
    "measure_all": (["--dtdispatch-all"], True),
    "budget": (["--dtdispatch-budget"], True),
    "rounds": (["--dtdispatch-rounds=7"], 7),
    "repeat": (["--dtdispatch-repeat", "3"], 3),
    "max_time": (["--dtdispatch-max-time=0.25"], 0.25),
    "ops": (["--dtdispatch-ops=add*", "--dtdispatch-ops=mm"], ("add*", "mm")),
    "mesh": (["--dtdispatch-mesh=2x4"], (2, 4)),
    "backend": (["--dtdispatch-backend=gloo"], "gloo"),
    "device": (["--dtdispatch-device=cuda"], "cuda"),
    "nproc": (["--dtdispatch", "--dtdispatch-nproc=2"], 2),
    "timeout": (["--dtdispatch-timeout=7.5"], 7.5),
    "metric": (["--dtdispatch-metric=counts"], "counts"),
    "max": (["--dtdispatch", "--dtdispatch-max=misses=0,graph_breaks=1"], {"misses": 0, "graph_breaks": 1}),
    "threshold": (
        ["--dtdispatch-fail=median:10%", "--dtdispatch-fail=hit=min:7.5%"],
        (Threshold("", "median", 0.1), Threshold("hit", "min", 0.075)),
    ),
    "any_machine": (["--dtdispatch-any-machine"], True),
    "expected": (["--dtdispatch", "--dtdispatch-expected=a b.csv"], (Path("a b.csv"),)),
    "export": (
        ["--dtdispatch", "--dtdispatch-export=csv:e.csv", "--dtdispatch-export", "markdown:auto"],
        (Export("csv", Path("e.csv")), Export("markdown", Path("auto"))),
    ),
}
# What an ini file says of settings that have no flag, and what that becomes.
INI_ALONE: dict[str, tuple[str, Any]] = {
    "cold": ("dtdispatch_cold = on", True),
    "rank_stat": ("dtdispatch_rank_stat = max", "max"),
    "threads": ("dtdispatch_threads = program", "program"),
    "profile": ("dtdispatch_profile = true", True),
    "compile_backend": ("dtdispatch_compile_backend = aot_eager", "aot_eager"),
    "compile_rounds": ("dtdispatch_compile_rounds = 3", 3),
    "improved": ("dtdispatch_improved = warn", "warn"),
    "annotations": ("dtdispatch_annotations = false", False),
}
INI = {
    "measure": "dtdispatch = true",
    "measure_all": "dtdispatch_all = yes",
    "budget": "dtdispatch_budget = true",
    "rounds": "dtdispatch_rounds = 7",
    "repeat": "dtdispatch_repeat = 3",
    "max_time": "dtdispatch_max_time = 0.25",
    "ops": "dtdispatch_ops =\n  add*\n  mm",
    "mesh": "dtdispatch_mesh = 2x4",
    "backend": "dtdispatch_backend = gloo",
    "device": "dtdispatch_device = cuda",
    "nproc": "dtdispatch_nproc = 2",
    "timeout": "dtdispatch_timeout = 7.5",
    "metric": "dtdispatch_metric = counts",
    "max": "dtdispatch_max =\n  misses=0\n  graph_breaks=1",
    "threshold": "dtdispatch_fail =\n  median:10%\n  hit=min:7.5%",
    "any_machine": "dtdispatch_any_machine = yes",
    "expected": "dtdispatch_expected = a b.csv",
    "export": "dtdispatch_export =\n  csv:e.csv\n  markdown:auto",
}
# Mistakes: setting, what is typed, what the line says of it.
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_dtdispatch.plugin.hooks")
COUNT = "is not a whole number of at least 1"
ROUNDS = COUNT + ", or auto"
MESH = "is not a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4"
MISTAKES = [
    ("rounds", "0", ROUNDS),
    ("rounds", "-1", ROUNDS),
    ("rounds", "x", ROUNDS),
    ("repeat", "1.5", COUNT),
    ("nproc", "0", "is not a whole number from 1 to 1,024"),
    ("max_time", "nan", "is not a number of seconds above 0"),
    ("max_time", "0", "is not a number of seconds above 0"),
    ("max_time", "soon", "is not a number of seconds above 0"),
    ("mesh", "2x", MESH),
    ("mesh", "0x4", MESH),
    ("compile_rounds", "0", COUNT),
    ("metric", "counters", "is not one of time, counts, instructions"),
    ("backend", "mpi", "is not one of auto, fake, gloo, nccl, local"),
    ("timeout", "0", "is not a number of seconds above 0"),
    ("rank_stat", "mean", "is not one of median, max"),
    ("improved", "pass", "is not one of fail, warn"),
    ("threads", "2", "is not one of one, program"),
    ("device", "tpu", "is not one of auto, cpu, cuda"),
]


@pytest.fixture(autouse=True)
def _no_other_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # looking for them takes most of the time


@pytest.fixture(autouse=True)
def _young_heap() -> Iterator[None]:
    gc.freeze()  # each configuration that ends collects garbage, in all that other tests imported
    yield
    gc.unfreeze()


def config_of(pytester: pytest.Pytester, *args: str, ini: str = "") -> pytest.Config:
    if ini:
        pytester.makeini(f"[pytest]\n{ini}\n")
    return pytester.parseconfig(*PLUGINS, *args)


def item_of(pytester: pytest.Pytester, source: str, *args: str, ini: str = "") -> pytest.Item:
    """Collect the one test of a module."""
    if ini:
        pytester.makeini(f"[pytest]\n{ini}\n")
    measured = ("--dtdispatch",) if args else ()  # which flags that say how to measure need
    module = pytester.getmodulecol(source, configargs=(*PLUGINS, *measured, *args))
    [item] = pytester.genitems([module])
    return item


def items_of(pytester: pytest.Pytester, markers: list[str]) -> list[pytest.Item]:
    """Collect one module with a test under each marker: to collect takes longer than what is tested."""
    tests = (f"@pytest.mark.dtdispatch({given})\ndef test_{n}(): pass\n" for n, given in enumerate(markers))
    module = pytester.getmodulecol("import pytest\n\n\n" + "\n".join(tests), configargs=PLUGINS)
    return pytester.genitems([module])


def marked(**keywords: Any) -> str:
    arguments = ", ".join(f"{keyword}={value!r}" for keyword, value in keywords.items())
    return f"import pytest\n\n\n@pytest.mark.dtdispatch({arguments})\ndef test_a():\n    pass\n"


def mistake(pytester: pytest.Pytester, *args: str, ini: str = "") -> str:
    config = config_of(pytester, *args, ini=ini)
    with pytest.raises(pytest.UsageError) as raised:
        run_settings(config)
    return str(raised.value)


# Flags and ini twins


def test_defaults_are_those_of_the_documentation(pytester: pytest.Pytester) -> None:
    settings = run_settings(config_of(pytester))
    assert settings == Settings()
    assert (settings.rounds, settings.repeat, settings.max_time) == (20, 10, 1.0)
    assert (settings.mesh, settings.backend, settings.device) == ((4,), "auto", "auto")
    assert [settings.measure, settings.measure_all, settings.cold] == [False] * 3
    assert settings.ops == ()


def test_every_setting_is_tried_here() -> None:
    assert list(GIVEN) == list(INI) == [each.name for each in WITH_FLAG]
    assert {*INI, *INI_ALONE} == {each.name for each in WITH_INI}


@pytest.mark.parametrize("name", GIVEN)
def test_a_flag_sets_its_setting_and_no_other(pytester: pytest.Pytester, name: str) -> None:
    flags, value = GIVEN[name]
    expected = {name: value, "measure": flags[0] in ("--dtdispatch", "--dtdispatch-all")}
    assert run_settings(config_of(pytester, *flags)) == Settings(**expected)


@pytest.mark.parametrize("name", [*INI, *INI_ALONE])
def test_an_ini_value_sets_its_setting_and_no_other(pytester: pytest.Pytester, name: str) -> None:
    ini, value = (INI[name], GIVEN[name][1]) if name in INI else INI_ALONE[name]
    if name == "expected":
        value = (pytester.path / "a b.csv",)
    if name == "export":
        value = (Export("csv", pytester.path / "e.csv"), value[1])
    expected: dict[str, Any] = {name: value, "measure": name in ("measure", "measure_all")}
    assert run_settings(config_of(pytester, ini=ini)) == Settings(**{**expected, name: value})


def test_an_ini_name_is_the_flag_without_dashes() -> None:
    assert [each.dest for each in WITH_FLAG] == [text.split()[0] for text in INI.values()]
    assert all("--" + each.dest.replace("_", "-") == each.flag for each in WITH_FLAG)


@pytest.mark.parametrize(
    ("flags", "ini", "expected"),
    [
        (["--dtdispatch-rounds=7"], "dtdispatch_rounds = 9", Settings(rounds=7)),
        (["--dtdispatch-repeat=10"], "dtdispatch_repeat = 9", Settings(repeat=10)),
        (["--dtdispatch-mesh=8"], "dtdispatch_mesh = 2x4", Settings(mesh=(8,))),
        (["--dtdispatch-ops=mm"], "dtdispatch_ops = add*", Settings(ops=("mm",))),
        (["--dtdispatch-backend=auto"], "dtdispatch_backend = gloo", Settings(backend="auto")),
        (["--dtdispatch"], "dtdispatch = false", Settings(measure=True)),
        (["-o", "dtdispatch_cold=true"], "dtdispatch_cold = off", Settings(cold=True)),
    ],
)
def test_a_flag_beats_the_ini_file_even_with_the_default_value(
    pytester: pytest.Pytester, flags: list[str], ini: str, expected: Settings
) -> None:
    assert run_settings(config_of(pytester, *flags, ini=ini)) == expected


@pytest.mark.parametrize("way", ["flags", "ini", "marker"])
@pytest.mark.parametrize(
    ("given", "figure"),
    [
        (("median:30%", "median:5000%"), "median"),
        (("10%", "miss=20%", "median:10%"), "median"),
        (("hit=median:15%", "median:20%", "hit=5%,strict"), "hit=median"),
    ],
)
def test_two_thresholds_of_one_figure_are_a_mistake(
    pytester: pytest.Pytester, way: str, given: tuple[str, ...], figure: str
) -> None:
    if way == "marker":
        with pytest.raises(pytest.UsageError) as raised:
            resolve.test_settings(item_of(pytester, marked(threshold=given)))
        message = str(raised.value)
    else:
        flags = [f"--dtdispatch-fail={each}" for each in given] if way == "flags" else []
        ini = "\n  ".join(("dtdispatch_fail =", *given)) if way == "ini" else ""
        message = mistake(pytester, *flags, ini=ini)
    assert message.endswith(f" is not thresholds that differ in state or field: {figure} is given twice")


def test_a_threshold_of_one_state_or_another_field_stands_beside_that_of_all(
    pytester: pytest.Pytester,
) -> None:
    given = ("hit=median:15%", "median:20%,strict", "min:20%", "miss=30%,strict")
    settings = run_settings(config_of(pytester, *(f"--dtdispatch-fail={each}" for each in given)))
    assert settings.threshold is not None
    assert [str(each) for each in settings.threshold] == [*given[:3], "miss=median:30%,strict"]


@pytest.mark.parametrize("ini", ["dtdispatch = false", "dtdispatch_all = no", "dtdispatch_cold = 0"])
def test_an_ini_file_can_say_off(pytester: pytest.Pytester, ini: str) -> None:
    assert run_settings(config_of(pytester, ini=ini)) == Settings()


def test_an_empty_ini_value_is_as_good_as_none(pytester: pytest.Pytester) -> None:
    assert run_settings(config_of(pytester, ini="dtdispatch_rounds =\ndtdispatch_ops =")) == Settings()


def test_the_help_names_each_flag_its_default_and_its_ini_name(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*PLUGINS, "--help")
    text = " ".join(result.outlines)
    for each in WITH_INI:
        assert f" {each.dest} (string)" in text or f" {each.dest} (linelist)" in text
        assert bool(re.findall(rf"{each.flag}(?![\w-])", text)) is each.has_flag
    assert "(default: 20)" in text
    assert "(default: 4)" in text


@pytest.mark.parametrize(("name", "text", "says"), MISTAKES)
def test_a_flag_that_is_not_valid_names_itself_and_what_is_valid(
    pytester: pytest.Pytester, name: str, text: str, says: str
) -> None:
    setting = SETTINGS[name]
    flag = (f"{setting.flag}={text}",) if setting.has_flag else ("-o", f"{setting.dest}={text}")
    named = setting.flag if setting.has_flag else f"-o {setting.dest}"
    assert mistake(pytester, *flag) == f"{named}: {text!r} {says}"


def test_an_empty_flag_is_a_mistake(pytester: pytest.Pytester) -> None:
    assert mistake(pytester, "--dtdispatch-mesh=") == f"--dtdispatch-mesh: '' {MESH}"
    says = 'is not globs of op names, such as "add*"'
    assert mistake(pytester, "--dtdispatch-ops=") == f"--dtdispatch-ops: [''] {says}"


@pytest.mark.parametrize(("name", "text", "says"), [*MISTAKES, ("cold", "maybe", "is not true or false")])
def test_an_ini_value_that_is_not_valid_names_its_file_and_what_is_valid(
    pytester: pytest.Pytester, name: str, text: str, says: str
) -> None:
    dest, file = SETTINGS[name].dest, pytester.path / "tox.ini"
    assert mistake(pytester, ini=f"{dest} = {text}") == f"{file}: {dest}: {text!r} {says}"


@pytest.mark.parametrize("ini", ["", "dtdispatch_rounds = 9"])
def test_an_ini_value_given_as_an_override_names_that(pytester: pytest.Pytester, ini: str) -> None:
    line = mistake(pytester, "-o", "dtdispatch_rounds=x", ini=ini)
    assert line == f"-o dtdispatch_rounds: 'x' {ROUNDS}"


def test_ranks_are_not_started_where_nothing_is_measured(pytester: pytest.Pytester) -> None:
    config = config_of(pytester, "--dtdispatch-nproc=2")
    says = "--dtdispatch-nproc: nothing is measured without --dtdispatch or --dtdispatch-all"
    with pytest.raises(pytest.UsageError, match=says):
        refuse_idle_flags(config, run_settings(config))
    assert run_settings(config_of(pytester, ini="dtdispatch_nproc = 2")).nproc == 2


def test_instructions_are_not_counted_on_ranks(pytester: pytest.Pytester) -> None:
    args = ("--dtdispatch", "--dtdispatch-nproc=2", "--dtdispatch-metric=instructions")
    says = "--dtdispatch-metric instructions: instructions are counted in one process, not on ranks"
    assert mistake(pytester, *args) == says


def test_the_default_mesh_of_many_ranks_has_all_of_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", 1), ("WORLD_SIZE", 3), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    assert run_settings(config_of(pytester)).mesh == (3,)
    assert run_settings(config_of(pytester, "--dtdispatch-mesh=2")).mesh == (2,)
    assert run_settings(config_of(pytester, "--dtdispatch-backend=fake")).mesh == (4,)
    says = "--dtdispatch-nproc: a launcher started 3 ranks here, not 2"
    assert mistake(pytester, "--dtdispatch", "--dtdispatch-nproc=2") == says


# Markers


def test_a_marker_sets_its_setting_and_no_other(pytester: pytest.Pytester) -> None:
    given: dict[str, list[Any]] = {
        "rounds": [7, "auto"],
        "repeat": [3],
        "max_time": [0.25],
        "cold": [True],
        "ops": [("add*", "mm")],
        "mesh": [(2, 4)],
        "dim_names": [("dp",)],
        "backend": ["gloo"],
        "device": ["cuda"],
        "rpc": [True],
    }
    pairs = [(keyword, value) for keyword, values in given.items() for value in values]
    items = items_of(pytester, [f"{keyword}={value!r}" for keyword, value in pairs])
    for item, (keyword, value) in zip(items, pairs, strict=True):
        settings: dict[str, Any] = {keyword: value}
        assert resolve.test_settings(item) == Settings(**settings)


def test_a_test_without_a_marker_has_the_settings_of_the_run(pytester: pytest.Pytester) -> None:
    item = item_of(pytester, "def test_a(): pass", "--dtdispatch-rounds=7", ini="dtdispatch_repeat = 3")
    assert (
        resolve.test_settings(item) == run_settings(item.config) == Settings(measure=True, rounds=7, repeat=3)
    )


def test_flag_beats_marker_beats_ini_beats_default(pytester: pytest.Pytester) -> None:
    item = item_of(
        pytester,
        marked(rounds=5, repeat=5, ops="mm"),
        "--dtdispatch-rounds=7",
        ini="dtdispatch_rounds = 9\ndtdispatch_repeat = 9\ndtdispatch_mesh = 9\ndtdispatch_ops = add*",
    )
    expected = Settings(measure=True, rounds=7, repeat=5, mesh=(9,), ops=("mm",))
    assert resolve.test_settings(item) == expected


def test_a_threshold_of_a_marker_beats_even_the_flag(pytester: pytest.Pytester) -> None:
    item = item_of(pytester, marked(threshold="5%"), "--dtdispatch-fail=median:20%")
    assert resolve.test_settings(item).threshold == (Threshold("", "median", 0.05),)
    assert run_settings(item.config).threshold == (Threshold("", "median", 0.2),)


def test_a_marker_can_turn_off_what_the_ini_file_turns_on(pytester: pytest.Pytester) -> None:
    item = item_of(pytester, marked(cold=False, ops=()), ini="dtdispatch_cold = on\ndtdispatch_ops = mm")
    assert resolve.test_settings(item) == Settings()


def test_the_closest_marker_wins_keyword_by_keyword(pytester: pytest.Pytester) -> None:
    item = item_of(
        pytester,
        "import pytest\n"
        "pytestmark = pytest.mark.dtdispatch(rounds=5, repeat=5, mesh=8)\n"
        "@pytest.mark.dtdispatch(repeat=6, cold=True)\n"
        "class TestA:\n"
        "    @pytest.mark.dtdispatch(cold=False)\n"
        "    def test_a(self): pass\n",
    )
    assert resolve.test_settings(item) == Settings(rounds=5, repeat=6, mesh=(8,), cold=False)
    assert resolve.marker_values(item) == {"rounds": 5, "repeat": 6, "mesh": (8,), "cold": False}


INVALID_MARKERS = [
    (
        "round=5",
        "marker dtdispatch has no keyword 'round'; valid: rounds, repeat, max_time, cold, ops, mesh, "
        "dim_names, backend, device",
    ),
    ("measure=True", "marker dtdispatch has no keyword 'measure'; valid: rounds, "),
    ("nproc=2", "marker dtdispatch has no keyword 'nproc'; valid: rounds, "),
    ("rounds=0", f"marker dtdispatch: rounds=0 {ROUNDS}"),
    ("rounds=True", f"marker dtdispatch: rounds=True {ROUNDS}"),
    ("rounds=2.0", f"marker dtdispatch: rounds=2.0 {ROUNDS}"),
    ("mesh=(0, 4)", f"marker dtdispatch: mesh=(0, 4) {MESH}"),
    (
        "dim_names=('a', 'a'), mesh=(2, 2)",
        "marker dtdispatch: dim_names=('a', 'a') is not a tuple of names that",
    ),
    ('rounds="x"', f"marker dtdispatch: rounds='x' {ROUNDS}"),
    ("max_time=-1", "marker dtdispatch: max_time=-1 is not a number of seconds above 0"),
    ('mesh="0x4"', f"marker dtdispatch: mesh='0x4' {MESH}"),
    ("mesh=()", f"marker dtdispatch: mesh=() {MESH}"),
    ("cold=1", "marker dtdispatch: cold=1 is not true or false"),
    ('dim_names="dp"', "marker dtdispatch: dim_names='dp' is not a tuple of names, such as "),
    ('backend="mpi"', "marker dtdispatch: backend='mpi' is not one of auto, fake, gloo, nccl, local"),
    ("ops=3", "marker dtdispatch: ops=3 is not globs of op names, such as "),
    ('max="mises=0"', "marker dtdispatch: 'mises' is no limit; valid: misses, cache_growth, "),
    ("max=5", 'marker dtdispatch: limits are a text, such as "misses=0,collectives=4", or a dict'),
    ('max={"misses": -1}', "marker dtdispatch: misses=-1 is not a whole number of at least 0"),
    ("5", "marker dtdispatch takes keywords only, not 5"),
    (
        'mesh=(2, 4), dim_names=("dp",)',
        "marker dtdispatch: dim_names has 1 names for a mesh of 2 dimensions",
    ),
]


def test_a_marker_that_is_not_valid_names_file_and_line_and_what_is_valid(pytester: pytest.Pytester) -> None:
    items = items_of(pytester, [arguments for arguments, _ in INVALID_MARKERS])
    for item, (_, says) in zip(items, INVALID_MARKERS, strict=True):
        with pytest.raises(pytest.UsageError) as raised:
            resolve.test_settings(item)
        line = str(raised.value)
        file, number, _ = item.location
        assert line.startswith(f"{file}:{(number or 0) + 1}: {says}")
        source = item.path.read_text().splitlines()
        assert source[number or 0].startswith(("@pytest.mark.dtdispatch", "def test_"))
        assert "\n" not in line


def test_names_of_a_marker_are_dropped_where_a_flag_gives_a_mesh_they_do_not_fit(
    pytester: pytest.Pytester,
) -> None:
    source = marked(mesh=(2, 4), dim_names=("dp", "tp"))
    item = item_of(pytester, source, "--dtdispatch-mesh=8")
    assert resolve.test_settings(item) == Settings(measure=True, mesh=(8,), dim_names=None)


def test_names_of_a_marker_are_kept_where_a_flag_gives_a_mesh_they_fit(pytester: pytest.Pytester) -> None:
    source = marked(mesh=(2, 4), dim_names=("dp", "tp"))
    item = item_of(pytester, source, "--dtdispatch-mesh=4x2")
    assert resolve.test_settings(item) == Settings(measure=True, mesh=(4, 2), dim_names=("dp", "tp"))


def test_the_marker_is_declared_with_its_keywords() -> None:
    assert marker_line().startswith(f"dtdispatch({', '.join(f'{keyword}=...' for keyword in KEYWORDS)}): ")


# Limits


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "mises=0",
            "'mises' is no limit; valid: misses, cache_growth, spec_growth, redistributes, collectives, "
            "wraps, recompiles, graph_breaks",
        ),
        ("misses=0,misses=0", "misses is given twice"),
        ("misses=0\n misses=1", "misses is given twice"),
        ("misses", "misses='' is not a whole number of at least 0"),
        ("misses=-1", "misses='-1' is not a whole number of at least 0"),
        ("misses=0,", "'' is no limit; valid: misses, "),
    ],
)
def test_limits_that_are_not_valid_are_told_in_one_line(
    pytester: pytest.Pytester, text: str, says: str
) -> None:
    flags = [f"--dtdispatch-max={part.strip()}" for part in text.split("\n")]
    assert mistake(pytester, "--dtdispatch", *flags).startswith(f"--dtdispatch-max: {says}")
    place = pytester.path / "tox.ini"
    assert mistake(pytester, ini=f"dtdispatch_max = {text}").startswith(f"{place}: dtdispatch_max: {says}")


@pytest.mark.parametrize("marker", [{"max": "misses=5"}, {"max": {"misses": 5}}], ids=str)
def test_each_limit_beats_that_of_a_lesser_place(pytester: pytest.Pytester, marker: dict[str, Any]) -> None:
    ini = "dtdispatch_max = misses=9,collectives=4"
    expected = Settings(max={"misses": 5, "collectives": 4})
    assert resolve.test_settings(item_of(pytester, marked(**marker), ini=ini)) == expected
    pytester.makepyfile(test_it=marked(**marker))
    [item], _ = pytester.inline_genitems(*PLUGINS, "test_it.py", "--dtdispatch", "--dtdispatch-max=misses=7")
    flagged = {"misses": 7, "collectives": 4}
    assert resolve.test_settings(item) == replace(expected, measure=True, max=flagged)


def test_limits_of_all_markers_of_a_test_hold(pytester: pytest.Pytester) -> None:
    source = "import pytest\npytestmark = pytest.mark.dtdispatch(max='misses=3,wraps=1')\n"
    item = item_of(pytester, source + marked(max="misses=0").removeprefix("import pytest"))
    assert resolve.test_settings(item).limits == {"misses": 0, "wraps": 1}


# Values given in Python


def test_a_value_given_in_python_is_checked() -> None:
    assert resolve.checked("mesh", "2x4") == (2, 4)
    with pytest.raises(MeshError) as raised:
        resolve.checked("backend", "mpi")
    assert str(raised.value) == "backend='mpi' is not one of auto, fake, gloo, nccl, local"


# Rounds that are enough


@pytest.mark.parametrize(
    ("args", "most", "stops"),
    [
        ([], 20, False),
        (["--dtdispatch-rounds=7"], 7, False),
        (["--dtdispatch-rounds=auto"], 20, True),
        (["--dtdispatch-rounds=auto", "--dtdispatch-metric=instructions"], 5, False),
        (["--dtdispatch-rounds=auto", "--dtdispatch-metric=counts"], 20, False),
    ],
)
def test_auto_is_twenty_rounds_at_the_most(
    pytester: pytest.Pytester, args: list[str], most: int, stops: bool
) -> None:
    settings = run_settings(config_of(pytester, *args))
    assert (settings.most_rounds, settings.stops_when_enough) == (most, stops)


@pytest.mark.parametrize(("flag", "rounds"), [(["--dtdispatch-rounds=auto"], "auto"), ([], 9)])
def test_auto_as_a_flag_beats_the_marker(
    pytester: pytest.Pytester, flag: list[str], rounds: int | str
) -> None:
    item = item_of(pytester, marked(rounds=9), *flag, ini="dtdispatch_rounds = auto")
    assert resolve.test_settings(item).rounds == rounds


# What a user sees


@pytest.mark.parametrize(
    ("args", "ini", "source", "says"),
    [
        (["--dtdispatch-rounds=x"], "", "", "--dtdispatch-rounds: 'x' is not"),
        ([], "dtdispatch_mesh = 2x", "", "tox.ini: dtdispatch_mesh: '2x' is not"),
        ([], "", marked(round=5), "test_it.py:4: marker dtdispatch has no keyword"),
        ([], "", marked(mesh=(2, 4), dim_names=("dp",)), "test_it.py:4: marker dtdispatch: dim_names has 1"),
    ],
    ids=["flag", "ini", "marker", "names"],
)
def test_a_mistake_ends_the_run_with_one_line(
    pytester: pytest.Pytester, args: list[str], ini: str, source: str, says: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.makepyfile(test_it=source or "def test_a(): pass")
    result = pytester.runpytest_inprocess(*PLUGINS, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.errlines if line.strip()]
    assert line.startswith("ERROR: ")
    assert says in line
    assert "Traceback" not in result.stdout.str()
