"""Tables of a dataset on the Hub: the files of the wanted split, fetched, checked and opened."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from ttmbench.data.hub_datasets import HubOptions, HubRepository, commit_of, content_of, roots_of
from ttmbench.data.paths import check_folder, inside, is_local
from ttmbench.data.row_files import check_decoded
from ttmbench.errors import DataError, OutOfReachError, UsageError

if TYPE_CHECKING:
    from datasets import Dataset

    from ttmbench.data.download.http import Web

SAVED = ("README.md", "*.arrow", "*.json")
CARD = "README.md"  # names splits, features and files of a dataset
_SHARD = re.compile(
    r"(?P<folder>(?:.*/)?)(?P<split>[^/]+?)-(?P<index>\d{5})-of-(?P<total>\d{5})(?P<rest>(?:-[0-9a-f]+)?\.parquet)"
)


class HuggingfaceOptions(HubOptions):
    """Options of ``kind: huggingface``."""

    split: str = "test"  # of the dataset
    name: str | None = None  # configuration of the dataset
    data_files: str | list[str] | dict[str, str | list[str]] | None = None  # as in ``datasets.load_dataset``
    drop_captions: dict[str, str] = Field(default_factory=dict)  # true caption of a group to leave out -> why
    saved: bool = False  # its files are what ``save_to_disk`` writes, as in folders under ``also``, not parquet
    literals: tuple[str, ...] = ()  # columns whose texts are lists as Python or JSON writes them

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder holds the dataset as ``save_to_disk`` writes it."""
        return (folder / "dataset_dict.json").is_file()


class Table(NamedTuple):
    """A split of the library ``datasets``, the folder of its files if it has one, and the commit if known."""

    rows: Dataset
    folder: Path | None
    revision: str | None


class HubTables(HubRepository):
    """The tables of a dataset, as a `DataNeed`; the library ``datasets`` fetches one without tables."""

    options: HuggingfaceOptions

    @property
    def name(self) -> str:
        """Repository, revision and, if only some files are chosen, their split."""
        return super().name + (f", {self.options.split}" if self.options.data_files else "")

    def missing(self) -> str | None:
        """Why it cannot be used: neither the Hub's cache has its tables nor the library ``datasets`` the dataset."""
        with suppress(OutOfReachError):
            patterns = tables_of(self.options, offline=True)
            folder = self.options.snapshot(patterns, offline=True)
            absent = incomplete(self.options, folder)
            if absent:
                return f"incomplete: {', '.join(absent[:3])}{' ...' if len(absent) > 3 else ''} is not in the cache"
            if has_tables(self.options, folder):
                return None
        return None if _in_datasets_cache(self.options) else "it is not in the cache"

    def fetch(self, web: Web) -> str:
        """Fetches its tables."""
        patterns = tables_of(self.options, offline=False)
        folder = self.options.snapshot(patterns, offline=False)
        if not has_tables(self.options, folder):
            open_table(self.options, Path(), offline=False)
            return "fetched by the library datasets"
        return content_of(folder)

    def planned(self) -> list[str]:
        """As `tables_of`, but without writing anything."""
        return tables_of(self.options, offline=False, reads_card=False)


def open_table(options: HuggingfaceOptions, data_dir: Path, offline: bool) -> Table:
    """Opens the wanted split of a dataset; ``data_dir`` may have a copy.

    Files are fetched into the Hub's cache at their revision and read from there. The cache of ``datasets``, which
    offline knows neither revisions nor chosen files, is only used if they are not there.

    Raises:
        OutOfReachError: the dataset is neither cached nor downloadable, or a part of it is missing.
        DataError: it cannot be read.
    """
    check_folder(options.path)
    copy = options.local_copy(data_dir)
    if options.saved or (copy is not None and not is_local(options.path)):  # as `save_to_disk` writes it
        folder = copy or options.snapshot(list(SAVED), offline)
        if options.saved:
            _check_whole(options, incomplete(options, folder), "`ttmbench download` fetches it")
        return Table(_load_split(options, _split_of(options, folder), folder), folder, commit_of(folder))
    if copy is not None:
        chosen = _declared(options)
        if chosen is not None and not _matching(copy, chosen):
            chosen = None  # a copy in another layout
        _check_whole(options, missing_shards(_tables(copy), options.split), "put it there")
        return Table(_load(options, str(copy), chosen, offline), copy, None)
    try:
        folder = options.snapshot(tables_of(options, offline), offline)
    except OutOfReachError:
        if not offline:
            raise
    else:
        _check_whole(options, incomplete(options, folder), "`ttmbench download` fetches it")
        if _tables(folder):
            return Table(_load(options, str(folder), _chosen(options, folder), offline), folder, commit_of(folder))
    if Path(options.path).exists():  # the library would read it in place of the dataset
        raise OutOfReachError(
            f"{options.where} is not in the Hub's cache, and the working directory has a folder of that name; run from "
            f"another directory, or write './{options.path}' in the task file to read that folder"
        )
    rows = _load(options, options.path, _declared(options), offline, revision=options.revision)
    return Table(rows, None, options.revision if len(options.revision or "") == 40 else None)


