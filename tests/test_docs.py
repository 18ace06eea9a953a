"""Examples in the README and the documentation run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_dtdispatch.plugin.kinds import KINDS
from tests.plugin_runs import import_compilers, measure
from tests.probes import (
    FSDP_WITHOUT_CUDA,
    fake_group_writes,
    has,
    is_replanned_for_scalar_value,
    on_a_fake_mesh,
)
from tests.walked_pages import ROOT, copy_of_the_repository, examples, install, reasons_not_to_run, walk

pytestmark = pytest.mark.torch

import_compilers()

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Walked pages show the output of this torch. On other versions only their examples run, as on other pages.
IS_OF_THE_PAGES = torch.__version__.startswith("2.13.")
# Pages whose commands run, with the reasons of blocks that do not. All but the first are long.
WALKED: dict[str, list[str]] = {
    "README.md": [],
    "quickstart.md": [],
    "step_time.md": [],
    "verify.md": [],
    "advice.md": [],
    "gates.md": ["judges times"],
    "ab.md": ["needs a second torch", "takes minutes of callgrind"],
    "ci.md": [],
    "instructions.md": ["takes minutes of callgrind"] * 2,
}
LONG = "step_time.md"  # its examples compare complete training steps
BLOCKS = [
    pytest.param(
        code, id=f"{page.name}, example {number}", marks=[pytest.mark.long] if page.name == LONG else []
    )
    for page in PAGES
    if page.name not in WALKED
    or (not IS_OF_THE_PAGES and page.name != "verify.md")  # it needs ranks with data
    for number, code in enumerate(examples(page), start=1)
]

# Tests on the pages that fail if torch has the fault they demonstrate, with a probe for the fault.
FAULTS = {"test_train": is_replanned_for_scalar_value}
# Torch's warning if a page draws random numbers on a CPU.
OF_TORCH = "ignore:DTensor random operators may not have complete support:UserWarning"


def missing_feature(code: str) -> str:
    """Return the feature that an example requires and this torch lacks; empty if none."""
    if "import fully_shard" in code and not has(FSDP_WITHOUT_CUDA):
        return f"this environment has no {FSDP_WITHOUT_CUDA}"
    compares_what_is_sent = "dtdispatch.compare(" in code and re.search(
        "distribute_tensor|redistribute", code
    )
    if compares_what_is_sent and not on_a_fake_mesh(lambda _: fake_group_writes()):
        return "the fake group of this torch leaves undefined what its collectives write: nothing is equal"
    return ""


def is_test(code: str) -> bool:
    return "def test_" in code


@pytest.mark.slow
@pytest.mark.parametrize("code", [block for block in BLOCKS if is_test(str(block.values[0]))])
def test_documented_tests_pass_and_are_measured(pytester: pytest.Pytester, code: str) -> None:
    if missing := missing_feature(code):
        pytest.skip(missing)
    names = re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    failing = [name for name in names if name in FAULTS and on_a_fake_mesh(FAULTS[name])]
    pytester.makepyfile(code)
    result = measure(pytester, "--benchmark-quiet", passed=len(names) - len(failing), failed=len(failing))
    if "dtdispatch" in code:
        text = " ".join(result.stdout.str().split())  # lines wrap at 80 columns
        assert any(
            word in text
            for word in (
                "proved",
                "unpropagated",
                "steady",
                "(counts of each step)",
                "(variants in turn",
                "(budget)",
            )
        )


# Scripts run in forks of a process that has imported torch.
FORKS = """
import os, runpy, sys
import torch.distributed.tensor
failed = []
for path in sys.argv[1:]:
    if not (pid := os.fork()):
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    if os.waitpid(pid, 0)[1]:
        failed.append(path)
sys.exit(f"failed: {failed}" if failed else 0)
"""


@pytest.mark.long
def test_scripts_of_the_documentation_run(tmp_path: Path) -> None:
    for block in BLOCKS:
        code = str(block.values[0])
        if not is_test(code) and not missing_feature(code):
            (tmp_path / f"{block.id}.py").write_text(code)
    scripts = sorted(tmp_path.iterdir())
    assert scripts
    flags = ("-W", "error", "-W", OF_TORCH)
    subprocess.run([sys.executable, *flags, "-c", FORKS, *scripts], check=True, cwd=tmp_path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a reader who installed the wheel."""
    pytest.importorskip("hatchling")
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.skipif(not IS_OF_THE_PAGES, reason="the pages show the output of another torch")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files of a clone")
@pytest.mark.long
@pytest.mark.parametrize("name", WALKED)
def test_documented_commands_print_the_documented_output(
    tmp_path: Path, environment: dict[str, str], name: str
) -> None:
    [page] = [page for page in PAGES if page.name == name]
    if page.parent == ROOT:
        copy_of_the_repository(tmp_path)
    ran = list(walk(page, tmp_path, environment))
    assert ran
    for one in ran:
        output = f"$ {one.command}\n{one.printed}"
        assert one.status == one.expected_status, output
        assert not one.missing, f"{name} shows lines that are not printed: {one.missing}\n{output}"
    typed = " ".join(one.command for one in ran)
    for file in re.findall(r"^```python\n# (\w+\.py)", page.read_text(), re.MULTILINE):
        assert file in typed, f"no command of {name} runs {file}"


@pytest.mark.parametrize("name", WALKED)
def test_few_blocks_of_walked_pages_do_not_run(name: str) -> None:
    [page] = [page for page in PAGES if page.name == name]
    assert reasons_not_to_run(page) == WALKED[name]
    assert all(re.match(r"# \w+\.py\n", code) for code in examples(page)), (
        "an example does not start with a file name"
    )


def test_reference_documents_exactly_the_existing_flags(request: pytest.FixtureRequest) -> None:
    table = (ROOT / "docs" / "reference.md").read_text()
    documented = re.findall(r"^\| `(--dtdispatch[a-z-]*)", table, re.MULTILINE)
    registered = [
        name
        for group in request.config._parser._groups
        if group.name == "dtdispatch"
        for option in group.options
        for name in option.names()
    ]
    assert sorted(documented) == sorted(registered)


def test_reference_documents_exactly_the_existing_limits() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    [table] = re.findall(r"^\| limit \|.*\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    documented = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+(?:\[DIM])?)=", row.split("|")[1])
    ]
    assert sorted(documented) == sorted(limit for kind in KINDS.values() for limit in kind.limits)


def test_documented_configuration_limits_every_step(pytester: pytest.Pytester) -> None:
    [configuration] = re.findall(
        r"^```toml\n(.*?)^```$", (ROOT / "docs" / "quickstart.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (pytester.path / "pyproject.toml").write_text(configuration)
    pytester.makepyfile("""
        import torch
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        def test_steady(dtdispatch, device_mesh):
            x = distribute_tensor(torch.ones(8, 8), device_mesh, [Shard(0), Replicate()])
            steps = dtdispatch.steps(lambda: x * x)
            assert device_mesh.shape == (2, 4) and steps.misses == 0

        def test_leak(dtdispatch, device_mesh):
            x = distribute_tensor(torch.ones(8, 8), device_mesh, [Shard(0), Replicate()])
            results = []
            dtdispatch.steps(lambda: results.append(x * x))
    """)
    result = measure(pytester, passed=1, failed=1)
    assert "dtensor_growth=0, and step 1 has 1" in result.stdout.str()


def test_links_to_pages_have_targets() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("script", ["pictures.py", "code_size.py"])
def test_generated_parts_of_pages_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / script), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ran.returncode, f"{ran.stdout}{ran.stderr}run: python tools/{script}"
