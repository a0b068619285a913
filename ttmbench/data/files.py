"""Annotations and images that lie in files: in the data folder, where the user put them, or fetched from the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ttmbench.data.loading import DATA_VARIABLE, Loaded, OutOfReachError, below, data_folder, inside
from ttmbench.data.loading import read_options as checked_options
from ttmbench.data.origins import Origin
from ttmbench.data.rowfiles import read_rows
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.errors import DataError
from ttmbench.pictures import open_picture
from ttmbench.types import Exif, ImageRef, SourceRequest


class FileOptions(BaseModel):
    """What is the same wherever the files come from.

    Attributes:
        file: JSON, JSON lines or CSV of the rows.
        images: folder that image names start from.
        strip: left off the beginning of image names.
        fields: names of the cells, where rows are JSON lists.
        rows_per_group: consecutive rows that make one group.
        exif: whether images are turned upright by their EXIF data.
    """

    model_config = ConfigDict(extra="forbid")
    file: str
    images: str = "."
    strip: str = ""
    fields: tuple[str, ...] = ()
    rows_per_group: int = Field(1, ge=1)
    exif: Exif = "apply"


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``; ``get`` says where each file or folder of the data folder comes from."""

    get: dict[str, Origin] = {}


def read_annotations(request: SourceRequest) -> Loaded:
    """A file of rows and a folder of images in the data folder.

    Args:
        request: ``file``, ``images`` and the keys of ``get`` are paths below the data folder.

    Returns:
        The groups, and the digest of the file.

    Raises:
        OutOfReachError: something of it is not there; the message says where it comes from.
        DataError: the file or an image is not what it should be; file and group are named.
    """
    options = checked_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()
    missing = [path for path in needed_paths(options) if not below(base, path, "source").exists()]
    if missing:
        raise OutOfReachError(_missing(missing, base, options.get))
    loaded = read_files(base, options, request, hint=_hint([options.images], options.get))
    return Loaded(loaded.groups, {"kind": "annotations", "images": options.images, **loaded.source})


def needed_paths(options: AnnotationsOptions) -> list[str]:
    """Paths of the data folder that have to be there; a folder that only holds others is not named for itself."""
    paths = dict.fromkeys([options.file, options.images, *options.get])
    holders = {path for path in paths if path not in options.get and any(one.startswith(f"{path}/") for one in paths)}
    return [path for path in paths if path != "." and path not in holders]


def read_files(
    base: Path, options: FileOptions, request: SourceRequest, root: Path | None = None, hint: str = ""
) -> Loaded:
    """Groups from a file of rows beside images.

    Args:
        base: folder that the paths of the options start from.
        options: the paths, and how rows are read.
        request: columns, shape and limit.
        root: where links of image files may lead; the images folder by default.
        hint: how to mend a missing image.

    Returns:
        The groups; file and digest as their source.

    Raises:
        DataError: the file or an image is not what it should be; file and group are named.
    """
    file = below(base, options.file, "source.file")
    folder = below(base, options.images, "source.images")
    present: set[str] = set()

    def image(one: ImageCell) -> ImageRef:
        name = one.name.removeprefix(options.strip)
        place = f"{options.file}: '{one.column}' of group {one.group_id}"
        path = inside(folder, name, place, root)
        if name not in present:
            if not path.is_file():
                raise DataError(f"{options.file}: image {name} of group {one.group_id} is not in {folder}{hint}")
            present.add(name)
        return ImageRef(name, partial(open_picture, path), path, path.read_bytes, options.exif)

    rows = read_rows(file, options.fields, name=str(file))
    groups = list(groups_from_rows(rows, request, str(file), image, options.rows_per_group))
    return Loaded(groups, {"file": options.file, "sha256": digest(file), "exif": options.exif})


def digest(file: Path) -> str:
    """sha256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _missing(missing: Sequence[str], base: Path, get: Mapping[str, Origin]) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{' and '.join(missing)} {verb} not in the data folder {base} (--data_dir or {DATA_VARIABLE} names another "
        f"one){_hint(missing, get)}"
    )


def _hint(paths: Sequence[str], get: Mapping[str, Origin]) -> str:
    known = [f"{path} from {get[path]}" for path in paths if path in get]
    return f"; get {', and '.join(known)}" if known else ""
