"""A folder of images for each class, as ImageNet's validation images are laid out: ``val/n01440764/*.JPEG``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation
from ttmbench.data.download.files import DataFile
from ttmbench.data.origin import Origin
from ttmbench.data.paths import DATA_VARIABLE, Also, below, data_folder, find, inside, read_options
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.types import Exif, Group, ImageRef, Loaded, SourceRequest

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


class ClassFoldersOptions(BaseModel):
    """Options of ``kind: class_folders``.

    Attributes:
        path: folder below the data folder, with a folder for each class.
        classes: how many folders there have to be; their order by name is that of the classes.
        get: where the folder comes from.
        also: other names for it (`ttmbench.data.paths.Also`).
        exif: whether images are turned upright by their EXIF data.
    """

    model_config = ConfigDict(extra="forbid")
    path: str
    classes: int | None = Field(None, ge=2)
    get: dict[str, Origin] = {}
    also: Also = {}
    exif: Exif = "apply"


def read_class_folders(request: SourceRequest) -> Loaded:
    """Images of a classification task by the folders that they lie in, ordered by name: a class each.

    One group an image, in the order of folders and names; its id is ``<folder>/<name without ending>``. OutOfReachError
    if the folder is not there; DataError if there are more or fewer folders than classes, or an image leads out.
    """
    if request.kind != "classification":
        raise UsageError("source 'class_folders' gives an image and its class: it is for tasks of kind classification")
    options = read_options(ClassFoldersOptions, request)
    base = request.data_dir or data_folder()
    name = find(base, options.path, options.also)
    folder = below(base, name, "source.path")
    if not folder.is_dir():
        hint = f"; get it from {options.get[options.path]}" if options.path in options.get else ""
        raise OutOfReachError(
            f"{options.path} is not in the data folder {base} (--data_dir or {DATA_VARIABLE} names another one){hint}"
        )
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if options.classes is not None and len(classes) != options.classes:
        raise DataError(f"{folder} holds {len(classes)} folders; {options.classes} are needed, one for each class")
    groups = list(islice(_images(classes, options.exif), request.limit))
    return Loaded(groups, {"kind": "class_folders", "path": name, "classes": len(classes), "exif": options.exif})


def locations(request: SourceRequest) -> list[DataLocation]:
    """The folder, in the data folder."""
    options = read_options(ClassFoldersOptions, request)
    base = request.data_dir or data_folder()
    name = find(base, options.path, options.also)
    origin = options.get.get(options.path) if name == options.path else None
    return [DataLocation("the data folder", [DataFile(base, name, origin)])]


def _images(classes: list[Path], exif: Exif) -> Iterator[Group]:
    for label, folder in enumerate(classes):
        for file in sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS):
            name = f"{folder.name}/{file.name}"
            # The folder of a class may be a link that the user made; an image may not lead out of it.
            path = inside(folder, file.name, f"image {name}")
            image = ImageRef(name, partial(open_image, path), path, path.read_bytes, exif)
            yield Group(f"{folder.name}/{file.stem}", (image,), (str(label),), {})
