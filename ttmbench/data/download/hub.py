"""Datasets of the hub: are they in its cache, and fetching them there by its own library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.hub import hub_answers, quiet_hub
from ttmbench.data.download.files import amount, count_of_images
from ttmbench.data.hub_access import HubFilesOptions, HuggingfaceOptions, snapshot, where_it_is
from ttmbench.data.hub_tables import has_tables, incomplete, open_table, planned_tables, tables_of
from ttmbench.errors import OutOfReachError, TtmbenchError

if TYPE_CHECKING:
    from ttmbench.data.download.http import Web


@dataclass(frozen=True)
class _Repository:
    """A dataset repository at a revision: what both kinds share."""

    options: Any

    @property
    def name(self) -> str:
        """Repository, revision and, if only some, which files."""
        return where_it_is(self.options.path, self.options.revision) + self._part()

    @property
    def origin(self) -> str:
        """The repository's page."""
        return f"https://huggingface.co/datasets/{self.options.path}"

    @property
    def where(self) -> str:
        """The hub's cache."""
        from huggingface_hub import constants

        return str(constants.HF_HUB_CACHE)

    def size(self, web: Web) -> int | None:
        """Bytes of the files that are not in the cache yet, as the hub says."""
        from huggingface_hub import snapshot_download

        try:
            with quiet_hub():
                if not hub_answers():
                    return None
                planned = snapshot_download(
                    self.options.path,
                    repo_type="dataset",
                    revision=self.options.revision,
                    allow_patterns=self._planned(),
                    dry_run=True,
                )
            return sum(one.file_size or 0 for one in planned if one.will_download)
        except Exception:  # the size is a courtesy: whatever is wrong is told when the dataset is fetched
            return None

    def _planned(self) -> list[str] | None:
        """Patterns of the files to fetch, without fetching any."""
        raise NotImplementedError

    def _part(self) -> str:
        return ""


@dataclass(frozen=True)
class HubDataset(_Repository):
    """The tables of a dataset."""

    options: HuggingfaceOptions

    def missing(self) -> str | None:
        """Whether the tables of its split are in the hub's cache, or all of it in that of the library ``datasets``."""
        try:
            patterns = tables_of(self.options, offline=True)
            folder = snapshot(self.options.path, self.options.revision, patterns, offline=True)
        except OutOfReachError:
            folder = None
        if folder is not None:
            absent = incomplete(self.options, folder)
            if absent:
                return f"incomplete: {', '.join(absent[:3])}{' ...' if len(absent) > 3 else ''} is not in the cache"
            if has_tables(self.options, folder):
                return None
        return None if _in_datasets_cache(self.options) else "it is not in the cache"

    def fetch(self, web: Web) -> str:
        """Fetches its tables; a dataset without any is left to the library ``datasets``."""
        patterns = tables_of(self.options, offline=False)
        folder = snapshot(self.options.path, self.options.revision, patterns, offline=False)
        if not has_tables(self.options, folder):
            open_table(self.options, Path(), offline=False)
            return "fetched by the library datasets"
        return _detail(folder)

    def _planned(self) -> list[str]:
        return planned_tables(self.options)

    def _part(self) -> str:
        return f", {self.options.split}" if self.options.data_files else ""


@dataclass(frozen=True)
class HubFiles(_Repository):
    """Loose files of a repository.

    Attributes:
        images_missing: given the folder, the names of the images that its rows name and that are not there.
    """

    options: HubFilesOptions
    images_missing: Callable[[Path], list[str]] = lambda folder: []

    def missing(self) -> str | None:
        """Whether they are in the hub's cache."""
        try:
            folder = snapshot(self.options.path, self.options.revision, self._planned(), offline=True)
        except OutOfReachError:
            return "it is not in the cache, or not all of it"
        lost = [file for file in self.options.row_files if not (folder / file).is_file()]
        if lost:
            return f"{lost[0]} is not in the cache"
        try:
            absent = self.images_missing(folder)
        except TtmbenchError as error:
            return str(error)
        return f"incomplete: {count_of_images(absent)} not in the cache" if absent else None

    def fetch(self, web: Web) -> str:
        """Fetches them."""
        return _detail(snapshot(self.options.path, self.options.revision, self._planned(), offline=False))

    def _planned(self) -> list[str] | None:
        return list(self.options.allow) or None


@dataclass(frozen=True)
class HubShards(_Repository):
    """Tar files of a repository, as webdataset has them; options as `ttmbench.data.sources.webdataset` reads them."""

    def missing(self) -> str | None:
        """Whether all shards are in the Hub's cache and whole."""
        try:
            folder = snapshot(self.options.path, self.options.revision, self._planned(), offline=True)
        except OutOfReachError:
            return "it is not in the cache"
        lacking: str | None = self.options.unusable(folder)
        return None if lacking is None else f"incomplete: {lacking}"

    def fetch(self, web: Web) -> str:
        """Fetches them, those that are damaged once more."""
        folder = snapshot(self.options.path, self.options.revision, self._planned(), offline=False)
        damaged = list(self.options.damaged(folder))
        if damaged:
            snapshot(self.options.path, self.options.revision, damaged, offline=False, again=True)
        return _detail(folder)

    def _planned(self) -> list[str]:
        return list(self.options.patterns)


def _in_datasets_cache(options: HuggingfaceOptions) -> bool:
    """Whether the library ``datasets`` has prepared this dataset before; its cache does not tell revisions apart."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase

    if options.data_files is not None or options.revision is not None:
        return False
    *owner, name = options.path.split("/")
    root = Path(config.HF_DATASETS_CACHE) / "___".join([*owner, camelcase_to_snakecase(name)])
    return any(root.glob("*/*/*/dataset_info.json"))


def _detail(folder: Path) -> str:
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return f"{len(sizes)} files, {amount(sum(sizes))}, in the hub's cache"
