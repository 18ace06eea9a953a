"""The command line: one line and status 2 for what cannot be obeyed, a page from what can."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_dtdispatch.atlas.atlas_file import read_atlas
from pytest_dtdispatch.cli import main

EARLIER = "# Atlas of ops\n\nkept"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that was said of a command line that cannot be obeyed."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dtdispatch: ")
    return err


def test_without_a_subcommand_it_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = said(capsys)
    assert "a subcommand is needed: ab, matrix, atlas" in text
    assert text.endswith("pytest --dtdispatch\n")


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["atlas"], ["atlas", "--output"]])
def test_a_command_line_that_cannot_be_obeyed_is_told_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said(capsys)


def test_help_names_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "atlas" in capsys.readouterr().out


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dtdispatch {version('pytest-dtdispatch')}\n"


def test_the_package_runs_as_the_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest_dtdispatch", "nonsense"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("dtdispatch: ")
    assert process.stderr.count("\n") == 1


def test_the_atlas_is_not_measured_for_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["atlas", "--output", str(tmp_path / "nowhere" / "atlas.md")]) == 2
    assert "there is no folder" in said(capsys)
    (tmp_path / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert main(["atlas", "--output", str(tmp_path / "README.md")]) == 2
    assert "README.md holds something else, not an atlas: name another file" in said(capsys)


@pytest.mark.torch
def test_an_interruption_is_told_in_one_line_and_leaves_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    page = tmp_path / "atlas.md"
    page.write_text(EARLIER, encoding="utf-8")
    with monkeypatch.context() as while_it_measures:
        while_it_measures.setattr("torch.distributed.init_process_group", interrupted)
        assert main(["atlas", "--output", str(page), "--ops", "is_same_size.*"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "dtdispatch atlas: 1 op\ndtdispatch: interrupted, and nothing was written\n"
    assert page.read_text(encoding="utf-8") == EARLIER


@pytest.mark.torch
def test_the_atlas_of_no_op_leaves_the_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "atlas.md"
    page.write_text(EARLIER, encoding="utf-8")
    assert main(["atlas", "--output", str(page), "--ops", "nonsense*"]) == 2
    assert "--ops nonsense*: no op" in said(capsys)
    assert page.read_text(encoding="utf-8") == EARLIER


@pytest.mark.torch
def test_the_atlas_is_written_to_a_path_that_is_no_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "atlas\udcff.md"
    assert main(["atlas", "--output", str(page), "--ops", "is_same_size.*"]) == 0
    assert r"atlas\udcff.md' --ops" in page.read_text(encoding="utf-8")
    assert r"atlas\udcff.md, " in capsys.readouterr().out
    assert page.with_suffix(".html").exists()


@pytest.mark.torch
def test_the_atlas_of_an_op_is_written_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    import torch
    import torch.distributed as dist

    threads = torch.get_num_threads()
    page = tmp_path / "atlas.md"
    assert main(["atlas", "--output", str(page), "--ops", "atan2.default", "--ops", "is_same_size.*"]) == 0
    text = page.read_text(encoding="utf-8")
    whole = page.with_suffix(".html")
    assert "<bdi>atan2.default(f32[8,8]S0, f32[8,8]S0)@4</bdi>" in whole.read_text(encoding="utf-8")
    data = page.with_suffix(".json")
    assert read_atlas(data).environment.threads == 1
    assert "torch on 1 thread" in text
    assert f"`dtdispatch atlas --output {page} --ops atan2.default --ops 'is_same_size.*'`" in text
    assert capsys.readouterr().out == f"{page}, {whole}, {data}: 4 rows of 2 ops\n"
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.torch
def test_an_atlas_that_is_asked_for_as_html_writes_over_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "atlas.md").write_text("# Mine\n")
    assert main(["atlas", "--output", str(tmp_path / "atlas.html"), "--ops", "is_same_size.*"]) == 2
    assert "atlas.md holds something else, not an atlas" in said(capsys)
    assert not (tmp_path / "atlas.html").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no saved run: line 1: "),
        ('{"benchmarks": [], "machine_info": {}}', "is no saved run: nothing in it was measured"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_reported_is_told_in_one_line_and_writes_no_page(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "0001_base.json", tmp_path / "page.html"
    if text is not None:
        path.write_text(text)
    assert main(["report", str(path), "--output", str(page)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dtdispatch: {path} {said}")
    assert not page.exists()
