"""Dataset repositories of the Hugging Face Hub, or folders in their place, and their files in the Hub's cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from ttmbench._util.console import one_line
from ttmbench._util.hub import UNKNOWN_TOKEN, accept_terms, hub_answers, patiently, quiet_hub, trouble
from ttmbench.data.availability import DataLocation, LocalFile, amount
from ttmbench.data.paths import Also, below, data_folder, is_local, local_path, read_options
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.types import Exif, SourceRequest

if TYPE_CHECKING:
    from ttmbench.data.download.http import Web

T = TypeVar("T")


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

    def local_copy(self, data_dir: Path) -> Path | None:
        """The user's own folder of the data, if there is one."""
        if is_local(self.path):
            return Path(self.path)
        folders = (below(data_dir, name, "source.also") for name in self.also.get(self.path, ()))
        return next((folder for folder in folders if self.is_copy(folder)), None)

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder of the data folder holds the data."""
        raise NotImplementedError

    def snapshot(self, patterns: list[str] | None, offline: bool, again: bool = False) -> Path:
        """The repository's folder in the Hub's cache, fetched if needed; OutOfReachError if that fails.

        ``patterns`` of the files to fetch, None for all; ``again``: also fetch cached files.
        """
        from huggingface_hub import snapshot_download

        def fetch() -> str:
            return snapshot_download(
                self.path,
                repo_type=self.repo_type,
                revision=self.revision,
                allow_patterns=patterns,
                local_files_only=offline or not hub_answers(),
                force_download=again,
            )

        return Path(self.reach(offline, fetch))

    def list_files(self) -> list[str]:
        """Names of all files of the repository, from the Hub; OutOfReachError if it cannot be reached."""
        from huggingface_hub import HfApi

        def fetch() -> list[str]:
            if not hub_answers():
                raise ConnectionError("the Hub cannot be reached")
            return HfApi().list_repo_files(self.path, repo_type=self.repo_type, revision=self.revision)

        return self.reach(False, fetch)

    def reach(self, offline: bool, fetch: Callable[[], T]) -> T:
        """The result of a function of the Hub's libraries, retried where the Hub is busy; errors have one line."""
        try:
            with quiet_hub(offline=offline, fetches=True):
                return fetch() if offline else patiently(fetch)
        except Exception as error:
            page, text = self.page, one_line(str(error), 200)
            match trouble(error):
                case "gated":
                    raise OutOfReachError(accept_terms(self.where, page)) from error
                case "token":
                    raise OutOfReachError(f"{self.where} cannot be loaded: {UNKNOWN_TOKEN}") from error
                case "unreachable":
                    from huggingface_hub import constants

                    unset = "" if offline or not constants.HF_HUB_OFFLINE else ", with HF_HUB_OFFLINE unset"
                    raise OutOfReachError(
                        f"{self.where} cannot be loaded: it is not in the cache and the Hub cannot be reached; run "
                        f"once with a network and without --offline{unset}"
                    ) from error
                case "other":
                    raise DataError(f"{self.where} cannot be loaded: {text}") from error
                case _:
                    raise OutOfReachError(f"{self.where} cannot be loaded: {text} ({page})") from error


Wanted = TypeVar("Wanted", bound=HubOptions)


def read_hub_options(model: type[Wanted], request: SourceRequest) -> Wanted:
    """The options of a source, as `read_options`; a ``path`` that is a folder is made absolute."""
    options = read_options(model, request)
    return options.model_copy(update={"path": local_path(options.path, request.folder or Path())})


@dataclass(frozen=True)
class HubRepository:
    """Files of a dataset repository, as a `DataNeed`."""

    options: HubOptions  # which repository
    patterns: list[str] | None = None  # of the files to fetch; None for all
    lacking: Callable[[Path], str | None] = lambda folder: None  # folder -> why it cannot be used; None if complete
    damaged: Callable[[Path], Iterable[str]] = lambda folder: ()  # folder -> its files to fetch again

    @property
    def name(self) -> str:
        """Repository and revision."""
        return self.options.where

    @property
    def origin(self) -> str:
        """The repository's page."""
        return self.options.page

    @property
    def where(self) -> str:
        """The Hub's cache."""
        from huggingface_hub import constants

        return str(constants.HF_HUB_CACHE)

    def planned(self) -> list[str] | None:
        """Patterns of the files to fetch."""
        return self.patterns

    def missing(self) -> str | None:
        """Why they cannot be used; None if they are complete in the Hub's cache."""
        try:
            folder = self.options.snapshot(self.patterns, offline=True)
        except OutOfReachError:
            return "it is not in the cache, or not all of it"
        return self.lacking(folder)

    def size(self, web: Web) -> int | None:
        """Bytes of the files that are not cached yet, as the Hub states."""
        from huggingface_hub import snapshot_download

        path, revision = self.options.path, self.options.revision
        try:
            with quiet_hub():
                if not hub_answers():
                    return None
                files = snapshot_download(
                    path,
                    repo_type=self.options.repo_type,
                    revision=revision,
                    allow_patterns=self.planned(),
                    dry_run=True,
                )
            return sum(file.file_size or 0 for file in files if file.will_download)
        except Exception:  # the size is a courtesy: fetching the dataset reports what is wrong
            return None

    def fetch(self, web: Web) -> str:
        """Fetches them, and damaged ones again."""
        folder = self.options.snapshot(self.patterns, offline=False)
        damaged = list(self.damaged(folder))
        if damaged:
            self.options.snapshot(damaged, offline=False, again=True)
        return content_of(folder)


def locate_repository(need: HubRepository, request: SourceRequest) -> list[DataLocation]:
    """The files of a repository, or the user's own folder of them."""
    copy = need.options.local_copy(data_folder(request.data_dir))
    if copy is None:
        return [DataLocation(need.options.where, [need])]
    return [DataLocation(str(copy), [LocalFile(copy, lambda: need.lacking(copy))])]


def content_of(folder: Path) -> str:
    """Number and size of the files of a snapshot, as text."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return f"{len(sizes)} files, {amount(sum(sizes))}, in the hub's cache"


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
