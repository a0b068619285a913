"""Readers of raw data into groups, one function per ``kind`` of source. Images open lazily; captions are read here."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ttmbench.errors import DataError, UsageError
from ttmbench.jsonl import read_json_lines
from ttmbench.ttmconfig import describe
from ttmbench.types import Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image


class RenderedOptions(BaseModel):
    """Options of ``kind: rendered``: what is drawn, from which seed, in which style."""

    model_config = ConfigDict(extra="forbid")
    scene: str
    seed: int = 0
    style: str = "hue"


class FolderOptions(BaseModel):
    """Options of ``kind: folder``: a JSONL or CSV file of groups and the folder its image paths start from."""

    model_config = ConfigDict(extra="forbid")
    path: str
    images: str = "."


class HuggingfaceOptions(BaseModel):
    """Options of ``kind: huggingface``: a dataset's id or a local folder of its files, pinned to a revision."""

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    split: str = "test"
    name: str | None = None
    data_files: str | list[str] | None = None


def read_rendered(request: SourceRequest) -> Iterable[Group]:
    """Scenes drawn from a seed (`ttmbench.scenes`): the same pictures on every machine."""
    from ttmbench import scenes

    options = _options(RenderedOptions, request)
    _known("scene", options.scene, scenes.KINDS)
    _known("style", options.style, scenes.STYLES)
    if request.n_groups is None:
        raise UsageError("a rendered task needs 'group.n_groups'")
    wanted = request.n_groups if request.limit is None else min(request.limit, request.n_groups)
    for group in scenes.make_groups(options.scene, wanted, options.seed, options.style):
        yield Group(
            group_id=group.group_id,
            images=tuple(
                ImageRef(f"{group.group_id}/{index}", partial(scenes.render, scene))
                for index, scene in enumerate(group.scenes)
            ),
            captions=group.captions,
            tags=group.tags,
        )


def read_folder(request: SourceRequest) -> Iterable[Group]:
    """A user's own task: a JSONL or CSV file of groups beside an image folder.

    The task file's ``group:`` names the columns. Image paths are relative to the ``images`` folder and stay inside it.
    """
    options = _options(FolderOptions, request)
    base = request.folder or Path()
    file = _inside(base, options.path, "source.path")
    images = _inside(base, options.images, "source.images")
    rows = _read_rows(file)

    def image(row: Mapping[str, Any], index: int, column: str, group_id: str) -> ImageRef:
        name = _cell(row, column, str(file), index)
        if not isinstance(name, str) or not name:
            raise DataError(f"{file}: '{column}' of group {group_id} should name an image file, got {name!r}")
        return ImageRef(name, partial(_open_file, _inside(images, name, f"{file}: '{column}' of group {group_id}")))

    yield from _groups_from_rows(rows, request, str(file), image)


def read_huggingface(request: SourceRequest) -> Iterable[Group]:
    """A dataset of the Hugging Face hub with image and caption columns, through the ``datasets`` library."""
    options = _options(HuggingfaceOptions, request)
    import datasets

    where = f"dataset {options.path}" + (f" at revision {options.revision}" if options.revision else "")
    try:
        with _hub(request.offline):
            table = datasets.load_dataset(
                options.path,
                options.name,
                split=options.split,
                revision=options.revision,
                data_files=options.data_files,
            )
    except Exception as error:
        raise DataError(_hub_message(where, options.path, error)) from error
    pictures = {name for name, feature in table.features.items() if isinstance(feature, datasets.Image)}
    for column in pictures:
        table = table.cast_column(column, datasets.Image(decode=False))

    def image(row: Mapping[str, Any], index: int, column: str, group_id: str) -> ImageRef:
        if column not in pictures:
            raise DataError(f"{where}: '{column}' is no image column; it has {', '.join(sorted(pictures)) or 'none'}")
        return ImageRef(f"{group_id}/{column}", partial(_open_cell, table, index, column))

    yield from _groups_from_rows(table.remove_columns(sorted(pictures)), request, where, image)


