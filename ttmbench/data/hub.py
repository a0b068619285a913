"""Datasets of the Hugging Face hub: tables with image columns, and repositories of loose files."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ttmbench.data.files import FileOptions, read_files
from ttmbench.data.hub_cache import reach, snapshot, where_it_is
from ttmbench.data.loading import Loaded, OutOfReachError, read_options
from ttmbench.data.rows import ImageCell, Row, groups_from_rows
from ttmbench.errors import DataError
from ttmbench.pictures import open_picture
from ttmbench.types import Exif, Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image

_CARD = "README.md"  # names splits, features and files of a dataset


class HuggingfaceOptions(BaseModel):
    """Options of ``kind: huggingface``.

    Attributes:
        path: id of a dataset, or a local folder of its files.
        revision: commit.
        split: of the dataset.
        name: configuration of the dataset.
        data_files: as in ``datasets.load_dataset``; a mapping of the split to its files fetches no other split.
        drop_captions: true caption of a group to leave out -> why.
        exif: whether images are turned upright by their EXIF data, as the library ``datasets`` does.
    """

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    split: str = "test"
    name: str | None = None
    data_files: str | list[str] | dict[str, str | list[str]] | None = None
    drop_captions: dict[str, str] = {}
    exif: Exif = "apply"


class HubFilesOptions(FileOptions):
    """Options of ``kind: hub_files``: a repository, the files to fetch of it, and how they are read."""

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    allow: tuple[str, ...] = ()


def read_huggingface(request: SourceRequest) -> Loaded:
    """A dataset with image and caption columns, through the ``datasets`` library.

    Args:
        request: an image column holds an image or a list of them, a caption column a text or a list of them.

    Returns:
        The groups, and which were left out.

    Raises:
        OutOfReachError: the dataset is neither in the cache nor to be fetched.
        DataError: it is not what the task file says.
    """
    options = read_options(HuggingfaceOptions, request)
    import datasets

    where = where_it_is(options.path, options.revision)
    table = load_table(options, request.offline)
    pictures = [name for name, feature in table.features.items() if _holds_images(feature)]
    for column in pictures:
        feature = table.features[column]
        raw = datasets.Image(decode=False)
        table = table.cast_column(column, raw if isinstance(feature, datasets.Image) else type(feature)(raw))
    roots = [Path(options.path)] if Path(options.path).is_dir() else _cache_folders()

    def image(one: ImageCell) -> ImageRef:
        if one.column not in pictures:
            known = ", ".join(sorted(pictures)) or "none"
            raise DataError(f"{where}: '{one.column}' is no image column; it has {known}")
        item = None if isinstance(table.features[one.column], datasets.Image) else one.item or 0
        name = f"{one.group_id}/{one.column}" + (f"/{item}" if item else "")
        place = f"{where}: '{one.column}' of group {one.group_id}"
        raw = partial(_raw, table, one.row.index, one.column, item, roots, place)
        return ImageRef(name, lambda: _open(raw()), read=lambda: _bytes(raw()), exif=options.exif)

    texts = table.remove_columns(pictures)
    rows = (Row(str(index), cells, index) for index, cells in enumerate(texts))
    groups = groups_from_rows(rows, replace(request, limit=None), where, image)
    dropped: list[dict[str, str]] = []
    kept = list(islice(_kept(groups, options.drop_captions, dropped), request.limit))
    return Loaded(kept, {"exif": options.exif, **({"dropped": dropped} if dropped else {})})


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
    options = read_options(HubFilesOptions, request)
    where = where_it_is(options.path, options.revision)
    if Path(options.path).is_dir():
        return read_files(Path(options.path), options, request)
    folder = snapshot(options.path, options.revision, list(options.allow) or None, request.offline)
    # In the hub's cache a snapshot's files are links to blobs beside the snapshots, in the same repository's folder.
    root = folder.parents[1] if folder.parent.name == "snapshots" else None
    try:
        return read_files(folder, options, request, root, hint="; `ttmbench download` fetches it again")
    except DataError as error:
        raise type(error)(f"{where}: {error}") from None


def load_table(options: HuggingfaceOptions, offline: bool) -> Any:
    """The split of a dataset, as the library ``datasets`` gives it.

    The files of a repository are fetched into the hub's cache at their revision and read from there. The library's own
    cache, which knows neither revisions nor chosen files once the network is gone, is asked only if they are not there.

    Args:
        options: which.
        offline: never touch the network.

    Returns:
        The table.

    Raises:
        OutOfReachError: the dataset is neither in a cache nor to be fetched.
        DataError: it cannot be read.
    """
    import datasets

    def load(path: str, **more: Any) -> Any:
        # The card counts all splits; with a choice of files, these counts would be an error.
        checks = "no_checks" if options.data_files else None
        names: dict[str, Any] = {"split": options.split, "data_files": options.data_files, "verification_mode": checks}
        fetch = partial(datasets.load_dataset, path, options.name, **names, **more)
        shown = not datasets.are_progress_bars_disabled()
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            return reach(where_it_is(options.path, options.revision), options.path, offline, fetch)
        finally:
            if shown:
                datasets.enable_progress_bars()

    if Path(options.path).is_dir():
        return load(options.path)
    try:
        folder = snapshot(options.path, options.revision, tables_of(options), offline)
    except OutOfReachError:
        if not offline:
            raise
    else:
        if any(folder.rglob("*.parquet")):
            return load(str(folder))
    return load(options.path, revision=options.revision)


def tables_of(options: HuggingfaceOptions) -> list[str]:
    """Patterns of the files that hold a dataset's tables."""
    chosen = options.data_files
    if chosen is None:
        return [_CARD, "*.parquet"]
    parts = chosen.values() if isinstance(chosen, dict) else [chosen]
    patterns = [pattern for part in parts for pattern in ([part] if isinstance(part, str) else part)]
    # For the hub, unlike for the library, "**/" stands for one folder at least.
    return [_CARD, *patterns, *(one.removeprefix("**/") for one in patterns if one.startswith("**/"))]


