"""Annotations and images that lie in files: in the data folder, where the user put them, or fetched from the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic import Field

from ttmbench._util.files import file_digest
from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation
from ttmbench.data.download.files import DataFile, RowsFile, count_of_images
from ttmbench.data.layouts import Also, find
from ttmbench.data.loading import DATA_VARIABLE, FileOptions, below, data_folder, inside, read_options
from ttmbench.data.origin import Origin
from ttmbench.data.row_files import read_rows
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError
from ttmbench.types import ImageRef, Loaded, SourceRequest


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``.

    Attributes:
        get: path below the data folder -> where the file or folder comes from.
        also: other names for these paths (`ttmbench.data.layouts`).
    """

    get: dict[str, Origin] = Field(default_factory=dict)
    also: Also = Field(default_factory=dict)


@dataclass(frozen=True)
class FoundFiles:
    """Where everything of an `annotations` source lies in the data folder.

    Attributes:
        options: with ``file`` and ``images`` as they are there.
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
    images = paths.get(options.images)
    if images is None:  # a folder that only holds what is needed
        within = [path for path in needed if path != options.file and path.startswith(f"{options.images}/")]
        inner = [path.removeprefix(f"{options.images}/") for path in within]
        images = find(base, options.images, options.also, inner)
        paths |= {path: f"{images}/{one}" for path, one in zip(within, inner, strict=True)}
    located = options.model_copy(update={"file": paths[options.file], "images": images})
    places = {path: below(base, name, "source") for path, name in paths.items()}
    folders = [place for place in places.values() if place.is_dir()]
    missing = [path for path, place in places.items() if not place.exists()]
    return FoundFiles(located, paths, missing, (below(base, images, "source"), *folders))


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
        path = f"{options.images}/{name}".removeprefix("./")
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
        if options.file == path or options.file.startswith(f"{path}/"):
            needs.append(RowsFile(base, name, origin, partial(_images_not_there, base, options, request)))
        else:
            needs.append(DataFile(base, name, origin))
    return [DataLocation("the data folder", needs)]


def needed_paths(options: AnnotationsOptions) -> list[str]:
    """Paths of the data folder that have to be there; a folder that only holds others is not named for itself."""
    paths = dict.fromkeys([options.file, options.images, *options.get])
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
        The groups; file and digest as their source.

    Raises:
        DataError: the file or an image is not what it should be; file and group are named.
    """
    file, folder = _paths(base, options)
    present: set[str] = set()

    def image(one: ImageCell) -> ImageRef:
        name, path = _image(one, options, folder, roots)
        if name not in present:
            if not path.is_file():
                raise DataError(f"{options.file}: image {name} of group {one.group_id} is not in {folder}{hint(name)}")
            present.add(name)
        return ImageRef(name, partial(open_image, path), path, path.read_bytes, options.exif)

    rows = read_rows(file, options.fields, name=str(file))
    groups = list(groups_from_rows(rows, request, str(file), image, options.rows_per_group))
    return Loaded(groups, {"file": options.file, "sha256": file_digest(file), "exif": options.exif})


def missing_images(base: Path, options: FileOptions, request: SourceRequest, roots: Sequence[Path] = ()) -> list[str]:
    """Names of the images that rows name and that are not there, in their order; arguments and errors as above."""
    file, folder = _paths(base, options)
    there: dict[str, bool] = {}

    def image(one: ImageCell) -> ImageRef:
        name, path = _image(one, options, folder, roots)
        if name not in there:
            there[name] = path.is_file()
        return ImageRef(name, partial(open_image, path))

    for _ in groups_from_rows(read_rows(file, options.fields), request, str(file), image, options.rows_per_group):
        pass
    return [name for name, is_there in there.items() if not is_there]


def _paths(base: Path, options: FileOptions) -> tuple[Path, Path]:
    return below(base, options.file, "source.file"), below(base, options.images, "source.images")


def _image(one: ImageCell, options: FileOptions, folder: Path, roots: Sequence[Path]) -> tuple[str, Path]:
    name = one.name.removeprefix(options.strip)
    return name, inside(folder, name, f"{options.file}: '{one.column}' of group {one.group_id}", roots)


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


def _images_not_there(base: Path, options: AnnotationsOptions, request: SourceRequest) -> str | None:
    """Which images are missing of those that the rows name, once everything else is there."""
    found = find_annotations(base, options)
    if found.missing:
        return None
    try:
        absent = missing_images(base, found.options, replace(request, limit=None), found.roots)
    except TtmbenchError as error:
        return str(error)
    if not absent:
        return None
    first = f"{options.images}/{absent[0]}".removeprefix("./")
    folder = next((path for path in options.get if first.startswith(f"{path}/")), None)
    fetched = f", or move {found.paths[folder]} away, and `ttmbench download` fetches it whole" if folder else ""
    return f"{count_of_images(absent)} not in {found.options.images}; put what is missing there{fetched}"
