"""Repositories of the Hub, or folders in their place, and tables of images: parquet, or arrow of ``save_to_disk``."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.console import one_line
from ttmbench._util.file_io import check_no_pointer
from ttmbench._util.images import open_image
from ttmbench._util.third_party import ACCEPT_TERMS, UNKNOWN_TOKEN, patiently, quiet_hub, trouble
from ttmbench.data.availability import DataLocation, DataNeed, amount, local_file
from ttmbench.data.paths import Also, below, data_folder, inside, is_local, local_path, read_options
from ttmbench.data.rows import Cell, Missing, Row, groups_from_rows, listed, with_images
from ttmbench.data.task_file import OneOrMany
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError
from ttmbench.types import Exif, Group, ImageRef, Loaded, Record, SourceRequest

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

_SHARD = re.compile(r"-\d{5}-of-(\d{5})(?=[-.])")
_TABLES = (".arrow", ".parquet")
_UNREACHABLE = "it is not in the cache and the Hub cannot be reached: run once without --offline and HF_HUB_OFFLINE"


class HubOptions(BaseModel):
    """Options of every source of datasets on the Hub."""

    model_config = ConfigDict(extra="forbid")
    path: str  # id of a dataset repository, or a local folder of its files
    revision: str | None = None  # commit
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data
    repo_type: Literal["dataset", "model"] = "dataset"  # what its owners made the repository
    also: Also = {}  # id of the repository -> folders of the data folder that may hold its files

    @property
    def where(self) -> str:
        """Name in messages."""
        pinned = f" at revision {self.revision}" if self.revision and not is_local(self.path) else ""
        return f"{self.repo_type} {self.path}{pinned}"

    @property
    def page(self) -> str:
        """Its page on the Hub."""
        return f"https://huggingface.co/{'datasets/' if self.repo_type == 'dataset' else ''}{self.path}"

    @property
    def patterns(self) -> list[str] | None:
        """The files to fetch; None for all."""
        raise NotImplementedError

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder of the data folder holds the data."""
        raise NotImplementedError

    def copy_in(self, request: SourceRequest) -> Path | None:
        """The user's own folder of the data, if there is one."""
        path, base = local_path(self.path, request.folder or Path()), data_folder(request.data_dir)
        if is_local(path):
            return Path(path)
        folders = (below(base, name, "source.also") for name in self.also.get(path, ()))
        return next((folder for folder in folders if self.is_copy(folder)), None)

    def folder(self, request: SourceRequest) -> tuple[Path, Record]:
        """The folder of the data, which are fetched if needed, and what results say of it; OutOfReachError if none."""
        copy = self.copy_in(request)
        if copy is None:
            folder = Path(self.snapshot(request.offline))
            return folder, {"revision": folder.name, "exif": self.exif}
        if not copy.is_dir():
            why = f"the folder {copy} does not exist (relative paths start from the folder of the task file)"
            raise OutOfReachError(f"source.path: {why}")
        return copy, {"revision": None, "exif": self.exif, "folder": str(copy)}

    def locations(self, request: SourceRequest, name: str, check: Callable[[Path], object]) -> list[DataLocation]:
        """The files of the repository, or the user's own folder; ``check`` raises DataError for a folder of no use."""
        from huggingface_hub import constants

        def lacking(folder: Path) -> str | None:
            try:
                check(folder)
            except TtmbenchError as error:
                return str(error).removeprefix(f"{self.where} is ")
            return None

        copy = self.copy_in(request)
        if copy is not None:
            return [DataLocation(str(copy), [local_file(copy, lambda: lacking(copy))])]

        def missing() -> str | None:
            try:
                folder = Path(self.snapshot(offline=True))
            except OutOfReachError:
                return "it is not in the cache, or not all of it"
            return lacking(folder)

        def size() -> int | None:
            try:
                files = self.snapshot(offline=False, dry_run=True)
                return sum(file.file_size or 0 for file in files if file.will_download)
            except OutOfReachError:  # it is gated, or there is no network
                raise
            except DataError:  # fetching reports what is wrong
                return None

        def fetch() -> str:
            folder = Path(self.snapshot(False))
            if lacking(folder) is not None:  # the cached files are damaged
                folder = Path(self.snapshot(False, force_download=True))
                if (why := lacking(folder)) is not None:
                    raise OutOfReachError(f"{self.where} was downloaded, but cannot be used: {why}")
            sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
            return f"{len(sizes)} files, {amount(sum(sizes))}, in the Hub's cache"

        need = DataNeed(name, self.page, str(constants.HF_HUB_CACHE), missing, fetch, size, in_run=True)
        return [DataLocation(self.where, [need])]

    def snapshot(self, offline: bool, **how: Any) -> Any:
        """What ``snapshot_download`` returns: the repository's folder, named by its commit; OutOfReachError if none."""
        from huggingface_hub import snapshot_download

        how |= {"repo_type": self.repo_type, "revision": self.revision, "allow_patterns": self.patterns}
        try:
            with quiet_hub(offline=offline, fetches=True):
                return patiently(lambda: snapshot_download(self.path, local_files_only=offline, **how))
        except Exception as error:
            kind = trouble(error.__cause__ or error if "dry_run" in how else error)  # which wraps what went wrong
            known = {"gated": ACCEPT_TERMS.format(self.page), "token": UNKNOWN_TOKEN, "unreachable": _UNREACHABLE}
            why = known.get(kind, f"{one_line(str(error), 200)} ({self.page})")
            raised = DataError if kind == "other" else OutOfReachError
            raise raised(f"{self.where} cannot be loaded: {why}") from error


