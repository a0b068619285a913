"""Files of rows beside images, wherever they come from: their options, and groups made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ttmbench._util.files import file_digest
from ttmbench._util.images import Colors, open_image
from ttmbench.data.paths import PathOrMapping, below, inside
from ttmbench.data.row_files import joined, rows_of_files
from ttmbench.data.rows import ImageCell, Row, groups_from_rows, stored_image
from ttmbench.data.video import Video
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.types import Exif, Group, ImageRef, Loaded, SourceRequest

_ABSENT = "absent"  # marks a missing image until its group is skipped


class RowFile(PathOrMapping):
    """One of several files of rows; ``cells`` are further cells of all of its rows."""

    cells: dict[str, str] = Field(default_factory=dict)


class JoinedFile(PathOrMapping):
    """A file that is joined with another row by row; the columns ``same`` must agree in both."""

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
    rows_per_group: int = Field(1, ge=1)  # consecutive rows that make one group
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data
    npy: Colors = "rgb"  # order of the colours in images that are ``.npy`` arrays
    missing: Literal["refuse", "leave_out"] = "refuse"  # refuse, or skip and count, groups without images
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

    def name_of(self, cell: ImageCell) -> str:
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


def read_files(
    base: Path,
    options: FileOptions,
    request: SourceRequest,
    roots: Sequence[Path] = (),
    hint: Callable[[str], str] = lambda name: "",
) -> Loaded:
    """Groups from files of rows beside images, with files and digests as their source.

    Args:
        base: folder that the paths of the options start from.
        options: the paths, and how rows are read. If groups without images are skipped, ``coverage`` lists them.
        request: columns, shape and limit.
        roots: where links of image files may lead; the images folder by default.
        hint: name of a missing image -> remedy, as the end of a message.

    Raises:
        DataError: the file or an image is not what it should be; file and group are named.
    """
    folders = _folders(base, options)
    where = " or ".join(map(str, folders))
    present: dict[str, Path] = {}
    leave_out = options.missing == "leave_out"

    def image(cell: ImageCell) -> ImageRef:
        name = options.name_of(cell)
        if name not in present:
            path = _path(cell, name, folders, roots)
            if not path.is_file():
                if leave_out:
                    return ImageRef(name, partial(open_image, path), variant=_ABSENT)
                raise DataError(
                    f"{cell.row.where}: image {name} of group {cell.group_id} is not in {where}{hint(name)}"
                )
            present[name] = path
        return stored_image(name, present[name], options.exif, options.npy, options.video)

    # The coverage is that of all rows, whatever the limit.
    groups = list(_groups(base, options, replace(request, limit=None) if leave_out else request, image))
    record: dict[str, object] = {}
    if leave_out:
        here = [group for group in groups if all(image.variant != _ABSENT for image in group.images)]
        if not here:
            raise OutOfReachError(f"none of {len(groups)} groups has its images in {where}")
        known = {group.group_id for group in here}
        missing = [group.group_id for group in groups if group.group_id not in known]
        record["coverage"] = {"rows": len(groups), "here": len(here), "missing": missing}
        groups = here[: request.limit]
    digests = {file: file_digest(below(base, file, "source.file")) for file in options.row_files}
    if options.file is None or options.join:
        return Loaded(groups, {"files": digests, "exif": options.exif, **record})
    return Loaded(groups, {"file": options.file, "sha256": digests[options.file], "exif": options.exif, **record})


def missing_images(
    base: Path, options: FileOptions, request: SourceRequest, roots: Sequence[Path] = ()
) -> dict[str, ImageCell]:
    """Name of each missing image -> the first cell that names it; arguments as for `read_files`."""
    folders = _folders(base, options)
    missing: dict[str, ImageCell] = {}
    checked: set[str] = set()

    def image(cell: ImageCell) -> ImageRef:
        name = options.name_of(cell)
        if name not in checked:
            checked.add(name)
            if not _path(cell, name, folders, roots).is_file():
                missing[name] = cell
        return ImageRef(name, partial(open_image, Path(name)))

    for _ in _groups(base, options, replace(request, limit=None), image):
        pass
    return missing


def _groups(
    base: Path, options: FileOptions, request: SourceRequest, image: Callable[[ImageCell], ImageRef]
) -> Iterable[Group]:
    files = {name: (below(base, part.file, "source.file"), part.cells) for name, part in options.parts.items()}
    rows = rows_of_files(files, options.fields, options.literals, options.nested, options.levels)
    if options.listings:
        rows = with_listings(rows, options.listings, _folders(base, options))
    if options.join:
        others = {name: (below(base, part.file, "source.join"), part.same) for name, part in options.join.items()}
        rows = joined(rows, others, options.fields)
    return groups_from_rows(rows, request, image, options.rows_per_group)


def with_listings(rows: Iterable[Row], listings: Mapping[str, str], folders: Sequence[Path]) -> Iterator[Row]:
    """Rows with cells that list files of an images folder, sorted by the last number in their names.

    ``listings``: name of the cell -> pattern such as ``{folder}/img*.jpg``, with columns in braces, and ``*`` in the
    last part alone. The first folder that has such files counts; DataError if none has, or a path leaves it.
    """
    known: dict[str, list[str]] = {}
    for row in rows:
        cells = dict(row.cells)
        for name, template in listings.items():
            pattern = row.value(template)
            if pattern not in known:
                known[pattern] = _matching_files(pattern, folders, f"{row.where}: listing '{name}' of row {row.index}")
            cells[name] = known[pattern]
        yield replace(row, cells=cells)


def _matching_files(pattern: str, folders: Sequence[Path], what: str) -> list[str]:
    parent, _, last = pattern.rpartition("/")
    for folder in folders:
        holder = inside(folder, parent, what) if parent else folder
        names = [path.name for path in holder.glob(last) if path.is_file()] if holder.is_dir() else []
        if names:
            ordered = sorted(names, key=lambda name: ([int(digits) for digits in re.findall(r"\d+", name)][-1:], name))
            return [f"{parent}/{name}".removeprefix("/") for name in ordered]
    raise DataError(f"{what}: no file {pattern} in {' or '.join(map(str, folders))}")


def _folders(base: Path, options: FileOptions) -> list[Path]:
    return [below(base, folder, "source.images") for folder in options.folders]


def _path(cell: ImageCell, name: str, folders: Sequence[Path], roots: Sequence[Path]) -> Path:
    """The path of an image in the first of several folders that has it; later ones are not looked at."""
    first = inside(folders[0], name, cell.where, roots)
    if first.is_file():
        return first
    others = (inside(folder, name, cell.where, roots) for folder in folders[1:])
    return next((path for path in others if path.is_file()), first)
