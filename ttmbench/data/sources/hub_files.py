"""Repositories of the Hugging Face hub that hold loose files: a file of rows, and images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ttmbench.data.availability import DataLocation, LocalFile
from ttmbench.data.download.files import count_of_images
from ttmbench.data.download.hub import HubFiles
from ttmbench.data.hub_access import HubFilesOptions, commit_of, snapshot
from ttmbench.data.loading import check_folder, data_folder, read_hub_options
from ttmbench.data.sources.annotations import missing_images, read_files
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.types import Loaded, SourceRequest


@dataclass(frozen=True)
class LocalImages(LocalFile):
    """A local file of rows, and the images that it names."""

    folder: Path
    absent: Callable[[Path], list[str]]

    def missing(self) -> str | None:
        """Whether the file and all of its images are there."""
        if not self.path.exists():
            return super().missing()
        try:
            absent = self.absent(self.folder)
        except TtmbenchError as error:
            return str(error)
        return f"incomplete: {count_of_images(absent)} not in {self.folder}" if absent else None


def read_hub_files(request: SourceRequest) -> Loaded:
    """Loose files of a dataset repository: a file of rows and images, through ``huggingface_hub``.

    Args:
        request: ``file`` and ``images`` are paths in the repository.

    Returns:
        The groups, and the digest of the file of rows.

    Raises:
        OutOfReachError: the repository is neither in the cache nor to be fetched.
        DataError: a file is missing or not what it should be; file and group are named.
    """
    options = read_hub_options(HubFilesOptions, request)
    check_folder(options.path)
    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        loaded = read_files(own, options, request)
        return Loaded(loaded.groups, {"revision": None, "folder": str(own), **loaded.source})
    folder = snapshot(options.path, options.revision, list(options.allow) or None, request.offline)
    # In the hub's cache a snapshot's files are links to blobs beside the snapshots, in the same repository's folder.
    roots = [folder.parents[1]] if folder.parent.name == "snapshots" else []
    try:
        loaded = read_files(folder, options, request, roots, hint=lambda name: "; `ttmbench download` fetches it again")
    except DataError as error:
        raise type(error)(f"{options.where}: {error}") from None
    return Loaded(loaded.groups, {"revision": commit_of(folder), **loaded.source})


def locations(request: SourceRequest) -> list[DataLocation]:
    """Loose files of a repository of the hub, or a local folder of them."""
    options = read_hub_options(HubFilesOptions, request)

    def absent(folder: Path) -> list[str]:
        # The hub's cache is a folder of links; whether they stay inside is for the reader to check.
        return missing_images(folder, options, replace(request, limit=None), [folder, *folder.parents[1:2]])

    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        return [DataLocation(str(own), [LocalImages(own / options.row_files[0], own, absent)])]
    return [DataLocation(options.where, [HubFiles(options, absent)])]