def tables_of(options: HuggingfaceOptions, offline: bool, reads_card: bool = True) -> list[str]:
    """Patterns of the files to fetch: the card, and the tables of the wanted split, or all if these are unknown.

    Offline, the cache decides; OutOfReachError if the repository is neither cached nor reachable.
    """
    if options.saved:
        return list(SAVED)
    chosen, card = _declared(options), dict[str, object]()
    if chosen is None and reads_card:
        folder = options.snapshot([CARD], offline)
        chosen, card = _chosen(options, folder), _card(folder)
    if chosen is None and not offline and "configs" not in card:
        with suppress(OutOfReachError):  # the cache may have it all; if not, fetching says why
            files = options.list_files()
            chosen = files_of_split(files, {}, options.split, options.name)
    if chosen is None:
        return [CARD, "*.parquet"]
    # For the Hub, unlike for the library, "**/" is at least one folder.
    return [CARD, *chosen, *(pattern.removeprefix("**/") for pattern in chosen if pattern.startswith("**/"))]


def incomplete(options: HuggingfaceOptions, folder: Path) -> list[str]:
    """Names of the files of the wanted split that a folder lacks."""
    if options.saved:
        if not has_tables(options, folder):
            return [f"{options.split}/state.json"]
        split = _split_of(options, folder)
        return [name for name in _files_of_split(split) if not (split / name).is_file()]
    if options.is_copy(folder):
        return [] if (folder / options.split).is_dir() else [options.split]
    chosen = _chosen(options, folder)
    if chosen is None:
        return missing_shards(_tables(folder), options.split)
    return missing_shards(_matching(folder, chosen))


def has_tables(options: HuggingfaceOptions, folder: Path) -> bool:
    """Whether a snapshot holds tables in the format that the task reads."""
    return any(path.is_file() for path in folder.rglob("state.json" if options.saved else "*.parquet"))


def datasets_cache() -> Path:
    """The folder of prepared datasets, as ``datasets`` finds it."""
    from huggingface_hub import constants

    prepared = os.environ.get("HF_DATASETS_CACHE")
    return Path(prepared).expanduser() if prepared else Path(constants.HF_HOME) / "datasets"


def folder_name(name: str) -> str:
    """The name of a dataset in the cache of ``datasets``, whose import would take a second.

    >>> folder_name("MMVP_VLMTest2x")
    'mmvp_vlm_test2x'
    """
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()


def _in_datasets_cache(options: HuggingfaceOptions) -> bool:
    """Whether the cache of ``datasets``, which does not distinguish revisions, has this dataset."""
    prepared = datasets_cache()
    if options.data_files is not None or options.revision is not None or not prepared.is_dir():
        return False
    *owner, name = options.path.split("/")
    root = prepared / "___".join([*owner, folder_name(name)])
    return any(root.glob("*/*/*/dataset_info.json"))


def _split_of(options: HuggingfaceOptions, folder: Path) -> Path:
    """The folder of the wanted split as ``save_to_disk`` writes it; of a dataset without splits, its own."""
    splits = sorted(path.parent for path in folder.rglob("state.json"))
    named = [split for split in splits if split.name == options.split]
    chosen = named or (splits if len(splits) == 1 and not options.is_copy(folder) else [])
    if len(chosen) != 1:
        known = ", ".join(split.relative_to(folder).as_posix() for split in splits) or "none"
        raise DataError(f"{options.where}: has no split '{options.split}' as save_to_disk writes it; it has {known}")
    return chosen[0]


