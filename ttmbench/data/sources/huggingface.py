"""Repositories of the Hugging Face Hub, or folders in their place, and their tables of images.

Tables are parquet files, or what ``save_to_disk`` writes.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.console import one_line
from ttmbench._util.file_io import check_no_pointer
from ttmbench._util.hub import UNKNOWN_TOKEN, accept_terms, patiently, quiet_hub, trouble
from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation, DataNeed, amount, local_file
from ttmbench.data.paths import Also, below, data_folder, inside, is_local, local_path, read_options
from ttmbench.data.rows import Cell, Row, groups_from_rows, listed
from ttmbench.data.task_file import OneOrMany
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError
from ttmbench.types import Exif, ImageRef, Loaded, Record, SourceRequest

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from PIL.Image import Image

_SHARD = re.compile(r"-\d{5}-of-(\d{5})")


class HubOptions(BaseModel):
    """Options of every source of datasets on the Hub."""

    model_config = ConfigDict(extra="forbid")
    path: str  # id of a dataset repository, or the absolute path of a local folder of its files
    revision: str | None = None  # commit
    exif: Exif = "apply"  # whether images are turned upright by their EXIF data
    repo_type: Literal["dataset", "model"] = "dataset"  # what its owners made the repository
    also: Also = {}  # id of the repository -> folders of the data folder that may hold its files

    @property
    def where(self) -> str:
        """Name in messages."""
        revision = None if is_local(self.path) else self.revision
        return f"{self.repo_type} {self.path}" + (f" at revision {revision}" if revision else "")

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

    def copy_in(self, data_dir: Path | None) -> Path | None:
        """The user's own folder of the data, if there is one."""
        if is_local(self.path):
            return Path(self.path)
        folders = (below(data_folder(data_dir), name, "source.also") for name in self.also.get(self.path, ()))
        return next((folder for folder in folders if self.is_copy(folder)), None)

    def folder(self, request: SourceRequest) -> tuple[Path, Record]:
        """The folder of the data, which are fetched if needed, and what results say of it.

        OutOfReachError if they are neither here nor downloadable.
        """
        if is_local(self.path) and not Path(self.path).is_dir():
            why = f"the folder {self.path} does not exist (relative paths start from the folder of the task file)"
            raise OutOfReachError(f"source.path: {why}")
        copy = self.copy_in(request.data_dir)
        if copy is not None:
            return copy, {"revision": None, "exif": self.exif, "folder": str(copy)}
        folder = Path(self.snapshot(request.offline))
        return folder, {"revision": commit_of(folder), "exif": self.exif}

    def locations(self, request: SourceRequest, lacking: Callable[[Path], str | None]) -> list[DataLocation]:
        """The files of the repository, or the user's own folder; ``lacking``: folder -> why it cannot be used."""
        from huggingface_hub import constants

        copy = self.copy_in(request.data_dir)
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
            except DataError:  # fetching the dataset reports what is wrong
                return None
            return sum(file.file_size or 0 for file in files if file.will_download)

        def fetch() -> str:
            folder = Path(self.snapshot(offline=False))
            if lacking(folder) is not None:  # the cached files are damaged
                folder = Path(self.snapshot(offline=False, force_download=True))
            sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
            return f"{len(sizes)} files, {amount(sum(sizes))}, in the hub's cache"

        split = getattr(self, "split", "")
        name = self.where + (f", {split}" if split else "")
        need = DataNeed(name, self.page, str(constants.HF_HUB_CACHE), missing, fetch, size)
        return [DataLocation(self.where, [need])]

    def snapshot(self, offline: bool, **how: Any) -> Any:
        """The repository's folder in the Hub's cache, fetched if needed; OutOfReachError if that fails.

        ``how`` is for ``snapshot_download``, whose errors have one line here.
        """
        from huggingface_hub import constants, snapshot_download

        how |= {"repo_type": self.repo_type, "revision": self.revision, "allow_patterns": self.patterns}

        def fetch() -> object:
            return snapshot_download(self.path, local_files_only=offline, **how)

        try:
            with quiet_hub(offline=offline, fetches=True):
                return fetch() if offline else patiently(fetch)
        except Exception as error:
            why, kind = one_line(str(error), 200), trouble(error)
            if kind == "gated":
                raise OutOfReachError(accept_terms(self.where, self.page)) from error
            if kind == "token":
                why = UNKNOWN_TOKEN
            elif kind == "unreachable":
                unset = "" if offline or not constants.HF_HUB_OFFLINE else ", with HF_HUB_OFFLINE unset"
                why = "it is not in the cache and the Hub cannot be reached; run once with a network and without "
                why += f"--offline{unset}"
            elif kind != "other":
                why += f" ({self.page})"
            lost = DataError if kind == "other" else OutOfReachError
            raise lost(f"{self.where} cannot be loaded: {why}") from error


