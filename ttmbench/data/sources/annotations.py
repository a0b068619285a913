"""Annotations and images that lie in files: in the data folder, where the user put them, or fetched from the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ttmbench._util.files import file_digest
from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation
from ttmbench.data.cells import cell
from ttmbench.data.download.each import EachImage
from ttmbench.data.download.files import DataFile, RowsFile, count_of_images
from ttmbench.data.download.listed import ListedImages
from ttmbench.data.layouts import Also, find
from ttmbench.data.loading import DATA_VARIABLE, FileOptions, below, data_folder, inside, read_options
from ttmbench.data.origin import Origin
from ttmbench.data.row_files import joined, rows_of_files
from ttmbench.data.rows import ImageCell, groups_from_rows, stored_image
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError
from ttmbench.types import Group, ImageRef, Loaded, SourceRequest

_ABSENT = "absent"  # what tells an image that is not there, until its group is left out


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``.

    Attributes:
        get: path below the data folder -> where the file or folder comes from.
        also: other names for these paths (`ttmbench.data.layouts`).
    """

    get: dict[str, Origin] = Field(default_factory=dict)
    also: Also = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_addresses(self) -> AnnotationsOptions:
        if bool(self.addresses) != any(one.listed for one in self.get.values()):
            raise ValueError("'addresses' names the columns of addresses for a folder that is 'listed' in 'get'")
        return self


@dataclass(frozen=True)
class FoundFiles:
    """Where everything of an `annotations` source lies in the data folder.

    Attributes:
        options: with files and ``images`` as they are there.
        paths: each path that has to be there, as documented -> as it is there.
        missing: the documented paths that are nowhere.
        roots: folders that images may lie in. A link in the place of a documented folder is the user's own
            arrangement; the names in the data never lead out.
    """

    options: AnnotationsOptions
    paths: dict[str, str]
    missing: list[str]
    roots: tuple[Path, ...]


def find_annotations(base: Path, options: AnnotationsOptions) -> FoundFiles:
    """Looks for the files and folders of a source, under all of their names."""
    needed = needed_paths(options)
    paths = {path: find(base, path, options.also) for path in needed}
    folders: dict[str, str] = {}
    for folder in options.folders:
        found = paths.get(folder)
        if found is None:  # a folder that only holds what is needed
            rows = options.row_files
            within = [path for path in needed if path not in rows and path.startswith(f"{folder}/")]
            inner = [path.removeprefix(f"{folder}/") for path in within]
            found = find(base, folder, options.also, inner)
            paths |= {path: f"{found}/{one}" for path, one in zip(within, inner, strict=True)}
        folders[folder] = found
    located = options.moved({**paths, **folders})
    places = {path: below(base, name, "source") for path, name in paths.items()}
    holders = [place for place in places.values() if place.is_dir()]
    missing = [path for path, place in places.items() if not place.exists()]
    roots = (*(below(base, name, "source") for name in folders.values()), *holders)
    return FoundFiles(located, paths, missing, roots)


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
    options = read_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()
    found = find_annotations(base, options)
    if found.missing:
        raise OutOfReachError(_missing(found.missing, base, options.get))

    def hint(name: str) -> str:
        path = f"{options.folders[0]}/{name}".removeprefix("./")
        return _hint([one for one in options.get if path.startswith(f"{one}/")], options.get)

    loaded = read_files(base, found.options, request, found.roots, hint)
    return Loaded(loaded.groups, {"kind": "annotations", "images": found.options.images, **loaded.source})


def locations(request: SourceRequest) -> list[DataLocation]:
    """Files and folders of the data folder, and the images that the file of rows names."""
    options = read_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()
    found = find_annotations(base, options)
    needs: list[DataFile] = []
    for path, name in found.paths.items():
        if path not in options.get and _inside_one(path, options.get):
            continue  # what lies in a fetched folder comes with it
        origin = options.get.get(path) if name == path else None
        if any(file == path or file.startswith(f"{path}/") for file in options.row_files):
            needs.append(RowsFile(base, name, origin, partial(_images_not_there, base, options, request)))
        elif origin is not None and origin.each:
            needs.append(EachImage(base, name, origin, partial(_absent, base, options, request)))
        elif origin is not None and origin.listed:
            needs.append(ListedImages(base, name, origin, partial(_absent_addresses, base, options, request)))
        else:
            needs.append(DataFile(base, name, origin))
    return [DataLocation("the data folder", needs)]


def needed_paths(options: AnnotationsOptions) -> list[str]:
    """Paths of the data folder that have to be there; a folder that only holds others is not named for itself."""
    paths = dict.fromkeys([*options.row_files, *options.folders, *options.get])
    holders = {path for path in paths if path not in options.get and any(one.startswith(f"{path}/") for one in paths)}
    return [path for path in paths if path != "." and path not in holders]


