"""Command lines of ``dtdispatch`` end with a documented status, and report errors in one line."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.gates.expected import read_expected
from pytest_dtdispatch.plugin.kinds import metric_names
from tests.fuzz.inputs import assert_one_line, odd_texts, of_commands, spoiled

NOWHERE = "/nowhere/python"
FLAGS = {
    "ab": [
        *("base", "judge", "head", "base-rev", "metric", "threshold"),
        *("pairs", "confirm", "floor", "control"),
    ],
    "expected": ["results", "reason", "new-margin"],
    "report": ["export"],
    "": ["help", "version", "base"],
}
# The last value takes precedence: nothing is measured, regardless of earlier ones.
SAFE = {
    "ab": [f"--base={NOWHERE}", f"--head={NOWHERE}", "--json=/nowhere/ab.json"],
    "report": ["/nowhere/saved.json", "--export=csv:/nowhere/out.csv"],
}
EXPECTED = "# hits\nt.py::test_a::a,dispatch_hit_ns,6940,0.25\nt.py::test_b::b,collectives,4,0,why\n"
RESULTS = "t.py::test_a::a,dispatch_hit_ns,9000\nt.py::test_b::b,collectives,4\n"


def status_of(words: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as left:  # --help
            status = int(left.code or 0)
    return status, out.getvalue(), err.getvalue()


@some.composite
def command_lines(draw: some.DrawFn) -> list[str]:
    command = draw(some.sampled_from(sorted(FLAGS)))
    words = [command, *(["update"] if command == "expected" else [])] if command else []
    for flag in draw(some.lists(some.sampled_from([*FLAGS[command], "time-limit"]), max_size=4)):
        value = draw(odd_texts)
        words += draw(
            some.sampled_from([[f"--{flag}={value}"], [f"--{flag}", value], [f"--{flag}"], [value]])
        )
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], *SAFE.get(command, []), *words[cut:]]


@of_commands
@given(words=command_lines())
def test_command_line_has_a_valid_status(words: list[str]) -> None:
    status, out, err = status_of(words)
    if status == 0:
        assert "dtdispatch" in out  # only --help and --version succeed
        return
    assert status == 2
    assert out == ""
    assert err.startswith("dtdispatch: ")
    assert err.removesuffix("\n").isprintable()


@of_commands
@given(
    expected=spoiled(EXPECTED),
    results=spoiled(RESULTS),
    reason=some.one_of(some.just("why"), odd_texts),
    margin=some.one_of(some.none(), some.just("0.1"), odd_texts),
)
def test_expected_file_is_updated_or_refused(
    expected: str, results: str, reason: str, margin: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    files = folder / "fuzzed-expected.csv", folder / "fuzzed-results.csv"
    for path, text in zip(files, (expected, results), strict=True):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    before = files[0].read_bytes()
    words = ["expected", "update", str(files[0]), f"--results={files[1]}", f"--reason={reason}"]
    status, out, err = status_of([*words, *([] if margin is None else [f"--new-margin={margin}"])])
    if status == 0:
        assert out.startswith(f"{files[0]}: ")
        read_expected(files[0], metric_names())
        return
    assert status == 2
    assert_one_line(err.removesuffix("\n"), "dtdispatch: ")
    assert files[0].read_bytes() == before
