"""Rows in files beside images, wherever the files come from; and a folder of images for each class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ttmbench._util.file_io import file_digest
from ttmbench._util.images import Colors
from ttmbench.data.availability import DataLocation, DataNeed, count_of_images, local_file
from ttmbench.data.fetch import data_file, listed_images
from ttmbench.data.paths import (
    DATA_VARIABLE,
    Also,
    FirstKey,
    Origin,
    below,
    data_folder,
    find,
    inside,
    read_options,
)
from ttmbench.data.rows import (
    Cell,
    Missing,
    Row,
    groups_from_rows,
    joined,
    listed,
    read_rows,
    stored_image,
    with_images,
)
from ttmbench.data.sources.huggingface import HubOptions, roots_of
from ttmbench.data.video import Video
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError, UsageError
from ttmbench.types import Exif, Group, ImageRef, Loaded, SourceRequest

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
NAME = "_file"  # cell of the name of a row's file, where there are several


class RowFile(FirstKey):
    """One of several files of rows; ``cells`` are further cells of all of its rows."""

    file: str
    cells: dict[str, str] = Field(default_factory=dict)


class JoinedFile(FirstKey):
    """A file that is joined with another row by row; the columns ``same`` must agree in both."""

    file: str
    same: list[str] = Field(default_factory=list)


class FileOptions(BaseModel):
    """Options of files of rows beside images."""

    model_config = ConfigDict(extra="forbid")
    file: str | None = None  # JSON, JSON lines, CSV or TSV of the rows
    files: dict[str, RowFile] = {}  # in its place, name -> one of several such files; ids of groups begin with the name
    join: dict[str, JoinedFile] = {}  # name -> file with as many rows as ``file``; its cells are ``name.column``
    images: str | list[str] = "."  # folder that image names start from, or several, searched in this order
    strip: str = ""  # prefix to remove from image names
    basename: bool = False  # of the path of an image only the last part is its name
    fields: tuple[str, ...] = ()  # names of the cells, where rows are JSON lists
    nested: bool = False  # rows lie in lists, and these in objects of any depth, whose keys become parts of ids
    levels: tuple[str, ...] = ()  # names of the cells, where the keys of objects in objects are data
    listings: dict[str, str] = {}  # name of a cell -> pattern of files in the images folder that it lists, by number
    literals: tuple[str, ...] = ()  # columns whose texts are lists as Python or JSON writes them
    without: dict[str, str] = {}  # column of a text -> characters that are removed from it
    rows_per_group: int = Field(1, ge=1)  # consecutive rows that make one group
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data
    npy: Colors = "rgb"  # order of the colours in images that are ``.npy`` arrays
    missing: Missing = "refuse"  # refuse, or skip and count, groups without images
    video: Video | None = None  # the files are videos, and which of their frames are read
    addresses: tuple[str, ...] = ()  # columns of image addresses, in the order of ``group.images``; for ``listed``

    @model_validator(mode="after")
    def _has_rows(self) -> FileOptions:
        if (self.file is None) == (not self.files):
            raise ValueError("needs either 'file' or 'files'")
        if not self.folders:
            raise ValueError("'images' should name a folder, or several")
        if self.levels and (
            self.nested or len(self.levels) < 2 or not all(f.endswith(".json") for f in self.row_files)
        ):
            raise ValueError(
                "'levels' names the keys and the value of a JSON file, at least two, and goes without 'nested'"
            )
        if self.join and self.file is None:
            raise ValueError("'join' requires 'file': it adds the rows of another file to those of one")
        return self

    @property
    def parts(self) -> dict[str, RowFile]:
        """Name -> file of rows; one file alone has the empty name."""
        return self.files if self.file is None else {"": RowFile(file=self.file)}

    @property
    def row_files(self) -> list[str]:
        """Paths of the files of rows."""
        return [part.file for part in self.parts.values()] + [part.file for part in self.join.values()]

    @property
    def folders(self) -> list[str]:
        """Folders in which images are looked for."""
        return [self.images] if isinstance(self.images, str) else self.images

    def name_of(self, cell: Cell) -> str:
        """The path of an image below its folder."""
        name = cell.name.removeprefix(self.strip)
        return name.replace("\\", "/").rpartition("/")[2] if self.basename else name

    def moved(self, paths: Mapping[str, str]) -> Self:
        """The same options with other paths: path -> new path."""
        files = {name: part.model_copy(update={"file": paths[part.file]}) for name, part in self.files.items()}
        join = {name: part.model_copy(update={"file": paths[part.file]}) for name, part in self.join.items()}
        file = None if self.file is None else paths[self.file]
        images = paths[self.images] if isinstance(self.images, str) else [paths[folder] for folder in self.images]
        return self.model_copy(update={"file": file, "files": files, "join": join, "images": images})

    def image_folders(self, base: Path) -> list[Path]:
        """The folders of images below another one."""
        return [below(base, folder, "source.images") for folder in self.folders]

    def rows(self, base: Path) -> Iterator[Row]:
        """The rows of all files, each with the name of its file, which is also its cell ``_file``.

        A listing is the files of a pattern in the first images folder that has some, sorted by the last number in their
        names; DataError if none has, or a path leaves it.
        """
        known: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            for row in read_rows(below(base, part.file, "source.file"), self.fields, self.nested, self.levels):
                cells = {**({NAME: name} if name else {}), **part.cells, **row.cells}
                cells |= {column: listed(row, column) for column in self.literals}
                for column, letters in self.without.items():
                    text = row.cell(column)
                    cells[column] = text.translate(dict.fromkeys(map(ord, letters))) if isinstance(text, str) else text
                row = replace(row, cells=cells, file=name)
                patterns = {column: row.value(template) for column, template in self.listings.items()}
                for column, pattern in patterns.items():  # a listing is of the row as it was read
                    if pattern not in known:
                        what = f"{row.where}: listing '{column}' of row {row.index}"
                        known[pattern] = _matching_files(pattern, self.image_folders(base), what)
                    cells[column] = known[pattern]
                yield row

    def groups(
        self, base: Path, request: SourceRequest, roots: Sequence[Path] = ()
    ) -> tuple[list[Group], dict[str, Cell]]:
        """The groups, and the name of each missing image -> the first cell that names it.

        The paths of the options start from ``base``; links of image files may lead into ``roots``, by default the
        images folder. DataError if a file or a row is not what it should be; file and group are named.
        """
        folders, images, missing = self.image_folders(base), dict[str, ImageRef](), dict[str, Cell]()

        def image(cell: Cell) -> ImageRef:
            name = self.name_of(cell)
            if name not in images:
                path = _path(cell, name, folders, roots)
                images[name] = stored_image(name, path, self.exif, self.npy, self.video)
                if not path.is_file():
                    missing[name] = cell
            return images[name]

        others = {name: (below(base, part.file, "source.join"), part.same) for name, part in self.join.items()}
        rows = joined(self.rows(base), others, self.fields)
        return list(groups_from_rows(rows, request, image, self.rows_per_group)), missing

    def absent(self, base: Path, request: SourceRequest, roots: Sequence[Path] = ()) -> dict[str, Cell]:
        """Name of each missing image, whatever the limit -> the first cell that names it.

        Videos are not read, so that the package for them need not be there.
        """
        return self.model_copy(update={"video": None}).groups(base, replace(request, limit=None), roots)[1]


def read_files(
    base: Path,
    options: FileOptions,
    request: SourceRequest,
    roots: Sequence[Path] = (),
    hint: Callable[[str], str] = lambda name: "",
) -> Loaded:
    """Groups as of `FileOptions.groups`, with files and digests as their source.

    If groups without images are skipped, ``coverage`` lists them. ``hint``: name of a missing image -> remedy, as the
    end of a message.
    """
    leave_out = options.missing == "leave_out"
    # The coverage is that of all rows, whatever the limit.
    groups, absent = options.groups(base, replace(request, limit=None) if leave_out else request, roots)
    where = " or ".join(map(str, options.image_folders(base)))
    record: dict[str, object] = {"exif": options.exif}
    if leave_out:
        without = {group.group_id for group in groups if any(image.name in absent for image in group.images)}
        here, record["coverage"] = with_images(groups, without, where)
        groups = here[: request.limit]
    elif absent:
        name, cell = next(iter(absent.items()))
        raise DataError(f"{cell.row.where}: image {name} of group {cell.group_id} is not in {where}{hint(name)}")
    digests = {file: file_digest(below(base, file, "source.file")) for file in options.row_files}
    if options.file is None or options.join:
        return Loaded(groups, {"files": digests, **record})
    return Loaded(groups, {"file": options.file, "sha256": digests[options.file], **record})


def _matching_files(pattern: str, folders: Sequence[Path], what: str) -> list[str]:
    parent, _, last = pattern.rpartition("/")
    for folder in folders:
        holder = inside(folder, parent, what) if parent else folder
        names = [path.name for path in holder.glob(last) if path.is_file()] if holder.is_dir() else []
        if names:
            ordered = sorted(names, key=lambda name: ([int(digits) for digits in re.findall(r"\d+", name)][-1:], name))
            return [f"{parent}/{name}".removeprefix("/") for name in ordered]
    raise DataError(f"{what}: no file {pattern} in {' or '.join(map(str, folders))}")


def _path(cell: Cell, name: str, folders: Sequence[Path], roots: Sequence[Path]) -> Path:
    """The path of an image in the first of several folders that has it; later ones are not looked at."""
    first = inside(folders[0], name, cell.where, roots)
    if first.is_file():
        return first
    others = (inside(folder, name, cell.where, roots) for folder in folders[1:])
    return next((path for path in others if path.is_file()), first)


class FolderOptions(FileOptions):
    """Options of ``kind: folder``: ``path`` is the one file of rows, beside the task file."""

    path: str

    @model_validator(mode="before")
    @classmethod
    def _file(cls, value: dict[str, object]) -> dict[str, object]:
        if other := next((key for key in ("file", "files") if key in value), None):
            raise ValueError(f"'path' names the file of rows of kind: folder; remove '{other}'")
        return {**value, "file": value.get("path")}

    def paths(self, request: SourceRequest) -> list[Path]:
        """The files of rows and the folders of images, which stay in the task's folder."""
        base = request.folder or Path()
        files = [inside(base, file, "source.path") for file in self.row_files]
        return [*files, *(inside(base, folder, "source.images") for folder in self.folders)]