def _kept(groups: Iterator[Group], drop: dict[str, str], dropped: list[dict[str, str]]) -> Iterator[Group]:
    """Groups whose true caption is not to be dropped; those that are are written down."""
    reasons = {_plain(caption): why for caption, why in drop.items()}
    for group in groups:
        why = reasons.get(_plain(group.captions[0]))
        if why is None:
            yield group
        else:
            dropped.append({"group_id": group.group_id, "caption": group.captions[0], "because": why})


def _plain(caption: str) -> str:
    """A caption without what copies of a dataset differ in: case, spaces, a full stop at the end."""
    return " ".join(caption.split()).rstrip(" .").casefold()


def _holds_images(feature: Any) -> bool:
    import datasets

    return isinstance(feature, datasets.Image) or isinstance(getattr(feature, "feature", None), datasets.Image)


def _raw(table: Any, index: int, column: str, item: int | None, roots: list[Path], place: str) -> bytes | Path:
    """An undecoded picture of a table. Bytes come first; a path must lead into the dataset's own folders."""
    cell = table[index][column]
    if item is not None:
        cell = cell[item]
    if cell and cell.get("bytes"):
        content: bytes = cell["bytes"]
        return content
    if not cell or not cell.get("path"):
        raise DataError(f"{place} holds no image")
    path = Path(cell["path"]).resolve()
    if not any(path.is_relative_to(root.resolve()) for root in roots):
        raise DataError(f"{place} names {cell['path']}, outside the dataset's own folders")
    return path


def _open(raw: bytes | Path) -> Image:
    return open_picture(io.BytesIO(raw) if isinstance(raw, bytes) else raw)


def _bytes(raw: bytes | Path) -> bytes:
    return raw if isinstance(raw, bytes) else raw.read_bytes()


def _cache_folders() -> list[Path]:
    import datasets
    from huggingface_hub import constants

    return [
        Path(datasets.config.HF_DATASETS_CACHE),
        Path(datasets.config.DOWNLOADED_DATASETS_PATH),
        Path(constants.HF_HUB_CACHE),
    ]
