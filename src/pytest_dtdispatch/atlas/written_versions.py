"""Read atlases, and write what they give side by side: ``dtdispatch atlas-versions``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_dtdispatch.atlas.atlas_file import read_atlas
from pytest_dtdispatch.atlas.changes import compare_atlases
from pytest_dtdispatch.atlas.changes_page import changes_document
from pytest_dtdispatch.atlas.outputs import Outputs
from pytest_dtdispatch.atlas.versions_data import versions_text
from pytest_dtdispatch.atlas.versions_page import versions_page
from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.markdown import document_text


def write_versions(paths: Sequence[Path], outputs: Outputs) -> str:
    """Compare atlases, and write the three files.

    Args:
        paths: files that ``dtdispatch atlas`` wrote.
        outputs: what is written.

    Returns:
        What was compared, in one line.

    Raises:
        DtDispatchError: fewer than two, or a file that is none of an atlas.
    """
    if len(paths) < 2:
        raise DtDispatchError("atlas-versions compares two atlases or more, and was given one")
    try:
        compared = compare_atlases(map(read_atlas, paths))
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    data = versions_text(compared)
    write_whole(outputs.data, data)
    document = changes_document(compared, outputs.whole.name, outputs.data.name)
    write_whole(outputs.page, document_text(document))
    write_whole(outputs.whole, versions_page(compared, data, outputs.data.name))
    versions = ", ".join(version.heading for version in compared.versions)
    return f"{many(len(compared.rows), 'row')} of torch {versions}"
