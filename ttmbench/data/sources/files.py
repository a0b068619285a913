"""Rows in files beside images, wherever the files come from; and a folder of images for each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ttmbench._util.images import Colors
from ttmbench.data.availability import DataLocation, LocalFile, count_of_images
from ttmbench.data.download import DataFile, Images
from ttmbench.data.hub_datasets import (
    HubOptions,
    HubRepository,
    commit_of,
    locate_repository,
    read_hub_options,
    roots_of,
)
from ttmbench.data.image_files import FileOptions, missing_images, read_files
from ttmbench.data.paths import (
    DATA_VARIABLE,
    Also,
    Origin,
    below,
    check_folder,
    data_folder,
    find,
    inside,
    read_options,
)
from ttmbench.data.prepare import Preparation, PreparedFile
from ttmbench.data.row_files import read_rows
from ttmbench.data.rows import ImageCell, groups_from_rows, stored_image
from ttmbench.data.video import Video
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError, UsageError
from ttmbench.types import Exif, Group, ImageRef, Loaded, SourceRequest

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


class FolderOptions(BaseModel):
    """Options of ``kind: folder``: a file of groups, the folder that its image paths start from, how these are read."""

    model_config = ConfigDict(extra="forbid")
    path: str
    images: str = "."
    exif: Exif = "apply"
    npy: Colors = "rgb"
    video: Video | None = None


def read_folder(request: SourceRequest) -> Iterable[Group]:
    """A user's own task: a JSONL, JSON, CSV or TSV file of groups beside an image folder.

    The task file's ``group:`` names the columns. Image paths are relative to the ``images`` folder and stay inside it.
    """
    options, file, images = _own_paths(request)

    def image(cell: ImageCell) -> ImageRef:
        path = inside(images, cell.name, cell.where)
        return stored_image(cell.name, path, options.exif, options.npy, options.video)

    yield from groups_from_rows(read_rows(file), request, image)


def locate_folder(request: SourceRequest) -> list[DataLocation]:
    """A file of groups and a folder of images beside the task file."""
    return [DataLocation("the task's own folder", [LocalFile(path) for path in _own_paths(request)[1:]])]


def _own_paths(request: SourceRequest) -> tuple[FolderOptions, Path, Path]:
    """The options, the file of groups and the folder of images."""
    options, base = read_options(FolderOptions, request), request.folder or Path()
    return options, inside(base, options.path, "source.path"), inside(base, options.images, "source.images")


class HubFilesOptions(FileOptions, HubOptions):
    """Options of ``kind: hub_files``: how files are read, and of which repository."""

    allow: tuple[str, ...] = ()  # patterns of the files to fetch; all by default

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder has the files of rows."""
        return all((folder / file).is_file() for file in self.row_files)


def read_hub_files(request: SourceRequest) -> Loaded:
    """Groups from loose files of a dataset repository: rows and images, whose paths start from the repository.

    OutOfReachError if it is neither cached nor downloadable; DataError names file and group if a file is missing or
    wrong.
    """
    options = read_hub_options(HubFilesOptions, request)
    check_folder(options.path)
    copy = options.local_copy(data_folder(request.data_dir))
    if copy is not None:
        loaded = read_files(copy, options, request)
        return Loaded(loaded.groups, {"revision": None, "folder": str(copy), **loaded.source})
    folder = options.snapshot(list(options.allow) or None, request.offline)
    try:
        hint = "; `ttmbench download` fetches it again"
        loaded = read_files(folder, options, request, roots_of(folder), hint=lambda name: hint)
    except DataError as error:
        raise type(error)(f"{options.where}: {error}") from None
    return Loaded(loaded.groups, {"revision": commit_of(folder), **loaded.source})