def read_folder(request: SourceRequest) -> Loaded:
    """A user's own task: a JSONL, JSON, CSV or TSV file of groups beside an image folder.

    The task file's ``group:`` names the columns. Image paths are relative to the ``images`` folder and stay inside it.
    """
    options = read_options(FolderOptions, request)
    options.paths(request)
    return read_files(request.folder or Path(), options, request)


def locate_folder(request: SourceRequest) -> list[DataLocation]:
    """A file of groups and a folder of images beside the task file."""
    paths = read_options(FolderOptions, request).paths(request)
    return [DataLocation("the task's own folder", [local_file(path) for path in paths])]


class HubFilesOptions(FileOptions, HubOptions):
    """Options of ``kind: hub_files``: how files are read, and of which repository."""

    allow: tuple[str, ...] = ()  # patterns of the files to fetch; all by default

    @property
    def patterns(self) -> list[str] | None:
        """The files to fetch."""
        return list(self.allow) or None

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder has the files of rows."""
        return all((folder / file).is_file() for file in self.row_files)


def read_hub_files(request: SourceRequest) -> Loaded:
    """Groups from loose files of a dataset repository: rows and images, whose paths start from the repository.

    OutOfReachError if it is neither cached nor downloadable; DataError names file and group if a file is missing or
    wrong.
    """
    options = read_options(HubFilesOptions, request)
    folder, record = options.folder(request)
    if "folder" in record:
        loaded = read_files(folder, options, request)
    else:
        try:
            hint = "; `ttmbench download` fetches it again"
            loaded = read_files(folder, options, request, roots_of(folder), hint=lambda name: hint)
        except DataError as error:
            raise type(error)(f"{options.where}: {error}") from None
    return Loaded(loaded.groups, {**record, **loaded.source})


def locate_hub_files(request: SourceRequest) -> list[DataLocation]:
    """Loose files of a repository of the Hub, or a local folder of them."""
    options = read_options(HubFilesOptions, request)

    def check(folder: Path) -> None:
        absent = [file for file in options.row_files if not (folder / file).is_file()]
        if absent:
            raise OutOfReachError(f"{absent[0]} is not in {folder}")
        # The Hub's cache is a folder of links; whether they stay inside is for the reader to check.
        images = [*options.absent(folder, request, [folder, *folder.parents[1:2]])]
        if images:
            raise OutOfReachError(f"incomplete: {count_of_images(images)} not in {folder}")

    return options.locations(request, f"{options.where}, {options.row_files[0]}", check)


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``."""

    get: dict[str, Origin] = Field(default_factory=dict)  # path below the data folder -> its origin
    also: Also = Field(default_factory=dict)  # other names for these paths (`ttmbench.data.paths.Also`)

    @model_validator(mode="after")
    def _has_addresses(self) -> AnnotationsOptions:
        if bool(self.addresses) != any(origin.listed for origin in self.get.values()):
            raise ValueError("'addresses' names the columns of addresses for a folder that is 'listed' in 'get'")
        return self

    def hint(self, paths: Iterable[str]) -> str:
        """Where to get these paths, as the end of a message; empty if the task file does not say."""
        known = [f"{path} from {self.get[path]}" for path in paths if path in self.get]
        return f"; get {', and '.join(known)}" if known else ""


