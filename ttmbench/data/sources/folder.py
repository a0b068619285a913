"""A user's own task: a file of groups and a folder of images beside the task file.

Images open lazily; captions are read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ttmbench._util.images import Colors
from ttmbench.data.availability import DataLocation, LocalFile
from ttmbench.data.paths import inside, read_options
from ttmbench.data.row_files import read_rows
from ttmbench.data.rows import ImageCell, groups_from_rows, stored_image
from ttmbench.types import Exif, Group, ImageRef, SourceRequest


class FolderOptions(BaseModel):
    """Options of ``kind: folder``: a file of groups, the folder that its image paths start from, how these are read."""

    model_config = ConfigDict(extra="forbid")
    path: str
    images: str = "."
    exif: Exif = "apply"
    npy: Colors = "rgb"


def read_folder(request: SourceRequest) -> Iterable[Group]:
    """A user's own task: a JSONL, JSON, CSV or TSV file of groups beside an image folder.

    The task file's ``group:`` names the columns. Image paths are relative to the ``images`` folder and stay inside it.
    """
    options, file, images = _paths(request)

    def image(cell: ImageCell) -> ImageRef:
        path = inside(images, cell.name, f"{file}: '{cell.column}' of group {cell.group_id}")
        return stored_image(cell.name, path, options.exif, options.npy)

    yield from groups_from_rows(read_rows(file), request, str(file), image)


def locations(request: SourceRequest) -> list[DataLocation]:
    """A file of groups and a folder of images beside the task file."""
    return [DataLocation("the task's own folder", [LocalFile(path) for path in _paths(request)[1:]])]


def _paths(request: SourceRequest) -> tuple[FolderOptions, Path, Path]:
    """The options, the file of groups and the folder of images."""
    options, base = read_options(FolderOptions, request), request.folder or Path()
    return options, inside(base, options.path, "source.path"), inside(base, options.images, "source.images")