def read_files(
    base: Path,
    options: FileOptions,
    request: SourceRequest,
    roots: Sequence[Path] = (),
    hint: Callable[[str], str] = lambda name: "",
) -> Loaded:
    """Groups from a file of rows beside images.

    Args:
        base: folder that the paths of the options start from.
        options: the paths, and how rows are read.
        request: columns, shape and limit.
        roots: where links of image files may lead; the images folder by default.
        hint: how to mend a missing image, by its name.

    Returns:
        The groups; file and digest as their source. If groups without images are left out, also which (``coverage``).

    Raises:
        DataError: the file or an image is not what it should be; file and group are named.
    """
    folders = _folders(base, options)
    present: dict[str, Path] = {}
    leave_out = options.missing == "leave_out"

    def image(one: ImageCell) -> ImageRef:
        name = one.name.removeprefix(options.strip)
        if name not in present:
            path = _path(one, name, folders, roots)
            if not path.is_file():
                if leave_out:
                    return ImageRef(name, partial(open_image, path), variant=_ABSENT)
                where = " or ".join(map(str, folders))
                raise DataError(f"{one.where}: image {name} of group {one.group_id} is not in {where}{hint(name)}")
            present[name] = path
        return stored_image(name, present[name], options.exif, options.npy)

    # How much of the data is here is known only of all rows.
    groups = list(_groups(base, options, replace(request, limit=None) if leave_out else request, image))
    record: dict[str, Any] = {}
    if leave_out:
        here = [group for group in groups if all(one.variant != _ABSENT for one in group.images)]
        if not here:
            raise OutOfReachError(f"none of {len(groups)} groups has its images in {' or '.join(map(str, folders))}")
        known = {group.group_id for group in here}
        missing = [group.group_id for group in groups if group.group_id not in known]
        record["coverage"] = {"rows": len(groups), "here": len(here), "missing": missing}
        groups = here[: request.limit]
    digests = {file: file_digest(below(base, file, "source.file")) for file in options.row_files}
    if options.file is None or options.join:
        return Loaded(groups, {"files": digests, "exif": options.exif, **record})
    return Loaded(groups, {"file": options.file, "sha256": digests[options.file], "exif": options.exif, **record})


def missing_images(base: Path, options: FileOptions, request: SourceRequest, roots: Sequence[Path] = ()) -> list[str]:
    """Names of the images that rows name and that are not there, in their order; arguments and errors as above."""
    return list(_missing_cells(base, options, request, roots))


def _missing_cells(
    base: Path, options: FileOptions, request: SourceRequest, roots: Sequence[Path]
) -> dict[str, ImageCell]:
    """Name of each image that is not there -> the first cell that names it."""
    folders = _folders(base, options)
    there: dict[str, bool] = {}
    missing: dict[str, ImageCell] = {}

    def image(one: ImageCell) -> ImageRef:
        name = one.name.removeprefix(options.strip)
        if name not in there:
            there[name] = _path(one, name, folders, roots).is_file()
            if not there[name]:
                missing[name] = one
        return ImageRef(name, partial(open_image, Path(name)))

    for _ in _groups(base, options, request, image):
        pass
    return missing


def _groups(
    base: Path, options: FileOptions, request: SourceRequest, image: Callable[[ImageCell], ImageRef]
) -> Iterable[Group]:
    files = {name: (below(base, one.file, "source.file"), one.cells) for name, one in options.parts.items()}
    where = str(next(iter(files.values()))[0]) if options.file else f"{len(files)} files in {base}"
    rows = rows_of_files(files, options.fields, options.literals, options.nested)
    if options.join:
        others = {name: (below(base, one.file, "source.join"), one.same) for name, one in options.join.items()}
        rows = joined(rows, others, options.fields)
    return groups_from_rows(rows, request, where, image, options.rows_per_group)


def _folders(base: Path, options: FileOptions) -> list[Path]:
    return [below(base, folder, "source.images") for folder in options.folders]


def _path(one: ImageCell, name: str, folders: Sequence[Path], roots: Sequence[Path]) -> Path:
    """Where an image lies: in the first of several folders that has it; what later ones have is not looked at."""
    what = f"{one.where}: '{one.column}' of group {one.group_id}"
    first = inside(folders[0], name, what, roots)
    if first.is_file():
        return first
    others = (inside(folder, name, what, roots) for folder in folders[1:])
    return next((path for path in others if path.is_file()), first)


def _missing(missing: Sequence[str], base: Path, get: Mapping[str, Origin]) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{' and '.join(missing)} {verb} not in the data folder {base} (--data_dir or {DATA_VARIABLE} names another "
        f"one){_hint(missing, get)}"
    )


def _hint(paths: Sequence[str], get: Mapping[str, Origin]) -> str:
    known = [f"{path} from {get[path]}" for path in paths if path in get]
    return f"; get {', and '.join(known)}" if known else ""


def _inside_one(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _absent(base: Path, options: AnnotationsOptions, request: SourceRequest) -> list[str]:
    """Names of the images that the rows name and that are not there."""
    found = find_annotations(base, options)
    return missing_images(base, found.options, replace(request, limit=None), found.roots)


def _absent_addresses(base: Path, options: AnnotationsOptions, request: SourceRequest) -> dict[str, str]:
    """Name of each image that is not there -> its address, as the row says it."""
    found = find_annotations(base, options)
    columns = request.columns["images"]
    beside = dict(zip([columns] if isinstance(columns, str) else columns, options.addresses, strict=True))
    cells = _missing_cells(base, found.options, replace(request, limit=None), found.roots)
    return {name: str(cell(one.row, beside[one.column], one.where)) for name, one in cells.items()}


def _images_not_there(base: Path, options: AnnotationsOptions, request: SourceRequest) -> str | None:
    """Which images are missing of those that the rows name, once everything else is there."""
    found = find_annotations(base, options)
    if found.missing or options.missing == "leave_out":
        return None
    if any(one.each for path, one in options.get.items() if found.paths[path] == path):
        return None  # that folder tells it
    try:
        absent = _absent(base, options, request)
    except TtmbenchError as error:
        return str(error)
    if not absent:
        return None
    first = f"{options.folders[0]}/{absent[0]}".removeprefix("./")
    folder = next((path for path in options.get if first.startswith(f"{path}/")), None)
    fetched = f", or move {found.paths[folder]} away, and `ttmbench download` fetches it whole" if folder else ""
    where = " or ".join(found.options.folders)
    return f"{count_of_images(absent)} not in {where}; put what is missing there{fetched}"
