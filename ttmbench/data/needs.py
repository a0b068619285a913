"""The places that have a task's data, by kind of source: asked by `ttmbench download` and `ttmbench doctor`.

A source kind names a function (``SourceSpec.needs``) that takes a request and gives the places in the order in which
its reader tries them. Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench.data.loading import LoadRequest, OutOfReachError, data_folder, inside, read_options
from ttmbench.data.places import Place
from ttmbench.errors import TtmbenchError

if TYPE_CHECKING:
    from ttmbench.data.files import AnnotationsOptions
    from ttmbench.data.hub_tables import HuggingfaceOptions
    from ttmbench.download.web import Web


@dataclass(frozen=True)
class OwnFile:
    """A file or folder that belongs to the task and lies beside its file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def origin(self) -> str:
        """The user."""
        return "beside the task file"

    @property
    def where(self) -> str:
        """The folder it should be in."""
        return str(self.path.parent)

    def missing(self) -> str | None:
        """Whether it is there."""
        return None if self.path.exists() else f"it is not in {self.path.parent}"

    def size(self, web: Web) -> int | None:
        """Nothing is fetched."""
        return None

    def fetch(self, web: Web) -> str:
        """Cannot be fetched."""
        raise OutOfReachError(f"{self.path} is part of the task and does not exist; put it there")


@dataclass(frozen=True)
class OwnTable(OwnFile):
    """A local folder of a dataset."""

    options: HuggingfaceOptions

    def missing(self) -> str | None:
        """Whether it can be opened: no shard of the split is missing."""
        from ttmbench.data.shards import missing_shards

        if (self.path / "dataset_dict.json").is_file():
            absent = [] if (self.path / self.options.split).is_dir() else [self.options.split]
        else:
            names = [file.relative_to(self.path).as_posix() for file in self.path.rglob("*.parquet") if file.is_file()]
            absent = missing_shards(names, self.options.split)
        return f"incomplete: {absent[0]} is missing in {self.path}" if absent else None


@dataclass(frozen=True)
class OwnImages(OwnFile):
    """A local file of rows, and the images that it names."""

    folder: Path
    absent: Callable[[Path], list[str]]

    def missing(self) -> str | None:
        """Whether the file and all of its images are there."""
        from ttmbench.download.hub import count_of_images

        if not self.path.exists():
            return super().missing()
        try:
            absent = self.absent(self.folder)
        except TtmbenchError as error:
            return str(error)
        return f"incomplete: {count_of_images(absent)} not in {self.folder}" if absent else None


def of_rendered(request: LoadRequest) -> list[Place]:
    """Scenes are drawn: nothing is needed."""
    return [Place("drawn on this machine", ())]


def of_folder(request: LoadRequest) -> list[Place]:
    """A file of groups and a folder of images beside the task file."""
    from ttmbench.data.sources import FolderOptions

    options = read_options(FolderOptions, request)
    base = request.folder or Path()
    paths = [inside(base, options.path, "source.path"), inside(base, options.images, "source.images")]
    return [Place("the task's own folder", [OwnFile(path) for path in paths])]


def of_annotations(request: LoadRequest) -> list[Place]:
    """Files and folders of the data folder, and the images that the file of rows names."""
    from ttmbench.data.files import AnnotationsOptions, find_annotations
    from ttmbench.download.files import DataFile, RowsFile

    options = read_options(AnnotationsOptions, request)
    base = request.data_dir or data_folder()
    found = find_annotations(base, options)
    needs: list[DataFile] = []
    for path, name in found.paths.items():
        if path not in options.get and _inside_one(path, options.get):
            continue  # what lies in a fetched folder comes with it
        origin = options.get.get(path) if name == path else None
        if options.file == path or options.file.startswith(f"{path}/"):
            needs.append(RowsFile(base, name, origin, partial(_not_whole, base, options, request)))
        else:
            needs.append(DataFile(base, name, origin))
    return [Place("the data folder", needs)]


def _inside_one(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _not_whole(base: Path, options: AnnotationsOptions, request: LoadRequest) -> str | None:
    """Which images are missing of those that the rows name, once everything else is there."""
    from ttmbench.data.files import find_annotations, missing_images
    from ttmbench.download.hub import count_of_images

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


def of_huggingface(request: LoadRequest) -> list[Place]:
    """A dataset of the hub, or a local folder of one."""
    from ttmbench.data.hub_tables import HuggingfaceOptions, saved_copy
    from ttmbench.download.hub import HubDataset

    options = read_options(HuggingfaceOptions, request)
    own = Path(options.path) if Path(options.path).is_dir() else saved_copy(options, request.data_dir or data_folder())
    if own is not None:
        return [Place(str(own), [OwnTable(own, options)])]
    return [Place(options.where, [HubDataset(options)])]


def of_hub_files(request: LoadRequest) -> list[Place]:
    """Loose files of a repository of the hub, or a local folder of them."""
    from ttmbench.data.files import missing_images
    from ttmbench.data.hub import HubFilesOptions
    from ttmbench.download.hub import HubFiles

    options = read_options(HubFilesOptions, request)

    def absent(folder: Path) -> list[str]:
        # The hub's cache is a folder of links; whether they stay inside is for the reader to check.
        return missing_images(folder, options, replace(request, limit=None), [folder, *folder.parents[1:2]])

    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        return [Place(str(own), [OwnImages(own / options.file, own, absent)])]
    return [Place(options.where, [HubFiles(options, absent)])]


def of_first_of(request: LoadRequest) -> list[Place]:
    """The places of several sources, one after the other."""
    from ttmbench.data.first import FirstOfOptions

    return _of_all(read_options(FirstOfOptions, request).of, request)


def of_whatsup(request: LoadRequest) -> list[Place]:
    """The places of the photographs."""
    from ttmbench.data.whatsup import WhatsupOptions, of_photographs

    return _of_all(read_options(WhatsupOptions, request).of, of_photographs(request))


def _of_all(sources: Sequence[dict[str, Any]], request: LoadRequest) -> list[Place]:
    from ttmbench.data.first import with_columns

    places: list[Place] = []
    for source in sources:
        options = {key: value for key, value in source.items() if key != "columns"}
        places += request.places(options, with_columns(request, source.get("columns")))
    return places