Wanted = TypeVar("Wanted", bound=HubOptions)


def read_hub_options(model: type[Wanted], request: SourceRequest) -> Wanted:
    """The options of a source, as `read_options`; a ``path`` that is a folder is made absolute."""
    options = read_options(model, request)
    return options.model_copy(update={"path": local_path(options.path, request.folder or Path())})


def commit_of(folder: Path) -> str | None:
    """The commit of a folder of the Hub's cache; None for any other folder.

    >>> commit_of(Path("hub/datasets--a--b/snapshots/" + "0" * 40)) == "0" * 40, commit_of(Path("/mine/snapshot"))
    (True, None)
    """
    is_commit = re.fullmatch(r"[0-9a-f]{40}", folder.name) is not None
    return folder.name if folder.parent.name == "snapshots" and is_commit else None


def roots_of(folder: Path) -> list[Path]:
    """Where links in a folder may lead: a snapshot's files are links to blobs in the same repository's folder."""
    return [folder.parents[1]] if folder.parent.name == "snapshots" else []


class HuggingfaceOptions(HubOptions):
    """Options of ``kind: huggingface``."""

    split: str = "test"  # of the dataset
    data_files: OneOrMany = Field(default_factory=list)  # patterns; by default parquet files named after the split
    drop_captions: dict[str, str] = Field(default_factory=dict)  # true caption of a group to leave out -> why
    saved: bool = False  # its files are what ``save_to_disk`` writes, as in folders under ``also``, not parquet
    literals: tuple[str, ...] = ()  # columns whose texts are lists as Python or JSON writes them

    @property
    def patterns(self) -> list[str]:
        """The files to fetch: those in the task file, else parquet files that are named after the split."""
        if self.saved:
            return ["*.arrow", "*.json"]
        names = (f"{self.split}.parquet", f"{self.split}-[0-9]*.parquet", f"{self.split}/*.parquet")
        files = self.data_files or [f"**/{name}" for name in names]
        # For the Hub, "**/" is at least one folder.
        return [*files, *(pattern.removeprefix("**/") for pattern in files if pattern.startswith("**/"))]

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder holds tables of the dataset."""
        return (folder.is_dir() and any(folder.rglob("state.json"))) or bool(self._tables(folder))

    def files(self, folder: Path) -> list[Path]:
        """The files of the split: parquet tables, or the folder that ``save_to_disk`` wrote.

        OutOfReachError if a file is missing; DataError if there are several tables of this name, or a saved split
        cannot be read.
        """
        states = sorted(path.parent for path in folder.rglob("state.json"))
        found = [state for state in states if state.name == self.split]
        if len(states) == 1 and not (states[0].parent / "dataset_dict.json").is_file():  # without splits
            found = states
        tables = self._tables(folder)
        if found:
            missing = [name for name in _saved_files(found[0], folder) if not (found[0] / name).is_file()]
        elif tables:
            missing = _missing_shards(tables)
        else:
            known = f"{' or '.join(self.patterns)} (source.data_files names other files)"
            missing = [self.split if states or self.saved else known]
        if missing:
            raise OutOfReachError(f"{self.where} is incomplete: {missing[0]} is missing in {folder}")
        if len(found) > 1 or (not found and not self.data_files and len({Path(name).parent for name in tables}) > 1):
            several = ", ".join([str(state.relative_to(folder)) for state in found] or tables)
            raise DataError(
                f"{self.where} has several splits '{self.split}' ({several:.200}); source.data_files chooses"
            )
        return found or [folder / name for name in tables]

    def _tables(self, folder: Path) -> list[str]:
        """Names of the files of the split, in the order of their numbers; a link without its file is none."""
        files = (path for path in folder.rglob("*") if path.suffix == ".parquet" and path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        return sorted(
            (name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)), key=_order
        )


def _order(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _missing_shards(tables: Sequence[str]) -> list[str]:
    """What the names of parquet tables say of files that are not there."""
    shards = Counter((name[: shard.start()], int(shard[1])) for name in tables if (shard := _SHARD.search(name)))
    return [f"{total - count} of {total} files {stem}-*" for (stem, total), count in shards.items() if count < total]


def _saved_files(split: Path, folder: Path) -> list[str]:
    """Names of the files of a saved split, which may not lead out of it, except by the links of the Hub's cache."""
    state = split / "state.json"
    try:
        names = [str(file["filename"]) for file in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state} cannot be read ({type(error).__name__}: {error})") from None
    for name in names:
        inside(split, name, str(state), roots_of(folder))
    return names


