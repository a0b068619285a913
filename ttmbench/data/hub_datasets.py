"""Dataset repositories of the Hugging Face Hub, or folders in their place, and their files in the Hub's cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from ttmbench._util.console import one_line
from ttmbench._util.hub import UNKNOWN_TOKEN, accept_terms, patiently, quiet_hub, trouble
from ttmbench.data.availability import DataLocation, DataNeed, amount, local_file
from ttmbench.data.paths import Also, below, check_folder, data_folder, is_local, local_path, read_options
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.types import Exif, Record, SourceRequest


class HubOptions(BaseModel):
    """Options of every source of datasets on the Hub."""

    model_config = ConfigDict(extra="forbid")
    path: str  # id of a dataset repository, or the absolute path of a local folder of its files
    revision: str | None = None  # commit
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data
    repo_type: Literal["dataset", "model"] = "dataset"  # what its owners made the repository
    also: Also = {}  # id of the repository -> folders of the data folder that may hold its files

    @property
    def where(self) -> str:
        """Name in messages."""
        revision = None if is_local(self.path) else self.revision
        return f"{self.repo_type} {self.path}" + (f" at revision {revision}" if revision else "")

    @property
    def page(self) -> str:
        """Its page on the Hub."""
        return f"https://huggingface.co/{'datasets/' if self.repo_type == 'dataset' else ''}{self.path}"

    @property
    def patterns(self) -> list[str] | None:
        """The files to fetch; None for all."""
        raise NotImplementedError

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder of the data folder holds the data."""
        raise NotImplementedError

    def copy_in(self, data_dir: Path | None) -> Path | None:
        """The user's own folder of the data, if there is one."""
        if is_local(self.path):
            return Path(self.path)
        folders = (below(data_folder(data_dir), name, "source.also") for name in self.also.get(self.path, ()))
        return next((folder for folder in folders if self.is_copy(folder)), None)

    def folder(self, request: SourceRequest) -> tuple[Path, Record]:
        """The folder of the data, which are fetched if needed, and what results say of it.

        OutOfReachError if they are neither here nor downloadable.
        """
        check_folder(self.path)
        copy = self.copy_in(request.data_dir)
        if copy is not None:
            return copy, {"revision": None, "exif": self.exif, "folder": str(copy)}
        folder = Path(self.snapshot(request.offline))
        return folder, {"revision": commit_of(folder), "exif": self.exif}

    def locations(self, request: SourceRequest, lacking: Callable[[Path], str | None]) -> list[DataLocation]:
        """The files of the repository, or the user's own folder; ``lacking``: folder -> why it cannot be used."""
        from huggingface_hub import constants

        copy = self.copy_in(request.data_dir)
        if copy is not None:
            return [DataLocation(str(copy), [local_file(copy, lambda: lacking(copy))])]

        def missing() -> str | None:
            try:
                folder = Path(self.snapshot(offline=True))
            except OutOfReachError:
                return "it is not in the cache, or not all of it"
            return lacking(folder)

        def size() -> int | None:
            try:
                files = self.snapshot(offline=False, dry_run=True)
            except DataError:  # fetching the dataset reports what is wrong
                return None
            return sum(file.file_size or 0 for file in files if file.will_download)

        def fetch() -> str:
            folder = Path(self.snapshot(offline=False))
            if lacking(folder) is not None:  # the cached files are damaged
                folder = Path(self.snapshot(offline=False, force_download=True))
            sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
            return f"{len(sizes)} files, {amount(sum(sizes))}, in the hub's cache"

        split = getattr(self, "split", "")
        name = self.where + (f", {split}" if split else "")
        need = DataNeed(name, self.page, str(constants.HF_HUB_CACHE), missing, fetch, size)
        return [DataLocation(self.where, [need])]

    def snapshot(self, offline: bool, **how: Any) -> Any:
        """The repository's folder in the Hub's cache, fetched if needed; OutOfReachError if that fails.

        ``how`` is for ``snapshot_download``, whose errors have one line here.
        """
        from huggingface_hub import constants, snapshot_download

        how |= {"repo_type": self.repo_type, "revision": self.revision, "allow_patterns": self.patterns}

        def fetch() -> object:
            return snapshot_download(self.path, local_files_only=offline, **how)

        try:
            with quiet_hub(offline=offline, fetches=True):
                return fetch() if offline else patiently(fetch)
        except Exception as error:
            why, kind = one_line(str(error), 200), trouble(error)
            if kind == "gated":
                raise OutOfReachError(accept_terms(self.where, self.page)) from error
            if kind == "token":
                why = UNKNOWN_TOKEN
            elif kind == "unreachable":
                unset = "" if offline or not constants.HF_HUB_OFFLINE else ", with HF_HUB_OFFLINE unset"
                why = "it is not in the cache and the Hub cannot be reached; run once with a network and without "
                why += f"--offline{unset}"
            elif kind != "other":
                why += f" ({self.page})"
            lost = DataError if kind == "other" else OutOfReachError
            raise lost(f"{self.where} cannot be loaded: {why}") from error


Wanted = TypeVar("Wanted", bound=HubOptions)


def read_hub_options(model: type[Wanted], request: SourceRequest) -> Wanted:
    """The options of a source, as `read_options`; a ``path`` that is a folder is made absolute."""
    options = read_options(model, request)
    return options.model_copy(update={"path": local_path(options.path, request.folder or Path())})


def commit_of(folder: Path) -> str | None:
    """The commit of a folder of the Hub's cache; None for any other folder.

    >>> commit_of(Path("hub/datasets--a--b/snapshots/" + "0" * 40)) == "0" * 40, commit_of(Path("/mine/snapshot"))
    (True, None)
    """
    is_commit = re.fullmatch(r"[0-9a-f]{40}", folder.name) is not None
    return folder.name if folder.parent.name == "snapshots" and is_commit else None


def roots_of(folder: Path) -> list[Path]:
    """Where links in a folder may lead: a snapshot's files are links to blobs in the same repository's folder."""
    return [folder.parents[1]] if folder.parent.name == "snapshots" else []
