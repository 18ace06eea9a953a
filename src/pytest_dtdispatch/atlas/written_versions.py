"""Read atlases, and write what they give side by side: ``dtdispatch atlas-versions``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_dtdispatch.atlas.atlas_file import AtlasRecord, read_atlas
from pytest_dtdispatch.atlas.changes import compare_atlases
from pytest_dtdispatch.atlas.changes_page import changes_document
from pytest_dtdispatch.atlas.outputs import Outputs
from pytest_dtdispatch.atlas.versions_data import versions_text
from pytest_dtdispatch.atlas.versions_page import versions_page
from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.markdown import document_text


def read_records(paths: Sequence[Path]) -> list[AtlasRecord]:
    """Read atlases.

    Args:
        paths: files that ``dtdispatch atlas`` wrote.

    Raises:
        DtDispatchError: a file that is none of an atlas.
    """
    try:
        return [read_atlas(path) for path in paths]
    except ValueError as error:
        raise DtDispatchError(str(error)) from None


def write_versions(records: Sequence[AtlasRecord], outputs: Outputs) -> str:
    """Compare atlases, and write the three files.

    Args:
        records: the atlases.
        outputs: what is written.

    Returns:
        What was compared, in one line.

    Raises:
        DtDispatchError: fewer than two.
    """
    if len(records) < 2:
        raise DtDispatchError("atlas-versions compares atlases of two versions or more, and was given one")
    compared = compare_atlases(records)
    data = versions_text(compared)
    write_whole(outputs.data, data)
    document = changes_document(compared, outputs.whole.name, outputs.data.name)
    write_whole(outputs.page, document_text(document))
    write_whole(outputs.whole, versions_page(compared, data, outputs.data.name))
    versions = ", ".join(version.heading for version in compared.versions)
    return f"{many(len(compared.rows), 'row')} of torch {versions}"
