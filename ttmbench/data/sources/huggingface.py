"""Datasets on the Hugging Face Hub: tables with image columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation
from ttmbench.data.cells import Row
from ttmbench.data.hub_datasets import locate_repository, read_hub_options
from ttmbench.data.hub_tables import HubTables, HuggingfaceOptions, incomplete, open_table
from ttmbench.data.paths import data_folder
from ttmbench.data.row_files import listed
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.errors import DataError
from ttmbench.types import Group, ImageRef, Loaded, SourceRequest

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from PIL.Image import Image


def read_huggingface(request: SourceRequest) -> Loaded:
    """The groups of a dataset with image and caption columns, read by ``datasets``, and which were dropped.

    A cell holds an image or a caption, or a list of them. OutOfReachError if the dataset is neither cached nor
    downloadable; DataError if it is not what the task file says.
    """
    options = read_hub_options(HuggingfaceOptions, request)
    import datasets

    where = options.where
    opened = open_table(options, data_folder(request.data_dir), request.offline)
    table, raw = opened.rows, datasets.Image(decode=False)
    listed = _image_columns(table.features, request.columns["images"])
    for column, is_list in listed.items():
        table = table.cast_column(column, type(table.features[column])(raw) if is_list else raw)
    copy = opened.folder if opened.revision is None else None
    roots = _cache_folders() if copy is None else [copy]

    def image(cell: ImageCell) -> ImageRef:
        if cell.column not in listed:
            raise _no_images(where, cell.column, opened.rows.features, listed)
        item = cell.item or 0 if listed[cell.column] else None
        name = f"{cell.group_id}/{cell.column}" + (f"/{item}" if item else "")
        raw = partial(_raw, table, cell, item, roots)
        return ImageRef(name, lambda: _open(raw()), read=lambda: _bytes(raw()), exif=options.exif)

    texts = table.remove_columns(list(listed))
    groups = groups_from_rows(_rows(texts, where, options.literals), replace(request, limit=None), image)
    dropped: list[dict[str, str]] = []
    remaining = list(islice(_without(groups, options.drop_captions, dropped), request.limit))
    record: dict[str, object] = {"revision": opened.revision, "exif": options.exif}
    if copy is not None:
        record["folder"] = str(copy)
    return Loaded(remaining, record | ({"dropped": dropped} if dropped else {}))


def locate_huggingface(request: SourceRequest) -> list[DataLocation]:
    """A dataset on the Hub, or a local folder of one."""
    options = read_hub_options(HuggingfaceOptions, request)

    def lacking(folder: Path) -> str | None:
        absent = incomplete(options, folder)
        return f"incomplete: {absent[0]} is missing in {folder}" if absent else None

    return locate_repository(HubTables(options, lacking=lacking), request)


def _without(groups: Iterator[Group], drop: Mapping[str, str], dropped: list[dict[str, str]]) -> Iterator[Group]:
    """Groups whose correct caption is not in ``drop``; the others are recorded in ``dropped``."""
    reasons = {_plain(caption): why for caption, why in drop.items()}
    for group in groups:
        why = reasons.get(_plain(group.captions[0]))
        if why is None:
            yield group
        else:
            dropped.append({"group_id": group.group_id, "caption": group.captions[0], "because": why})


def _plain(caption: str) -> str:
    """A caption without case, extra spaces and final full stop, in which copies of a dataset differ."""
    return " ".join(caption.split()).rstrip(" .").casefold()


def _rows(table: Dataset, where: str, literals: Sequence[str]) -> Iterator[Row]:
    """The rows of a table, with lists for the texts in ``literals``; DataError where bytes of a text are not UTF-8."""
    index = -1
    try:
        for index, cells in enumerate(table):
            row = Row(str(index), cells, index, where)
            yield replace(row, cells={**cells, **{column: listed(row, column) for column in literals}})
    except UnicodeDecodeError:
        column = "?"
        with suppress(UnicodeDecodeError):
            for column in table.column_names:
                table.select_columns([column])[index + 1]
        raise DataError(f"{where}: '{column}' of row {index + 1} is not UTF-8 text; save it as UTF-8") from None


def _image_columns(features: Features, wanted: str | Sequence[str]) -> dict[str, bool]:
    """Columns that hold images -> whether in lists.

    ``datasets`` marks image columns in a file's metadata. Without that, the task's image columns may hold bytes.
    """
    import datasets

    named = {wanted} if isinstance(wanted, str) else set(wanted)
    columns = {}
    for column, feature in features.items():
        inner = getattr(feature, "feature", None)
        for candidate in (feature, inner):
            if isinstance(candidate, datasets.Image) or (column in named and _holds_bytes(candidate)):
                columns[column] = candidate is inner
    return columns


def _holds_bytes(feature: object) -> bool:
    """Whether cells are bytes, or structs of ``bytes`` and optionally ``path``."""
    kind = feature.get("bytes") if isinstance(feature, dict) and set(feature) <= {"bytes", "path"} else feature
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _no_images(where: str, column: str, features: Features, listed: Mapping[str, bool]) -> DataError:
    if column not in features:
        return DataError(f"{where}: there is no column '{column}'; it has {', '.join(features)}")
    known = f"those that do: {', '.join(sorted(listed))}" if listed else "no column does"
    return DataError(
        f"{where}: '{column}' holds {features.arrow_schema.field(column).type} and no images; an image column holds "
        f"encoded images as bytes, or structs of bytes and path ({known}). A file of rows that names image files is "
        "read by kind: folder, annotations or hub_files"
    )


def _raw(table: Dataset, named: ImageCell, item: int | None, roots: list[Path]) -> bytes | Path:
    """An encoded image of a table: its bytes, else its path, which must lead into the dataset's own folders."""
    cell = table[named.row.index][named.column]
    if item is not None:
        cell = cell[item]
    if cell and cell.get("bytes"):
        content: bytes = cell["bytes"]
        return content
    if not cell or not cell.get("path"):
        raise DataError(f"{named.where} holds no image")
    path = Path(cell["path"]).resolve()
    if not any(path.is_relative_to(root.resolve()) for root in roots):
        raise DataError(f"{named.where} names {cell['path']}, outside the dataset's own folders")
    return path


def _open(raw: bytes | Path) -> Image:
    return open_image(io.BytesIO(raw) if isinstance(raw, bytes) else raw)


def _bytes(raw: bytes | Path) -> bytes:
    return raw if isinstance(raw, bytes) else raw.read_bytes()


def _cache_folders() -> list[Path]:
    import datasets
    from huggingface_hub import constants

    folders = (datasets.config.HF_DATASETS_CACHE, datasets.config.DOWNLOADED_DATASETS_PATH, constants.HF_HUB_CACHE)
    return [Path(folder) for folder in folders]
