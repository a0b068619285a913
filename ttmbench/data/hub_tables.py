"""The tables of a dataset of the hub: which files hold the wanted split, fetched, found whole, and opened."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ttmbench.data.hub_access import HuggingfaceOptions, commit_of, list_files, reach, snapshot
from ttmbench.data.loading import below, check_folder, inside, is_local
from ttmbench.data.parquet import check_decoded
from ttmbench.data.shards import files_of_split, missing_shards
from ttmbench.errors import DataError, OutOfReachError, UsageError

SAVED = ("README.md", "*.arrow", "*.json")
CARD = "README.md"  # names splits, features and files of a dataset


@dataclass(frozen=True)
class Table:
    """A split as the library ``datasets`` gives it.

    Attributes:
        rows: the table.
        folder: where its files are, if that is one folder.
        revision: commit that was read; None for a folder of the user's own, or where it cannot be told.
    """

    rows: Any
    folder: Path | None
    revision: str | None


def open_table(options: HuggingfaceOptions, data_dir: Path, offline: bool) -> Table:
    """Opens the wanted split of a dataset.

    The files of a repository are fetched into the hub's cache at their revision and read from there. The library's own
    cache, which knows neither revisions nor chosen files once the network is gone, is asked only if they are not there.

    Args:
        options: which.
        data_dir: the data folder, which may have a copy.
        offline: never touch the network.

    Returns:
        The split.

    Raises:
        OutOfReachError: the dataset is neither in a cache nor to be fetched, or a part of it is missing.
        DataError: it cannot be read.
    """
    check_folder(options.path)
    if options.saved:
        folder = _saved_folder(options, offline)
        _check_whole(options, incomplete(options, folder), "`ttmbench download` fetches it")
        return Table(_load_split(options, _split_of(options, folder), folder), folder, commit_of(folder))
    if is_local(options.path):
        folder = Path(options.path)
        files = _tables(folder)
        chosen = _declared(options)
        if chosen is not None and not _matching(folder, chosen):
            chosen = None  # a copy in another layout
        _check_whole(options, missing_shards(files, options.split), "put it there")
        return Table(_load(options, str(folder), chosen, offline), folder, None)
    saved = saved_copy(options, data_dir)
    if saved is not None:
        return Table(_load_saved(options, saved), saved, None)
    try:
        patterns = tables_of(options, offline)
        folder = snapshot(options.path, options.revision, patterns, offline)
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
            f"another directory, or write './{options.path}' in the task file beside the folder to read that"
        )
    rows = _load(options, options.path, _declared(options), offline, revision=options.revision)
    return Table(rows, None, _commit(options.revision))


def tables_of(options: HuggingfaceOptions, offline: bool) -> list[str]:
    """Patterns of the files to fetch: the card, and the tables of the wanted split as far as they can be told.

    Args:
        options: which dataset.
        offline: never touch the network; then what is in the cache decides.

    Returns:
        Patterns for the hub.

    Raises:
        OutOfReachError: the repository is not in the cache, or cannot be reached.
    """
    if options.saved:
        return list(SAVED)
    chosen = _declared(options)
    if chosen is None:
        folder = snapshot(options.path, options.revision, [CARD], offline)
        chosen = _chosen(options, folder)
        if not offline and chosen is None and "configs" not in _card(folder):
            with suppress(OutOfReachError):  # the cache may have it all; if not, fetching says why
                files = list_files(options.path, options.revision)
                chosen = files_of_split(files, {}, options.split, options.name)
    if chosen is None:
        return [CARD, "*.parquet"]
    # For the hub, unlike for the library, "**/" stands for one folder at least.
    return [CARD, *chosen, *(one.removeprefix("**/") for one in chosen if one.startswith("**/"))]


def planned_tables(options: HuggingfaceOptions) -> list[str]:
    """As `tables_of`, from the list of files alone: nothing is written, and a card that knows better is not read."""
    if options.saved:
        return list(SAVED)
    chosen = _declared(options)
    if chosen is None:
        chosen = files_of_split(list_files(options.path, options.revision), {}, options.split, options.name)
    return [CARD, *(["*.parquet"] if chosen is None else chosen)]


def incomplete(options: HuggingfaceOptions, folder: Path) -> list[str]:
    """Shards of the wanted split that a snapshot lacks."""
    if options.saved:
        if not has_tables(options, folder):
            return [f"{options.split}/state.json"]
        place = _split_of(options, folder)
        return [name for name in _files_of_split(place) if not (place / name).is_file()]
    chosen = _chosen(options, folder)
    if chosen is None:
        return missing_shards(_tables(folder), options.split)
    return missing_shards(_matching(folder, chosen))


def saved_copy(options: HuggingfaceOptions, data_dir: Path) -> Path | None:
    """A folder of the data folder that holds this dataset as ``save_to_disk`` writes it."""
    for name in options.also.get(options.path, ()):
        folder = below(data_dir, name, "source.also")
        if (folder / "dataset_dict.json").is_file():
            return folder
    return None


def has_tables(options: HuggingfaceOptions, folder: Path) -> bool:
    """Whether a snapshot holds tables of the kind that the task reads."""
    return any(path.is_file() for path in folder.rglob("state.json" if options.saved else "*.parquet"))


def _saved_folder(options: HuggingfaceOptions, offline: bool) -> Path:
    if is_local(options.path):
        return Path(options.path)
    return snapshot(options.path, options.revision, list(SAVED), offline)


def _split_of(options: HuggingfaceOptions, folder: Path) -> Path:
    """The folder of the wanted split in what ``save_to_disk`` wrote; of a dataset without splits, its own."""
    places = sorted(path.parent for path in folder.rglob("state.json"))
    named = [place for place in places if place.name == options.split]
    chosen = named or (places if len(places) == 1 else [])
    if len(chosen) != 1:
        known = ", ".join(place.relative_to(folder).as_posix() for place in places) or "none"
        raise DataError(f"{options.where}: has no split '{options.split}' as save_to_disk writes it; it has {known}")
    return chosen[0]


def _files_of_split(place: Path) -> list[str]:
    """Names of the files that hold a saved split."""
    try:
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
        return [str(one["filename"]) for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place} cannot be read ({type(error).__name__}: {error})") from None


def _check_whole(options: HuggingfaceOptions, missing: list[str], mend: str) -> None:
    if missing:
        raise OutOfReachError(f"{options.where} is incomplete: {missing[0]} is missing; {mend}")


def _declared(options: HuggingfaceOptions) -> list[str] | None:
    """The patterns that the task file states for the wanted split; UsageError if it states others alone."""
    files = options.data_files
    if isinstance(files, dict):
        if options.split not in files:
            raise UsageError(f"source.data_files has no split '{options.split}'; it has {', '.join(files) or 'none'}")
        files = files[options.split]
    return None if files is None else _listed(files)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _chosen(options: HuggingfaceOptions, folder: Path) -> list[str] | None:
    """The patterns of the wanted split, from the task file, else from the card or the names of the files there."""
    return _declared(options) or files_of_split(_tables(folder), _card(folder), options.split, options.name)


def _tables(folder: Path) -> list[str]:
    """Parquet files that are really there: a link of the cache may have lost its file."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet") if path.is_file())