def open_table(options: HuggingfaceOptions, folder: Path) -> Dataset:
    """The wanted split of a dataset in a folder, opened by the library ``datasets``.

    OutOfReachError if a part of it is missing; DataError if it cannot be read.
    """
    import datasets

    files, shown = options.files(folder), not datasets.are_progress_bars_disabled()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with quiet_hub(offline=True):
            if files[0].is_dir():
                return datasets.load_from_disk(str(files[0]))
            for file in files:
                check_no_pointer(file)
            names = {options.split: [str(file) for file in files]}
            return datasets.load_dataset("parquet", data_files=names, split=options.split)
    except TtmbenchError:
        raise
    except Exception as error:
        why = one_line(str(error.__cause__ or error), 200)
        raise DataError(f"{options.where} cannot be loaded: {why}") from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def read_huggingface(request: SourceRequest) -> Loaded:
    """The groups of a dataset with image and caption columns, read by ``datasets``, and which were dropped.

    A cell holds an image or a caption, or a list of them. Files are fetched into the Hub's cache at their revision and
    read from there. OutOfReachError if the dataset is neither cached nor downloadable; DataError if it is not what the
    task file says.
    """
    options = read_hub_options(HuggingfaceOptions, request)
    folder, record = options.folder(request)
    import datasets

    where = options.where
    opened = table = open_table(options, folder)
    undecoded = datasets.Image(decode=False)
    listed = _image_columns(table.features, request.columns["images"])
    for column, is_list in listed.items():
        table = table.cast_column(column, type(table.features[column])(undecoded) if is_list else undecoded)

    def image(cell: Cell) -> ImageRef:
        if cell.column not in opened.features:
            known = ", ".join(opened.features)
            raise DataError(f"{where}: there is no column '{cell.column}'; it has {known}")
        if cell.column not in listed:
            raise DataError(
                f"{where}: '{cell.column}' holds {opened.features.arrow_schema.field(cell.column).type} and no images; "
                "an image column holds encoded images as bytes, or structs of bytes and path (here: "
                f"{', '.join(sorted(listed)) or 'none'}). A file of rows that names image files is read by kind: "
                "folder, annotations or hub_files"
            )
        item = cell.item or 0 if listed[cell.column] else None
        name = f"{cell.group_id}/{cell.column}" + (f"/{item}" if item else "")
        raw = partial(_raw, table, cell, item, folder)

        def shown() -> Image:
            content = raw()
            return open_image(io.BytesIO(content) if isinstance(content, bytes) else content)

        def read() -> bytes:
            content = raw()
            return content if isinstance(content, bytes) else content.read_bytes()

        return ImageRef(name, shown, read=read, exif=options.exif)

    texts = table.remove_columns(list(listed))
    groups = groups_from_rows(_rows(texts, options), replace(request, limit=None), image)
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
    options = read_hub_options(HuggingfaceOptions, request)

    def lacking(folder: Path) -> str | None:
        try:
            options.files(folder)
        except DataError as error:
            return str(error).removeprefix(f"{options.where} is ")
        return None

    return options.locations(request, lacking)


def _plain(caption: str) -> str:
    """A caption without case, extra spaces and final full stop, in which copies of a dataset differ."""
    return " ".join(caption.split()).rstrip(" .").casefold()


def _rows(table: Dataset, options: HuggingfaceOptions) -> Iterator[Row]:
    """The rows of a table, with lists for texts that are to be lists; DataError where bytes of a text are not UTF-8."""
    index = -1
    try:
        for index, cells in enumerate(table):
            row = Row(str(index), cells, index, options.where)
            lists = {column: listed(row, column) for column in options.literals}
            yield replace(row, cells={**cells, **lists})
    except UnicodeDecodeError:
        raise DataError(f"{options.where}: row {index + 1} has a text that is not UTF-8; save it as UTF-8") from None


def _image_columns(features: Features, wanted: str | Sequence[str]) -> dict[str, bool]:
    """Columns that hold images -> whether in lists.

    ``datasets`` marks image columns in a file's metadata. Without that, the task's image columns may hold bytes, or
    structs of ``bytes`` and optionally ``path``.
    """
    import datasets

    named = {wanted} if isinstance(wanted, str) else set(wanted)
    columns = {}
    for column, feature in features.items():
        for is_list, cell in ((False, feature), (True, getattr(feature, "feature", None))):
            kind = cell.get("bytes") if isinstance(cell, dict) and set(cell) <= {"bytes", "path"} else cell
            holds_bytes = column in named and getattr(kind, "dtype", None) in ("binary", "large_binary")
            if isinstance(cell, datasets.Image) or holds_bytes:
                columns[column] = is_list
    return columns


def _raw(table: Dataset, named: Cell, item: int | None, folder: Path) -> bytes | Path:
    """An encoded image of a table: its bytes, else its path, which must stay in the dataset's folder."""
    cell = table[named.row.index][named.column]
    if item is not None:
        cell = cell[item]
    if cell and cell.get("bytes"):
        content: bytes = cell["bytes"]
        return content
    if not cell or not cell.get("path"):
        raise DataError(f"{named.where} holds no image")
    return inside(folder, cell["path"], named.where, roots_of(folder))
