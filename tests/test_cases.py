"""Programs of tests/cases, whose advice, counts, gates and effects are known: one session for each flag."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs, selected
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RANKS, SIMULATED = "--dtdispatch-nproc=2", "--dtdispatch-backend=local"
# Folder and flag of each session, with the programs that `make test` and `make test-long` run. The other
# programs of a folder run in `make test-sweep`, without a flag.
QUICK: dict[tuple[str, str], tuple[str, ...]] = {
    ("advice", ""): (
        *("test_follow_micro_batches", "test_moe_reads", "test_qr", "test_sum_and_max", "test_trust_ratio"),
        *("test_two_meshes", "test_written_between"),
    ),
    ("counts", ""): (
        *("test_loss_parallel_calls", "test_mesh_reason", "test_prefetch_module", "test_rank_ranges"),
        "test_reads_double",
    ),
}
LONG: dict[tuple[str, str], tuple[str, ...]] = {
    ("advice", RANKS): ("test_logits_label_smoothing", "test_written_between"),
    ("counts", SIMULATED): ("test_local_mesh_reads",),
    ("gates", ""): ("test_lazy_iterator",),
    ("program", ""): ("test_function_mode",),
    ("selection", ""): ("test_ab_marker",),
    ("tools", ""): ("test_traced_budget",),
}
OF_FSDP = ("test_backward_lines", "test_module_owners", "test_norm_module", "test_prefetch_module")


def case(session: tuple[str, str], program: str, *marks: pytest.MarkDecorator) -> object:
    """Return the parameters of a program, which may need FSDP2."""
    needs_fsdp = session[0] == "advice" or program in OF_FSDP
    every = [*marks, needs(FSDP_WITHOUT_CUDA)] if needs_fsdp else [*marks]
    return pytest.param(session, program, marks=every, id="-".join(filter(None, (*session, program))))


def cases() -> list[object]:
    found = [case(session, program) for session, names in QUICK.items() for program in names]
    found += [case(session, one, pytest.mark.long) for session, names in LONG.items() for one in names]
    every = {**QUICK, **LONG}
    for folder in ("advice", "counts", "gates", "program", "selection", "tools"):
        chosen = {*every[folder, ""], *every.get((folder, SIMULATED), ())}
        others = [program for program in programs(folder) if program not in chosen]
        found += [case((folder, ""), program, pytest.mark.long, pytest.mark.sweep) for program in others]
    return found


@pytest.fixture(scope="module")
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run the selected programs of a session."""
    folder, flag = request.param
    chosen = selected(request, failed=request.param)
    return failures(folder, tmp_path_factory.mktemp(folder), *filter(None, [flag]), programs=chosen)


@pytest.mark.parametrize(("failed", "program"), cases(), indirect=["failed"])
def test_program_is_right(failed: dict[str, list[str]], program: str) -> None:
    assert failed.get(program) == []
