"""Repositories of the Hugging Face hub that hold loose files: a file of rows, and images."""

from __future__ import annotations

from pathlib import Path

from ttmbench.data.availability import DataLocation, LocalFile, count_of_images
from ttmbench.data.hub_datasets import HubOptions, HubRepository, commit_of, read_hub_options, roots_of, snapshot
from ttmbench.data.image_files import FileOptions, missing_images, read_files
from ttmbench.data.paths import check_folder, data_folder
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.types import Loaded, SourceRequest


class HubFilesOptions(FileOptions, HubOptions):
    """Options of ``kind: hub_files``: how files are read, and of which repository.

    Attributes:
        allow: patterns of the files to fetch; all by default.
    """

    allow: tuple[str, ...] = ()

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder has the files of rows."""
        return all((folder / file).is_file() for file in self.row_files)


def read_hub_files(request: SourceRequest) -> Loaded:
    """Loose files of a dataset repository, through ``huggingface_hub``: the groups, and the digest of the file of rows.

    ``file`` and ``images`` are paths in the repository. OutOfReachError if it is neither in the cache nor to be
    fetched; DataError names file and group if a file is missing or not what it should be.
    """
    options = read_hub_options(HubFilesOptions, request)
    check_folder(options.path)
    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        loaded = read_files(own, options, request)
        return Loaded(loaded.groups, {"revision": None, "folder": str(own), **loaded.source})
    folder = snapshot(options.path, options.revision, list(options.allow) or None, request.offline)
    try:
        hint = "; `ttmbench download` fetches it again"
        loaded = read_files(folder, options, request, roots_of(folder), hint=lambda name: hint)
    except DataError as error:
        raise type(error)(f"{options.where}: {error}") from None
    return Loaded(loaded.groups, {"revision": commit_of(folder), **loaded.source})


def locations(request: SourceRequest) -> list[DataLocation]:
    """Loose files of a repository of the hub, or a local folder of them."""
    options = read_hub_options(HubFilesOptions, request)

    def lacking(folder: Path, where: str = "the cache") -> str | None:
        absent = [file for file in options.row_files if not (folder / file).is_file()]
        if absent:
            return f"{absent[0]} is not in {where}"
        try:  # the hub's cache is a folder of links; whether they stay inside is for the reader to check
            images = list(missing_images(folder, options, request, [folder, *folder.parents[1:2]]))
        except TtmbenchError as error:
            return str(error)
        return f"incomplete: {count_of_images(images)} not in {where}" if images else None

    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        return [DataLocation(str(own), [LocalFile(own / options.row_files[0], lambda: lacking(own, str(own)))])]
    return [DataLocation(options.where, [HubRepository(options, list(options.allow) or None, lacking)])]