def _files_of_split(split: Path) -> list[str]:
    try:
        state = json.loads((split / "state.json").read_text(encoding="utf-8"))
        return [str(file["filename"]) for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{split} cannot be read ({type(error).__name__}: {error})") from None


def _check_whole(options: HuggingfaceOptions, missing: list[str], remedy: str) -> None:
    if missing:
        raise OutOfReachError(f"{options.where} is incomplete: {missing[0]} is missing; {remedy}")


def _declared(options: HuggingfaceOptions) -> list[str] | None:
    """The patterns in the task file for the wanted split; UsageError if it only has other splits."""
    files = options.data_files
    if isinstance(files, dict):
        if options.split not in files:
            raise UsageError(f"source.data_files has no split '{options.split}'; it has {', '.join(files) or 'none'}")
        files = files[options.split]
    return [files] if isinstance(files, str) else files


def _chosen(options: HuggingfaceOptions, folder: Path) -> list[str] | None:
    """The patterns of the wanted split, from the task file, else from the card or the names of the files."""
    return _declared(options) or files_of_split(_tables(folder), _card(folder), options.split, options.name)


def _tables(folder: Path) -> list[str]:
    """Names of the parquet files; a link of the cache without its file is none."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet") if path.is_file())


def _matching(folder: Path, patterns: list[str]) -> list[str]:
    try:
        files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    except (NotImplementedError, ValueError):  # absolute, or an address: for the library to say
        return list(patterns)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _card(folder: Path) -> dict[str, object]:
    try:
        return _metadata((folder / CARD).read_text(encoding="utf-8"))
    except Exception:  # there is none, or the library that reads the tables reports what is wrong
        return {}


@lru_cache(maxsize=16)
def _metadata(card: str) -> dict[str, object]:
    """The metadata in a card's text; cached, since cards that list classes are long and read repeatedly."""
    from huggingface_hub import RepoCard

    return RepoCard(card, ignore_metadata_errors=True).data.to_dict()  # type: ignore[no-untyped-call]


def _load(options: HuggingfaceOptions, path: str, chosen: list[str] | None, offline: bool, **more: object) -> Dataset:
    import datasets

    if Path(path).is_dir():
        names = _tables(Path(path)) if chosen is None else _matching(Path(path), chosen)
        check_decoded(Path(path) / name for name in names if name.endswith(".parquet"))
    files = None if chosen is None else {options.split: chosen}
    # The card counts all splits; with a choice of files, these counts would be an error.
    more |= {"split": options.split, "data_files": files, "verification_mode": "no_checks" if files else None}
    return _quietly(options, partial(datasets.load_dataset, path, options.name, **more), offline)


def _load_split(options: HuggingfaceOptions, split: Path, folder: Path) -> Dataset:
    """A saved split; its list of files may not lead out of the folder, except by the links of the Hub's cache."""
    import datasets

    for name in _files_of_split(split):
        if not inside(split, name, str(split / "state.json"), roots_of(folder)).is_file():
            raise OutOfReachError(f"{folder} is incomplete: {options.split}/{name} is missing; save it again")
    return _quietly(options, partial(datasets.load_from_disk, str(split)), offline=True)


def _quietly(options: HuggingfaceOptions, fetch: Callable[[], Dataset], offline: bool) -> Dataset:
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        return options.reach(offline, fetch)
    finally:
        if shown:
            datasets.enable_progress_bars()


def files_of_split(files: Sequence[str], card: Mapping[str, object], split: str, name: str | None) -> list[str] | None:
    """The files or patterns that hold a split; None if any file of the repository may hold it.

    A card with configurations decides by the one called ``name``. Without them, all tables must be named as shards of
    splits (``data/test-00000-of-00001.parquet``) in one folder.

    >>> names = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet", "images.zip"]
    >>> files_of_split(names, {}, "test", None)
    ['data/test-[0-9]*-of-[0-9]*.parquet']
    >>> files_of_split([*names, "data/more.parquet"], {}, "test", None) is None
    True
    """
    configs = card.get("configs")
    if isinstance(configs, list) and configs:
        return _of_configs([config for config in configs if isinstance(config, Mapping)], split, name)
    tables = [file for file in files if file.endswith(".parquet")]
    shards = [match for file in tables if (match := _SHARD.fullmatch(file))]
    if name is not None or len(shards) < len(tables) or len({shard["folder"] for shard in shards}) != 1:
        return None
    if not any(shard["split"] == split for shard in shards) or set("[]*?") & set(shards[0]["folder"] + split):
        return None
    # A pattern in place of the names: of a copy that lacks a shard it has to fit the whole set.
    return [f"{shards[0]['folder']}{split}-[0-9]*-of-[0-9]*.parquet"]


def _of_configs(configs: Sequence[Mapping[str, object]], split: str, name: str | None) -> list[str] | None:
    named = [config for config in configs if config.get("config_name") == (name or "default")]
    default = [config for config in configs if config.get("default") is True] if name is None else []
    chosen = default or named or (list(configs) if name is None and len(configs) == 1 else [])
    entries = chosen[0].get("data_files") if len(chosen) == 1 and "data_dir" not in chosen[0] else None
    if isinstance(entries, Mapping):
        entries = [{"split": key, "path": value} for key, value in entries.items()]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    paths = [entry.get("path") for entry in entries if entry.get("split") == split]
    patterns = [pattern for path in paths for pattern in ([path] if isinstance(path, str) else path or ())]
    return patterns if patterns and all(isinstance(pattern, str) for pattern in patterns) else None


def missing_shards(files: Iterable[str], split: str | None = None) -> list[str]:
    """Names of the shards, of one split or all, that are missing although others of the same set exist.

    >>> missing_shards(["data/test-00000-of-00002.parquet", "data/train-00000-of-00002.parquet"], "test")
    ['data/test-00001-of-00002.parquet']
    """
    sets: dict[tuple[str, str, int], dict[int, str]] = {}
    for file in files:
        match = _SHARD.fullmatch(file)
        if match and split in (None, match["split"]):
            key = (match["folder"], match["split"], int(match["total"]))
            sets.setdefault(key, {})[int(match["index"])] = match["rest"]
    return [
        f"{folder}{stem}-{index:05d}-of-{total:05d}.parquet"
        for (folder, stem, total), shards in sets.items()
        for index in range(min(total, 10_000))
        if index not in shards
    ]