class _Annotations:
    """What an `annotations` source needs, and where it lies in the data folder now.

    Attributes:
        paths: each documented path -> the present one.
        missing: documented paths that do not exist.
        options: with the present paths.
        roots: where images may lie: a link in the place of a documented folder is the user's own arrangement, links
            among images are not.
    """

    def __init__(self, request: SourceRequest) -> None:
        self.stated, self._request = read_options(AnnotationsOptions, request), request
        self.base, stated = data_folder(request.data_dir), self.stated
        every = dict.fromkeys([*stated.row_files, *stated.folders, *stated.get])
        # A folder that only holds others is not needed itself.
        holders = {path for path in every if path not in stated.get and any(_is_in(inner, [path]) for inner in every)}
        self.paths = {path: find(self.base, path, stated.also) for path in every if path != "." and path not in holders}
        folders: dict[str, str] = {}
        for folder in stated.folders:
            name = self.paths.get(folder)
            if name is None:
                held = [path for path in self.paths if path not in stated.row_files and _is_in(path, [folder])]
                inner = [path.removeprefix(f"{folder}/") for path in held]
                name = find(self.base, folder, stated.also, inner)
                self.paths |= {path: f"{name}/{rest}" for path, rest in zip(held, inner, strict=True)}
            folders[folder] = name
        present = {path: below(self.base, name, "source") for path, name in self.paths.items()}
        self.missing = [name for name, path in present.items() if not path.exists()]
        self.options = stated.moved({**self.paths, **folders})
        self.roots = (
            *(below(self.base, name, "source") for name in folders.values()),
            *(path for path in present.values() if path.is_dir()),
        )

    def absent(self) -> dict[str, Cell]:
        """Name of each image that the rows name and that does not exist -> the first cell that names it."""
        return self.options.absent(self.base, self._request, self.roots)

    def holding(self, image: str) -> list[str]:
        """The paths of ``get`` with which an image comes."""
        path = f"{self.stated.folders[0]}/{image}".removeprefix("./")
        return [folder for folder in self.stated.get if _is_in(path, [folder])]

    def lacking(self) -> str | None:
        """Which images are missing of those that the rows name, once everything else is there."""
        one_by_one = any(origin.listed for path, origin in self.stated.get.items() if self.paths[path] == path)
        if self.missing or self.stated.missing == "leave_out" or one_by_one:  # that folder tells it
            return None
        try:
            names = list(self.absent())
        except TtmbenchError as error:
            return str(error)
        if not names:
            return None
        moved = [
            f", or move {self.paths[one]} away, and `ttmbench download` fetches it whole"
            for one in self.holding(names[0])
        ]
        where = f"{' or '.join(self.options.folders)}; put what is missing there"
        return f"{count_of_images(names)} not in {where}{''.join(moved[:1])}"


