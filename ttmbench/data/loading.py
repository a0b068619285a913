"""What every reader of data shares: the request it gets, options, folders, safe paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ttmbench._util.images import Colors
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.types import Exif, Loaded, SourceRequest

if TYPE_CHECKING:
    from ttmbench.data.availability import DataLocation

HUB_KINDS = ("huggingface", "hub_files", "webdataset")  # of sources whose path is a dataset of the Hub or a folder
DATA_VARIABLE = "TTMBENCH_DATA"
Options = TypeVar("Options", bound=BaseModel)


def _cannot_read(source: Mapping[str, Any], request: SourceRequest) -> Loaded:
    raise UsageError(f"source '{source.get('kind')}' can be read through the registry only")


def _cannot_tell(source: Mapping[str, Any], request: SourceRequest) -> list[DataLocation]:
    raise UsageError(f"the places of source '{source.get('kind')}' are known to the registry only")


@dataclass(frozen=True)
class LoadRequest(SourceRequest):
    """A request as the registry makes it.

    Attributes:
        read: reads another source: (its ``source`` mapping, the request to change) -> what it gives. For kinds that
            combine others.
        places: the places of another source, with the same arguments.
    """

    read: Callable[[Mapping[str, Any], SourceRequest], Loaded] = _cannot_read
    places: Callable[[Mapping[str, Any], SourceRequest], list[DataLocation]] = _cannot_tell


class _File(BaseModel):
    """A file of rows. Its path alone may be written as a string."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    file: str

    @model_validator(mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class RowFile(_File):
    """One of several files of rows.

    Attributes:
        cells: further cells of all of its rows.
    """

    cells: dict[str, str] = {}


class JoinedFile(_File):
    """A file whose rows stand beside those of another, row by row.

    Attributes:
        same: columns that have to agree in both files.
    """

    same: list[str] = []


class FileOptions(BaseModel):
    """Options of files of rows beside images, the same wherever the files come from.

    Attributes:
        file: JSON, JSON lines, CSV or TSV of the rows.
        files: in its place, name -> one of several such files; ids of groups begin with the name.
        join: name -> a file with as many rows as ``file``, whose cells are further ones: ``name.column``.
        images: folder that image names start from, or folders in which an image is looked for one after the other.
        strip: left off the beginning of image names.
        fields: names of the cells, where rows are JSON lists.
        nested: rows lie in lists, and these in objects of any depth, whose keys become parts of ids.
        literals: columns whose texts are lists as Python or JSON writes them.
        rows_per_group: consecutive rows that make one group.
        exif: whether images are turned upright by their EXIF data.
        npy: order of the colours in images that are ``.npy`` arrays.
        missing: what becomes of a group with an image that is not there: it is an error (``refuse``), or it is left out
            and counted (``leave_out``).
        addresses: columns of the images' addresses, in the order of ``group.images``; for ``listed`` folders.
    """

    model_config = ConfigDict(extra="forbid")
    file: str | None = None
    files: dict[str, RowFile] = {}
    join: dict[str, JoinedFile] = {}
    images: str | list[str] = "."
    strip: str = ""
    fields: tuple[str, ...] = ()
    nested: bool = False
    literals: tuple[str, ...] = ()
    rows_per_group: int = Field(1, ge=1)
    exif: Exif = "apply"
    npy: Colors = "rgb"
    missing: Literal["refuse", "leave_out"] = "refuse"
    addresses: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_rows(self) -> FileOptions:
        if (self.file is None) == (not self.files):
            raise ValueError("needs either 'file' or 'files'")
        if not self.folders:
            raise ValueError("'images' should name a folder, or several")
        if self.join and self.file is None:
            raise ValueError("'join' goes with 'file': the rows of one file beside those of another")
        return self

    @property
    def parts(self) -> dict[str, RowFile]:
        """Name -> file of rows; one file alone has the empty name."""
        return self.files if self.file is None else {"": RowFile(file=self.file)}

    @property
    def row_files(self) -> list[str]:
        """Paths of the files of rows."""
        return [part.file for part in self.parts.values()] + [part.file for part in self.join.values()]

    @property
    def folders(self) -> list[str]:
        """Folders in which images are looked for."""
        return [self.images] if isinstance(self.images, str) else self.images

    def moved(self, paths: Mapping[str, str]) -> Self:
        """The same files and folders under other paths: path -> its new one."""
        files = {name: one.model_copy(update={"file": paths[one.file]}) for name, one in self.files.items()}
        join = {name: one.model_copy(update={"file": paths[one.file]}) for name, one in self.join.items()}
        file = None if self.file is None else paths[self.file]
        images = [paths[one] for one in self.folders]
        folders = images[0] if isinstance(self.images, str) else images
        return self.model_copy(update={"file": file, "files": files, "join": join, "images": folders})


def data_folder(given: Path | None = None) -> Path:
    """The data folder: as given, else the environment variable TTMBENCH_DATA, else one in the user's cache folder.

    Args:
        given: what the user asked for.

    Returns:
        The folder, which may not exist.
    """
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get(DATA_VARIABLE):
        return Path(os.environ[DATA_VARIABLE]).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("ttmbench", appauthor=False) / "data"


def given_data_folder(given: str | Path | None) -> Path:
    """As `data_folder`, for commands that read.

    Raises:
        UsageError: the folder that was asked for does not exist.
    """
    if given is not None and not Path(given).expanduser().is_dir():
        raise UsageError(f"--data_dir {given} is no folder; `ttmbench download TASKS --data_dir {given}` makes it")
    return data_folder(Path(given) if given is not None else None)


def read_options(model: type[Options], request: SourceRequest) -> Options:
    """The options of a source, checked.

    Args:
        model: what they may be.
        request: what the reader was asked for.

    Returns:
        The options.

    Raises:
        UsageError: an unknown, missing or wrong option, named.
    """
    try:
        return model(**request.options)
    except ValidationError as error:
        raise UsageError(f"source: {describe(error, model)}") from None


def read_hub_options(model: type[Options], request: SourceRequest) -> Options:
    """As `read_options`, for sources whose ``path`` is a dataset of the Hub or a folder, made absolute."""
    options: Any = read_options(model, request)
    found: Options = options.model_copy(update={"path": local_path(options.path, request.folder or Path())})
    return found


def is_local(path: str) -> bool:
    """Whether a source's ``path`` is a folder of this machine by its form, and no id of a dataset on the Hub.

    >>> [is_local(one) for one in ("./mine", "../mine", "~/mine", "/data/mine", "mine", "owner/mine")]
    [True, True, True, True, False, False]
    """
    return path in (".", "..") or path.startswith(_LOCAL) or Path(path).is_absolute()


_LOCAL = ("./", "../", "~", "/", ".\\", "..\\")


def local_path(path: str, base: Path) -> str:
    """A source's ``path``, made absolute if it is a folder of this machine.

    Args:
        path: id of a dataset on the Hub, or by `is_local` a folder.
        base: what a relative one starts from: the folder of the task file.

    Returns:
        The id as it is, or the absolute path of the folder.

    Raises:
        UsageError: an id by its form, and beside the task file there is a folder of that name.
    """
    if is_local(path):
        return os.path.abspath(base / Path(path).expanduser())  # noqa: PTH100 - links on the way stay what they are
    if (base / path).is_dir():
        raise UsageError(
            f"source.path: '{path}' is the id of a dataset on the Hub by its form, but there is a folder "
            f"{(base / path).absolute()}; write './{path}' for the folder, or rename it to read the dataset"
        )
    return path


def check_folder(path: str) -> None:
    """OutOfReachError if ``path`` is the absolute path of a folder and the folder does not exist."""
    if is_local(path) and not Path(path).is_dir():
        raise OutOfReachError(
            f"source.path: the folder {path} does not exist (relative paths start from the folder of the task file)"
        )


def below(base: Path, relative: str, what: str) -> Path:
    """A path of a task file below a folder. Links on the way are the user's own arrangement and may lead elsewhere.

    Args:
        base: the folder.
        relative: the path, with forward slashes.
        what: names the option, for the message.

    Returns:
        The path.

    Raises:
        UsageError: an absolute path, or one with ``..``.
    """
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or Path(relative).is_absolute():
        raise UsageError(f"{what}: '{relative}' leaves the folder {base}")
    return base / relative


def inside(base: Path, relative: str, what: str, roots: Sequence[Path] = ()) -> Path:
    """A path that data name below a folder, links followed; anything else is refused.

    Args:
        base: the folder that the path starts from.
        relative: the path.
        what: names the place, for the message.
        roots: where links may lead: one of these folders or anything below it. The base itself by default.

    Returns:
        The path, links followed.

    Raises:
        DataError: the path leaves its folder.
    """
    path = base / relative
    # Before links are followed: with wider roots, ".." must not reach what lies beside the base.
    lexical = _is_below(os.path.abspath(path), os.path.abspath(base))  # noqa: PTH100
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a null character
        raise DataError(f"{what}: {relative!r} is no usable path ({error})") from None
    ends, end = roots or (base,), str(resolved)
    # Most folders have no link on the way to them, and there is nothing to follow once for each image.
    if not lexical or not (
        any(_is_below(end, str(root)) for root in ends) or any(_is_below(end, str(root.resolve())) for root in ends)
    ):
        raise DataError(f"{what}: '{relative}' leaves the folder {base}")
    return resolved


def _is_below(path: str, folder: str) -> bool:
    """Whether an absolute path without ``..`` is a folder or something in it; text, since images are many."""
    path, folder = os.path.normcase(path), os.path.normcase(folder)
    return path == folder or path.startswith(os.path.join(folder, ""))  # noqa: PTH118
