"""Datasets of the Hugging Face hub: tables with image columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation, LocalFile
from ttmbench.data.cells import Row
from ttmbench.data.download.hub import HubDataset
from ttmbench.data.hub_access import HuggingfaceOptions
from ttmbench.data.hub_tables import incomplete, open_table, saved_copy
from ttmbench.data.loading import data_folder, is_local, read_hub_options
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.data.shards import missing_shards
from ttmbench.errors import DataError
from ttmbench.types import Group, ImageRef, Loaded, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class LocalTable(LocalFile):
    """A local folder of a dataset."""

    options: HuggingfaceOptions

    def missing(self) -> str | None:
        """Whether it can be opened: no shard of the split is missing."""
        if self.options.saved:
            absent = incomplete(self.options, self.path)
        elif (self.path / "dataset_dict.json").is_file():
            absent = [] if (self.path / self.options.split).is_dir() else [self.options.split]
        else:
            names = [file.relative_to(self.path).as_posix() for file in self.path.rglob("*.parquet") if file.is_file()]
            absent = missing_shards(names, self.options.split)
        return f"incomplete: {absent[0]} is missing in {self.path}" if absent else None


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
    options = read_hub_options(HuggingfaceOptions, request)
    import datasets

    where = options.where
    opened = open_table(options, request.data_dir or data_folder(), request.offline)
    table, raw = opened.rows, datasets.Image(decode=False)
    listed = _image_columns(table.features, request.columns["images"])
    for column, is_list in listed.items():
        table = table.cast_column(column, type(table.features[column])(raw) if is_list else raw)
    own = opened.folder is not None and opened.revision is None
    roots = [opened.folder] if own and opened.folder is not None else _cache_folders()

    def image(one: ImageCell) -> ImageRef:
        if one.column not in listed:
            raise _no_images(where, one.column, opened.rows.features, listed)
        item = one.item or 0 if listed[one.column] else None
        name = f"{one.group_id}/{one.column}" + (f"/{item}" if item else "")
        place = f"{where}: '{one.column}' of group {one.group_id}"
        raw = partial(_raw, table, one.row.index, one.column, item, roots, place)
        return ImageRef(name, lambda: _open(raw()), read=lambda: _bytes(raw()), exif=options.exif)

    texts = table.remove_columns(list(listed))
    groups = groups_from_rows(_rows(texts, where), replace(request, limit=None), where, image)
    dropped: list[dict[str, str]] = []
    kept = list(islice(_kept(groups, options.drop_captions, dropped), request.limit))
    record: dict[str, Any] = {"revision": opened.revision, "exif": options.exif}
    if own:
        record["folder"] = str(opened.folder)
    return Loaded(kept, record | ({"dropped": dropped} if dropped else {}))


def locations(request: SourceRequest) -> list[DataLocation]:
    """A dataset of the hub, or a local folder of one."""
    options = read_hub_options(HuggingfaceOptions, request)
    own = Path(options.path) if is_local(options.path) else saved_copy(options, request.data_dir or data_folder())
    if own is not None:
        return [DataLocation(str(own), [LocalTable(own, options)])]
    return [DataLocation(options.where, [HubDataset(options)])]


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


def _rows(table: Any, where: str) -> Iterator[Row]:
    """The rows of a table; DataError where the bytes of a text are not UTF-8."""
    index = -1
    try:
        for index, cells in enumerate(table):
            yield Row(str(index), cells, index)
    except UnicodeDecodeError:
        index += 1
        column = next((one for one in table.column_names if not _is_text(table, one, index)), "?")
        raise DataError(f"{where}: '{column}' of row {index} is not UTF-8 text; save it as UTF-8") from None


def _is_text(table: Any, column: str, index: int) -> bool:
    try:
        table.select_columns([column])[index]
    except UnicodeDecodeError:
        return False
    return True


def _image_columns(features: Any, wanted: str | Sequence[str]) -> dict[str, bool]:
    """Columns that hold images -> whether in lists.

    The library ``datasets`` says in a file's metadata which columns are images. Other libraries do not; of their
    columns those that the task takes its images from, and that hold bytes, are read as images too.
    """
    import datasets

    named = {wanted} if isinstance(wanted, str) else set(wanted)
    found = {}
    for column, feature in features.items():
        inner = getattr(feature, "feature", None)
        for one in (feature, inner):
            if isinstance(one, datasets.Image) or (column in named and _holds_bytes(one)):
                found[column] = one is inner
    return found


def _holds_bytes(feature: Any) -> bool:
    """Whether cells are bytes, or structs with ``bytes`` and maybe ``path``, as images are stored."""
    kind = feature.get("bytes") if isinstance(feature, dict) and set(feature) <= {"bytes", "path"} else feature
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _no_images(where: str, column: str, features: Any, listed: Mapping[str, bool]) -> DataError:
    if column not in features:
        return DataError(f"{where}: there is no column '{column}'; it has {', '.join(features)}")
    known = f"those that do: {', '.join(sorted(listed))}" if listed else "no column does"
    return DataError(
        f"{where}: '{column}' holds {features.arrow_schema.field(column).type} and no images; an image column holds "
        f"encoded images as bytes, or structs of bytes and path ({known}). A file of rows that names image files is "
        "read by kind: folder, annotations or hub_files"
    )


def _raw(table: Any, index: int, column: str, item: int | None, roots: list[Path], place: str) -> bytes | Path:
    """An undecoded image of a table. Bytes come first; a path must lead into the dataset's own folders."""
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
    return open_image(io.BytesIO(raw) if isinstance(raw, bytes) else raw)


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
