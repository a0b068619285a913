"""Datasets of the hub: which one a task wants, and its files in the hub's cache, fetched by the hub's own library."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.hub import UNKNOWN_TOKEN, accept_terms, hub_answers, one_line, patiently, quiet_hub, trouble
from ttmbench.data.layouts import Also
from ttmbench.data.loading import FileOptions, below, is_local
from ttmbench.errors import DataError, OutOfReachError
from ttmbench.types import Exif

T = TypeVar("T")


class HuggingfaceOptions(BaseModel):
    """Options of ``kind: huggingface``.

    Attributes:
        path: id of a dataset, or the absolute path of a local folder of its files.
        revision: commit.
        split: of the dataset.
        name: configuration of the dataset.
        data_files: as in ``datasets.load_dataset``; a mapping of splits to their files fetches no other split.
        drop_captions: true caption of a group to leave out -> why.
        exif: whether images are turned upright by their EXIF data, as the library ``datasets`` does.
        also: id of the dataset -> folders of the data folder that may hold it as ``save_to_disk`` writes it.
        saved: its files are what ``save_to_disk`` writes, and no tables of the hub.
    """

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    split: str = "test"
    name: str | None = None
    data_files: str | list[str] | dict[str, str | list[str]] | None = None
    drop_captions: dict[str, str] = {}
    exif: Exif = "apply"
    also: Also = {}
    saved: bool = False

    @property
    def where(self) -> str:
        """What messages call it."""
        return where_it_is(self.path, None if is_local(self.path) else self.revision)


class HubFilesOptions(FileOptions):
    """Options of ``kind: hub_files``: how files are read, and of which repository.

    Attributes:
        path: id of a dataset repository, or the absolute path of a local folder of its files.
        revision: commit.
        allow: patterns of the files to fetch; all by default.
        also: id of the repository -> folders of the data folder that may hold its files.
    """

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    allow: tuple[str, ...] = ()
    also: Also = Field(default_factory=dict)

    @property
    def where(self) -> str:
        """What messages call it."""
        return where_it_is(self.path, None if is_local(self.path) else self.revision)

    def local_copy(self, data_dir: Path) -> Path | None:
        """The folder of the user's own that has the files, if there is one."""
        if is_local(self.path):
            return Path(self.path)
        for name in self.also.get(self.path, ()):
            folder = below(data_dir, name, "source.also")
            if all((folder / file).is_file() for file in self.row_files):
                return folder
        return None


def where_it_is(path: str, revision: str | None) -> str:
    """What messages call a dataset.

    >>> where_it_is("MMVP/MMVP_VLM", None)
    'dataset MMVP/MMVP_VLM'
    """
    return f"dataset {path}" + (f" at revision {revision}" if revision else "")


def snapshot(path: str, revision: str | None, patterns: list[str] | None, offline: bool, again: bool = False) -> Path:
    """The folder of a dataset repository in the hub's cache, fetched if need be.

    Args:
        path: id of the repository.
        revision: commit.
        patterns: of the files to fetch; None for all.
        offline: never touch the network.
        again: also fetch files that are in the cache.

    Returns:
        The folder.

    Raises:
        OutOfReachError: it is neither in the cache nor to be fetched.
    """
    from huggingface_hub import snapshot_download

    def fetch() -> str:
        here = offline or not hub_answers()
        return snapshot_download(
            path,
            repo_type="dataset",
            revision=revision,
            allow_patterns=patterns,
            local_files_only=here,
            force_download=again,
        )

    return Path(reach(where_it_is(path, revision), path, offline, fetch))


def commit_of(folder: Path) -> str | None:
    """The commit that a folder of the hub's cache holds; None for any other folder.

    >>> commit_of(Path("hub/datasets--a--b/snapshots/" + "0" * 40)) == "0" * 40, commit_of(Path("/mine/snapshot"))
    (True, None)
    """
    is_commit = re.fullmatch(r"[0-9a-f]{40}", folder.name) is not None
    return folder.name if folder.parent.name == "snapshots" and is_commit else None


def list_files(path: str, revision: str | None) -> list[str]:
    """Names of all files of a dataset repository, from the hub.

    Raises:
        OutOfReachError: it cannot be reached.
    """
    from huggingface_hub import HfApi

    def fetch() -> list[str]:
        if not hub_answers():
            raise ConnectionError("the hub cannot be reached")
        return HfApi().list_repo_files(path, repo_type="dataset", revision=revision)

    return list(reach(where_it_is(path, revision), path, False, fetch))


def reach(where: str, path: str, offline: bool, fetch: Callable[[], T]) -> T:
    """Calls a function of the hub's libraries, again where the hub is busy; what goes wrong is told in one line."""
    try:
        with quiet_hub(offline=offline, fetches=True):
            return fetch() if offline else patiently(fetch)
    except Exception as error:
        page, kind, text = f"https://huggingface.co/datasets/{path}", trouble(error), one_line(error, 200)
        match kind:
            case "gated":
                raise OutOfReachError(accept_terms(where, page)) from error
            case "token":
                raise OutOfReachError(f"{where} cannot be loaded: {UNKNOWN_TOKEN}") from error
            case "unreachable":
                from huggingface_hub import constants

                unset = "" if offline or not constants.HF_HUB_OFFLINE else ", with HF_HUB_OFFLINE unset"
                raise OutOfReachError(
                    f"{where} cannot be loaded: it is not in the cache and the hub cannot be reached; run once with "
                    f"network and without --offline{unset}, and it stays in the cache"
                ) from error
            case "other":
                raise DataError(f"{where} cannot be loaded: {text}") from error
            case _:
                raise OutOfReachError(f"{where} cannot be loaded: {text} ({page})") from error
