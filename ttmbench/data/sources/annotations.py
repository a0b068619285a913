"""Annotations and images that lie in files: in the data folder, where the user put them, or fetched from the web."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, model_validator

from ttmbench.data.availability import DataLocation, count_of_images
from ttmbench.data.cells import cell
from ttmbench.data.download.files import DataFile
from ttmbench.data.download.images import EachImage, ListedImages
from ttmbench.data.image_files import FileOptions, missing_images, read_files
from ttmbench.data.origin import Origin
from ttmbench.data.paths import DATA_VARIABLE, Also, below, data_folder, find, read_options
from ttmbench.data.rows import ImageCell
from ttmbench.errors import OutOfReachError, TtmbenchError
from ttmbench.types import Loaded, SourceRequest


class AnnotationsOptions(FileOptions):
    """Options of ``kind: annotations``.

    Attributes:
        get: path below the data folder -> where the file or folder comes from.
        also: other names for these paths (`ttmbench.data.paths.Also`).
    """

    get: dict[str, Origin] = Field(default_factory=dict)
    also: Also = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_addresses(self) -> AnnotationsOptions:
        if bool(self.addresses) != any(origin.listed for origin in self.get.values()):
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
    needed = _needed_paths(options)
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
    places = {path: below(base, name, "source") for path, name in paths.items()}
    holders = [place for place in places.values() if place.is_dir()]
    missing = [path for path, place in places.items() if not place.exists()]
    roots = (*(below(base, name, "source") for name in folders.values()), *holders)
    return FoundFiles(options.moved({**paths, **folders}), paths, missing, roots)


def read_annotations(request: SourceRequest) -> Loaded:
    """A file of rows and a folder of images in the data folder: the groups, and the digest of the file.

    ``file``, ``images`` and the keys of ``get`` are paths below the data folder. OutOfReachError if something is not
    there, with where it comes from; DataError names file and group if the file or an image is not what it should be.
    """
    options = read_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()
    files = find_annotations(base, options)
    if files.missing:
        verb = "is" if len(files.missing) == 1 else "are"
        raise OutOfReachError(
            f"{' and '.join(files.missing)} {verb} not in the data folder {base} (--data_dir or {DATA_VARIABLE} names "
            f"another one){_hint(files.missing, options.get)}"
        )

    def hint(name: str) -> str:
        path = f"{options.folders[0]}/{name}".removeprefix("./")
        return _hint([folder for folder in options.get if _is_in(path, [folder])], options.get)

    loaded = read_files(base, files.options, request, files.roots, hint)
    return Loaded(loaded.groups, {"kind": "annotations", "images": files.options.images, **loaded.source})


def locations(request: SourceRequest) -> list[DataLocation]:
    """Files and folders of the data folder, and the images that the file of rows names."""
    options = read_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()

    def absent() -> dict[str, ImageCell]:
        """The images that the rows name and that are not there, as things are now."""
        files = find_annotations(base, options)
        return missing_images(base, files.options, request, files.roots)

    def each(url: str) -> dict[str, str]:
        return {name: f"{url}{quote(name)}" for name in absent()}

    def listed() -> dict[str, str]:
        """Addresses as the rows say them."""
        columns = request.columns["images"]
        beside = dict(zip([columns] if isinstance(columns, str) else columns, options.addresses, strict=True))
        return {name: str(cell(image.row, beside[image.column], image.where)) for name, image in absent().items()}

    def lacking() -> str | None:
        """Which images are missing of those that the rows name, once everything else is there."""
        files = find_annotations(base, options)
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
    for path, name in find_annotations(base, options).paths.items():
        if path not in options.get and _is_in(path, options.get):
            continue  # what lies in a fetched folder comes with it
        origin = options.get.get(path) if name == path else None
        if any(file == path or _is_in(file, [path]) for file in options.row_files):
            needs.append(DataFile(base, name, origin, lacking))
        elif origin is not None and origin.each:
            needs.append(EachImage(base, name, origin, addresses=partial(each, str(origin.url))))
        elif origin is not None and origin.listed:
            needs.append(ListedImages(base, name, origin, addresses=listed))
        else:
            needs.append(DataFile(base, name, origin))
    return [DataLocation("the data folder", needs)]


def _needed_paths(options: AnnotationsOptions) -> list[str]:
    """Paths of the data folder that have to be there; a folder that only holds others is not named for itself."""
    paths = dict.fromkeys([*options.row_files, *options.folders, *options.get])
    holders = {path for path in paths if path not in options.get and any(_is_in(inner, [path]) for inner in paths)}
    return [path for path in paths if path != "." and path not in holders]


def _hint(paths: Iterable[str], get: Mapping[str, Origin]) -> str:
    known = [f"{path} from {get[path]}" for path in paths if path in get]
    return f"; get {', and '.join(known)}" if known else ""


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
