"""What tests ask for. Torch is imported when a fixture is used, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_dtdispatch.api import DtDispatch
    from pytest_dtdispatch.errors import DtDispatchError
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.plugin.session import Session

MeshFactory = Callable[..., "DeviceMesh"]


@pytest.fixture
def dtdispatch(request: pytest.FixtureRequest) -> Iterator[DtDispatch]:
    """Measure DTensor dispatch: ``capture()``, ``call(fn, *args)``. Without --dtdispatch all runs once."""
    session: Session | None = request.config.pluginmanager.get_plugin("dtdispatch-session")
    if session is None or session.why_not:
        from pytest_dtdispatch.api import DtDispatch

        yield DtDispatch()
        return
    with session.measuring(request.node) as measurer:
        yield measurer


@pytest.fixture
def process_group(request: pytest.FixtureRequest, _dtdispatch_groups: ProcessGroupOwner) -> ProcessGroup:
    """A process group with a rank for each place in the mesh; one that is open already is used."""
    from pytest_dtdispatch.errors import DtDispatchError
    from pytest_dtdispatch.meshes.place import choose_place
    from pytest_dtdispatch.plugin import options

    settings = options.test_settings(request.node)
    try:
        place = choose_place(settings.mesh, settings.device, settings.backend)
        group: ProcessGroup = _dtdispatch_groups.group(place, settings.backend != "auto")
        if settings.rpc:
            _dtdispatch_groups.start_rpc()
    except DtDispatchError as error:
        raise _outcome_of(error) from None
    return group


@pytest.fixture
def device_mesh(mesh_factory: MeshFactory) -> DeviceMesh:
    """A mesh: shape, names, backend and device from the marker, else the flags, else the ini file."""
    return mesh_factory()


@pytest.fixture
def mesh_factory(request: pytest.FixtureRequest, _dtdispatch_groups: ProcessGroupOwner) -> MeshFactory:
    """Make meshes: ``mesh_factory((2, 4), dim_names=("dp", "tp"), backend=..., device=...)``."""
    from math import prod

    from pytest_dtdispatch.errors import DtDispatchError
    from pytest_dtdispatch.meshes.place import choose_place
    from pytest_dtdispatch.plugin import options

    settings = options.test_settings(request.node)
    in_marker = options.marker_values(request.node).get("mesh", (1,))

    def make(
        shape: tuple[int, ...] | None = None,
        dim_names: tuple[str, ...] | None = None,
        backend: str | None = None,
        device: str | None = None,
    ) -> Any:
        backend = backend or settings.backend
        if dim_names is None and shape is None:
            dim_names = settings.dim_names
        try:
            names = None if dim_names is None else options.checked("dim_names", dim_names)
            place = choose_place(
                options.checked("mesh", settings.mesh if shape is None else shape),
                options.checked("device", device or settings.device),
                options.checked("backend", backend),
            )
            room = prod(in_marker) if place.backend == "fake" else None
            return _dtdispatch_groups.mesh(place, names, backend != "auto", room)
        except DtDispatchError as error:
            raise _outcome_of(error) from None

    return make


@pytest.fixture(name="_dtdispatch_groups")
def dispatch_groups(request: pytest.FixtureRequest) -> Iterator[ProcessGroupOwner]:
    """Own the process group of a test."""
    from pytest_dtdispatch.errors import DtDispatchError
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.plugin.rank_run import reach_of

    try:
        owner = ProcessGroupOwner(reach_of(request.config))
    except DtDispatchError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    try:
        yield owner
    finally:
        owner.close()


def _outcome_of(error: DtDispatchError) -> BaseException:
    """Skip where devices are missing, and fail where what was asked for makes no sense."""
    from pytest_dtdispatch.errors import DevicesError

    if isinstance(error, DevicesError):
        return pytest.skip.Exception(str(error))
    return pytest.fail.Exception(str(error), pytrace=False)