def roots_of(folder: Path) -> list[Path]:
    """Where links in a folder may lead: a snapshot's files are links to blobs in the same repository's folder."""
    return [folder.parents[1]] if folder.parent.name == "snapshots" else []


class HuggingfaceOptions(HubOptions):
    """Options of ``kind: huggingface``."""

    split: str = "test"  # of the dataset
    data_files: OneOrMany = Field(default_factory=list)  # patterns; by default tables that are named after the split
    drop_captions: dict[str, str] = Field(default_factory=dict)  # true caption of a group to leave out -> why
    literals: tuple[str, ...] = ()  # columns whose texts are lists as Python or JSON writes them
    missing: Missing = "refuse"  # groups of which an image is null, or its file is not there

    @property
    def patterns(self) -> list[str]:
        """The files to fetch and to read: those in the task file, else tables that are named after the split."""
        names = ("{}.parquet", "{}-[0-9]*.parquet", "{}/*.parquet", "{}/data*.arrow")
        files = self.data_files or [f"**/{name.format(self.split)}" for name in names]
        # For the Hub, "**/" is at least one folder.
        return [*files, *(pattern.removeprefix("**/") for pattern in files if pattern.startswith("**/"))]

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder holds tables of the split."""
        return bool(self._tables(folder))

    def files(self, folder: Path) -> list[Path]:
        """The files of the split; OutOfReachError if one is missing, DataError if several tables have its name."""
        tables = self._tables(folder)
        shards = Counter((name[: shard.start()], int(shard[1])) for name in tables if (shard := _SHARD.search(name)))
        missing = [f"{total - n} of {total} files {stem}-*" for (stem, total), n in shards.items() if n < total]
        if missing:
            raise OutOfReachError(f"{self.where} is incomplete: {missing[0]} is missing in {folder}")
        if not tables:
            asked = " or ".join(self.data_files) or f"a parquet or arrow table of split '{self.split}'"
            there = ", ".join(sorted(path.relative_to(folder).as_posix() for path in _tables_in(folder))[:4])
            hint = f"; it has {there}: source.split or source.data_files names them" if there else ""
            raise OutOfReachError(f"{self.where} is incomplete: {asked} is missing in {folder}{hint}")
        folders = {path.parent for path in tables.values()}
        if len({stem for stem, _ in shards}) < len(shards) or (not self.data_files and len(folders) > 1):
            raise DataError(
                f"{self.where} has several splits '{self.split}' ({', '.join(tables):.200}); source.data_files chooses"
            )
        return list(tables.values())

    def _tables(self, folder: Path) -> dict[str, Path]:
        """The files of the split that exist, in the order of their names; a link without its file is none."""
        plain = [] if self.data_files or not (folder / "state.json").is_file() else ["data*.arrow"]  # without splits
        files = {path.relative_to(folder).as_posix(): path for path in _tables_in(folder)}
        names = [name for name in files if any(fnmatchcase(name, pattern) for pattern in (*self.patterns, *plain))]
        names.sort(key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
        return {name: files[name] for name in names}


def _tables_in(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix in _TABLES and not path.name.startswith("cache-"))
    return [path for path in found if path.is_file()]


def open_table(options: HuggingfaceOptions, folder: Path) -> Dataset:
    """The wanted split of a dataset in a folder; OutOfReachError if a part is missing, DataError if it is damaged."""
    import datasets

    files = options.files(folder)
    for file in files:
        check_no_pointer(file)
    try:
        with quiet_hub(offline=True, fetches=True):
            if files[0].suffix == ".arrow":  # `load_from_disk` would read any path that a file state.json names
                return datasets.concatenate_datasets([datasets.Dataset.from_file(str(file)) for file in files])
            names = {options.split: [str(file) for file in files]}
            return datasets.load_dataset("parquet", data_files=names, split=options.split)
    except Exception as error:
        raise DataError(f"{options.where} cannot be loaded: {one_line(str(error.__cause__ or error), 200)}") from error


def read_huggingface(request: SourceRequest) -> Loaded:
    """The groups of a dataset, whose cells hold an image or a caption, or a list of them, and which were dropped.

    OutOfReachError if it is neither cached nor downloadable; DataError if it is not what the task file says.
    """
    options, wanted = read_options(HuggingfaceOptions, request), request.columns["images"]
    folder, record = options.folder(request)
    table = open_table(options, folder)
    kinds = {field.name: field.type for field in table.features.arrow_schema}
    named = {wanted} if isinstance(wanted, str) else set(wanted)
    pictures = {name for name, kind in kinds.items() if _holds_images(kind, may_be_bytes=name in named)}
    encoded = {name: table.select_columns([name]).with_format("arrow") for name in pictures}  # undecoded, as stored

    def image(cell: Cell) -> ImageRef:
        if cell.column not in pictures:
            found = f"holds {kinds[cell.column]} and no images" if cell.column in kinds else "does not exist"
            raise DataError(
                f"{options.where}: column '{cell.column}' {found} (columns: {', '.join(kinds)}); images are bytes, or "
                "structs of bytes and path. Rows that name files are read by kind: folder, annotations or hub_files"
            )
        name = f"{cell.group_id}/{cell.column}" + (f"/{cell.item}" if cell.item else "")
        stored = partial(_stored_image, encoded[cell.column], cell, folder)
        if options.missing == "leave_out":
            file = stored()
            if file is None or (isinstance(file, Path) and not file.is_file()):
                absent.add(cell.group_id)

        def encoded_image() -> io.BytesIO | Path:
            if (file := stored()) is None:
                raise DataError(f"{cell.where} holds no image")
            return file

        def read() -> bytes:
            return file.read_bytes() if isinstance(file := encoded_image(), Path) else file.getvalue()

        return ImageRef(name, lambda: open_image(encoded_image()), read=read, exif=options.exif)

    absent: set[str] = set()
    texts = table.remove_columns(sorted(pictures))
    groups: Iterable[Group] = groups_from_rows(_rows(texts, options), replace(request, limit=None), image)
    if options.missing == "leave_out":
        groups, record["coverage"] = with_images(list(groups), absent, options.where)
    reasons, remaining, dropped = {_plain(text): why for text, why in options.drop_captions.items()}, [], []
    for group in groups:
        why = reasons.get(_plain(group.captions[0]))
        if why is None:
            remaining.append(group)
            if len(remaining) == request.limit:
                break
        else:
            dropped.append({"group_id": group.group_id, "caption": group.captions[0], "because": why})
    return Loaded(remaining, record | ({"dropped": dropped} if dropped else {}))


def locate_huggingface(request: SourceRequest) -> list[DataLocation]:
    """A dataset on the Hub, or a local folder of one."""
    options = read_options(HuggingfaceOptions, request)
    return options.locations(
        request, f"{options.where}, {', '.join(options.data_files or [options.split])}", options.files
    )


def _plain(caption: str) -> str:
    """A caption without case, extra spaces and final full stop, in which copies of a dataset differ."""
    return " ".join(caption.split()).rstrip(" .").casefold()


def _rows(table: Dataset, options: HuggingfaceOptions) -> Iterator[Row]:
    """The rows of a table, with lists for texts that are to be lists; DataError where bytes of a text are not UTF-8."""
    index = -1
    try:
        for index, cells in enumerate(table):
            row = Row(str(index), cells, index, options.where)
            yield replace(row, cells={**cells, **{column: listed(row, column) for column in options.literals}})
    except UnicodeDecodeError:
        raise DataError(f"{options.where}: row {index + 1} has a text that is not UTF-8; save it as UTF-8") from None


def _holds_images(kind: pyarrow.DataType, may_be_bytes: bool) -> bool:
    """Whether cells are structs of ``bytes`` and ``path``, as ``datasets`` stores images, bytes, or lists of them."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        return {"bytes"} <= {field.name for field in kind} <= {"bytes", "path"}
    return may_be_bytes and (types.is_binary(kind) or types.is_large_binary(kind))


def _stored_image(column: Dataset, named: Cell, folder: Path) -> io.BytesIO | Path | None:
    """An encoded image of a column: its bytes, else its path, which must stay in the folder; None for a null cell."""
    (cell,) = column[named.row.index][named.column].to_pylist()
    items = cell if isinstance(cell, list) else [cell]
    item = items[named.item or 0] if (named.item or 0) < len(items) else None
    content, path = (item.get("bytes"), item.get("path")) if isinstance(item, dict) else (item, None)
    if content:
        return io.BytesIO(content)
    return inside(folder, str(path), named.where, roots_of(folder)) if path else None