def read_annotations(request: SourceRequest) -> Loaded:
    """Groups from a file of rows and folders of images in the data folder, with the digest of the file.

    ``file``, ``images`` and the keys of ``get`` are paths below the data folder. OutOfReachError if something is not
    there, with where it comes from; DataError names file and group if the file or an image is not what it should be.
    """
    data = _Annotations(request)
    if data.missing:
        verb = "is" if len(data.missing) == 1 else "are"
        raise OutOfReachError(
            f"{' and '.join(data.missing)} {verb} not in the data folder {data.base} (--data_dir or {DATA_VARIABLE} "
            f"names another one){data.stated.hint(data.missing)}"
        )
    loaded = read_files(data.base, data.options, request, data.roots, lambda name: data.stated.hint(data.holding(name)))
    return Loaded(loaded.groups, {"kind": "annotations", "images": data.options.images, **loaded.source})


def locate_annotations(request: SourceRequest) -> list[DataLocation]:
    """Files and folders of the data folder, and the images that the file of rows names."""
    data = _Annotations(request)
    stated = data.stated

    def listed() -> dict[str, str]:
        """Addresses from the rows."""
        columns = request.columns["images"]
        beside = dict(zip([columns] if isinstance(columns, str) else columns, stated.addresses, strict=True))
        return {
            name: str(image.row.cell(beside[image.column])) for name, image in _Annotations(request).absent().items()
        }

    def lacking() -> str | None:
        return _Annotations(request).lacking()

    needs: list[DataNeed] = []
    for path, name in data.paths.items():
        if path not in stated.get and _is_in(path, stated.get):
            continue  # what lies in a fetched folder comes with it
        origin = stated.get.get(path) if name == path else None
        if any(file == path or _is_in(file, [path]) for file in stated.row_files):
            needs.append(data_file(data.base, name, origin, lacking))
        elif origin is not None and origin.listed:
            needs.append(listed_images(data.base, name, origin, listed, stated.missing == "leave_out"))
        else:
            needs.append(data_file(data.base, name, origin))
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
    return [DataLocation("the data folder", [data_file(base, name, origin)])]


def _class_images(classes: list[Path], exif: Exif) -> Iterator[Group]:
    for label, folder in enumerate(classes):
        for file in sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS):
            name = f"{folder.name}/{file.name}"
            # The folder of a class may be a link that the user made; an image may not lead out of it.
            path = inside(folder, file.name, f"image {name}")
            yield Group(f"{folder.name}/{file.stem}", (stored_image(name, path, exif),), (str(label),), {})
