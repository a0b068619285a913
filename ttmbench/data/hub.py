"""Datasets of the Hugging Face hub: tables with image columns, and repositories of loose files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from ttmbench.data.files import FileOptions, read_files
from ttmbench.data.hub_cache import commit_of, snapshot, where_it_is
from ttmbench.data.hub_tables import HuggingfaceOptions, open_table
from ttmbench.data.layouts import Also
from ttmbench.data.loading import Loaded, below, data_folder, read_options
from ttmbench.data.rows import ImageCell, Row, groups_from_rows
from ttmbench.errors import DataError
from ttmbench.pictures import open_picture
from ttmbench.types import Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image


class HubFilesOptions(FileOptions):
    """Options of ``kind: hub_files``: how files are read, and of which repository.

    Attributes:
        path: id of a dataset repository, or a local folder of its files.
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
        return where_it_is(self.path, None if Path(self.path).is_dir() else self.revision)

    def local_copy(self, data_dir: Path) -> Path | None:
        """The folder of the user's own that has the files, if there is one."""
        if Path(self.path).is_dir():
            return Path(self.path)
        for name in self.also.get(self.path, ()):
            folder = below(data_dir, name, "source.also")
            if (folder / self.file).is_file():
                return folder
        return None


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

    where = options.where
    opened = open_table(options, request.data_dir or data_folder(), request.offline)
    table = opened.rows
    pictures = [name for name, feature in table.features.items() if _holds_images(feature)]
    for column in pictures:
        feature = table.features[column]
        raw = datasets.Image(decode=False)
        table = table.cast_column(column, raw if isinstance(feature, datasets.Image) else type(feature)(raw))
    own = opened.folder is not None and opened.revision is None
    roots = [opened.folder] if own and opened.folder is not None else _cache_folders()

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
    record: dict[str, Any] = {"revision": opened.revision, "exif": options.exif}
    if own and not Path(options.path).is_dir():
        record["folder"] = str(opened.folder)
    return Loaded(kept, record | ({"dropped": dropped} if dropped else {}))


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
    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        loaded = read_files(own, options, request)
        said = {} if Path(options.path).is_dir() else {"folder": str(own)}
        return Loaded(loaded.groups, {"revision": None, **said, **loaded.source})
    folder = snapshot(options.path, options.revision, list(options.allow) or None, request.offline)
    # In the hub's cache a snapshot's files are links to blobs beside the snapshots, in the same repository's folder.
    roots = [folder.parents[1]] if folder.parent.name == "snapshots" else []
    try:
        loaded = read_files(folder, options, request, roots, hint=lambda name: "; `ttmbench download` fetches it again")
    except DataError as error:
        raise type(error)(f"{options.where}: {error}") from None
    return Loaded(loaded.groups, {"revision": commit_of(folder), **loaded.source})


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