def locate_hub_files(request: SourceRequest) -> list[DataLocation]:
    """Loose files of a repository of the Hub, or a local folder of them."""
    options = read_hub_options(HubFilesOptions, request)

    def lacking(folder: Path) -> str | None:
        where = folder if commit_of(folder) is None else "the cache"
        absent = [file for file in options.row_files if not (folder / file).is_file()]
        if absent:
            return f"{absent[0]} is not in {where}"
        try:  # the Hub's cache is a folder of links; whether they stay inside is for the reader to check
            images = list(missing_images(folder, options, request, [folder, *folder.parents[1:2]]))
        except TtmbenchError as error:
            return str(error)
        return f"incomplete: {count_of_images(images)} not in {where}" if images else None

    return locate_repository(HubRepository(options, list(options.allow) or None, lacking), request)


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``."""

    get: dict[str, Origin] = Field(default_factory=dict)  # path below the data folder -> its origin
    also: Also = Field(default_factory=dict)  # other names for these paths (`ttmbench.data.paths.Also`)
    prepare: Preparation | None = None  # how a download makes ``file`` of an original

    @model_validator(mode="after")
    def _has_addresses(self) -> AnnotationsOptions:
        if bool(self.addresses) != any(origin.listed for origin in self.get.values()):
            raise ValueError("'addresses' names the columns of addresses for a folder that is 'listed' in 'get'")
        if self.prepare is not None and not (self.file or "").endswith(".jsonl"):
            raise ValueError("'prepare' makes one 'file' of JSON lines, whose name ends in .jsonl")
        return self

    @property
    def needed(self) -> list[str]:
        """Paths that must exist in the data folder; a folder that only holds others is not listed itself."""
        paths = dict.fromkeys([*self.row_files, *self.folders, *self.get])
        holders = {path for path in paths if path not in self.get and any(_is_in(inner, [path]) for inner in paths)}
        return [path for path in paths if path != "." and path not in holders]

    def hint(self, paths: Iterable[str]) -> str:
        """Where to get these paths, as the end of a message; empty if the task file does not say."""
        known = [f"{path} from {self.get[path]}" for path in paths if path in self.get]
        return f"; get {', and '.join(known)}" if known else ""


class _Found(NamedTuple):
    """Where everything of an `annotations` source lies in the data folder.

    ``paths`` maps each documented path to the present one, ``missing`` lists documented paths. Images may lie in
    ``roots``: a link in the place of a documented folder is the user's own arrangement, links among images are not.
    """

    options: AnnotationsOptions
    paths: dict[str, str]
    missing: list[str]
    roots: tuple[Path, ...]


def _find_annotations(base: Path, options: AnnotationsOptions) -> _Found:
    """Looks for the files and folders of a source, under all of their names."""
    needed = options.needed
    paths = {path: find(base, path, options.also) for path in needed}
    folders: dict[str, str] = {}
    for folder in options.folders:
        name = paths.get(folder)
        if name is None:  # a folder that only holds what is needed
            held = [path for path in needed if path not in options.row_files and _is_in(path, [folder])]
            inner = [path.removeprefix(f"{folder}/") for path in held]
            name = find(base, folder, options.also, inner)
            paths |= {path: f"{name}/{rest}" for path, rest in zip(held, inner, strict=True)}
        folders[folder] = name
    present = {path: below(base, name, "source") for path, name in paths.items()}
    holders = [path for path in present.values() if path.is_dir()]
    missing = [name for name, path in present.items() if not path.exists()]
    roots = (*(below(base, name, "source") for name in folders.values()), *holders)
    return _Found(options.moved({**paths, **folders}), paths, missing, roots)


def read_annotations(request: SourceRequest) -> Loaded:
    """Groups from a file of rows and folders of images in the data folder, with the digest of the file.

    ``file``, ``images`` and the keys of ``get`` are paths below the data folder. OutOfReachError if something is not
    there, with where it comes from; DataError names file and group if the file or an image is not what it should be.
    """
    options = read_options(AnnotationsOptions, request)
    base = data_folder(request.data_dir)
    files = _find_annotations(base, options)
    if files.missing:
        verb = "is" if len(files.missing) == 1 else "are"
        raise OutOfReachError(
            f"{' and '.join(files.missing)} {verb} not in the data folder {base} (--data_dir or {DATA_VARIABLE} names "
            f"another one){options.hint(files.missing)}"
        )

    def hint(name: str) -> str:
        path = f"{options.folders[0]}/{name}".removeprefix("./")
        return options.hint(folder for folder in options.get if _is_in(path, [folder]))

    loaded = read_files(base, files.options, request, files.roots, hint)
    return Loaded(loaded.groups, {"kind": "annotations", "images": files.options.images, **loaded.source})


def locate_annotations(request: SourceRequest) -> list[DataLocation]:
    """Files and folders of the data folder, and the images that the file of rows names."""
    options = read_options(AnnotationsOptions, request)
    base = data_folder(request.data_dir)

    def absent() -> dict[str, ImageCell]:
        """The images that the rows name and that do not exist at the time of the call."""
        files = _find_annotations(base, options)
        return missing_images(base, files.options, request, files.roots)

    def each(url: str) -> dict[str, str]:
        return {name: f"{url}{quote(name)}" for name in absent()}

    def listed() -> dict[str, str]:
        """Addresses from the rows."""
        columns = request.columns["images"]
        beside = dict(zip([columns] if isinstance(columns, str) else columns, options.addresses, strict=True))
        return {name: str(image.row.cell(beside[image.column])) for name, image in absent().items()}

    def lacking() -> str | None:
        """Which images are missing of those that the rows name, once everything else is there."""
        files = _find_annotations(base, options)
        one_by_one = any(origin.each for path, origin in options.get.items() if files.paths[path] == path)
        if files.missing or options.missing == "leave_out" or one_by_one:  # that folder tells it
            return None
        try:
            names = list(absent())
        except TtmbenchError as error:
            return str(error)
        if not names:
            return None
        first = f"{options.folders[0]}/{names[0]}".removeprefix("./")
        folder = next((path for path in options.get if _is_in(first, [path])), None)
        fetched = f", or move {files.paths[folder]} away, and `ttmbench download` fetches it whole" if folder else ""
        where = " or ".join(files.options.folders)
        return f"{count_of_images(names)} not in {where}; put what is missing there{fetched}"

    needs: list[DataFile] = []
    for path, name in _find_annotations(base, options).paths.items():
        if path not in options.get and _is_in(path, options.get):
            continue  # what lies in a fetched folder comes with it
        origin = options.get.get(path) if name == path else None
        if options.prepare is not None and name == path == options.file:
            needs.append(PreparedFile(base, name, origin, lacking, how=options.prepare))
        elif any(file == path or _is_in(file, [path]) for file in options.row_files):
            needs.append(DataFile(base, name, origin, lacking))
        elif origin is not None and origin.each:
            needs.append(Images(base, name, origin, addresses=partial(each, str(origin.url))))
        elif origin is not None and origin.listed:
            needs.append(Images(base, name, origin, addresses=listed, may_fail=True))
        else:
            needs.append(DataFile(base, name, origin))
    return [DataLocation("the data folder", needs)]


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


class ClassFoldersOptions(BaseModel):
    """Options of ``kind: class_folders``."""

    model_config = ConfigDict(extra="forbid")
    path: str  # folder below the data folder, with a folder for each class
    classes: int | None = Field(None, ge=2)  # number of folders; their order by name is that of classes
    get: dict[str, Origin] = {}  # where the folder comes from
    also: Also = {}  # other names for it (`ttmbench.data.paths.Also`)
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data


def read_class_folders(request: SourceRequest) -> Loaded:
    """Images of a classification task from a folder a class, as ImageNet's ``val/n01440764/*.JPEG``.

    Classes are numbered by the order of the folders' names. One group an image, whose id is
    ``<folder>/<name without ending>``. OutOfReachError if the folder does not exist; DataError for another number of
    folders than of classes, or an image that leads out of its folder.
    """
    if request.kind != "classification":
        raise UsageError("source 'class_folders' gives an image and its class: it is for tasks of kind classification")
    options = read_options(ClassFoldersOptions, request)
    base = data_folder(request.data_dir)
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
    groups = list(islice(_class_images(classes, options.exif), request.limit))
    return Loaded(groups, {"kind": "class_folders", "path": name, "classes": len(classes), "exif": options.exif})


def locate_class_folders(request: SourceRequest) -> list[DataLocation]:
    """The folder, in the data folder."""
    options = read_options(ClassFoldersOptions, request)
    base = data_folder(request.data_dir)
    name = find(base, options.path, options.also)
    origin = options.get.get(options.path) if name == options.path else None
    return [DataLocation("the data folder", [DataFile(base, name, origin)])]


def _class_images(classes: list[Path], exif: Exif) -> Iterator[Group]:
    for label, folder in enumerate(classes):
        for file in sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS):
            name = f"{folder.name}/{file.name}"
            # The folder of a class may be a link that the user made; an image may not lead out of it.
            path = inside(folder, file.name, f"image {name}")
            yield Group(f"{folder.name}/{file.stem}", (stored_image(name, path, exif, "rgb"),), (str(label),), {})