def _groups_from_rows(
    rows: Iterable[Mapping[str, Any]],
    request: SourceRequest,
    where: str,
    image: Callable[[Mapping[str, Any], int, str, str], ImageRef],
) -> Iterator[Group]:
    """Rows with named columns -> groups, checking every cell that is used."""
    columns = request.columns
    image_columns, caption_columns = columns["images"], columns["captions"]
    if (len(image_columns), len(caption_columns)) != (request.shape.images, request.shape.captions):
        raise UsageError(
            f"group.images and group.captions name {len(image_columns)} and {len(caption_columns)} columns, "
            f"but group.shape is {request.shape}"
        )
    for index, row in enumerate(rows):
        if request.limit is not None and index >= request.limit:
            return
        group_id = str(_cell(row, columns["id"], where, index)) if columns.get("id") else str(index)
        captions = []
        for column in caption_columns:
            caption = _cell(row, column, where, index)
            if not isinstance(caption, str) or not caption.strip():
                raise DataError(f"{where}: caption '{column}' of group {group_id} is empty or no text")
            captions.append(caption)
        images = tuple(image(row, index, column, group_id) for column in image_columns)
        tags = {column: str(_cell(row, column, where, index)) for column in columns.get("tags", ())}
        yield Group(group_id, images, tuple(captions), tags)


def _cell(row: Mapping[str, Any], column: str, where: str, index: int) -> Any:
    if column not in row:
        raise DataError(f"{where}: row {index} has no column '{column}'; it has {', '.join(map(str, row))}")
    return row[column]


def _read_rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix != ".csv":
        yield from (row for _, row in read_json_lines(file))
        return
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise DataError(f"{file}: is not UTF-8 text") from None
    yield from csv.DictReader(io.StringIO(text))


def _inside(base: Path, relative: str, what: str) -> Path:
    """A path below ``base``, links followed; anything else is refused."""
    path = (base / relative).resolve()
    if not path.is_relative_to(base.resolve()):
        raise DataError(f"{what}: '{relative}' leaves the folder {base}")
    return path


def _open_file(file: Path | io.BytesIO) -> Image:
    from PIL import Image

    with Image.open(file) as picture:
        picture.load()
        return picture


def _open_cell(table: Any, index: int, column: str) -> Image:
    cell = table[index][column]
    if not cell or not (cell.get("bytes") or cell.get("path")):
        raise DataError(f"row {index} has no image in column '{column}'")
    return _open_file(io.BytesIO(cell["bytes"]) if cell.get("bytes") else Path(cell["path"]))


def _options(model: type[Any], request: SourceRequest) -> Any:
    try:
        return model(**request.options)
    except ValidationError as error:
        raise UsageError(f"source: {describe(error, model)}") from None


def _known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UsageError(f"source.{what} '{value}' is unknown; known: {', '.join(known)}")


@contextmanager
def _hub(offline: bool) -> Iterator[None]:
    """The hub's libraries without their talk of retries; with ``offline`` they do not try the network at all."""
    import datasets
    from huggingface_hub import constants

    logger = getLogger("huggingface_hub")
    before = logger.level, constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    logger.setLevel("ERROR")
    if offline:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        logger.setLevel(before[0])
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before[1:]


def _hub_message(where: str, path: str, error: Exception) -> str:
    kind, text = type(error).__name__, " ".join(str(error).split())[:200]
    if "Gated" in kind or "gated" in text:
        return (
            f"{where} is gated: accept its terms at https://huggingface.co/datasets/{path} and set HF_TOKEN "
            "to a token of that account"
        )
    if any(sign in f"{kind} {text}".lower() for sign in ("connection", "offline", "reach")):
        text = "it is not in the cache and the hub cannot be reached"
    return f"{where} cannot be loaded: {text}"