def _matching(folder: Path, patterns: list[str]) -> list[str]:
    try:
        found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    except (NotImplementedError, ValueError):  # absolute, or an address: for the library to say
        return list(patterns)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _card(folder: Path) -> dict[str, Any]:
    if not (folder / CARD).is_file():
        return {}
    try:
        return _metadata((folder / CARD).read_text(encoding="utf-8"))
    except Exception:  # the library that reads the tables says it properly
        return {}


@lru_cache(maxsize=16)
def _metadata(card: str) -> dict[str, Any]:
    """Of a card's text: read again and again while a dataset is looked for, and long where it lists classes."""
    from huggingface_hub import RepoCard

    found: dict[str, Any] = RepoCard(card, ignore_metadata_errors=True).data.to_dict()  # type: ignore[no-untyped-call]
    return found


def _commit(revision: str | None) -> str | None:
    return revision if revision and len(revision) == 40 else None


def _load(options: HuggingfaceOptions, path: str, chosen: list[str] | None, offline: bool, **more: Any) -> Any:
    import datasets

    if Path(path).is_dir():
        names_of_files = _tables(Path(path)) if chosen is None else _matching(Path(path), chosen)
        check_decoded(Path(path) / name for name in names_of_files if name.endswith(".parquet"))
    files = None if chosen is None else {options.split: chosen}
    # The card counts all splits; with a choice of files, these counts would be an error.
    checks = "no_checks" if files else None
    names: dict[str, Any] = {"split": options.split, "data_files": files, "verification_mode": checks}
    fetch = partial(datasets.load_dataset, path, options.name, **names, **more)
    return _quietly(options, fetch, offline)


def _load_saved(options: HuggingfaceOptions, folder: Path) -> Any:
    """A split as ``save_to_disk`` wrote it."""
    place = folder / options.split
    if not place.is_dir():
        known = ", ".join(sorted(one.name for one in folder.iterdir() if one.is_dir())) or "none"
        raise DataError(f"{folder}: has no split '{options.split}'; it has {known}")
    return _load_split(options, place, folder)


def _load_split(options: HuggingfaceOptions, place: Path, folder: Path) -> Any:
    """A saved split of a folder; its list of files may not lead out of it, and the hub's cache is made of links."""
    import datasets

    roots = [folder.parents[1]] if folder.parent.name == "snapshots" else []
    for name in _files_of_split(place):
        if not inside(place, name, str(place / "state.json"), roots).is_file():
            raise OutOfReachError(f"{folder} is incomplete: {options.split}/{name} is missing; save it again")
    return _quietly(options, partial(datasets.load_from_disk, str(place)), offline=True)


def _quietly(options: HuggingfaceOptions, fetch: Any, offline: bool) -> Any:
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        return reach(options.where, options.path, offline, fetch)
    finally:
        if shown:
            datasets.enable_progress_bars()
